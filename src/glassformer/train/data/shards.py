"""Write tokens as shards with checksums, in a folder that appears whole or not at all."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from glassformer.errors import DataError
from glassformer.train.data.meta import FileMeta, ShardMeta, Split, is_prepared

START = np.dtype("<i8")


def token_type(name: str) -> np.dtype:
    """The little-endian type of tokens on disk."""
    return np.dtype(name).newbyteorder("<")


class HashedFile:
    """A file written once from its beginning, hashed on the way."""

    def __init__(self, path: Path):
        self._path, self._file = path, path.open("wb")
        self._hash, self._bytes = hashlib.sha256(), 0

    def write(self, array: np.ndarray) -> None:
        content = array.tobytes()
        self._file.write(content)
        self._hash.update(content)
        self._bytes += len(content)

    def close(self) -> FileMeta:
        self._file.close()
        return FileMeta(file=self._path.name, bytes=self._bytes, sha256=self._hash.hexdigest())

    def abandon(self) -> None:
        with suppress(OSError):  # a full disk can't take the rest either
            self._file.close()


class ShardWriter:
    """One split's tokens in files of at most `shard_tokens`, and where its documents start."""

    def __init__(self, folder: Path, split: Split, dtype: str, shard_tokens: int):
        self.split: Split = split
        self._folder, self._dtype = folder, token_type(dtype)
        self._shard_tokens, self._room = shard_tokens, 0
        self._starts, self._shard = HashedFile(folder / f"{split}.idx"), None
        self._shards: list[ShardMeta] = []
        self.tokens = self.documents = 0

    def begin_documents(self, ahead: np.ndarray) -> None:
        """Documents start at these counts of tokens from here on: int64 `[N]`, to be written next."""
        self._starts.write((ahead + self.tokens).astype(START))
        self.documents += len(ahead)

    def write(self, ids: np.ndarray) -> None:
        """Append tokens `[T]`, over as many shards as they need."""
        while len(ids):
            if self._shard is None:
                self._shard = HashedFile(self._folder / f"{self.split}-{len(self._shards):05d}.bin")
                self._room = self._shard_tokens
            now, ids = ids[: self._room], ids[self._room :]
            self._shard.write(now.astype(self._dtype))
            self._room -= len(now)
            self.tokens += len(now)
            if self._room == 0:
                self._finish_shard()

    def close(self) -> tuple[FileMeta, tuple[ShardMeta, ...]]:
        """The file of document starts, and the shards."""
        self._finish_shard()
        return self._starts.close(), tuple(self._shards)

    def abandon(self) -> None:
        for file in (self._starts, self._shard):
            if file is not None:
                file.abandon()

    def _finish_shard(self) -> None:
        if self._shard is not None:
            written = self._shard.close()
            tokens = written.bytes // self._dtype.itemsize
            self._shards.append(ShardMeta(**written.model_dump(), tokens=tokens))
            self._shard = None


def check_target(out: Path, sources: list[Path]) -> None:
    """Raises DataError when `out` is in the way: a file, a folder of other things, or what is being read."""
    if out.exists() or out.is_symlink():
        if not out.is_dir() or out.is_symlink():
            raise DataError("the output should be a folder, and a file is there", where=out, do="choose another --out")
        if any(out.iterdir()) and not is_prepared(out):
            raise DataError(
                "the output folder holds other things, which would be lost", where=out, do="choose a new --out"
            )
    for source in sources:
        if source.resolve().is_relative_to(out.resolve()):
            raise DataError(f"the output folder is read from as well ({source})", where=out, do="choose another --out")


@contextmanager
def building(out: Path) -> Iterator[Path]:
    """A folder beside `out` to build in, which takes its place at the end, or vanishes if anything goes wrong.

    Raises:
        DataError: it can't be written: no permission, a full disk.
    """
    beside: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".preparing", dir=out.parent))
        yield beside
        beside.chmod(0o777 & ~_umask())  # mkdtemp is for secrets; this is data like any other
        for path in (*beside.iterdir(), beside):
            _sync(path)
        _take_place(beside, out)
    except OSError as error:
        raise DataError(f"can't be written: {error.strerror or error}", where=out, do="nothing was changed") from None
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def _take_place(new: Path, out: Path) -> None:
    if out.exists():
        old = new.with_suffix(".replaced")
        out.rename(old)
        new.rename(out)
        shutil.rmtree(old)
    else:
        new.rename(out)
    _sync(out.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
