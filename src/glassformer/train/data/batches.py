"""From a step to its batch: the same for any number of ranks, workers or micro-batches, and after any restart."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.errors import DataError
from glassformer.train.data.dataset import TokenSplit
from glassformer.train.data.permutation import Permutation, draw

IGNORED = -100
"""The target of a place that isn't to be predicted, as in PyTorch's cross entropy."""
NAMED = 8
"""Rows whose place `Batch.identity` tells."""


@dataclass(frozen=True)
class Batch:
    """Rows of text to learn from: each target is the token after its place, or IGNORED.

    positions, segments: within the document, and its number within the row; None: 0 … T-1, one segment.
    identity: which rows of which step these are, and where their text is.
    epoch: how often the split has been gone through before this step's first row.
    """

    tokens: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    positions: Int[Tensor, "B T"] | None
    segments: Int[Tensor, "B T"] | None
    identity: str
    epoch: float

    def rows(self, which: slice, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Some rows on a device: tokens, targets, positions and segments, as objectives take them."""
        tokens, targets = (part[which].to(device, non_blocking=True) for part in (self.tokens, self.targets))
        if self.positions is None or self.segments is None:
            return tokens, targets, None, None
        positions, segments = (part[which].to(device, non_blocking=True) for part in (self.positions, self.segments))
        return tokens, targets, positions, segments


class Batches:
    """The batch of every step, as a pure function of (seed, step).

    Sample g = step · batch_size + row. An epoch is `windows` samples: windows of `context` tokens side by side, from an
    offset drawn for that epoch, in an order drawn for that epoch. Each row reads one token more, its last target.
    """

    def __init__(self, split: TokenSplit, context: int, batch_size: int, seed: int, boundaries: bool = False):
        """`boundaries`: documents in one row are told apart, by positions, segments and targets.

        Raises:
            DataError: the split is shorter than one row.
        """
        assert min(context, batch_size) > 0
        assert seed >= 0
        _check_length(split, context)
        self.split, self.context, self.batch_size = split, context, batch_size
        self.seed, self.boundaries = seed, boundaries
        # One window less than fit, where there are several: so the offset has at least `context` places to be.
        self.windows = max(1, (split.tokens - 1) // context - 1)
        self.tokens_per_epoch = self.windows * context
        self._order = lru_cache(maxsize=4)(self._draw_order)

    def batch(self, step: int, micro: slice | None = None) -> Batch:
        """The rows `micro` (all) of the global batch of a step: B = their number, T = `context`."""
        rows = range(self.batch_size)[micro or slice(None)]
        assert rows, (micro, self.batch_size)
        starts = [self._start(step * self.batch_size + row) for row in rows]
        return _cut(
            self.split.gather(starts, self.context + 1),
            self._boundaries_of(starts) if self.boundaries else None,
            identity=f"step {step}, rows {_name(rows)}: {self.split.name} tokens from {_list(starts)}",
            epoch=step * self.batch_size / self.windows,
        )

    def _start(self, sample: int) -> int:
        epoch, place = divmod(sample, self.windows)
        offset, order = self._order(epoch)
        return offset + order[place] * self.context

    def _draw_order(self, epoch: int) -> tuple[int, Permutation]:
        first, *keys = draw(self.seed, epoch)
        return first % (self.split.tokens - self.windows * self.context), Permutation(self.windows, tuple(keys))

    def _boundaries_of(self, starts: list[int]) -> np.ndarray:
        return document_places(self.split, starts, self.context + 1)


def validation_windows(split: TokenSplit, context: int, batch_size: int, boundaries: bool = False) -> Iterator[Batch]:
    """The whole split once, in order, without overlap: every token but the first is predicted once.

    Row k reads tokens k·T to (k+1)·T. The last row is padded with token 0 and ignored targets, and the last batch may
    have fewer rows. With `boundaries`, the first token of a document isn't predicted either.

    Raises:
        DataError: fewer than two tokens.
    """
    if split.tokens < 2:
        raise DataError(f"the {split.name} split has {split.tokens} tokens: none to predict", do="hold out more text")
    last = split.tokens - 1
    starts = list(range(0, last, context))
    for first in range(0, len(starts), batch_size):
        rows = starts[first : first + batch_size]
        yield _validation_batch(split, rows, context, boundaries)


def _validation_batch(split: TokenSplit, starts: list[int], context: int, boundaries: bool) -> Batch:
    full = [start for start in starts if start + context < split.tokens]
    read = np.zeros((len(starts), context + 1), np.int64)
    read[: len(full)] = split.gather(full, context + 1)
    if len(full) < len(starts):
        rest = split.read(starts[-1], split.tokens)
        read[-1, : len(rest)] = rest
    places = document_places(split, starts, context + 1) if boundaries else None
    rows = range(starts[0] // context, starts[0] // context + len(starts))
    identity = f"validation, rows {_name(rows)}: {split.name} tokens from {_list(starts)}"
    batch = _cut(read, places, identity, epoch=0.0)
    if len(full) < len(starts):
        batch.targets[-1, split.tokens - 1 - starts[-1] :] = IGNORED
    return batch


def document_places(split: TokenSplit, starts: list[int], length: int) -> np.ndarray:
    """Where documents begin: bool `[B, length]` for rows of `length` tokens from each start."""
    begins = np.zeros((len(starts), length), bool)
    document_starts = split.document_starts
    low = np.searchsorted(document_starts, starts)
    high = np.searchsorted(document_starts, [start + length for start in starts])
    for row, start, a, b in zip(begins, starts, low, high, strict=True):
        row[document_starts[a:b] - start] = True
    return begins


def _cut(read: np.ndarray, begins: np.ndarray | None, identity: str, epoch: float) -> Batch:
    """Rows of T+1 tokens as tokens and targets; `begins` marks the first tokens of documents."""
    tokens, targets = read[:, :-1].copy(), read[:, 1:].copy()
    if begins is None:
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), None, None, identity, epoch)
    targets[begins[:, 1:]] = IGNORED
    begins = begins[:, :-1].copy()
    begins[:, 0] = True  # what came before a row's first token isn't in sight
    places = np.arange(tokens.shape[1])
    positions = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    segments = np.cumsum(begins, axis=1) - 1
    return Batch(*map(torch.from_numpy, (tokens, targets, positions, segments)), identity=identity, epoch=epoch)


def _check_length(split: TokenSplit, context: int) -> None:
    short = context + 1 - split.tokens
    if short > 0:
        raise DataError(
            f"the {split.name} split has {split.tokens:,} tokens, {short:,} too few for a context of {context:,} "
            "and the token after it",
            do=f"set model.context={split.tokens - 1}, or add text" if split.tokens > 1 else "add text",
        )


def _name(rows: range) -> str:
    return f"{rows[0]}–{rows[-1]}" if rows.step == 1 else ", ".join(map(str, rows))


def _list(starts: list[int]) -> str:
    more = f" and {len(starts) - NAMED} more" if len(starts) > NAMED else ""
    return ", ".join(map(str, starts[:NAMED])) + more
