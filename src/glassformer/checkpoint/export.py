"""Export: a model of ours as a folder that Hugging Face's transformers load, with equal logits."""

import json
from pathlib import Path
from typing import Any

import torch

from glassformer.checkpoint.atomic import write_folder
from glassformer.checkpoint.families import FAMILIES
from glassformer.checkpoint.families.base import Family, MisfitError
from glassformer.checkpoint.families.encoders import SENTENCES
from glassformer.checkpoint.rename import exported
from glassformer.checkpoint.sentences import FILES as SENTENCE_FILES
from glassformer.checkpoint.sentences import write_sentence_files
from glassformer.checkpoint.tensors import save_tensors
from glassformer.errors import CheckpointError
from glassformer.model.embedding import PooledHeadSpec
from glassformer.model.transformer import Transformer, TransformerSpec
from glassformer.tokenizer import Tokenizer

# What an export writes, and what transformers may have added: only a folder of nothing else is ever replaced.
OURS = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    *SENTENCE_FILES,
}


def export_folder(model: Transformer, tokenizer: Tokenizer | None, target: Path, family: str = "auto") -> Family:
    """Write `model` in its own number format for `AutoModelForCausalLM`, and its tokenizer for `AutoTokenizer`.

    `family` is a name of `FAMILIES`, or "auto" for the first that can express the model; the one taken is returned.

    Raises:
        CheckpointError: the fields that the family can't express, a target with other files in it, a full disk.
    """
    chosen, config = _choose(model.spec, family)
    _refuse_foreign(target)
    dtype = next(model.parameters()).dtype
    # Their bare models, which have no head of their own, leave out the prefix.
    bare = chosen.prefix if model.spec.head.kind == "pooled" else ""
    tensors = {
        name.removeprefix(bare): tensor.to(dtype)
        for name, tensor in exported(chosen.rules(model.spec), model.state_dict()).items()
    }
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            what = f"{name} holds values that are not finite in {_name(dtype)}"
            raise CheckpointError(what, where=target, do="choose another number format, or a sound checkpoint")

    def write(folder: Path) -> None:
        ends = _special_ids(tokenizer, folder)
        # transformers never trains the embedding of the padding token: where that is the end of a text, it must be.
        padding = None if ends["pad_token_id"] == ends["eos_token_id"] else ends["pad_token_id"]
        named = {**ends, "pad_token_id": padding}
        known = {name: token for name, token in named.items() if token is not None or name not in config}
        _write(folder / "config.json", {**config, **known, "dtype": _name(dtype)})
        if SENTENCES in config and isinstance(head := model.spec.head, PooledHeadSpec):
            write_sentence_files(folder, head, model.spec.width, model.spec.context)
        _write(folder / "generation_config.json", ends)
        save_tensors(folder / "model.safetensors", tensors, {"format": "pt"})

    write_folder(target, write)
    return chosen


def _choose(spec: TransformerSpec, name: str) -> tuple[Family, dict[str, Any]]:
    if name != "auto" and name not in FAMILIES:
        raise CheckpointError(f"unknown family {name!r}", do=f"known: auto, {', '.join(FAMILIES)}")
    reasons: list[tuple[int, str]] = []
    for family in FAMILIES.values() if name == "auto" else [FAMILIES[name]]:
        try:
            return family, family.config(spec)
        except MisfitError as error:
            reasons.append((error.fields, error.what))
        except CheckpointError:
            if name != "auto":
                raise
    nearest = " | ".join(reason for _, reason in sorted(reasons)[:2])
    raise CheckpointError(nearest, do="only what an architecture has can be exported to it")


def _refuse_foreign(target: Path) -> None:
    if target.is_dir() and (foreign := sorted({path.name for path in target.iterdir()} - OURS)):
        names = ", ".join(foreign[:3]) + (" …" if len(foreign) > 3 else "")
        raise CheckpointError(
            f"the folder holds other files ({names}), an export would replace them",
            where=target,
            do="give a new or empty folder",
        )


def _special_ids(tokenizer: Tokenizer | None, folder: Path) -> dict[str, int | None]:
    """Write the tokenizer and say which ids begin, end and pad a text, as its tokenizer_config.json names them."""
    named: dict[str, Any] = {}
    if tokenizer is not None:
        tokenizer.save(folder)
        named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    ids: dict[str, int | None] = {}
    for role in ("bos", "eos", "pad"):
        token = named.get(f"{role}_token")
        name = token.get("content") if isinstance(token, dict) else token
        ids[f"{role}_token_id"] = tokenizer.special.get(name) if tokenizer and isinstance(name, str) else None
    return ids


def _write(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
