"""RMS normalisation with a backward pass of its own: half the memory traffic of the one autograd would derive."""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def rms_norm(x: Float[Tensor, "*B D"], eps: float) -> Float[Tensor, "*B D"]:
    """Give y = x · r with r = 1 / sqrt(mean(x²) + ε), over the last axis; the mean is taken in at least float32.

    Source: Zhang & Sennrich 2019, eq. 4.
    """
    return _RMSNorm.apply(x, eps)  # pyright: ignore[reportReturnType, reportUnknownVariableType, reportUnknownMemberType]


class _RMSNorm(torch.autograd.Function):
    """∂L/∂x = r · (g - y · mean(g · y)) for the gradient g of y; the mean comes from r's own dependence on x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        norm = cast("Tensor", torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide))  # pyright: ignore[reportUnknownMemberType]
        r = torch.rsqrt(norm * norm / x.size(-1) + eps).to(x.dtype)
        y = x * r
        ctx.save_for_backward(y, r)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (g,), (y, r) = gradients, ctx.saved_tensors
        return torch.addcmul(g, y, (g * y).mean(dim=-1, keepdim=True), value=-1).mul_(r), None
