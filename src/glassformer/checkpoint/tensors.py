"""Tensors on disk, in the safetensors format: 8 bytes of header length, a JSON header, the raw numbers.

The header of a file is checked in full before anything is allocated for it: a damaged or malicious file is an error
that says what was expected and found.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoint.document import parse
from glassformer.checkpoint.reading import NumberFile
from glassformer.errors import CheckpointError

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The number formats of safetensors that torch computes with."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}

LFS = b"version https://git-lfs"
MAX_HEADER = 16 * 2**20  # bytes; the headers of the largest published models have about one million
MAX_AXES = 16


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its type, its shape and the bytes of the file it fills."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class TensorFile(NumberFile):
    """An open safetensors file with a checked header. `entries` says what is in it; `tensor` takes one tensor out."""

    def __init__(self, path: Path, *, maps: bool = False):
        """Open and check; raises CheckpointError where the file is missing, cut off or says what can't be."""
        super().__init__(path, maps=maps)
        try:
            self.entries, self.metadata = self._header()
        except BaseException:
            self.close()
            raise

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name; numbers with a fraction as `dtype`."""
        entry = self.entries[name]
        return self.read(entry.shape, entry.dtype, entry.start, dtype)

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of the tensor of this name, some at a time."""
        return self.span(self.entries[name].start, self.entries[name].stop)

    def _header(self) -> tuple[dict[str, Entry], dict[str, str]]:
        if self.size < 8:
            raise _damaged(self.path, f"expected at least 8 bytes, found {self.size}")
        prefix = bytearray(8)
        self.fill(memoryview(prefix), 0)
        if prefix == LFS[:8]:
            what = "a pointer of Git LFS lies in the place of the weights"
            raise CheckpointError(what, where=self.path, do="fetch them: git lfs pull")
        length = int.from_bytes(prefix, "little")
        if length > min(MAX_HEADER, self.size - 8):
            limit = min(MAX_HEADER, self.size - 8)
            raise _damaged(self.path, f"expected a header of at most {limit} bytes, the file claims {length}")
        text = bytearray(length)
        self.fill(memoryview(text), 8)
        header = parse(bytes(text), where=self.path)
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise _damaged(self.path, "expected __metadata__ to map names to texts")
        entries = {name: self._entry(name, facts, 8 + length) for name, facts in header.items()}
        self._check_cover(entries, 8 + length)
        return entries, metadata

    def _entry(self, name: str, facts: Any, origin: int) -> Entry:
        def refuse(what: str) -> CheckpointError:
            return _damaged(self.path, f"tensor {name[:80]!r}: {what}")

        if not isinstance(facts, dict) or facts.keys() != {"dtype", "shape", "data_offsets"}:
            raise refuse("expected dtype, shape and data_offsets")
        dtype, shape, offsets = facts["dtype"], facts["shape"], facts["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise refuse(f"expected a dtype of {', '.join(DTYPES)}, found {str(dtype)[:40]!r}")
        if not _sizes(shape):
            raise refuse(f"expected a shape of whole numbers from 0 on, found {str(shape)[:80]}")
        if len(shape) > MAX_AXES or math.prod(max(size, 1) for size in shape) >= 2**63:
            raise refuse(f"expected a shape of at most {MAX_AXES} sizes, found {str(shape)[:80]}")
        if not _sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= self.size - origin:
            raise refuse(f"expected two offsets within {self.size - origin} bytes, found {str(offsets)[:80]}")
        needed = math.prod(shape) * DTYPES[dtype].itemsize
        if needed != offsets[1] - offsets[0]:
            raise refuse(f"{dtype} {shape} needs {needed} bytes, its offsets give {offsets[1] - offsets[0]}")
        return Entry(DTYPES[dtype], tuple(shape), origin + offsets[0], origin + offsets[1])

    def _check_cover(self, entries: dict[str, Entry], origin: int) -> None:
        """Every byte after the header belongs to exactly one tensor."""
        end = origin
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
            if entry.start != end:
                how = (
                    "overlaps the tensor before it" if entry.start < end else f"leaves {entry.start - end} bytes unused"
                )
                raise _damaged(self.path, f"tensor {name[:80]!r} {how}")
            end = entry.stop
        if end != self.size:
            raise _damaged(self.path, f"expected {end} bytes, found {self.size}")


def _sizes(value: Any) -> bool:
    """A list of numbers that can be sizes or offsets."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"damaged safetensors file: {what}", where=path, do="copy or download it again")


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, in the number formats they have there.

    Raises:
        CheckpointError: the file is missing, cut off, or its header says what can't be.
    """
    with TensorFile(path) as file:
        return {name: file.tensor(name) for name in file.entries}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, one tensor in memory at a time; the same tensors give the same bytes.

    It is not atomic by itself: call it inside `write_folder`, which explains an OSError too. Two names of one tensor
    would be stored twice; a model of ours has one name for each.
    """
    # Wide numbers first, so that each tensor starts at a multiple of its number's size.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
