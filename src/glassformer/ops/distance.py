"""Functions of the distance between two tokens, for positions that act on scores."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def alibi_slopes(heads: int) -> Float[Tensor, "H"]:
    """2^(-8/n), 2^(-16/n), … for n heads; for a number that is no power of two, the next power's odd terms follow.

    Source: Press et al. 2021, ALiBi, 3.
    """
    power = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    rest = [2.0 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(heads - power)]
    return torch.tensor(first + rest)


def distance_bucket(
    distance: Int[Tensor, "B T S"], buckets: int, furthest: int, bidirectional: bool
) -> Int[Tensor, "B T S"]:
    """The bucket of each distance query - key: small ones have their own, larger ones share them by logarithm.

    Keys after the query are in a second half of the buckets (`bidirectional`), or in the bucket of distance 0.
    Source: Raffel et al. 2020, T5, 2.1.
    """
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first, distance = buckets * (distance < 0), distance.abs()
    else:
        distance = distance.clamp_min(0)
    exact = buckets // 2
    share = (distance.clamp_min(1).float() / exact).log() / math.log(furthest / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp_max(buckets - 1)
    return first + torch.where(distance < exact, distance, far)
