"""Feed-forward: each token by itself, through a wider hidden layer and back; or through some of many (experts)."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.model.linear import Axes, ExpertLinear, Linear
from glassformer.model.step import LayerStep
from glassformer.ops.activation import relu_squared
from glassformer.ops.dropout import dropout
from glassformer.spec import Spec

Activation = Literal["relu", "relu_squared", "gelu", "gelu_tanh", "silu", "tanh"]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, as GPT-2 used it. Source: Hendrycks & Gimpel 2016."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_squared": relu_squared,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class MLPSpec(Spec):
    """Two layers with an activation between: each token thinks for itself about what attention brought.

    Without the activation the two matrices would be one.

    Formula:
        y = W_down activation(W_up x)
        relu: max(0, u)   relu_squared: max(0, u)²   silu: u σ(u)   tanh: tanh(u)
        gelu: u Φ(u)      gelu_tanh: u/2 · (1 + tanh(√(2/π) (u + 0.044715 u³)))

    Source: Vaswani et al. 2017, 3.3; GELU: Hendrycks & Gimpel 2016; relu_squared: So et al. 2021, Primer.
    """

    kind: Literal["mlp"] = "mlp"
    hidden: int = Field(ge=1)
    activation: Activation = "gelu"
    bias: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def points(self) -> tuple[str, ...]:
        return ("ffn_pre", "ffn_act", "ffn_out")

    def sizes(self) -> dict[str, int]:
        """The sizes of its axes."""
        return {"F": self.hidden}

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
    """A feed-forward in which one projection opens and closes the other: SwiGLU with silu, GEGLU with gelu.

    At equal parameters (hidden width 2/3 as large) it usually learns better than the plain one.

    Formula: y = W_down (activation(W_gate x) ⊙ W_up x)

    Source: Shazeer 2020.
    """

    kind: Literal["gated"] = "gated"
    hidden: int = Field(ge=1)
    activation: Activation = "silu"
    bias: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def points(self) -> tuple[str, ...]:
        return ("ffn_pre", "ffn_gate", "ffn_act", "ffn_out")

    def sizes(self) -> dict[str, int]:
        return {"F": self.hidden}

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


class ExpertsSpec(Spec):
    """A mixture of experts: a router sends each token to `chosen` of many small feed-forwards and mixes their answers.

    So a model knows more than it computes: all experts are parameters, few are work. `scores` makes the router's
    logits into weights; `normalise` lets the chosen ones sum to one; `scale` multiplies them. Experts may lie in
    `groups`, of which only the `chosen_groups` best are open to a token, judged by their best expert or by the sum of
    their two best. `balance` adds a bias to the scores that decides the choice alone and is moved while training, so
    that every expert gets its share. `shared` is the hidden width of one more expert that every token goes through,
    weighed by a gate of its own with `shared_gate`. Padding goes to no expert.

    Formula:
        p = softmax(W_router x), or σ(W_router x)
        N = the `chosen` experts of largest p_e + balance_e
        y = scale · Σ_{e ∈ N} p_e / (Σ_{n ∈ N} p_n) · expert_e(x) + σ(w_gate · x) · shared(x)

    Sources: Shazeer et al. 2017; Fedus et al. 2021; Dai et al. 2024, DeepSeekMoE; DeepSeek-V3 2024, 2.1.2.
    """

    kind: Literal["experts"] = "experts"
    experts: int = Field(ge=1)
    chosen: int = Field(ge=1)
    hidden: int = Field(ge=1)
    activation: Activation = "silu"
    gated: bool = True
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    scale: float = Field(default=1.0, gt=0)
    groups: int = Field(default=1, ge=1)
    chosen_groups: int = Field(default=1, ge=1)
    group_by: Literal["best", "two best"] = "best"
    balance: bool = False
    shared: int | None = Field(default=None, ge=1)
    shared_gate: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.experts % self.groups:
            raise ValueError(f"experts ({self.experts}) must be a multiple of groups ({self.groups})")
        if self.chosen_groups > self.groups:
            raise ValueError(f"chosen_groups ({self.chosen_groups}) of only {self.groups} groups")
        open_to_one = self.experts // self.groups * self.chosen_groups
        if self.chosen > open_to_one:
            raise ValueError(f"chosen ({self.chosen}) experts of only {open_to_one} that are open to a token")
        if self.shared_gate and self.shared is None:
            raise ValueError("shared_gate is a gate for the shared expert: give its width as shared")
        return self

    def points(self) -> tuple[str, ...]:
        return ("router", "ffn_out")

    def sizes(self) -> dict[str, int]:
        return {"F": self.hidden, "E": self.experts}

    def build(self, width: int) -> "Experts":
        return Experts(width, self)


class Experts(nn.Module):
    balance: Tensor | None

    def __init__(self, width: int, spec: ExpertsSpec):
        super().__init__()
        self.spec, E, F_ = spec, spec.experts, spec.hidden
        self.activation = ACTIVATIONS[spec.activation]
        self.router = Linear(width, E, Axes("D", "E"))
        self.register_buffer("balance", torch.zeros(E) if spec.balance else None)
        self.gate = ExpertLinear(E, width, F_, Axes("D", "F")) if spec.gated else None
        self.up = ExpertLinear(E, width, F_, Axes("D", "F"))
        self.down = ExpertLinear(E, F_, width, Axes("F", "D"), to_stream=True)
        self.shared = None
        if spec.shared is not None:
            kind = GatedSpec if spec.gated else MLPSpec
            self.shared = kind(hidden=spec.shared, activation=spec.activation).build(width)
        self.shared_gate = Linear(width, 1, Axes("D", "1")) if spec.shared_gate else None

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        weights, chosen = self.route(step.watch("router", self.router(x)))
        chosen = chosen.masked_fill(step.positions[..., None] < 0, self.spec.experts)  # padding: to nobody
        out = self.mix(x.flatten(0, 1), weights.flatten(0, 1), chosen.flatten(0, 1)).view_as(x)
        if self.shared is not None:
            common = self.shared(x, step.unwatched())
            out = out + (common if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * common)
        return step.watch("ffn_out", out)

    def route(self, logits: Float[Tensor, "B T E"]) -> tuple[Float[Tensor, "B T N"], Int[Tensor, "B T N"]]:
        """The weights of the chosen experts and which they are, N for each token."""
        spec = self.spec
        logits = logits if logits.dtype == torch.float64 else logits.float()
        scores = logits.softmax(dim=-1) if spec.scores == "softmax" else logits.sigmoid()
        judged = scores if self.balance is None else scores + self.balance
        if spec.groups > 1:
            grouped = judged.view(*judged.shape[:-1], spec.groups, -1)
            best = grouped.topk(min(grouped.size(-1), 1 if spec.group_by == "best" else 2), dim=-1).values.sum(-1)
            closed = torch.ones_like(best, dtype=torch.bool)
            closed = closed.scatter(-1, best.topk(spec.chosen_groups, dim=-1).indices, False)
            judged = grouped.masked_fill(closed[..., None], float("-inf")).flatten(-2)
        chosen = judged.topk(spec.chosen, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if spec.normalise:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights * spec.scale, chosen

    def mix(
        self, x: Float[Tensor, "N D"], weights: Float[Tensor, "N k"], chosen: Int[Tensor, "N k"]
    ) -> Float[Tensor, "N D"]:
        """Each expert that is used at all reads its tokens side by side; their answers are added up by weight."""
        k = chosen.size(-1)
        order = chosen.flatten().argsort(stable=True)
        used = chosen.flatten().bincount(minlength=self.spec.experts + 1)
        counts = cast("list[int]", used.tolist())  # pyright: ignore[reportUnknownMemberType]
        out, end = torch.zeros_like(x), 0
        for expert, count in enumerate(counts[:-1]):
            if count:
                pairs, end = order[end : end + count], end + count
                tokens = pairs // k
                answer = self.answer(x[tokens], expert) * weights.flatten()[pairs, None].to(x.dtype)
                out = out.index_add(0, tokens, answer.to(out.dtype))
        return out

    def answer(self, x: Float[Tensor, "N D"], expert: int) -> Float[Tensor, "N D"]:
        """What one expert makes of some tokens."""
        up = self.up(x, expert)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x, expert)) * up
        return self.down(hidden, expert)


FeedForwardSpec = Annotated[MLPSpec | GatedSpec | ExpertsSpec, Field(discriminator="kind")]
FeedForward = MLP | Gated | Experts
