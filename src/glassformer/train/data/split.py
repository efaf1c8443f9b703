"""Who trains and who is held out: by document, by its content; or, where that comes out uneven, at one character."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from glassformer.errors import DataError
from glassformer.train.data.clean import Changes
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
    """A first reading: one byte of memory a document (and, with `unique`, 16 bytes of digest), no text.

    Two documents of equal content share their fate, so that none is in both splits. `characters` go by fate.
    """

    share: float
    seed: int
    unique: bool
    changes: Changes
    fates: bytearray = field(default_factory=bytearray)
    characters: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(FATES, 0))
    empty: int = 0

    def look(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Passes the pieces on, and decides about each document at its end."""
        seen: set[bytes] = set()
        digest, length = self._digest(), 0
        for piece in pieces:
            digest.update(piece.text.encode())
            length += len(piece.text)
            if piece.ends:
                name = digest.digest()
                fate = self._fate(name, length, seen)
                self.fates.append(FATES.index(fate))
                self.characters[fate] += length
                digest, length = self._digest(), 0
            yield piece

    def _digest(self) -> "hashlib.blake2b":
        return hashlib.blake2b(digest_size=16, key=self.seed.to_bytes(8, "little"))

    def _fate(self, name: bytes, length: int, seen: set[bytes]) -> Fate:
        if length == 0:
            self.empty += 1
            return "dropped"
        if self.unique:
            if name in seen:
                self.changes.repeated += 1
                return "dropped"
            seen.add(name)
        return "validation" if int.from_bytes(name[:8], "little") < self.share * 2**64 else "train"


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
