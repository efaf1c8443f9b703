"""Rotation of pairs of components by an angle that grows with position (RoPE)."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor


def angles(positions: Int[Tensor, "#B T"], frequency: Float[Tensor, "R"]) -> tuple[Tensor, Tensor]:
    """Give cos and sin of position · frequency, each [B, 1, T, R] in float32: less would blur far positions."""
    angle = positions[:, None, :, None].to(frequency.dtype) * frequency
    return angle.cos(), angle.sin()


Layout = Literal["halves", "interleaved"]
"""Which components are a pair: (x_i, x_{i+R}), as in GPT-NeoX and Llama, or (x_{2i}, x_{2i+1}), as in the paper."""


def rotate(
    x: Float[Tensor, "B H T C"], cos: Float[Tensor, "#B 1 T R"], sin: Float[Tensor, "#B 1 T R"], layout: Layout
) -> Float[Tensor, "B H T C"]:
    """Turn R pairs of components; those from 2R on pass unchanged. Source: Su et al. 2021, RoFormer, eq. 34."""
    return rotate_halves(x, cos, sin) if layout == "halves" else rotate_neighbours(x, cos, sin)


def rotate_halves(
    x: Float[Tensor, "B H T C"], cos: Float[Tensor, "#B 1 T R"], sin: Float[Tensor, "#B 1 T R"]
) -> Float[Tensor, "B H T C"]:
    """Turn the pairs (x_i, x_{i+R}) for i < R; components from 2R on pass unchanged (partial rotation).

    Source: Su et al. 2021, RoFormer, eq. 34, in the half-split layout of GPT-NeoX and Llama.
    """
    R = cos.size(-1)
    cos = torch.cat((cos, cos), dim=-1).to(x.dtype)
    sin = torch.cat((-sin, sin), dim=-1).to(x.dtype)
    part = x if x.size(-1) == 2 * R else x[..., : 2 * R]
    turned = torch.addcmul(part * cos, part.roll(R, dims=-1), sin)
    return turned if part is x else torch.cat((turned, x[..., 2 * R :]), dim=-1)


def rotate_neighbours(
    x: Float[Tensor, "B H T C"], cos: Float[Tensor, "#B 1 T R"], sin: Float[Tensor, "#B 1 T R"]
) -> Float[Tensor, "B H T C"]:
    """Turn the pairs (x_{2i}, x_{2i+1}) for i < R."""
    R = cos.size(-1)
    even, odd = x[..., 0 : 2 * R : 2], x[..., 1 : 2 * R : 2]  # [B, H, T, R]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return turned if x.size(-1) == 2 * R else torch.cat((turned, x[..., 2 * R :]), dim=-1)
