"""Feed-forward: each token by itself, through a wider hidden layer and back."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from glassformer.model.linear import Axes, Linear
from glassformer.model.step import LayerStep
from glassformer.ops.activation import relu_squared
from glassformer.ops.dropout import dropout
from glassformer.spec import Spec

Activation = Literal["relu", "relu_squared", "gelu", "gelu_tanh", "silu"]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, as GPT-2 used it. Source: Hendrycks & Gimpel 2016."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_squared": relu_squared,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
}


class MLPSpec(Spec):
    """down(activation(up(x))). Source: Vaswani et al. 2017, 3.3."""

    kind: Literal["mlp"] = "mlp"
    hidden: int = Field(ge=1)
    activation: Activation = "gelu"
    bias: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def points(self) -> tuple[str, ...]:
        return ("ffn_pre", "ffn_act", "ffn_out")

    def build(self, width: int) -> "MLP":
        return MLP(width, self)


class MLP(nn.Module):
    def __init__(self, width: int, spec: MLPSpec):
        super().__init__()
        self.up = Linear(width, spec.hidden, Axes("D", "F"), bias=spec.bias)
        self.down = Linear(spec.hidden, width, Axes("F", "D"), bias=spec.bias, to_stream=True)
        self.activation, self.dropout = ACTIVATIONS[spec.activation], spec.dropout

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        hidden = step.watch("ffn_act", self.activation(step.watch("ffn_pre", self.up(x))))
        return step.watch("ffn_out", self.down(dropout(hidden, self.dropout, self.training)))


class GatedSpec(Spec):
    """down(activation(gate(x)) · up(x)): SwiGLU with silu, GEGLU with gelu. Source: Shazeer 2020."""

    kind: Literal["gated"] = "gated"
    hidden: int = Field(ge=1)
    activation: Activation = "silu"
    bias: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def points(self) -> tuple[str, ...]:
        return ("ffn_pre", "ffn_gate", "ffn_act", "ffn_out")

    def build(self, width: int) -> "Gated":
        return Gated(width, self)


class Gated(nn.Module):
    def __init__(self, width: int, spec: GatedSpec):
        super().__init__()
        self.gate = Linear(width, spec.hidden, Axes("D", "F"), bias=spec.bias)
        self.up = Linear(width, spec.hidden, Axes("D", "F"), bias=spec.bias)
        self.down = Linear(spec.hidden, width, Axes("F", "D"), bias=spec.bias, to_stream=True)
        self.activation, self.dropout = ACTIVATIONS[spec.activation], spec.dropout

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        up, gate = step.watch("ffn_pre", self.up(x)), step.watch("ffn_gate", self.gate(x))
        hidden = step.watch("ffn_act", self.activation(gate) * up)
        return step.watch("ffn_out", self.down(dropout(hidden, self.dropout, self.training)))


FeedForwardSpec = Annotated[MLPSpec | GatedSpec, Field(discriminator="kind")]
FeedForward = MLP | Gated
