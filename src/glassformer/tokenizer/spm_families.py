"""What model families put around a SentencePiece model: T5, Llama, Gemma, XLM-RoBERTa, ALBERT, Marian."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.errors import TokenizerError
from glassformer.tokenizer.base import Tokenizer
from glassformer.tokenizer.bert import name_of
from glassformer.tokenizer.bytelevel import listed, read_vocabulary
from glassformer.tokenizer.sentencepiece import (
    CONTROL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    Piece,
    SpmModel,
    read_spm,
    spm_tree,
)
from glassformer.tokenizer.tree import ROLES, Tree, added, framing, rules
from glassformer.tokenizer.viterbi import FLOAT32, SUMS

T5 = ("t5", "mt5", "umt5")
EXTRA_IDS = 100
NAMES = {
    "xlm_roberta": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "albert": {"unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    "marian": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
} | {family: {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"} for family in T5}
USUAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def from_model(path: Path, config: Mapping[str, Any], family: str) -> Tokenizer:
    """The tokenizer of a .model; `family` is a model_type, "" for the file as it is, with nothing around a text.

    Raises:
        TokenizerError: a damaged file, or one that doesn't fit its family.
    """
    model = read_spm(path.read_bytes())
    if family == "xlm_roberta":
        model = _xlm(model)
    if family == "albert":
        model = replace(model, before=_albert(config))
    model = replace(model, prefix_first_only=config.get("legacy") is False and family in ("llama", *T5))
    names = {name for role in ROLES if (name := name_of(config.get(role)))} - {piece.text for piece in model.pieces}
    extra = _extra_ids(model, config) if family in T5 else []
    known = {name for _, name, _ in listed(config)}
    tree = spm_tree(model, extra or sorted(names - known))
    _join(tree, listed(config), len(model.pieces))
    ids = {piece.text: index for index, piece in enumerate(model.pieces)}
    ids |= {mark["content"]: mark["id"] for mark in tree["added_tokens"]}
    usual = {role: name for role, name in NAMES.get(family, USUAL).items() if name in ids}
    named = {**usual, **config}
    exact = {SUMS: FLOAT32} if model.algorithm == UNIGRAM else {}
    if single := _around(family, named):
        tree["post_processor"] = framing(*single, ids)
    return Tokenizer(rules(tree), named | exact)


def _extra_ids(model: SpmModel, config: Mapping[str, Any]) -> list[str]:
    """T5's sentinels, behind the pieces and counted backwards: <extra_id_0> is the last id."""
    count = config.get("extra_ids", EXTRA_IDS)
    count = count if type(count) is int and 0 <= count <= 10_000 else EXTRA_IDS
    held = any(piece.text == "<extra_id_0>" for piece in model.pieces)
    return [] if held else [f"<extra_id_{number}>" for number in reversed(range(count))]


def _join(tree: Tree, tokens: list[tuple[int, str, dict[str, bool]]], pieces: int) -> None:
    """Tokens that only the config lists, behind the pieces; and its flags for those that are there."""
    marks = {mark["content"]: mark for mark in tree["added_tokens"]}
    for index, name, flags in tokens:
        if name in marks:
            marks[name] |= flags
        else:
            marks[name] = added(index, name, **flags)
    tree["added_tokens"] = sorted(marks.values(), key=lambda mark: mark["id"])
    behind = [mark["id"] for mark in tree["added_tokens"] if mark["id"] >= pieces]
    if behind != list(range(pieces, pieces + len(behind))):
        raise TokenizerError(f"the added tokens should have the ids from {pieces} on, one after the other")


def _around(family: str, named: Mapping[str, Any]) -> tuple[str, str] | None:
    """What stands around one text and around two."""
    begin, end = name_of(named.get("bos_token")) or "", name_of(named.get("eos_token")) or ""
    if family in T5 or family == "marian":
        return f"$A {end}", f"$A {end} $B {end}" if family in T5 else f"$A $B {end}"
    if family == "albert":
        cls, sep = name_of(named.get("cls_token")), name_of(named.get("sep_token"))
        return (f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1") if cls and sep else None
    if family == "xlm_roberta":
        return f"{begin} $A {end}", f"{begin} $A {end} {end} $B {end}"
    begins = named.get("add_bos_token", family in ("llama", "gemma", "gemma2", "mistral"))
    begin, end = begin if begins is True else "", end if named.get("add_eos_token") is True else ""
    return (
        (f"{begin} $A {end}", f"{begin} $A {end} {begin}:1 $B:1 {end}:1".replace(" :1", " ")) if begin or end else None
    )


def _xlm(model: SpmModel) -> SpmModel:
    """XLM-RoBERTa's pieces are in fairseq's order: <s> <pad> </s> <unk>, then those of the file from the fourth."""
    first = [
        Piece("<s>", 0, CONTROL),
        Piece("<pad>", 0, CONTROL),
        Piece("</s>", 0, CONTROL),
        Piece("<unk>", 0, UNKNOWN),
    ]
    return replace(model, pieces=(*first, *model.pieces[3:], Piece("<mask>", 0, CONTROL)))


def _albert(config: Mapping[str, Any]) -> tuple[Tree, ...]:
    steps: list[Tree] = [{"type": "Replace", "pattern": {"String": mark}, "content": '"'} for mark in ("``", "''")]
    if config.get("keep_accents") is not True:
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if config.get("do_lower_case", True) is not False:
        steps.append({"type": "Lowercase"})
    return tuple(steps)


def from_marian(folder: Path, target: bool, config: Mapping[str, Any]) -> Tokenizer:
    """Marian's: the pieces of source.spm (or target.spm) with the ids of vocab.json, which both languages share.

    A piece that has no id there is spelled by smaller ones.
    """
    name = "target.spm" if target else "source.spm"
    if not (folder / name).is_file():
        raise TokenizerError(f"{name} is missing", where=folder, do="copy the whole folder")
    model, ids = read_spm((folder / name).read_bytes()), read_vocabulary(folder / "vocab.json")
    if sorted(ids.values()) != list(range(len(ids))):
        raise TokenizerError(f"expected the ids from 0 to {len(ids) - 1}", where=folder / "vocab.json")
    if model.algorithm != UNIGRAM:
        raise TokenizerError("expected a unigram model", where=folder / name)
    own = {piece.text: piece for piece in model.pieces}
    special = {NAMES["marian"][role] for role in NAMES["marian"]} & set(ids)
    pieces: list[Piece] = []
    for text in sorted(ids, key=ids.__getitem__):
        kind = (UNKNOWN if text == "<unk>" else CONTROL) if text in special else UNUSED
        pieces.append(own[text] if text in own and text not in special else Piece(text, 0, kind))
    named = {**NAMES["marian"], **config}
    tree = spm_tree(replace(model, pieces=tuple(pieces)))
    tree["post_processor"] = framing("$A </s>", "$A $B </s>", ids)
    return Tokenizer(rules(tree), named | {SUMS: FLOAT32})
