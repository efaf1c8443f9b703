"""Rotation of pairs of components by an angle that grows with position (RoPE)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def angles(positions: Int[Tensor, "#B T"], frequency: Float[Tensor, "R"]) -> tuple[Tensor, Tensor]:
    """Give cos and sin of position · frequency, each [B, 1, T, R] in float32: less would blur far positions."""
    angle = positions[:, None, :, None].to(frequency.dtype) * frequency
    return angle.cos(), angle.sin()


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
