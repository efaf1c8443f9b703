"""GGUF files: written by the library of the project that made the format, read here; and files that lie."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from small_models import logits_of, random_model, tokens_for

from data_sets import data_set
from glassformer.checkpoint import load_model
from glassformer.checkpoint.families import FAMILIES
from glassformer.checkpoint.gguf import GgufFile
from glassformer.checkpoint.gguf_model import FAMILY_OF, GEMMA, LAYER, WHOLE
from glassformer.checkpoint.rename import exported
from glassformer.errors import CheckpointError, TokenizerError
from glassformer.model import Transformer
from glassformer.tokenizer import train_tokenizer

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 7, "attn_logit_softcapping": 50.0,
               "final_logit_softcapping": 30.0, "tie_word_embeddings": True},
    "gemma3": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 7, "tie_word_embeddings": True,
               "rope_theta": 1e6},
}  # fmt: skip
BASE = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 24, "rms_norm_eps": 1e-5, "rope_theta": 5e4,
    "tie_word_embeddings": False,
}  # fmt: skip


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """What the conversion to GGUF does to the rows of Llama's queries and keys."""
    apart = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return apart.swapaxes(1, 2).reshape(weight.shape)


def write_file(path: Path, kind: str, config: dict[str, Any], model: Transformer, tokenizer: Any = None) -> None:
    """A model of ours as the conversion of its family would write it."""
    writer = gguf.GGUFWriter(path, kind)
    facts: list[tuple[Callable[..., None], Any]] = [
        (writer.add_context_length, config["max_position_embeddings"]),
        (writer.add_embedding_length, config["hidden_size"]),
        (writer.add_block_count, config["num_hidden_layers"]),
        (writer.add_feed_forward_length, config["intermediate_size"]),
        (writer.add_head_count, config["num_attention_heads"]),
        (writer.add_head_count_kv, config["num_key_value_heads"]),
        (writer.add_layer_norm_rms_eps, config["rms_norm_eps"]),
        (writer.add_rope_freq_base, config["rope_theta"]),
    ]
    if "head_dim" in config:
        facts.append((writer.add_key_length, config["head_dim"]))
    if "sliding_window" in config:
        facts.append((writer.add_sliding_window, config["sliding_window"]))
    if "attn_logit_softcapping" in config:
        facts.append((writer.add_attn_logit_softcapping, config["attn_logit_softcapping"]))
        facts.append((writer.add_final_logit_softcapping, config["final_logit_softcapping"]))
    for add, value in facts:
        add(value)
    if tokenizer is not None:
        add_tokenizer(writer, tokenizer)
    layer = {theirs: ours for ours, theirs in (GEMMA if kind.startswith("gemma") else LAYER).items()}
    whole = {theirs: ours for ours, theirs in WHOLE.items()}
    for name, tensor in exported(FAMILIES[FAMILY_OF[kind]].rules(model.spec), model.state_dict()).items():
        value, (stem, end) = tensor.numpy(), name.rsplit(".", 1)
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            value = permuted(value, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            value = value + 1
        if stem in whole:
            writer.add_tensor(f"{whole[stem]}.{end}", value)
        else:
            _, _, index, rest = stem.split(".", 3)
            writer.add_tensor(f"blk.{index}.{layer[rest]}.{end}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, tokenizer: Any) -> None:
    model = json.loads(tokenizer._rules)["model"]
    tokens = [tokenizer._plain.id_to_token(index) for index in range(tokenizer.vocabulary)]
    special = tokenizer.special_ids
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if index in special else 1 for index in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(tokenizer.eos)


def a_model(kind: str) -> tuple[dict[str, Any], Transformer]:
    config = BASE | CONFIGS[kind]
    return config, random_model(FAMILIES[FAMILY_OF[kind]].spec(config))


def test_every_architecture_is_tested():
    assert set(CONFIGS) == set(FAMILY_OF)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_file_gives_the_logits_of_the_model_it_was_made_of(kind: str, tmp_path: Path):
    config, model = a_model(kind)
    write_file(tmp_path / "m.gguf", kind, config, model)
    loaded = load_model(tmp_path / "m.gguf")
    tokens = tokens_for(model.spec)
    torch.testing.assert_close(logits_of(loaded.model, tokens), logits_of(model, tokens), atol=1e-5, rtol=0)
    assert loaded.spec == model.spec
    assert loaded.name == "m"


def test_the_tokenizer_inside_gives_the_ids_of_the_one_it_was_made_of(tmp_path: Path):
    text = "今天天气真好, the weather is fine today; don't 123 worry 👩‍👩‍👧\r\n  twice" * 3
    tokenizer = train_tokenizer("bpe", [text], 290)
    config, model = a_model("llama")
    config["vocab_size"] = tokenizer.vocabulary
    model = random_model(FAMILIES["llama"].spec(config))
    write_file(tmp_path / "m.gguf", "llama", config, model, tokenizer)
    inside = load_model(tmp_path / "m.gguf").tokenizer
    assert inside is not None
    assert inside.decode(inside.encode(text)) == text
    plain = "the weather is fine"
    assert inside.decode(inside.encode(plain)) == plain
    assert inside.eos == tokenizer.eos


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", "Q5_1", "F16"])
def test_tensors_in_blocks_are_unpacked(format: str, tmp_path: Path):
    kind = gguf.GGMLQuantizationType[format]
    matrix = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    packed = gguf.quants.quantize(matrix, kind)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(tmp_path / "m.gguf") as file:
        assert file.entries["a.weight"].shape == (4, 64)
        assert np.array_equal(file.tensor("a.weight").numpy(), gguf.quants.dequantize(packed, kind))


def small_file(path: Path) -> bytes:
    config, model = a_model("llama")
    write_file(path, "llama", config, model)
    return path.read_bytes()


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises((CheckpointError, TokenizerError)) as caught:
        load_model(path)
    return str(caught.value)


def test_files_that_lie_are_refused_in_a_line(tmp_path: Path):
    whole, path = small_file(tmp_path / "whole.gguf"), tmp_path / "m.gguf"
    assert "GGUF" in refused(path, b"not a model")
    assert "it is empty" in refused(path, b"")
    assert "version" in refused(path, whole[:4] + struct.pack("<I", 99) + whole[8:])
    assert "announced" in refused(path, whole[:8] + struct.pack("<Q", 2**60) + whole[16:])
    assert "announced" in refused(path, whole[:16] + struct.pack("<Q", 2**40) + whole[24:])
    assert "announced" in refused(path, whole[:24] + struct.pack("<Q", 2**62) + whole[32:])
    assert "late" in refused(path, whole[:-1000])
    assert "announced" in refused(path, whole[:100])
    assert "expected 4 bytes" in refused(path, whole[:6])


@pytest.mark.real
def test_a_vocabulary_alone_is_no_model():
    with pytest.raises(CheckpointError, match="no tensors in this file"):
        load_model(data_set("llamacpp-vocab") / "ggml-vocab-phi-3.gguf")


def test_lists_within_lists_end_soon(tmp_path: Path):
    nested = b"".join(struct.pack("<IQ", 9, 1) for _ in range(1000))
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + nested
    assert "lists within lists" in refused(tmp_path / "m.gguf", content)


def test_any_byte_may_be_wrong(tmp_path: Path):
    """A changed byte in the header gives a model or an error of one line, never anything else."""
    whole, path = small_file(tmp_path / "whole.gguf"), tmp_path / "m.gguf"
    chance = random.Random(0)
    for _ in range(150):
        content = bytearray(whole)
        content[chance.randrange(1200)] = chance.randrange(256)
        path.write_bytes(content)
        messages = []
        try:
            load_model(path)
        except (CheckpointError, TokenizerError) as error:
            messages.append(str(error))
        assert not any("\n" in message for message in messages)


def test_leftovers_and_unknown_architectures_are_named(tmp_path: Path):
    config, model = a_model("llama")
    write_file(tmp_path / "m.gguf", "llama", config, model)
    content = (tmp_path / "m.gguf").read_bytes()
    message = refused(tmp_path / "other.gguf", content.replace(b"blk.1.ffn_up", b"blk.1.ffn_no"))
    assert "1 tensor missing: model.layers.1.mlp.up_proj.weight" in message
    assert "1 tensor unexpected: blk.1.ffn_no.weight" in message
    unknown = refused(tmp_path / "other.gguf", content.replace(b"llama", b"lambd"))
    assert "architecture 'lambd' is not read from GGUF" in unknown
