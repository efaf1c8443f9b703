"""Open prepared data: token shards as one long array per split, mapped from disk and checked."""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from glassformer.errors import DataError
from glassformer.tokenizer import Tokenizer
from glassformer.train.data.meta import DataMeta, FileMeta, Split, SplitMeta, read_meta
from glassformer.train.data.read import reading
from glassformer.train.data.shards import START, token_type

ALWAYS_VERIFIED = 10**9
"""Bytes up to which checksums are compared at every opening: about a second."""
AGAIN = "make the data again with `glassformer prepare`, or restore the file"


class TokenSplit:
    """The tokens of one split in reading order, over all its shards; nothing is loaded before it is read.

    tokens: how many (also `len`). bytes: what their text has in UTF-8. characters, documents: likewise.
    document_starts: int64 `[documents]`, the place of each document's first token, ascending.
    """

    def __init__(self, folder: Path, name: str, meta: SplitMeta, dtype: np.dtype):
        self.name = name
        self.tokens, self.documents = meta.tokens, meta.documents
        self.bytes, self.characters = meta.bytes, meta.characters
        self.document_starts = _map(folder / meta.starts.file, START)
        self._shards = [_map(folder / shard.file, dtype) for shard in meta.shards]
        self._ends = list(accumulate(shard.tokens for shard in meta.shards))

    def __len__(self) -> int:
        return self.tokens

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop` as int64 `[stop - start]`, across shards."""
        return self.gather([start], stop - start)[0]

    def gather(self, starts: Sequence[int], length: int) -> np.ndarray:
        """Many stretches at once: int64 `[B, length]`, row b from `starts[b]` on."""
        rows = np.empty((len(starts), length), np.int64)
        for row, start in zip(rows, starts, strict=True):
            assert 0 <= start <= self.tokens - length, (start, length, self.tokens)
            number, filled = bisect_right(self._ends, start), 0
            while filled < length:
                shard = self._shards[number]
                at = start + filled - (self._ends[number] - len(shard))
                part = shard[at : at + length - filled]
                row[filled : filled + len(part)] = part
                filled, number = filled + len(part), number + 1
        return rows


class Dataset:
    """A folder of prepared data: `meta` (what it holds), `vocabulary`, its tokenizer and its two splits."""

    def __init__(self, folder: Path, meta: DataMeta):
        self.folder, self.meta, self.vocabulary = folder, meta, meta.vocabulary

    @classmethod
    def open(cls, folder: Path | str, verify: bool = False) -> "Dataset":
        """Opens and checks a folder: the size of every file, and checksums when `verify` or below 1 GB.

        Raises:
            DataError: not prepared data, or a file that is missing, truncated or damaged.
        """
        folder = Path(folder)
        meta = read_meta(folder)
        files = [file for split in meta.splits.values() for file in (split.starts, *split.shards)]
        for file in files:
            _check_size(folder / file.file, file)
        if verify or sum(file.bytes for file in files) < ALWAYS_VERIFIED:
            for file in files:
                _check_content(folder / file.file, file)
        return cls(folder, meta)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made these tokens.

        Raises:
            DataError: the folder's tokenizer is another one.
        """
        tokenizer = Tokenizer.load(self.folder)
        if tokenizer.fingerprint != self.meta.tokenizer:
            raise DataError("the tokenizer is not the one that made these tokens", where=self.folder, do=AGAIN)
        return tokenizer

    def split(self, name: Split) -> TokenSplit:
        """The tokens of `train` or `validation`."""
        return TokenSplit(self.folder, name, self.meta.splits[name], token_type(self.meta.dtype))


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    if path.stat().st_size == 0:  # an empty file can't be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r").view(np.ndarray)  # slices of a plain array are far cheaper


def _check_size(path: Path, meta: FileMeta) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise DataError("the file is missing", where=path, do=AGAIN) from None
    if size != meta.bytes:
        kind = "truncated" if size < meta.bytes else "too long"
        raise DataError(f"the file is {kind}: expected {meta.bytes:,} bytes, got {size:,}", where=path, do=AGAIN)


def _check_content(path: Path, meta: FileMeta) -> None:
    with reading(path), path.open("rb") as file:
        came = hashlib.file_digest(file, "sha256").hexdigest()
    if came != meta.sha256:
        raise DataError(
            f"the file is damaged: expected SHA-256 {meta.sha256[:12]}…, got {came[:12]}…", where=path, do=AGAIN
        )
