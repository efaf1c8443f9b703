"""Activations that torch doesn't have."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def relu_squared(x: Tensor) -> Tensor:
    """max(0, x)². Source: So et al. 2021, Primer."""
    return _ReluSquared.apply(x)  # pyright: ignore[reportReturnType, reportUnknownVariableType, reportUnknownMemberType]


class _ReluSquared(torch.autograd.Function):
    """Keeps max(0, x) alone: the gradient is 2 · g · max(0, x), which is zero wherever the output is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (g,), (positive,) = gradients, ctx.saved_tensors
        return (g * positive).mul_(2)
