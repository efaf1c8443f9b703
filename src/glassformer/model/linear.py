"""Linear: every projection in the model, with its axes named."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class Axes:
    """What a projection reads and writes, by the names of the one vocabulary: `Axes("D", "H C")`."""

    reads: str
    writes: str

    def __str__(self) -> str:
        return f"{self.reads.replace(' ', '·')} -> {self.writes.replace(' ', '·')}"


class Linear(nn.Module):
    """y = x Wᵀ + b, with W [outputs, inputs].

    `to_stream` says that the result is added to the residual stream (initialisation treats those apart).
    """

    def __init__(self, inputs: int, outputs: int, axes: Axes, *, bias: bool = False, to_stream: bool = False):
        super().__init__()
        self.axes, self.to_stream = axes, to_stream
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Float[Tensor, "*B i"]) -> Float[Tensor, "*B o"]:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.axes}, {self.weight.size(1)} -> {self.weight.size(0)}, bias={self.bias is not None}"


class ExpertLinear(nn.Module):
    """As many projections of one kind as there are experts: W [experts, outputs, inputs], used one at a time."""

    def __init__(self, experts: int, inputs: int, outputs: int, axes: Axes, *, to_stream: bool = False):
        super().__init__()
        self.axes, self.to_stream = axes, to_stream
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))

    def forward(self, x: Float[Tensor, "*B i"], expert: int) -> Float[Tensor, "*B o"]:
        return F.linear(x, self.weight[expert])

    def extra_repr(self) -> str:
        experts, outputs, inputs = self.weight.shape
        return f"{experts} x {self.axes}, {inputs} -> {outputs}"
