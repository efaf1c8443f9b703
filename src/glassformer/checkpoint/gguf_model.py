"""A GGUF file as a model of Hugging Face's: its facts as their config, its tensors under their names.

So the name tables of `families/` serve both. What the conversion to GGUF had changed is undone: the order of rows in
Llama's queries and keys, the one that was added to Gemma's norms.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoint.gguf import GgufFile, Packed
from glassformer.errors import CheckpointError, TokenizerError
from glassformer.tokenizer import Tokenizer
from glassformer.tokenizer.foreign import from_lists

FAMILY_OF = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3_text"}
"""The family of ours that each architecture of theirs is."""

WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA = {
    **LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
BESIDE = ("rope_freqs.weight",)
"""Tensors that are facts: they become part of the config."""

Undo = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class GgufModel:
    """What a file holds: `config` as the family reads it, `entries` and `tensor` under that family's names."""

    file: GgufFile
    config: dict[str, Any]
    names: Mapping[str, str]
    undo: Mapping[str, Undo]

    @property
    def entries(self) -> Mapping[str, Packed]:
        return {name: self.file.entries[there] for name, there in self.names.items()}

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        if name not in self.undo:
            return self.file.tensor(self.names[name], dtype)
        return self.undo[name](self.file.tensor(self.names[name])).to(dtype or torch.float32)

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.file.facts

    def take_tokenizer(self) -> Tokenizer | None:
        tokenizer = tokenizer_inside(self.file)
        self.file.let_go_of_lists()
        return tokenizer


def tokenizer_inside(file: GgufFile) -> Tokenizer | None:
    """The tokenizer that a GGUF file holds, if it holds one."""
    if "tokenizer.ggml.model" not in file.facts:
        return None
    try:
        return from_lists(file.facts)
    except TokenizerError as error:
        raise TokenizerError(error.what, where=file.path, do=error.do) from None


def gguf_model(file: GgufFile) -> GgufModel:
    """The model in a file.

    Raises:
        CheckpointError: an architecture that isn't read, or facts that are missing.
    """
    if not file.entries:
        raise CheckpointError("no tensors in this file", where=file.path, do="take a model: this is a vocabulary")
    kind = file.facts.get("general.architecture")
    if kind not in FAMILY_OF:
        raise CheckpointError(
            f"architecture {str(kind)[:80]!r} is not read from GGUF",
            where=file.path,
            do=f"known: {', '.join(FAMILY_OF)}",
        )
    try:
        config = _config(file, kind)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"a fact about the model is missing or odd: {error}", where=file.path) from None
    names = {_name(there, kind): there for there in file.entries if there not in BESIDE}
    return GgufModel(file, config, names, _undone(names, config, kind))


def _config(file: GgufFile, kind: str) -> dict[str, Any]:
    facts = file.facts

    def fact(name: str) -> Any:
        return facts.get(f"{kind}.{name}")

    heads = facts[f"{kind}.attention.head_count"]
    config = {
        "model_type": FAMILY_OF[kind],
        "vocab_size": file.entries["token_embd.weight"].shape[0],
        "hidden_size": facts[f"{kind}.embedding_length"],
        "intermediate_size": facts[f"{kind}.feed_forward_length"],
        "num_hidden_layers": facts[f"{kind}.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fact("attention.head_count_kv") or heads,
        "head_dim": fact("attention.key_length"),
        "max_position_embeddings": facts[f"{kind}.context_length"],
        "rms_norm_eps": facts[f"{kind}.attention.layer_norm_rms_epsilon"],
        "rope_theta": fact("rope.freq_base") or 10_000.0,
        "rope_scaling": _scaling(file, fact),
        "tie_word_embeddings": "output.weight" not in file.entries,
    }
    if kind in ("gemma2", "gemma3"):
        config |= _gemma(config, fact, largest={"gemma2": 46, "gemma3": 62}[kind])
    return config


def _gemma(config: dict[str, Any], fact: Callable[[str], Any], largest: int) -> dict[str, Any]:
    """Gemma's own: the largest model of a generation scales its scores by another width than the others."""
    width = config["head_dim"]
    if config["num_hidden_layers"] == largest:
        width = config["hidden_size"] // config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": width,
        "sliding_window": fact("attention.sliding_window"),
        "attn_logit_softcapping": fact("attn_logit_softcapping"),
        "final_logit_softcapping": fact("final_logit_softcapping"),
    }


def _scaling(file: GgufFile, fact: Callable[[str], Any]) -> dict[str, Any] | None:
    if "rope_freqs.weight" in file.entries:  # a divisor for each pair, as Llama 3 has them
        divisors = file.tensor("rope_freqs.weight").tolist()
        lists = {"short_factor": divisors, "long_factor": divisors}
        length = fact("context_length")
        return {"rope_type": "longrope", **lists, "original_max_position_embeddings": length, "factor": 1.0}
    kind = fact("rope.scaling.type")
    if kind in (None, "none"):
        return None
    scaling = {"rope_type": kind, "factor": fact("rope.scaling.factor")}
    original = fact("rope.scaling.original_context_length")
    return scaling | ({"original_max_position_embeddings": original} if original else {})


def _name(there: str, kind: str) -> str:
    """A tensor's name in the words of its family; one that has none keeps its own, and is found to be left over."""
    stem, _, end = there.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{end}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    names = GEMMA if kind.startswith("gemma") else LAYER
    if match and match[2] in names:
        return f"model.layers.{match[1]}.{names[match[2]]}.{end}"
    return there


def _undone(names: Mapping[str, str], config: Mapping[str, Any], kind: str) -> dict[str, Undo]:
    undo: dict[str, Undo] = {}
    for name in names:
        if kind == "llama" and re.search(r"self_attn\.[qk]_proj\.", name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            undo[name] = lambda tensor, heads=heads: unpermuted(tensor, heads)
        elif kind.startswith("gemma") and name.endswith("norm.weight"):
            undo[name] = lambda tensor: tensor - 1
    return undo


def unpermuted(tensor: Tensor, heads: int) -> Tensor:
    """Rows in neighbouring pairs, as Llama's first code had them, back to the two halves of each head."""
    apart = tensor.unflatten(0, (heads, -1, 2))  # [H, C/2, 2, …]
    return apart.transpose(1, 2).flatten(0, 2).contiguous()
