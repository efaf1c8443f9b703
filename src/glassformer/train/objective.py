"""Objectives: what a model is trained to make small."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.model import Step, Transformer
from glassformer.train.data import IGNORED


def causal(
    model: Transformer,
    tokens: Int[Tensor, "B T"],
    targets: Int[Tensor, "B T"],
    positions: Int[Tensor, "B T"] | None = None,
    segments: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, ""]:
    """Summed surprise, in nats, about each token's successor: -Σ log p(target); IGNORED targets don't count.

    A sum, not a mean: the caller divides by the tokens of the whole batch, so that micro-batches weigh by their tokens.
    """
    step = Step.whole(tokens) if positions is None else Step(positions, segments)
    logits = model(tokens, step)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum")
