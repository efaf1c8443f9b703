"""Mixing values by scores: who sees whom in this pass, and which of the equal ways to compute it is taken."""

from jaxtyping import Float
from torch import Tensor

from glassformer.model.mask import MaskSpec, visible
from glassformer.model.step import LayerStep, Remembered
from glassformer.ops.attend import Scores, attend, attend_fast

WRITTEN_OUT = ("scores_raw", "scores", "mask", "pattern")
"""Points that exist only where the weights are written out."""


def mix(
    qkv: tuple[Float[Tensor, "B H T C"], Float[Tensor, "B K S C"], Float[Tensor, "B K S E"]],
    scores: Scores,
    mask: MaskSpec,
    memory: Remembered,
    step: LayerStep,
) -> Float[Tensor, "B H T E"]:
    """What each query mixes from all that is remembered; the fused kernel where nobody looks at the weights."""
    watched = step.watch.wants(*WRITTEN_OUT)
    if step.plain and mask.kind == "causal" and not watched:
        return attend_fast(*qkv, None, scores)
    seen = visible(mask, step.positions, memory.positions, step.segments, memory.segments)
    if watched:
        return attend(*qkv, seen, scores, step.watch)
    # A query that sees nothing is padding: let it see anything rather than divide 0 by 0.
    return attend_fast(*qkv, seen | ~seen.any(dim=-1, keepdim=True), scores)
