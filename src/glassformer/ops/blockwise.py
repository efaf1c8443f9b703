"""Attention in blocks with an online softmax: time and memory grow with the blocks that a mask keeps.

Queries and keys are cut into blocks. Of all pairs of blocks only those are made in which some query may see some key;
rows of equally many are made together, in batched products of collected blocks. A running maximum and a running sum
let scores be weighed together that have never stood side by side, and the backward pass makes them again. Sources:
Milakov & Gimelshein 2018 (online softmax); Rabe & Staats 2021; Dao et al. 2022, FlashAttention, algorithms 1, 4 and 5.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.ops.attend import Scores
from glassformer.ops.softmax import take_in

Pairs = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A question about R blocks of queries: the batch row of each [R], and the queries [R, t] and keys [R, s] by index."""

ROOM = 2**20
"""Scores that are made at once on a CPU: what its caches hold beside their operands."""


@dataclass(frozen=True)
class Sight:
    """Who sees whom, without a table of all pairs.

    size:   queries or keys in a block; the last may be shorter.
    kept:   [B, q, k], whether any query of a block may see any key of another.
    seen:   which keys the queries see, [R, 1, t, s]; an index past the end is seen by nobody.
    bias:   what is added to their scores, [#R, #H, t, s]; `learnt` are the parameters it is made of.
    """

    size: int
    kept: Bool[Tensor, "B q k"]
    seen: Pairs
    bias: Pairs | None = None
    learnt: tuple[Tensor, ...] = ()


def attend_in_blocks(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B K S C"],
    v: Float[Tensor, "B K S E"],
    sight: Sight,
    scores: Scores,
) -> Float[Tensor, "B H T E"]:
    """Equal to `attend` up to rounding, without dropout; a query that sees no key at all gets zeros.

    The bias is that of `sight`: a table of all pairs has no place here.
    """
    assert not scores.dropout, "weights that are never written out can't be dropped"
    assert scores.bias is None, "the bias comes block by block"
    T = q.size(2)
    given = [_to_whole_blocks(x, sight.size) for x in (q, k, v)]
    return _apart(*given, scores.sink, sight, scores, *sight.learnt)[:, :, :T]


def _to_whole_blocks(x: Tensor, size: int) -> Tensor:
    missing = -x.size(2) % size
    return F.pad(x, (0, 0, 0, missing)) if missing else x


