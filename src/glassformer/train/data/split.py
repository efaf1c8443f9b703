"""Who trains and who is held out: by document, by its content; or, where that comes out uneven, at one character."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

import numpy as np

from glassformer.errors import DataError
from glassformer.train.data.meta import Split
from glassformer.train.data.read import Piece

Fate = Literal["train", "validation", "dropped"]
FATES: tuple[Fate, ...] = ("train", "validation", "dropped")


class Routed(NamedTuple):
    """A piece on its way to a split; `ends`: the document ends with it."""

    split: Split
    text: str
    ends: bool


@dataclass
class Survey:
    """A first reading: one byte of memory a document (and 16 with `unique`, to find repeated ones), no text.

    Two documents of equal content share their fate, so that none is in both splits. `characters` go by fate; `size` is
    the UTF-8 bytes looked at; `repeated` is known after `drop_repeated`.
    """

    share: float
    seed: int
    unique: bool
    fates: bytearray = field(default_factory=bytearray)
    characters: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(FATES, 0))
    size: int = 0
    empty: int = 0
    repeated: int = 0
    _digests: "array[int]" = field(default_factory=lambda: array("Q"))
    _lengths: "array[int]" = field(default_factory=lambda: array("Q"))

    def look(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Passes the pieces on, and decides about each document at its end."""
        fresh = hashlib.blake2b(digest_size=8, key=self.seed.to_bytes(8, "little"))
        digest, length = fresh.copy(), 0
        for piece in pieces:
            content = piece.text.encode()
            digest.update(content)
            self.size += len(content)
            length += len(piece.text)
            if piece.ends:
                self._decide(int.from_bytes(digest.digest(), "little"), length)
                digest, length = fresh.copy(), 0
            yield piece

    def _decide(self, digest: int, length: int) -> None:
        fate: Fate = "validation" if digest < self.share * 2**64 else "train"
        if length == 0:
            fate = "dropped"
            self.empty += 1
        self.fates.append(FATES.index(fate))
        self.characters[fate] += length
        if self.unique:
            self._digests.append(digest)
            self._lengths.append(length)

    def drop_repeated(self) -> None:
        """Drops every document whose 64-bit digest an earlier one had, when `unique`."""
        digests, lengths = np.frombuffer(self._digests, np.uint64), np.frombuffer(self._lengths, np.uint64)
        order = np.argsort(digests, kind="stable")
        again = order[1:][digests[order[1:]] == digests[order[:-1]]]
        for number in again[lengths[again] > 0].tolist():
            length = int(lengths[number])
            self.characters[FATES[self.fates[number]]] -= length
            self.characters["dropped"] += length
            self.fates[number] = FATES.index("dropped")
            self.repeated += 1


@dataclass(frozen=True)
class Plan:
    """The fate of every document, or the character of all kept text (`cut`) at which validation begins.

    stream: there is one document only, so that no end tokens are needed.
    """

    fates: bytearray
    characters: int
    cut: int | None
    stream: bool
    rule: str

    def route(self, pieces: Iterable[Piece]) -> Iterator[Routed]:
        """The pieces of kept documents with their split, in the order of the survey."""
        number = done = 0
        for text, ends in pieces:
            fate = FATES[self.fates[number]] if number < len(self.fates) else "dropped"
            number += ends
            if fate == "dropped":
                continue
            if self.cut is None:
                yield Routed(cast(Split, fate), text, ends)
            else:
                yield from self._divide(text, ends, min(max(self.cut - done, 0), len(text)), late=done > self.cut)
            done += len(text)
        if (number, done) != (len(self.fates), self.characters):
            raise DataError("the text changed while it was being read", do="run again when nothing writes to it")

    def _divide(self, text: str, ends: bool, before: int, late: bool) -> Iterator[Routed]:
        """A piece at the cut: `before` characters still train. An empty piece only ends its document."""
        if before or (not text and not late):
            yield Routed("train", text[:before], ends and before == len(text))
        if before < len(text) or (not text and late):
            yield Routed("validation", text[before:], ends)


def decide(survey: Survey) -> Plan:
    """The split: by document where that gives between half and double the share asked for, else at one character.

    Raises:
        DataError: too little text to hold any out.
    """
    train, validation = survey.characters["train"], survey.characters["validation"]
    kept = len(survey.fates) - survey.fates.count(FATES.index("dropped"))
    total = train + validation
    if total == 0:
        raise DataError("no text: every document is empty", where="prepare", do="name files that hold text")
    if survey.share == 0 or (train and total * survey.share / 2 <= validation <= total * survey.share * 2):
        rule = "by document" if survey.share else "nothing held out"
        return Plan(survey.fates, total, None, stream=kept == 1, rule=rule)
    cut = int(total * (1 - survey.share))
    if not 0 < cut < total:
        raise DataError(
            f"{total} characters are too few to hold out {survey.share:g} of them", where="prepare", do="add text"
        )
    what = "the document" if kept == 1 else f"all {kept} documents"
    return Plan(survey.fates, total, cut, kept == 1, rule=f"the last {total - cut:,} characters of {what}")
