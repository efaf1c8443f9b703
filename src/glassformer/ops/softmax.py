"""Softmax, written so that large scores neither overflow nor lose the small ones."""

import torch
from jaxtyping import Float
from torch import Tensor


def softmax(scores: Float[Tensor, "... S"]) -> Float[Tensor, "... S"]:
    """exp(s - max s) / Σ exp(s - max s) over the last axis, in at least float32; rows sum to 1.

    Subtracting the maximum changes no ratio and keeps every exponent at or below zero. A score of -inf
    gets exactly 0; a row of nothing but -inf is an error of the caller (it would be 0/0).
    """
    wide = scores if scores.dtype == torch.float64 else scores.float()
    weights = (wide - wide.amax(dim=-1, keepdim=True)).exp()
    return (weights / weights.sum(dim=-1, keepdim=True)).to(scores.dtype)
