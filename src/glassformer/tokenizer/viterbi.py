"""Unigram's search for the most probable pieces as SentencePiece does it: with sums of 32 bits.

The Rust library adds in 64 bits. Where two ways to cut a text are equally probable up to rounding, a model was trained
on SentencePiece's, so its own files are cut here. Source: EncodeOptimized in unigram_model.cc of SentencePiece 0.2.3.
"""

import math
from array import array
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from tokenizers import PreTokenizedString, Token, pre_tokenizers

from glassformer.errors import TokenizerError

SUMS, FLOAT32 = "unigram_sums", "float32"
"""How tokenizer_config.json asks for such sums; rules alone can't."""
PENALTY = 10.0
"""An unknown character is so much less probable than the least probable piece."""
NO_BEGINNING = (-1, 0.0)
START_ANEW = 100_000.0
"""A sum that has come so far from 0 starts there again: so large, it would have lost most of its digits."""


def sums_of_32_bits(tree: Mapping[str, Any], asked: object) -> pre_tokenizers.PreTokenizer | None:
    """What cuts a text in the place of the Unigram model in `tree`, the tree of a tokenizer.json, when that is `asked`.

    Raises:
        TokenizerError: other sums are asked for, or there is no Unigram model that knows what unknown characters are.
    """
    if asked is None:
        return None
    if asked != FLOAT32:
        raise TokenizerError(f"{SUMS} is {asked!r}; expected {FLOAT32!r}")
    model, split = tree["model"], tree["pre_tokenizer"] or {}
    if model["type"] != "Unigram" or model["unk_id"] is None:
        raise TokenizerError(f"{SUMS} is for a Unigram model with a token for unknown characters")
    special = [token["content"] for token in tree["added_tokens"] if token["special"]]
    # A Split only keeps Rust from finding such names in text. What puts the first space there has to stay.
    steps = [step for step in split.get("pretokenizers", [split]) if step.get("type") == "Metaspace"]
    spaces = [pre_tokenizers.Metaspace(step["replacement"], step["prepend_scheme"], step["split"]) for step in steps]
    return pre_tokenizers.Sequence([*spaces, pre_tokenizers.PreTokenizer.custom(Viterbi(model, special))])


class Viterbi:
    """Cuts text into the pieces of a vocabulary; the Rust library calls it before its own model, which finds no rest.

    Time grows with the length of the text times the number of pieces that begin at one character.
    """

    def __init__(self, model: Mapping[str, Any], never: Collection[str]):
        """`model` is the Unigram model of a tokenizer.json, `never` are those of its pieces that no text has."""
        pieces: list[tuple[str, float]] = model["vocab"]
        number = {text: index for index, (text, _) in enumerate(pieces)}
        self._unknown: int = model["unk_id"]
        self._unknown_score = float(np.float32(min(score for _, score in pieces)) - np.float32(PENALTY))
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        self._bytes = [number[name] for name in names] if model.get("byte_fallback") else None
        never = {*never, *(names if self._bytes else ())}
        self._longest = max(len(text) for text, _ in pieces)
        # Every beginning of a piece; where the beginning is a piece itself, its id and score.
        self._beginnings: dict[str, tuple[int, float] | None] = {}
        for index, (text, score) in enumerate(pieces):
            if text not in never:
                for end in range(1, len(text)):
                    self._beginnings.setdefault(text[:end], None)
                self._beginnings[text] = index, score

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """Find the tokens of every part of a text that is none yet."""
        text.tokenize(self._tokens)

    def _tokens(self, text: str) -> list[Token]:
        tokens, place = list[Token](), 0
        for piece, index in self.cut(text):
            if index is None and self._bytes is not None:
                for character in piece:
                    end = place + len(character.encode())
                    tokens += [Token(self._bytes[byte], character, (place, end)) for byte in character.encode()]
                    place = end
                continue
            end = place + len(piece.encode())
            tokens.append(Token(self._unknown if index is None else index, piece, (place, end)))
            place = end
        return tokens

    def cut(self, text: str) -> list[tuple[str, int | None]]:
        """The most probable pieces of `text` with their ids; None for each run of characters without a piece."""
        size, beginnings = len(text), self._beginnings
        # What an array of floats keeps is rounded to 32 bits; its last place is there to round with.
        best = array("f", [-math.inf]) * (size + 2)
        best[0] = 0.0
        back: list[tuple[int, int | None]] = [(0, None)] * (size + 1)
        for start in range(size):
            here, end, alone = best[start], start + 1, False
            if abs(here) > START_ANEW:
                for place in range(start, min(start + self._longest, size) + 1):
                    best[place] -= here
                here = 0.0
            while (found := beginnings.get(text[start:end], NO_BEGINNING)) is not NO_BEGINNING:
                if found is not None:
                    index, score = found
                    if here + score > best[end]:  # exactly, which says nothing when both round to the same
                        best[-1] = here + score
                        if best[-1] > best[end]:
                            best[end], back[end] = best[-1], (start, index)
                    alone = alone or end == start + 1
                if end == size:
                    break
                end += 1
            if not alone:
                best[-1] = here + self._unknown_score
                if best[-1] > best[start + 1]:
                    best[start + 1], back[start + 1] = best[-1], (start, None)
        return list(_joined(text, back))


def _joined(text: str, back: list[tuple[int, int | None]]) -> Iterator[tuple[str, int | None]]:
    """The pieces from the first to the last; unknown characters side by side are one."""
    cuts, end = list[tuple[int, int, int | None]](), len(text)
    while end:
        start, index = back[end]
        if index is None and cuts and cuts[-1][2] is None:
            cuts[-1] = start, cuts[-1][1], None
        else:
            cuts.append((start, end, index))
        end = start
    return ((text[start:end], index) for start, end, index in reversed(cuts))
