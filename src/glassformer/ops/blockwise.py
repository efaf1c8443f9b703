"""Attention in blocks with an online softmax: memory grows with the length, not with its square.

The scores of a block of queries are made one block of keys at a time; a running maximum and a running sum let the
blocks be weighed together without ever having stood side by side. Blocks that no query of theirs sees are never made,
so a block-sparse mask costs what it keeps. Sources: Milakov & Gimelshein 2018 (online softmax); Rabe & Staats 2021;
Dao et al. 2022, FlashAttention, algorithms 1 and 4.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.ops.attend import Scores

Seen = Callable[[slice, slice], Bool[Tensor, "#B 1 t s"] | bool]
"""Which keys of a block the queries of a block see: a mask, or True for all and False for none."""


def causal(queries: slice, keys: slice) -> Tensor | bool:
    """Row t sees columns 0 … t."""
    if keys.start >= queries.stop:
        return False
    if keys.stop <= queries.start + 1:
        return True
    rows, columns = torch.arange(queries.start, queries.stop), torch.arange(keys.start, keys.stop)
    return (columns[None] <= rows[:, None])[None, None]


def attend_in_blocks(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B K S C"],
    v: Float[Tensor, "B K S E"],
    seen: Seen,
    scores: Scores,
    size: int = 128,
) -> Float[Tensor, "B H T E"]:
    """Equal to `attend` up to rounding, without dropout; a query that sees no key at all gets zeros."""
    assert not scores.dropout, "weights that are never written out can't be dropped"
    given = (q, k, v, scores.bias, scores.sink, seen, scores, size)
    return _Blockwise.apply(*given)  # pyright: ignore[reportReturnType, reportUnknownVariableType, reportUnknownMemberType]


def online_softmax(x: Float[Tensor, "*B n"], size: int = 128) -> Float[Tensor, "*B n"]:
    """softmax(x) over the last axis, whose maximum and sum are found together in one pass over it."""
    top, total = x.new_full((*x.shape[:-1], 1), float("-inf")), x.new_zeros((*x.shape[:-1], 1))
    for start in range(0, x.size(-1), size):
        block = x[..., start : start + size]
        higher = torch.maximum(top, block.amax(dim=-1, keepdim=True))
        total = total * (top - higher).exp() + (block - higher).exp().sum(dim=-1, keepdim=True)
        top = higher
    return (x - top).exp() / total


class _Blockwise(torch.autograd.Function):
    """Keeps the output and, for each query, the logarithm of its sum; the backward pass makes each block again."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sink: Tensor | None,
        seen: Seen, scores: Scores, size: int,
    ) -> Tensor:  # fmt: skip
        B, H, T, _ = q.shape
        work = _Work(q, k, v, bias, seen, scores, size)
        out, logs = q.new_empty(B, H, T, v.size(-1)), q.new_empty(B, H, T, 1)
        for queries in work.query_blocks():
            rows = queries.stop - queries.start
            top, total = q.new_full((B, H, rows, 1), float("-inf")), q.new_zeros(B, H, rows, 1)
            mixed = q.new_zeros(B, H, rows, v.size(-1))
            if sink is not None:
                top, total = sink[:, None, None].expand(B, -1, rows, 1).clone(), total + 1
            for keys in work.key_blocks():
                found = work.found(queries, keys)
                if found is None:
                    continue
                higher = torch.maximum(top, found.amax(dim=-1, keepdim=True))
                anchor = higher.masked_fill(higher == float("-inf"), 0.0)  # rows that have seen nothing yet
                weights, fade = (found - anchor).exp(), (top - anchor).exp()
                total = total * fade + weights.sum(dim=-1, keepdim=True)
                mixed = mixed * fade + work.mix(weights, keys)
                top = higher
            nothing = total == 0
            out[:, :, queries] = mixed / total.masked_fill(nothing, 1.0)
            logs[:, :, queries] = (top + total.log()).masked_fill(nothing, float("inf"))
        ctx.save_for_backward(q, k, v, bias, sink, out, logs)
        ctx.rest = seen, scores, size
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (g,), (q, k, v, bias, sink, out, logs) = gradients, ctx.saved_tensors
        work = _Work(q, k, v, bias, *ctx.rest)
        gq, gk, gv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        gbias = None if bias is None else torch.zeros_like(bias)
        pull = (g * out).sum(dim=-1, keepdim=True)
        for queries in work.query_blocks():
            rows = g[:, :, queries]
            for keys in work.key_blocks():
                found = work.found(queries, keys)
                if found is None:
                    continue
                weights = (found - logs[:, :, queries]).exp()
                gv[:, :, keys] += work.shared(weights.mT @ rows)
                change = weights * (rows @ work.spread(v[:, :, keys]).mT - pull[:, :, queries])
                if gbias is not None:
                    part = gbias[..., queries, keys]
                    part += change.sum_to_size(part.shape)
                change = work.before_cap(change, queries, keys) * work.scores.scale
                gq[:, :, queries] += change @ work.spread(k[:, :, keys])
                gk[:, :, keys] += work.shared(change.mT @ q[:, :, queries])
        gsink = None
        if sink is not None:
            gsink = -((sink[:, None, None] - logs).exp() * pull).sum(dim=(0, 2, 3))
        return gq, gk, gv, gbias, gsink, None, None, None


class _Work:
    """The scores of one block, made the same way forward and backward."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, seen: Seen, scores: Scores, size: int):
        self.q, self.k, self.v, self.bias = q, k, v, bias
        self.seen, self.scores, self.size = seen, scores, size
        self.group = q.size(1) // k.size(1)

    def query_blocks(self) -> Iterator[slice]:
        return self._blocks(self.q.size(2))

    def key_blocks(self) -> Iterator[slice]:
        return self._blocks(self.k.size(2))

    def found(self, queries: slice, keys: slice) -> Tensor | None:
        """The scores of a block, -inf where a key is hidden; None where no key is seen."""
        seen = self.seen(queries, keys)
        if seen is False:
            return None
        found = self.q[:, :, queries] @ self.spread(self.k[:, :, keys]).mT * self.scores.scale
        if self.scores.softcap is not None:
            found = self.scores.softcap * torch.tanh(found / self.scores.softcap)
        if self.bias is not None:
            found = found + self.bias[..., queries, keys].to(found.dtype)
        return found if seen is True else found.masked_fill(~seen, float("-inf"))

    def before_cap(self, change: Tensor, queries: slice, keys: slice) -> Tensor:
        """A gradient of capped scores as one of plain ones: 1 - tanh² of it."""
        cap = self.scores.softcap
        if cap is None:
            return change
        plain = self.q[:, :, queries] @ self.spread(self.k[:, :, keys]).mT * self.scores.scale
        return change * (1 - torch.tanh(plain / cap) ** 2)

    def mix(self, weights: Tensor, keys: slice) -> Tensor:
        return weights @ self.spread(self.v[:, :, keys])

    def spread(self, x: Tensor) -> Tensor:
        """Keys or values of a kv-head for every head that shares it."""
        return x if self.group == 1 else x.repeat_interleave(self.group, dim=1)

    def shared(self, x: Tensor) -> Tensor:
        """What the heads that share a kv-head have found, summed."""
        return x if self.group == 1 else x.view(x.size(0), -1, self.group, *x.shape[2:]).sum(dim=2)

    def _blocks(self, length: int) -> Iterator[slice]:
        return (slice(start, min(start + self.size, length)) for start in range(0, length, self.size))