class _Blockwise(torch.autograd.Function):
    """Keeps the output and, for each query, the logarithm of its sum; the backward pass makes the scores again."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, sight: Sight, scores: Scores, *learnt: Tensor
    ) -> Tensor:
        work = _Work(q, k, v, sight, scores)
        out, logs = work.empty(v.size(-1)), work.empty(1).fill_(float("inf"))
        for rows in work.rows():
            asking = work.asking(q, rows) * scores.scale
            top, total, mixed = work.begin(sink, rows)
            for keys in rows.pieces():
                found, _ = work.found(asking, rows, keys)
                top, total, fade, weights = take_in(top, total, found)
                mixed = mixed * fade + work.per_head(work.grouped(weights).to(v.dtype) @ work.collect(v, rows, keys))
            nothing = total == 0
            out[rows.batch, :, rows.block] = mixed / total.masked_fill(nothing, 1.0)
            logs[rows.batch, :, rows.block] = (top + total.log()).masked_fill(nothing, float("inf"))
        out = out.flatten(2, 3).to(v.dtype)
        ctx.save_for_backward(q, k, v, sink, out, logs, *learnt)
        ctx.rest = sight, scores
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (g,), (q, k, v, sink, out, logs, *learnt) = gradients, ctx.saved_tensors
        work, scale = _Work(q, k, v, *ctx.rest), ctx.rest[1].scale
        pulls = (g.to(work.wide) * out).sum(dim=-1, keepdim=True).view(logs.shape)
        gq, gk, gv = work.empty(q.size(-1)), work.sums(k), work.sums(v)
        glearnt = [torch.zeros_like(x) for x in learnt]
        for rows in work.rows():
            asking = work.asking(q, rows) * scale
            given, own = work.asking(g, rows), rows.of(pulls)
            gasking = torch.zeros_like(asking, dtype=work.wide)
            for keys in rows.pieces():
                found, slope = work.found(asking, rows, keys)
                weights = found.sub_(rows.of(logs)).exp_()
                near_k, near_v = work.collect(k, rows, keys), work.collect(v, rows, keys)
                work.put(gv, work.grouped(weights).to(v.dtype).mT @ given, rows, keys)
                change = work.per_head(given @ near_v.mT).to(work.wide).sub_(own).mul_(weights)
                work.learn(glearnt, change, rows, keys)
                change = work.grouped(change if slope is None else change * slope).to(q.dtype)
                gasking += change @ near_k
                work.put(gk, change.mT @ asking, rows, keys)
            gq[rows.batch, :, rows.block] = work.per_head(gasking) * scale
        gsink = None if sink is None else -((sink[:, None, None, None] - logs).exp() * pulls).sum(dim=(0, 2, 3, 4))
        sums = (gk.view_as(k).to(k.dtype), gv.view_as(v).to(v.dtype))
        return gq.flatten(2, 3).to(q.dtype), *sums, gsink, None, None, *glearnt


# A compiler can't follow a walk that depends on the mask: it goes around.
_apart = cast("Callable[..., Tensor]", torch.compiler.disable(_Blockwise.apply))  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True)
class _Rows:
    """R blocks of queries that see equally many blocks of keys, `keys` [R, n], taken `width` at a time."""

    batch: Tensor
    block: Tensor
    keys: Tensor
    width: int

    def pieces(self) -> Iterator[Tensor]:
        return iter(torch.split(self.keys, self.width, dim=1))

    def of(self, x: Tensor) -> Tensor:
        """Their part of something that there is for every query, [R, H, t, …]."""
        return x[self.batch, :, self.block]


class _Work:
    """Which blocks are made, and how: the same way forward and backward."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, scores: Scores):
        self.k, self.sight, self.scores, self.size = k, sight, scores, sight.size
        (self.B, self.H, T, _), self.K = q.shape, k.size(1)
        self.queries = T // self.size
        self.wide = torch.promote_types(q.dtype, torch.float32)
        self.like = q.new_empty(0, dtype=self.wide)
        self.room = ROOM if q.device.type == "cpu" else 16 * ROOM

    def rows(self) -> Iterator[_Rows]:
        """All blocks of queries that see anything, those that see equally many blocks of keys together."""
        counts, block = self.sight.kept.sum(dim=-1), self.H * self.size * self.size
        different = cast("list[int]", counts.unique().tolist())  # pyright: ignore[reportUnknownMemberType]
        for count in filter(None, different):
            batch, query = torch.where(counts == count)
            keys = self.sight.kept[batch, query].nonzero()[:, 1].view(-1, count)
            width = max(1, min(count, self.room // block))
            most = max(1, self.room // (block * width))
            for start in range(0, len(keys), most):
                part = slice(start, start + most)
                yield _Rows(batch[part], query[part], keys[part], width)

    def begin(self, sink: Tensor | None, rows: _Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Maximum, sum and mixture before any key: nothing, or the sink alone."""
        shape = (len(rows.block), self.H, self.size, 1)
        mixed = self.like.new_zeros(shape)
        if sink is None:
            return self.like.new_full(shape, float("-inf")), self.like.new_zeros(shape), mixed
        return sink.to(self.wide)[:, None, None].expand(shape), self.like.new_ones(shape), mixed

    def found(self, asking: Tensor, rows: _Rows, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """The scores of blocks [R, H, t, s], -inf where a key is hidden; and how steep the soft-cap is at each."""
        found = self.per_head(asking @ self.collect(self.k, rows, keys).mT).to(self.wide)
        slope, cap = None, self.scores.softcap
        if cap is not None:
            squeezed = torch.tanh(found / cap)
            found, slope = cap * squeezed, 1 - squeezed**2
        where = self.where(rows, keys)
        if self.sight.bias is not None:
            found = found + self.sight.bias(*where).to(self.wide)
        seen = self.sight.seen(*where)
        return (found if seen.all() else found.masked_fill_(~seen, float("-inf"))), slope

    def where(self, rows: _Rows, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The batch row, queries and keys of some blocks, by their index."""
        inside = torch.arange(self.size, device=keys.device)
        return rows.batch, rows.block[:, None] * self.size + inside, (keys[..., None] * self.size + inside).flatten(1)

    def learn(self, sums: list[Tensor], change: Tensor, rows: _Rows, keys: Tensor) -> None:
        """Add to the gradients of what the bias is made of."""
        if not sums or self.sight.bias is None:
            return
        with torch.enable_grad():
            bias = self.sight.bias(*self.where(rows, keys))
        found = torch.autograd.grad(bias, self.sight.learnt, change.sum_to_size(bias.shape).to(bias.dtype))
        for total, part in zip(sums, found, strict=True):
            total += part

    def asking(self, x: Tensor, rows: _Rows) -> Tensor:
        """Blocks of something that each query has, for the kv-heads that they read: [R, K, group · t, …]."""
        return self.grouped(rows.of(x.reshape(self.B, self.H, self.queries, self.size, -1)))

    def grouped(self, x: Tensor) -> Tensor:
        """[R, H, t, …] with the heads that share a kv-head one below the other."""
        return x.reshape(len(x), self.K, -1, x.size(-1))

    def per_head(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.H, self.size, -1)

    def collect(self, x: Tensor, rows: _Rows, keys: Tensor) -> Tensor:
        """Blocks of keys or values side by side, [R, K, s, …]."""
        blocks = x.reshape(-1, self.size * x.size(-1))
        return blocks.index_select(0, self._places(rows, keys)).view(len(keys), self.K, -1, x.size(-1))

    def put(self, sums: Tensor, x: Tensor, rows: _Rows, keys: Tensor) -> None:
        """Add what blocks of keys or values have found to their sums."""
        sums.index_add_(0, self._places(rows, keys), x.reshape(-1, sums.size(1)).to(self.wide))

    def sums(self, x: Tensor) -> Tensor:
        return self.like.new_zeros(x.numel() // (self.size * x.size(-1)), self.size * x.size(-1))

    def empty(self, width: int) -> Tensor:
        return self.like.new_zeros(self.B, self.H, self.queries, self.size, width)

    def _places(self, rows: _Rows, keys: Tensor) -> Tensor:
        """Where blocks lie among all: [R · K · n]."""
        heads = rows.batch[:, None] * self.K + torch.arange(self.K, device=keys.device)
        return (heads[..., None] * (self.k.size(2) // self.size) + keys[:, None]).flatten()
