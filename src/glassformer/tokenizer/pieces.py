"""What each token of a vocabulary adds to the text, as bytes: read off the decoder part of tokenizer.json.

Decoding is then joining bytes, which a stream can do one token at a time.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from glassformer.errors import TokenizerError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPELLED_APART = (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're")  # what WordPiece's clean-up joins


@dataclass(frozen=True)
class Pieces:
    """Bytes by token id: as the first token of a text, after other tokens, and without the joint between words."""

    first: list[bytes]
    later: list[bytes]
    own: list[bytes]


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level BPE (the alphabet of GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def read_pieces(tokens: list[str], special: Iterable[int], decoder: dict[str, Any] | None) -> Pieces:
    """The bytes of every token under a `decoder` as tokenizer.json describes it.

    Raises:
        TokenizerError: when the decoder is of a kind that doesn't decode token by token.
    """
    steps = _flatten(decoder)
    first = [_piece(token, steps, True) for token in tokens]
    later = [_piece(token, steps, False) for token in tokens]
    own = [piece[1:] if _joins(steps) and piece.startswith(b" ") else piece for piece in later]
    for token in special:
        own[token] = b""
    return Pieces(first, later, own)


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return [{"type": "Spaces"}]
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _flatten(part)]
    return [decoder]


def _joins(steps: list[dict[str, Any]]) -> bool:
    return steps[0]["type"] in ("WordPiece", "Spaces")


def _piece(token: str, steps: list[dict[str, Any]], first: bool) -> bytes:
    """One token through all steps; a byte token leaves them at once, since a byte isn't text yet."""
    fused = False
    for step in steps:
        kind = step["type"]
        if kind == "ByteFallback":
            if found := BYTE_TOKEN.fullmatch(token):
                return bytes.fromhex(found[1])
        elif kind == "ByteLevel":
            return _from_alphabet(token)
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip":
            token = token if fused and not first else _strip(token, step)
        elif kind in _STEPS:
            token = _STEPS[kind](token, step, first)
        else:
            raise TokenizerError(f"can't decode token by token with the decoder {kind!r}")
    return token.encode("utf-8")


def _from_alphabet(token: str) -> bytes:
    # An added token may hold characters outside the alphabet; then it stands for itself.
    found = [_ALPHABET.get(character) for character in token]
    return token.encode() if None in found else bytes(byte for byte in found if byte is not None)


def _strip(token: str, step: dict[str, Any]) -> str:
    start = 0
    while start < min(step["start"], len(token)) and token[start] == step["content"]:
        start += 1
    return token[start:]


def _space(token: str, step: dict[str, Any], first: bool) -> str:
    return token if first else f" {token}"


def _replace(token: str, step: dict[str, Any], first: bool) -> str:
    pattern = step["pattern"]
    if "String" not in pattern:
        raise TokenizerError("can't decode token by token with a decoder that replaces by regular expression")
    return token.replace(pattern["String"], step["content"])


def _metaspace(token: str, step: dict[str, Any], first: bool) -> str:
    return token.replace(step["replacement"], "" if first and step.get("prepend_scheme", "always") != "never" else " ")


def _wordpiece(token: str, step: dict[str, Any], first: bool) -> str:
    if not first:
        token = token[len(step["prefix"]) :] if token.startswith(step["prefix"]) else f" {token}"
    if step.get("cleanup"):
        for apart in SPELLED_APART:
            token = token.replace(apart, apart[1:])
    return token


_ALPHABET = byte_alphabet()
_STEPS: dict[str, Callable[[str, dict[str, Any], bool], str]] = {
    "Spaces": _space,
    "Replace": _replace,
    "Metaspace": _metaspace,
    "WordPiece": _wordpiece,
}
