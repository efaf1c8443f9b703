"""Clean text, if asked: one Unicode form (NFC) and no control characters, counting what changed."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from glassformer.train.data.read import Piece

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Unicode's category Cc but for tab, line feed and carriage return."""


@dataclass
class Changes:
    """What cleaning did: `normalised` counts documents."""

    normalised: int = 0
    control_characters: int = 0


def clean(pieces: Iterable[Piece], changes: Changes) -> Iterator[Piece]:
    """The pieces in NFC without control characters; `changes` counts along.

    A piece ends at a line break, with which no character composes, so that NFC by piece is NFC of the whole.
    """
    normalised = False
    for text, ends in pieces:
        text, removed = CONTROL.subn("", text)
        changes.control_characters += removed
        if not unicodedata.is_normalized("NFC", text):
            text, normalised = unicodedata.normalize("NFC", text), True
        yield Piece(text, ends)
        if ends:
            changes.normalised += normalised
            normalised = False
