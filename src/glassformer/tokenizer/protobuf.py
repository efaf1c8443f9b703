"""A reader of protocol buffers, just large enough for SentencePiece's files: fields one by one, within bounds.

Format: https://protobuf.dev/programming-guides/encoding/
"""

import struct
from collections.abc import Iterator

from glassformer.errors import TokenizerError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | bytes | float


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message: number and value (varints as int, 32 bits as float, the rest as bytes).

    Raises:
        TokenizerError: when a length leads outside, a number doesn't end, or a kind of value doesn't exist.
    """
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == BYTES:
            size, place = _varint(message, place)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise TokenizerError(f"not a protocol buffer: no value is of kind {kind}")
        if size > len(message) - place:
            raise TokenizerError("the file ends in the middle of a field")
        raw = message[place : place + size]
        place += size
        yield key >> 3, struct.unpack("<f", raw)[0] if kind == FIXED32 else raw


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """An integer in groups of seven bits, the lowest first, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise TokenizerError("the file ends in the middle of a field")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise TokenizerError("not a protocol buffer: a number has more than ten bytes")
