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
    """Each token's vector brought to mean 0 and variance 1, then a gain and a bias for each component.

    Whatever a layer wrote, the next reads numbers of one size, which keeps deep stacks trainable.

    Formula: y = (x - mean(x)) / √(var(x) + eps) · g + b

    Source: Ba et al. 2016.
    """

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
    """Layer norm without centring: only the size is normed, which is what matters; with or without the gain g.

    `unit_offset`: the weight w stands for a gain of 1 + w, so that decay pulls the gain to one, as in Gemma.

    Formula: y = x / √(mean(x²) + eps) · g

    Source: Zhang & Sennrich 2019, eq. 4.
    """

    kind: Literal["rms"] = "rms"
    eps: float = Field(default=1e-5, gt=0)
    gain: bool = True
    unit_offset: bool = False

    def build(self, width: int) -> "RMSNorm":
        return RMSNorm(width, self)


class RMSNorm(nn.Module):
    def __init__(self, width: int, spec: RMSNormSpec):
        super().__init__()
        self.eps, self.unit_offset = spec.eps, spec.unit_offset
        start = torch.zeros(width) if spec.unit_offset else torch.ones(width)
        self.weight = nn.Parameter(start) if spec.gain else None

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        y = rms_norm(x, self.eps)
        if self.weight is None:
            return y
        return y * (1 + self.weight) if self.unit_offset else y * self.weight


class BatchNormSpec(Spec):
    """Each component by its mean and variance over all tokens of the batch: for contrast with the others.

    In training tokens see each other through it, later ones too, and padding counts; in evaluation running averages
    stand in, so what a model learnt with it may not hold.

    Formula: y_d = (x_d - mean_d) / √(var_d + eps) · g_d + b_d, with mean_d and var_d over the batch

    Source: Ioffe & Szegedy 2015.
    """

    kind: Literal["batch"] = "batch"
    eps: float = Field(default=1e-5, gt=0)
    momentum: float = Field(default=0.1, gt=0, le=1)

    def build(self, width: int) -> "BatchNorm":
        return BatchNorm(width, self)


class BatchNorm(nn.Module):
    mean: Tensor
    variance: Tensor

    def __init__(self, width: int, spec: BatchNormSpec):
        super().__init__()
        self.eps, self.momentum = spec.eps, spec.momentum
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        rows = x.reshape(-1, x.size(-1))
        y = F.batch_norm(rows, self.mean, self.variance, self.weight, self.bias, self.training, self.momentum, self.eps)
        return y.reshape(x.shape)


NormSpec = Annotated[LayerNormSpec | RMSNormSpec | BatchNormSpec, Field(discriminator="kind")]
Norm = LayerNorm | RMSNorm | BatchNorm
