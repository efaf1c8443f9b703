"""Softmax, written so that large scores neither overflow nor lose the small ones: at once, and in one pass."""

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


def online_softmax(scores: Float[Tensor, "... S"], size: int = 128) -> Float[Tensor, "... S"]:
    """The same, with maximum and sum found together in one pass over blocks of `size` scores.

    Source: Milakov & Gimelshein 2018, algorithm 3.
    """
    wide = scores if scores.dtype == torch.float64 else scores.float()
    top, total = wide.new_full((*wide.shape[:-1], 1), float("-inf")), wide.new_zeros((*wide.shape[:-1], 1))
    for block in torch.split(wide, size, dim=-1):
        top, total, _, _ = take_in(top, total, block)
    return ((wide - top).exp() / total).to(scores.dtype)


def take_in(
    top: Float[Tensor, "... 1"], total: Float[Tensor, "... 1"], scores: Float[Tensor, "... s"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step of the online softmax: `top` is the maximum so far, `total` the sum of exp(s - top).

    Returns both with a block of scores taken in, the factor by which all that was summed before has faded, and the
    weights of the block, exp(s - new top). Where nothing but -inf has come yet, all of them are 0.
    """
    higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
    anchor = higher.masked_fill(higher == float("-inf"), 0.0)
    fade, weights = (top - anchor).exp(), (scores - anchor).exp_()
    return higher, total * fade + weights.sum(dim=-1, keepdim=True), fade, weights
