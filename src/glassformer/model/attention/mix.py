"""Mixing values by scores: who sees whom in this pass, and which of the equal ways to compute it is taken."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.model.mask import MaskSpec, visible
from glassformer.model.position import Position
from glassformer.model.step import LayerStep, Remembered
from glassformer.ops.attend import Scores, attend, attend_fast
from glassformer.ops.blockwise import Sight, attend_in_blocks

WRITTEN_OUT = ("scores_raw", "scores", "mask", "pattern")
"""Points that exist only where the weights are written out."""

LONG = {"fused": 2048, "written out": 512}
"""Queries and keys from which on walking through the blocks that are seen is cheaper than a table of all pairs: the
mask that the fused kernel reads, or, with a soft-cap or a sink, which it doesn't know, the scores themselves."""

BLOCK = 128
"""Tokens in a block; a mask of blocks has its own, within bounds."""

QKV = tuple[Float[Tensor, "B H T C"], Float[Tensor, "B K S C"], Float[Tensor, "B K S E"]]
NOWHERE = Position()


def mix(
    qkv: QKV,
    scores: Scores,
    mask: MaskSpec,
    memory: Remembered,
    step: LayerStep,
    position: Position = NOWHERE,
) -> Float[Tensor, "B H T E"]:
    """What each query mixes from all that is remembered; `position` may add a bias to `scores`.

    Where nobody looks at the weights it is the fused kernel, or, for long texts that it has no formula for or would
    need a table of all pairs for, attention in blocks.
    """
    watched, triangle = step.watch.wants(*WRITTEN_OUT), step.plain and mask.kind == "causal"
    q, k, v = qkv
    way = "fused" if scores.softcap is None and scores.sink is None else "written out"
    simple = triangle and way == "fused" and not position.biases  # for which the fused kernel needs no table
    if min(q.size(2), k.size(2)) >= LONG[way] and not (simple or watched or scores.dropout):
        return attend_in_blocks(q, k, v, sight(mask, memory, step, position, q.size(0)), scores)
    scores = replace(scores, bias=position.bias(step.positions, memory.positions))
    if triangle and not watched:
        return attend_fast(q, k, v, None, scores)
    seen = visible(mask, step.positions, memory.positions, step.segments, memory.segments)
    if watched:
        return attend(q, k, v, seen, scores, step.watch)
    # A query that sees nothing is padding: let it see anything rather than divide 0 by 0.
    return attend_fast(q, k, v, seen | ~seen.any(dim=-1, keepdim=True), scores)


def sight(mask: MaskSpec, memory: Remembered, step: LayerStep, position: Position, rows: int) -> Sight:
    """What `visible` says, for blocks: which of them are seen at all, and who sees whom in some of them."""
    size = mask.size if mask.kind == "blocks" and BLOCK // 2 <= mask.size <= 2 * BLOCK else BLOCK
    query, key = _in_blocks(step.positions, size, rows), _in_blocks(memory.positions, size, rows)
    asking, asked = _range(query, size), _range(key, size)
    kept = mask.reaches(_across(asking), _down(asked)) & (asking[1] >= 0)[:, :, None] & (asked[1] >= 0)[:, None]
    parts = None
    if step.segments is not None and memory.segments is not None:
        parts = _in_blocks(step.segments, size, rows), _in_blocks(memory.segments, size, rows)
        one, other = (_range(part, size, where >= 0) for part, where in zip(parts, (query, key), strict=True))
        kept = kept & (_across(one)[0] <= _down(other)[1]) & (_down(other)[0] <= _across(one)[1])

    def seen(batch: Tensor, queries: Tensor, keys: Tensor) -> Bool[Tensor, "R 1 t s"]:
        row, segments = batch[:, None], (None, None)
        if parts is not None:
            segments = parts[0][row, queries], parts[1][row, keys]
        return visible(mask, query[row, queries], key[row, keys], *segments)

    def bias(batch: Tensor, queries: Tensor, keys: Tensor) -> Float[Tensor, "#R #H t s"]:
        found = position.bias(query[batch[:, None], queries], key[batch[:, None], keys])
        assert found is not None, "asked only where there is one"
        return found

    if not position.biases:
        return Sight(size, kept, seen)
    return Sight(size, kept, seen, bias, tuple(p for p in position.source.parameters() if p.requires_grad))


def _in_blocks(places: Int[Tensor, "#B T"], size: int, rows: int) -> Int[Tensor, "B n"]:
    """Positions of whole blocks in every row: what is missing from the last block is empty."""
    return F.pad(places, (0, -places.size(1) % size), value=-1).expand(rows, -1)


def _range(places: Int[Tensor, "B n"], size: int, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The lowest and highest of each block [B, blocks], empty places aside (-1 where there is nothing else)."""
    real = places >= 0 if real is None else real
    blocks, real = (x.reshape(len(x), -1, size) for x in (places, real))
    far = torch.iinfo(places.dtype).max
    return blocks.masked_fill(~real, far).amin(dim=-1), blocks.masked_fill(~real, -1).amax(dim=-1)


def _across(ranges: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return ranges[0][:, :, None], ranges[1][:, :, None]


def _down(ranges: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return ranges[0][:, None], ranges[1][:, None]
