"""Where keys and values live between passes: one pool of memory, cut into pages that sequences borrow.

`PagePool` is the memory, `PagedCache` is the pool as one pass over a batch sees it. What was remembered is copied only
when it must be: a pass that starts at position 0 reads what it has just computed, and sequences whose pages lie one
behind the other, at equal distances, are read where they lie. All else is collected slot by slot. What an attention
keeps for a sequence as a whole (the state of linear attention) has one place a sequence, its seat.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.engine.pages import Lease, Ledger, Span
from glassformer.errors import RequestError
from glassformer.model.attention import cache_bytes_per_sequence, cache_bytes_per_token
from glassformer.model.step import Remembered, Step, ThisPass
from glassformer.model.transformer import Transformer
from glassformer.model.watch import OFF, Watcher


def window_of(model: Transformer) -> int | None:
    """How far back any layer of the model reads tokens, itself included; None where at least one reads them all."""
    limits = [kept.limit for layer in model.remembers for kept in layer if kept.per == "token"]
    known = [limit for limit in limits if limit is not None]
    return max(known, default=1) if len(known) == len(limits) else None


def bytes_per_token(model: Transformer) -> int:
    """What the cache of one token costs, all layers together."""
    element = model.embedding.weight.element_size()
    return sum(cache_bytes_per_token(layer, element) for layer in model.remembers)


def bytes_per_sequence(model: Transformer) -> int:
    """What a sequence costs beside its tokens, all layers together."""
    element = model.embedding.weight.element_size()
    return sum(cache_bytes_per_sequence(layer, element) for layer in model.remembers)


def can_truncate(model: Transformer) -> bool:
    """Whether a sequence can go back to an earlier token: what sharing of prefixes and speculation rest on."""
    return all(kept.per != "sequence" for layer in model.remembers for kept in layer)


class PagePool:
    """The memory for all sequences: for each layer, one tensor [slots, …] for each thing its attention remembers.

    `span` is how much of its past a sequence keeps (by default the model's context); `pages` defaults to one such
    sequence. Where an attention keeps a state instead, there are `seats` of them [seats, …] (by default as many as
    pages). Memory that was never written costs nothing on a CPU.
    """

    def __init__(
        self,
        model: Transformer,
        pages: int | None = None,
        page_size: int = 16,
        span: Span | None = None,
        seats: int | None = None,
    ):
        self.span = span or Span(model.spec.context, model.spec.context, page_size)
        pages = pages or self.span.pages
        if pages < self.span.pages:
            raise RequestError(
                f"the cache has {pages} pages of {self.span.page_size} tokens, one sequence needs {self.span.pages}",
                do="give the engine more memory or a shorter context",
            )
        weight = model.embedding.weight
        slots, wide = pages * self.span.page_size, torch.promote_types(weight.dtype, torch.float32)

        def stores(per: str, places: int, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], ...]:
            return tuple(
                tuple(_zeros((places, *kept.shape), dtype, weight.device) for kept in layer if kept.per == per)
                for layer in model.remembers
            )

        # What is remembered of a source lies with the source: a `Memory` for all passes that read it.
        self.stores = stores("token", slots, weight.dtype)
        self.states = stores("sequence", pages if seats is None else seats, wide)  # sums of thousands of tokens
        self.places = torch.arange(slots, device=weight.device)
        self.ledger = Ledger(pages, self.span, self._move, seats, states=not can_truncate(model))

    def wipe(self, lease: Lease) -> None:
        """Write zeros over all that `lease` holds: a NaN left there would reach the next owner through 0 · NaN."""
        slots = _slots_of(lease, self.span, self.places)
        for store in (store for layer in self.stores for store in layer):
            store.index_fill_(0, slots, 0)
        for state in (state for layer in self.states for state in layer):
            state[lease.seat] = 0

    @torch.inference_mode()
    def _move(self, source: int, target: int, count: int) -> None:
        size = self.span.page_size
        for store in (store for layer in self.stores for store in layer):
            store[target * size : (target + count) * size] = store[source * size : (source + count) * size]


class PagedCache:
    """The pool as one pass sees it: row b adds `counts[b]` tokens to what `leases[b]` remembers.

    Rows are padded on the right to the longest. Call `advance` when the pass is done.
    """

    def __init__(self, pool: PagePool, leases: Sequence[Lease], counts: Sequence[int]):
        for lease, count in zip(leases, counts, strict=True):
            assert 0 < count <= pool.span.chunk(lease.length), "a pass may not forget what it still needs"
            if not pool.ledger.lend(lease, lease.length + count):
                raise RequestError("the cache has no free pages left", do="give back sequences that are done")
        self.pool, self.leases, self.counts = pool, leases, counts
        self.fresh = not any(lease.length for lease in leases)
        self.width = max(counts)
        self.last = [lease.length + count - 1 for lease, count in zip(leases, counts, strict=True)]
        self.size = min(max(self.last) + 1, pool.span.slots)
        self.padded = min(counts) < self.width
        self.alike = not self.padded and min(self.last) == max(self.last)  # then one row of positions is enough
        self.positions = self._new_positions()
        self._target, self._rows = self._targets()
        self._start, self._stride = self._lanes()

    def step(self, watch: Watcher = OFF) -> Step:
        """The step for this pass. One that starts every row at 0 needs no mask but the triangle."""
        return Step(self.positions, cache=self, watch=watch, plain=self.fresh)

    def layer(self, index: int) -> "PagedLayer":
        return PagedLayer(self, self.pool.stores[index], self.pool.states[index])

    def advance(self) -> None:
        """The new tokens are remembered from now on."""
        for lease, count in zip(self.leases, self.counts, strict=True):
            lease.length += count

    def _new_positions(self) -> Int[Tensor, "b T"]:
        places, start = self.pool.places, self.leases[0].length
        if self.alike and self.last[0] < len(places):
            return places[start : self.last[0] + 1][None]
        starts = torch.tensor([lease.length for lease in self.leases], device=places.device)[:, None]
        positions = starts + torch.arange(self.width, device=places.device)
        if not self.padded:
            return positions
        return positions.masked_fill(positions > torch.tensor(self.last, device=places.device)[:, None], -1)

    @cached_property
    def remembered(self) -> Int[Tensor, "b S"]:
        """Where the token in each slot stands; -1 for a slot that is empty or past the row's end."""
        places, span = self.pool.places[: self.size], self.pool.span
        if self.alike and self.last[0] < span.tokens:
            return places[None]
        last = torch.tensor(self.last[:1] if self.alike else self.last, device=places.device)[:, None]
        if max(self.last) < span.tokens:
            return places.masked_fill(places > last, -1)
        stands = last - (last - places).remainder(span.slots)  # a ring: the newest position that falls on the slot
        return stands.masked_fill((stands < 0) | (stands <= last - span.tokens), -1)

    @cached_property
    def table(self) -> Int[Tensor, "B S"]:
        """The slot in the pool of everything remembered; rows that are shorter repeat their first."""
        rows = [_slots_of(lease, self.pool.span, self.pool.places) for lease in self.leases]
        table = torch.stack([row[:1].expand(self.size) for row in rows])
        for line, row in zip(table, rows, strict=True):
            line[: len(row)] = row[: self.size]
        return table

    @cached_property
    def seats(self) -> Int[Tensor, "B"]:
        """The place of each row's state."""
        return torch.tensor([lease.seat for lease in self.leases], device=self.positions.device)

    @cached_property
    def begun(self) -> Bool[Tensor, "B"]:
        """Which rows have a past; the state of the others is whatever its last owner left there."""
        return torch.tensor([lease.length > 0 for lease in self.leases], device=self.positions.device)

    def write(self, store: Tensor, new: Tensor) -> None:
        """Put `new` [B, T, …] into its slots."""
        if isinstance(self._target, int):
            store[self._target : self._target + self.width] = new[0]
        else:
            flat = new.flatten(0, 1)
            store.index_copy_(0, self._target, flat if self._rows is None else flat[self._rows])

    def read(self, store: Tensor) -> Tensor:
        """Everything remembered, [B, S, …]: a view where it lies in lanes, else a copy."""
        if self._stride is None:
            return store.index_select(0, self.table.flatten()).view(*self.table.shape, *store.shape[1:])
        step = store.stride(0)
        shape, inner = (len(self.leases), self.size, *store.shape[1:]), store.stride()[1:]
        return store.as_strided(shape, (self._stride * step, step, *inner), self._start * step)

    def _targets(self) -> tuple[int | Tensor, Tensor | None]:
        """Where new tokens go: the first of adjoining slots, or each one's slot (and where in padded rows they are)."""
        span, lease = self.pool.span, self.leases[0]
        if len(self.leases) == 1 and lease.straight and lease.length % span.slots + self.width <= span.slots:
            return lease.pages[0] * span.page_size + lease.length % span.slots, None
        slots = [
            lease.pages[position % span.slots // span.page_size] * span.page_size + position % span.page_size
            for lease, last in zip(self.leases, self.last, strict=True)
            for position in range(lease.length, last + 1)
        ]
        rows = (self.positions >= 0).flatten().nonzero()[:, 0] if self.padded else None
        return torch.tensor(slots, device=self.positions.device), rows

    def _lanes(self) -> tuple[int, int | None]:
        """First slot and distance from row to row, where every row is straight and they lie at equal distances."""
        size = self.pool.span.page_size
        starts = [lease.pages[0] * size for lease in self.leases]
        distance = starts[1] - starts[0] if len(starts) > 1 else 0
        even = all(b - a == distance for a, b in pairwise(starts))
        inside = distance >= 0 and starts[-1] + self.size <= len(self.pool.places)
        straight = all(lease.straight for lease in self.leases)
        return starts[0], distance if even and inside and straight else None


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """One layer's part of the cache; after `extend` it is the handle on all that is remembered."""

    cache: PagedCache
    pages: tuple[Tensor, ...]
    states: tuple[Tensor, ...]

    @property
    def positions(self) -> Int[Tensor, "b S"]:
        return self.cache.remembered

    @property
    def segments(self) -> None:
        """Each row is one document."""
        return

    @property
    def table(self) -> Int[Tensor, "B S"]:
        return self.cache.table

    def extend(self, *new: Tensor) -> Remembered:
        for store, value in zip(self.pages, new, strict=True):
            self.cache.write(store, value)
        return ThisPass(self.cache.positions, None, new) if self.cache.fresh else self

    def gather(self) -> tuple[Tensor, ...]:
        return tuple(self.cache.read(store) for store in self.pages)

    def recall(self) -> tuple[Tensor, ...] | None:
        if self.cache.fresh:
            return None
        begun = self.cache.begun
        return tuple(
            torch.where(begun.view(-1, *(1,) * (state.ndim - 1)), state.index_select(0, self.cache.seats), 0)
            for state in self.states
        )

    def keep(self, *state: Tensor) -> None:
        for store, value in zip(self.states, state, strict=True):
            store.index_copy_(0, self.cache.seats, value.to(store.dtype))


def _slots_of(lease: Lease, span: Span, places: Tensor) -> Int[Tensor, "S"]:
    pages = torch.tensor(lease.pages, device=places.device)
    return (pages[:, None] * span.page_size + places[: span.page_size]).flatten()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that the operating system hands out page by page when they are first written (on a CPU)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(torch.Size(shape).numel() * dtype.itemsize, dtype=np.uint8)
    return torch.as_tensor(raw).view(dtype).view(shape)
