"""Numbers out of a file: mapped where they can stay as they are, else a piece at a time.

Beside what is read, memory holds one piece and nothing else.
"""

import math
import mmap
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from glassformer.errors import CheckpointError

PIECE = 2**15
"""Numbers that are converted at once: they stay in the cache of a core, and leave no holes between the weights."""


class NumberFile:
    """An open file of numbers.

    With `maps`, numbers that keep their format aren't copied: their memory is the file's own pages, which come from the
    disk when they are first used, and which processes share. What is written to them stays in this process.
    """

    def __init__(self, path: Path, *, maps: bool = False):
        """Open; raises CheckpointError where there is no regular file, or none that may be read."""
        self.path, self._piece = path, torch.empty(0, dtype=torch.uint8)
        # A file that is mapped can't be replaced on Windows, and a checkpoint has to be.
        self.maps = maps and sys.platform != "win32"
        self._map: mmap.mmap | None = None
        if not path.is_file():  # before opening: a pipe would wait for ever
            raise CheckpointError("no such file" if not path.exists() else "not a regular file", where=path)
        try:
            self.size = path.stat().st_size
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise CheckpointError(f"can't read: {error.strerror}", where=path) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def fill(self, space: memoryview, start: int) -> None:
        """Read as many bytes as `space` has; raises CheckpointError where the file ends before."""
        try:
            self._file.seek(start)
            done = 0
            while done < len(space):
                got = self._file.readinto(space[done:])
                if not got:
                    what = f"expected {len(space)} bytes at {start}, the file ends after {done}"
                    raise CheckpointError(f"damaged file: {what}", where=self.path, do="copy or download it again")
                done += got
        except OSError as error:
            raise CheckpointError(f"can't read: {error.strerror}", where=self.path) from None

    def span(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from `start` up to `stop`, some at a time."""
        for first in range(start, stop, PIECE):
            piece = bytearray(min(PIECE, stop - first))
            self.fill(memoryview(piece), first)
            yield bytes(piece)

    def read(self, shape: tuple[int, ...], stored: torch.dtype, start: int, wanted: torch.dtype | None) -> Tensor:
        """The numbers that begin at a byte, as a tensor; those with a fraction as `wanted`."""
        kept = stored if wanted is None or not stored.is_floating_point else wanted
        if kept == stored and start % stored.itemsize == 0 and 0 not in shape and (mapped := self._pages()):
            return self._mapped(mapped, shape, stored, start)
        tensor = torch.empty(shape, dtype=kept)
        if kept == stored:
            self.fill(_bytes(tensor), start)
        else:
            self.convert(tensor, stored.itemsize, start, lambda raw: raw.view(stored))
        return tensor

    def _pages(self) -> mmap.mmap | None:
        """The mapped file; None where it isn't to be mapped, or its file system can't."""
        if self.maps and self._map is None:
            try:
                self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError):
                self.maps = False
        return self._map

    def _mapped(self, pages: mmap.mmap, shape: tuple[int, ...], stored: torch.dtype, start: int) -> Tensor:
        """A tensor whose numbers are those of the file; it keeps the pages when the file is closed."""
        count = math.prod(shape)
        if start + count * stored.itemsize > len(pages):
            what = f"expected {count * stored.itemsize} bytes at {start}, the file has {len(pages)}"
            raise CheckpointError(f"damaged file: {what}", where=self.path, do="copy or download it again")
        return torch.frombuffer(pages, dtype=stored, count=count, offset=start).view(shape)

    def convert(self, tensor: Tensor, size: float, start: int, unpack: Callable[[Tensor], Tensor]) -> None:
        """Fill a tensor with the numbers that `unpack` makes of the bytes at `start`, of which each takes `size`."""
        flat = tensor.view(-1)
        raw = self._space(round(min(PIECE, len(flat)) * size))
        for first in range(0, len(flat), PIECE):
            part = flat[first : first + PIECE]
            own = raw[: round(len(part) * size)]
            self.fill(_bytes(own), start + round(first * size))
            part.copy_(unpack(own))

    def _space(self, size: int) -> Tensor:
        """Bytes to read into: always the same, for a new piece beside each tensor would leave a hole there."""
        if len(self._piece) < size:
            self._piece = torch.empty(max(size, PIECE * 8), dtype=torch.uint8)
        return self._piece[:size]


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
