"""GGUF files: one file with a model's facts, its tokenizer and its tensors, most of them in blocks of few bits.

Nothing in the header is believed: every length is held against the bytes that are left before anything is made for
it. Source: the GGUF specification, versions 2 and 3 (little-endian).
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.checkpoint.reading import NumberFile
from glassformer.errors import CheckpointError
from glassformer.ops.quantize import FORMATS, dequantise

TYPES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 30: "BF16",
}  # fmt: skip
"""Tensor formats by their number in a file."""
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
MAX_AXES, MAX_NESTING = 4, 4


@dataclass(frozen=True)
class Packed:
    """One tensor of a file: its shape as torch has it, its format and where its bytes begin."""

    shape: tuple[int, ...]
    format: str
    start: int
    dtype: torch.dtype = torch.float32  # what it is read as

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        kind = FORMATS[self.format]
        return self.numbers // kind.numbers * kind.bytes

    @property
    def stop(self) -> int:
        """As if its numbers lay there unpacked: what a reader of sizes wants to know."""
        return self.start + self.numbers * self.dtype.itemsize


class GgufFile(NumberFile):
    """An open GGUF file with a checked header: `facts`, and `entries` of which `tensor` unpacks one."""

    def __init__(self, path: Path):
        """Open and check; raises CheckpointError where the file is missing, cut off or says what can't be."""
        super().__init__(path)
        self._at = 0
        try:
            if not self.size:  # which can't be mapped
                raise self._damaged("it is empty")
            # Only the header is mapped, and only while it is read: it is walked in steps of a few bytes.
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as self._bytes:
                self.facts, self.entries = self._header()
        except OSError as error:
            self.close()
            raise CheckpointError(f"can't read: {error}", where=path) from None
        except BaseException:
            self.close()
            raise

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name, unpacked to float32 or `dtype`."""
        entry = self.entries[name]
        kind = FORMATS[entry.format]
        tensor = torch.empty(entry.shape, dtype=dtype or entry.dtype)
        self.convert(tensor, kind.bytes / kind.numbers, entry.start, lambda raw: dequantise(raw, entry.format))
        return tensor

    def let_go_of_lists(self) -> None:
        """Forget the facts that are lists: those of a vocabulary are as large as many a layer."""
        self.facts = {name: fact for name, fact in self.facts.items() if not isinstance(fact, list)}

    def _header(self) -> tuple[dict[str, Any], dict[str, Packed]]:
        if self._take(4) != b"GGUF":
            raise self._damaged("expected the letters GGUF at the start")
        version = self._number("I")
        if version not in (2, 3):
            raise self._damaged(f"expected version 2 or 3, found {version} (big-endian files are not read)")
        tensors, facts = self._count(24), self._count(13)
        table: dict[str, Any] = {}
        for _ in range(facts):
            name = self._text()
            table[name] = self._value(self._number("I"), 0)
        found = [self._tensor() for _ in range(tensors)]
        align = table.get("general.alignment", 32)
        if type(align) is not int or not 1 <= align <= 2**16:
            raise self._damaged(f"expected general.alignment to be a small number, found {str(align)[:40]}")
        origin = -(-self._at // align) * align
        entries: dict[str, Packed] = {}
        for name, shape, kind, offset in found:
            entry = Packed(shape, kind, origin + offset)
            if name in entries:
                raise self._damaged(f"two tensors are called {name[:80]!r}")
            if offset % align or entry.start + entry.bytes > len(self._bytes):
                late = entry.start + entry.bytes - len(self._bytes)
                raise self._damaged(f"tensor {name[:80]!r} ends {late} bytes late")
            entries[name] = entry
        return table, entries

    def _tensor(self) -> tuple[str, tuple[int, ...], str, int]:
        name, axes = self._text(), self._number("I")
        if axes > MAX_AXES:
            raise self._damaged(f"tensor {name[:80]!r} has {axes} axes, expected at most {MAX_AXES}")
        shape = tuple(self._number("Q") for _ in range(axes))[::-1]  # they count from the fastest axis
        number, offset = self._number("I"), self._number("Q")
        kind = TYPES.get(number)
        if kind is None:
            raise CheckpointError(
                f"tensor {name[:80]!r} is in format {number}, which is not read",
                where=self.path,
                do=f"take a file in one of {', '.join(FORMATS)}",
            )
        if math.prod(shape) >= 2**50 or (shape and shape[-1] % FORMATS[kind].numbers):
            raise self._damaged(f"tensor {name[:80]!r} of {kind} can't have the shape {list(shape)}")
        return name, shape, kind, offset

    def _value(self, kind: int, depth: int) -> Any:
        if kind in SCALARS:
            value = self._number(SCALARS[kind])
            # A float32 stands for the shortest number that it is the nearest to: 1e-5, not 9.99999974e-6.
            return float(str(np.float32(value))) if SCALARS[kind] == "f" else value
        if kind == TEXT:
            return self._text()
        if kind != ARRAY or depth >= MAX_NESTING:
            raise self._damaged("lists within lists within lists" if kind == ARRAY else f"a value of kind {kind}")
        inner = self._number("I")
        if inner in SCALARS:
            code = SCALARS[inner]
            count = self._count(struct.calcsize(code))
            return list(struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize(code))))
        if inner == TEXT:
            return self._texts(self._count(8))
        return [self._value(inner, depth + 1) for _ in range(self._count(8))]

    def _texts(self, count: int) -> list[str]:
        """Many texts at once: a vocabulary has 100,000, and each would take five calls."""
        raw, at, texts = self._bytes, self._at, list[str]()
        length = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                start = at + 8
                at = start + length(raw, at)[0]
                if at > len(raw):
                    raise self._damaged(f"a text announced at {start - 8} ends {at - len(raw)} bytes late")
                texts.append(raw[start:at].decode("utf-8"))
        except UnicodeDecodeError:
            raise self._damaged("a name or text that is no UTF-8") from None
        except struct.error:
            raise self._damaged(f"expected 8 bytes at {at}, {len(raw) - at} are left") from None
        self._at = at
        return texts

    def _text(self) -> str:
        try:
            return self._take(self._count(1)).decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged("a name or text that is no UTF-8") from None

    def _count(self, least: int) -> int:
        """A number of things that each need at least so many bytes."""
        count = self._number("Q")
        left = len(self._bytes) - self._at
        if count * least > left:
            raise self._damaged(f"{count} things of at least {least} bytes are announced, {left} bytes are left")
        return count

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(code)))[0]

    def _take(self, count: int) -> bytes:
        if count > len(self._bytes) - self._at:
            raise self._damaged(f"expected {count} bytes at {self._at}, {len(self._bytes) - self._at} are left")
        self._at += count
        return self._bytes[self._at - count : self._at]

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"damaged GGUF file: {what}", where=self.path, do="copy or download it again")
