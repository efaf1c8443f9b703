"""Norms: bring each token's vector to a known size before it is read."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from glassformer.ops.norm import rms_norm
from glassformer.spec import Spec


class LayerNormSpec(Spec):
    """(x - mean) / sqrt(var + ε) · g + b over the width. Source: Ba et al. 2016."""

    kind: Literal["layer"] = "layer"
    eps: float = Field(default=1e-5, gt=0)
    bias: bool = True

    def build(self, width: int) -> "LayerNorm":
        return LayerNorm(width, self)


class LayerNorm(nn.Module):
    def __init__(self, width: int, spec: LayerNormSpec):
        super().__init__()
        self.eps = spec.eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if spec.bias else None

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNormSpec(Spec):
    """x / sqrt(mean(x²) + ε) · g over the width, with or without the gain g. Source: Zhang & Sennrich 2019."""

    kind: Literal["rms"] = "rms"
    eps: float = Field(default=1e-5, gt=0)
    gain: bool = True

    def build(self, width: int) -> "RMSNorm":
        return RMSNorm(width, self)


class RMSNorm(nn.Module):
    def __init__(self, width: int, spec: RMSNormSpec):
        super().__init__()
        self.eps = spec.eps
        self.weight = nn.Parameter(torch.ones(width)) if spec.gain else None

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        y = rms_norm(x, self.eps)
        return y if self.weight is None else y * self.weight


NormSpec = Annotated[LayerNormSpec | RMSNormSpec, Field(discriminator="kind")]
Norm = LayerNorm | RMSNorm
