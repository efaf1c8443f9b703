"""SentencePiece's .model files: what is in them, and the same tokenizer as rules of the Rust library.

Source of the fields: sentencepiece_model.proto of the SentencePiece project.
"""

import base64
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from glassformer.errors import TokenizerError
from glassformer.tokenizer.protobuf import Value, fields
from glassformer.tokenizer.tree import Tree, added, bpe, replaced, sequence

NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The kinds of pieces (GGUF files have the same)."""
UNIGRAM, BPE = 1, 2
SPACE = "▁"
UNSPELLABLE = " "
"""Before the name of a piece that text must never match: where pieces are looked up, every space has become ▁."""


class Piece(NamedTuple):
    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True)
class SpmModel:
    """A .model file. `charsmap` is its table of normalisation, empty where there is none."""

    pieces: tuple[Piece, ...]
    algorithm: int = UNIGRAM
    byte_fallback: bool = False
    space_behind: bool = False
    charsmap: bytes = b""
    prefix: bool = True
    collapse: bool = True
    escape: bool = True
    before: tuple[Tree, ...] = field(default=())
    """Steps of normalisation before those of the file."""
    prefix_first_only: bool = False
    """No ▁ before what follows a special token."""


def read_spm(content: bytes) -> SpmModel:
    """What a .model file says.

    Raises:
        TokenizerError: it is damaged, something else, or neither unigram nor BPE.
    """
    pieces: list[Piece] = []
    facts: dict[str, Any] = {}
    for number, value in fields(content):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value))
        elif number == 2 and isinstance(value, bytes):
            facts |= _chosen(value, {3: "algorithm", 24: "space_behind", 35: "byte_fallback"})
        elif number == 3 and isinstance(value, bytes):
            facts |= _chosen(value, {2: "charsmap", 3: "prefix", 4: "collapse", 5: "escape"})
    if not pieces:
        raise TokenizerError("not a model of SentencePiece: it has no pieces")
    algorithm = facts.pop("algorithm", UNIGRAM)
    if algorithm not in (UNIGRAM, BPE):
        raise TokenizerError(f"a SentencePiece model of kind {algorithm} is not read", do="unigram and BPE are")
    charsmap = facts.pop("charsmap", b"")
    if not isinstance(charsmap, bytes) or not all(isinstance(value, int) for value in facts.values()):
        raise TokenizerError("a field of the model has a value of the wrong kind")
    if charsmap:
        _check_charsmap(charsmap)
    flags: dict[str, Any] = {name: bool(value) for name, value in facts.items()}
    return SpmModel(tuple(pieces), algorithm, charsmap=charsmap, **flags)


def _piece(message: bytes) -> Piece:
    text, score, kind = b"", 0.0, NORMAL
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3 and isinstance(value, int):
            kind = value
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        raise TokenizerError(f"a piece is no UTF-8 text: {text[:40]!r}") from None
    if not decoded or not math.isfinite(score) or not NORMAL <= kind <= BYTE:
        raise TokenizerError(f"a piece that can't be: {decoded[:40]!r} with score {score}, kind {kind}")
    return Piece(decoded, score, kind)


def _chosen(message: bytes, names: dict[int, str]) -> dict[str, Value]:
    return {names[number]: value for number, value in fields(message) if number in names}


def _check_charsmap(charsmap: bytes) -> None:
    """Refuse a table in which a look-up could lead outside: the Rust library would break off.

    It is a length, a trie in a double array of 32-bit units (Darts), and the texts that its leaves point to.
    """
    damaged = TokenizerError("the table of normalisation is damaged", do="copy the file again")
    size = struct.unpack("<I", charsmap[:4])[0] if len(charsmap) > 4 else 0
    texts = charsmap[4 + size :]
    if not size or size % 1024 or size > len(charsmap) - 4 or not texts.endswith(b"\0"):
        raise damaged
    unit = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    offset = (unit >> 10) << ((unit & 0x200) >> 6)
    reached = (np.arange(len(unit)) ^ offset) | 0xFF
    leaf = unit >> 31 == 1
    if (reached[~leaf] >= len(unit)).any() or ((unit & 0x7FFFFFFF)[leaf] >= len(texts)).any():
        raise damaged
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError:
        raise damaged from None


def spm_tree(model: SpmModel, extra: Sequence[str] = ()) -> Tree:
    """The rules of a model, without what stands around a text; `extra` are special tokens behind its pieces.

    Raises:
        TokenizerError: a piece that occurs twice, or none for unknown characters.
    """
    if len({piece.text for piece in model.pieces}) != len(model.pieces):
        raise TokenizerError("a piece occurs twice")
    defined = [index for index, piece in enumerate(model.pieces) if piece.kind == DEFINED]
    bare = replace(model, prefix=False, space_behind=False)
    steps = _normalizers(bare, [])
    kept = [index for index in defined if _unchanged(model.pieces[index].text, steps)]
    # A symbol that normalising would change is cut out of the text before it; others afterwards, where ▁ stands.
    forced = [index for index in defined if model.algorithm == BPE or index not in kept]
    marks = [added(index, piece.text) for index, piece in enumerate(model.pieces) if piece.kind in (CONTROL, UNKNOWN)]
    marks += [added(index, model.pieces[index].text, special=False, normalized=index in kept) for index in forced]
    marks += [added(len(model.pieces) + place, name) for place, name in enumerate(extra)]
    symbols = [model.pieces[index].text for index in forced if index in kept]
    return {
        "added_tokens": sorted(marks, key=lambda mark: mark["id"]),
        "normalizer": sequence("normalizers", _normalizers(model, symbols)),
        "pre_tokenizer": sequence("pretokenizers", _pre_tokenizers(model)),
        "decoder": decoder(model.prefix, unspellable=any(piece.kind == UNUSED for piece in model.pieces)),
        "model": _unigram(model) if model.algorithm == UNIGRAM else _merging(model),
    }


def _unchanged(text: str, steps: list[Tree]) -> bool:
    if not steps:
        return True
    rust = tokenizers.Tokenizer(tokenizers.models.BPE())
    rust.normalizer = tokenizers.normalizers.Sequence([_normalizer(step) for step in steps])
    return rust.normalizer.normalize_str(text) == text


def _normalizer(step: Tree) -> Any:
    if step["type"] == "Precompiled":
        return tokenizers.normalizers.Precompiled(base64.b64decode(step["precompiled_charsmap"]))
    if step["type"] == "Replace":
        pattern = step["pattern"]
        way = pattern["String"] if "String" in pattern else tokenizers.Regex(pattern["Regex"])
        return tokenizers.normalizers.Replace(way, step["content"])
    return getattr(tokenizers.normalizers, step["type"])()


def _normalizers(model: SpmModel, symbols: Sequence[str]) -> list[Tree]:
    r"""What happens to a text before it is cut. Patterns speak of \A and \z: ^ and $ are those of lines here."""
    steps = list(model.before)
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.collapse:
        steps += [replaced(r"\A +| +\z", "", regex=True), replaced(" {2,}", " ", regex=True)]
    if model.escape:
        steps.append(replaced(" ", SPACE))
    space = SPACE if model.escape else " "
    if model.space_behind:
        return [*steps, replaced(r"(?<=[\s\S])\z", space, regex=True)] if model.prefix else steps
    if not model.prefix or model.prefix_first_only:
        return steps
    if not symbols:
        return [*steps, {"type": "Prepend", "prepend": space}]
    # The library normalises the symbols themselves as well, and they must stay what they are.
    alone = "|".join(re.escape(symbol) for symbol in symbols)
    return [*steps, replaced(rf"\A(?!(?:{alone})\z)", space, regex=True)]


def _pre_tokenizers(model: SpmModel) -> list[Tree]:
    steps: list[Tree] = []
    if model.prefix and model.prefix_first_only and not model.space_behind:
        # Puts one space before the first part of a text, even before another; then makes it a ▁.
        steps += [_metaspace(" ", "first"), _metaspace(SPACE, "never")]
    if model.algorithm == UNIGRAM and (pattern := _apart(model.pieces)):
        # The library would find them in text. Cut in two, they can't be.
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "MergedWithPrevious", "invert": False}
        steps.append(split)
    return steps


def _apart(pieces: Iterable[Piece]) -> str:
    """A pattern for the beginning of each name that text must not match, where the rest of the name follows.

    The cut lies where it can't part unknown characters, which are one token together.
    """
    letters = {piece.text for piece in pieces if len(piece.text) == 1}
    rests: dict[str, list[str]] = {}
    for name in (piece.text for piece in pieces if piece.kind in (CONTROL, UNKNOWN, BYTE)):
        cuts = [cut for cut in range(1, len(name)) if name[cut - 1] in letters or name[cut] in letters]
        if len(name) > 1:
            cut = cuts[0] if cuts else 1
            rests.setdefault(name[:cut], []).append(name[cut:])
    return "|".join(f"{re.escape(begin)}(?={'|'.join(map(re.escape, rests[begin]))})" for begin in sorted(rests))


def _metaspace(replacement: str, scheme: str) -> Tree:
    return {"type": "Metaspace", "replacement": replacement, "prepend_scheme": scheme, "split": False}


def decoder(prefix: bool, *, unspellable: bool = False) -> Tree:
    """Joins pieces: ▁ is a space, byte tokens are bytes, and the first space is the one that was put there."""
    steps: list[Tree] = [replaced(UNSPELLABLE, "")] if unspellable else []
    steps += [replaced(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _unigram(model: SpmModel) -> Tree:
    scores = [piece.score for piece in model.pieces if piece.kind == NORMAL] or [0.0]
    # An unknown character counts from the lowest score in the list, which must be that of a piece that text can have.
    lowest = min(scores)
    vocabulary: list[tuple[str, float]] = []
    for piece in model.pieces:
        text, score = piece.text, piece.score if piece.kind == NORMAL else lowest
        if piece.kind == UNUSED:
            text = UNSPELLABLE + text
        elif piece.kind == DEFINED:
            score = float(np.float32(0.1 * (len(text.encode()) - 1)))  # as SentencePiece scores them
        vocabulary.append((text, score))
    unknown = next((index for index, piece in enumerate(model.pieces) if piece.kind == UNKNOWN), None)
    if unknown is None:
        raise TokenizerError("the model has no piece for unknown characters")
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": model.byte_fallback}


def _merging(model: SpmModel) -> Tree:
    unknown = next((piece.text for piece in model.pieces if piece.kind == UNKNOWN), None)
    tokens = [piece.text for piece in model.pieces]
    merges = merges_by_score(tokens, [piece.score for piece in model.pieces], [piece.kind for piece in model.pieces])
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return bpe(vocabulary, merges, bytes_for_unknown=model.byte_fallback, unknown=unknown)


def merges_by_score(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[list[str]]:
    """Every way to make a token of two others, the best scored token first: the order in which SentencePiece merges."""
    known = {token: index for index, token in enumerate(tokens) if types[index] in (NORMAL, DEFINED, UNUSED)}
    found: list[tuple[float, int, int, str, str]] = []
    for token, index in known.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        for left, right in sorted(
            ((left, right) for left, right in pairs if left in known and right in known),
            key=lambda pair: (known[pair[0]], known[pair[1]]),
        ):
            found.append((scores[index], len(left), len(right), left, right))
    found.sort(key=lambda entry: entry[:3], reverse=True)
    return [[left, right] for *_, left, right in found]
