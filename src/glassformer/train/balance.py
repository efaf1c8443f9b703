"""Balance among experts: what keeps a router from sending every token to the same few.

Two means, which may be combined. A *loss* that is smallest when all experts get equally many tokens, whose gradient
flows into the router; and a *bias* on the scores, which decides the choice alone and is moved a little after every
step, down for those that got too much. Neither needs the model to know that it is being trained: a watcher on `router`
keeps what the routers said.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from glassformer.model.feedforward import Experts
from glassformer.model.watch import OFF, Watchable, Watcher
from glassformer.spec import Spec


class BalanceSpec(Spec):
    """How experts are kept in balance (models without experts don't look at it).

    `loss` weighs N · Σ f·P: the share of tokens that chose each of N experts, times its mean probability; at balance it
    is the number of experts a token chooses. It is the mean over layers, or, `jointly`, that of all layers taken as
    one, as in transformers' Mixtral. `z_loss` weighs the mean of (log Σ exp of a router's scores)², which keeps them
    small. `rate` is how far a bias moves in a step, for experts that have one (`balance` in their spec).
    Sources: Fedus et al. 2021, Switch, 2.2; Zoph et al. 2022, ST-MoE, 2.3; DeepSeek-V3 2024, 2.1.2.
    """

    loss: float = Field(default=0.01, ge=0)
    jointly: bool = False
    z_loss: float = Field(default=0.0, ge=0)
    rate: float = Field(default=0.001, ge=0)


class Routers:
    """A watcher that keeps the scores of every router, with their gradients, by the name of its block."""

    def __init__(self, scope: str = "", scores: dict[str, Tensor] | None = None):
        self.scope, self.scores = scope, {} if scores is None else scores

    def expect(self, model: Watchable) -> None:
        pass

    def at(self, scope: str) -> "Routers":
        return Routers(f"{self.scope}{scope}.", self.scores)

    def wants(self, *names: str) -> bool:
        """The router is there on every path, so nothing has to be written out for it."""
        return False

    def __call__(self, name: str, value: Tensor) -> Tensor:
        if name == "router":
            self.scores[self.scope.removesuffix(".")] = value
        return value


@dataclass(frozen=True)
class Routed:
    """What one router did with N real tokens: its scores, as probabilities of E experts, and the k it chose."""

    scores: Float[Tensor, "N E"]
    probabilities: Float[Tensor, "N E"]
    chosen: Int[Tensor, "N k"]

    @classmethod
    def of(cls, experts: Experts, scores: Float[Tensor, "B T E"], real: Bool[Tensor, "#B T"] | None) -> "Routed":
        """`real` tells tokens from padding; None: all are."""
        if real is not None:
            scores = scores[real.expand(scores.shape[:-1])][None]
        chosen = experts.route(scores.detach())[1]
        wide = scores if scores.dtype == torch.float64 else scores.float()
        if experts.spec.scores == "softmax":
            probabilities = wide.softmax(dim=-1)
        else:
            each = wide.sigmoid()
            probabilities = each / each.sum(dim=-1, keepdim=True)
        return cls(*(part.flatten(0, -2) for part in (wide, probabilities, chosen)))

    @property
    def counts(self) -> Int[Tensor, "E"]:
        """How many tokens chose each expert."""
        return self.chosen.flatten().bincount(minlength=self.scores.size(-1))

    @property
    def shares(self) -> Float[Tensor, "E"]:
        """Which part of the tokens chose each expert."""
        return self.counts.to(self.scores.dtype) / len(self.scores)


def balance_loss(routed: Iterable[Routed], jointly: bool = False) -> Float[Tensor, ""]:
    """N · Σ f·P, the mean over layers, or of all layers taken as one (which must then have equally many experts)."""
    layers = list(routed)
    if jointly:
        names = ("scores", "probabilities", "chosen")
        layers = [Routed(*(torch.cat([getattr(layer, name) for layer in layers]) for name in names))]
    losses = [layer.scores.size(-1) * (layer.shares * layer.probabilities.mean(dim=0)).sum() for layer in layers]
    return torch.stack(losses).mean()


def z_loss(routed: Iterable[Routed]) -> Float[Tensor, ""]:
    """The mean, over tokens and layers, of (log Σ exp of a router's scores)²."""
    return torch.stack([layer.scores.logsumexp(dim=-1).square().mean() for layer in routed]).mean()


@dataclass
class Balance:
    """The experts of a model through a run: `begin` a step, take the `loss` of each pass, `move` after the update."""

    layers: dict[str, Experts]
    spec: BalanceSpec
    counts: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, spec: BalanceSpec) -> "Balance":
        """All mixtures in a model, by the name of their block."""
        found = {
            name.rpartition(".")[0]: module for name, module in model.named_modules() if isinstance(module, Experts)
        }
        return cls(found, spec)

    def begin(self) -> None:
        """Forget what an earlier step, or one that was broken off, has counted."""
        self.counts = {}

    def watcher(self) -> Watcher:
        """Who watches a pass; nobody in a model without experts."""
        return Routers() if self.layers else OFF

    def loss(self, watcher: Watcher, positions: Int[Tensor, "#B T"] | None) -> Float[Tensor, ""] | None:
        """What the experts of a pass add to its mean loss; their tokens are counted, those at -1 (padding) aside."""
        if not isinstance(watcher, Routers):
            return None
        real = None if positions is None else positions >= 0
        routed = {name: Routed.of(self.layers[name], scores, real) for name, scores in watcher.scores.items()}
        for name, layer in routed.items():
            self.counts[name] = self.counts.get(name, 0) + layer.counts
        routed = {name: layer for name, layer in routed.items() if len(layer.scores)}
        parts: list[Tensor] = []
        if self.spec.loss and routed:
            parts.append(self.spec.loss * balance_loss(routed.values(), self.spec.jointly))
        if self.spec.z_loss and routed:
            parts.append(self.spec.z_loss * z_loss(routed.values()))
        return torch.stack(parts).sum() if parts else None

    @torch.no_grad()
    def move(self) -> None:
        """Every bias goes down by `rate` where more than the mean came in this step, and up where less did."""
        for name, counts in self.counts.items():
            bias = self.layers[name].balance
            if bias is not None:
                load = counts.to(torch.float64)
                bias += self.spec.rate * torch.sign(load.mean() - load).to(bias.dtype)

    @property
    def load(self) -> tuple[float, ...] | None:
        """What the fullest expert of each layer got in this step, in multiples of the mean: 1 is balance."""
        if not self.counts:
            return None
        loads = (self.counts[name].double() for name in self.layers if name in self.counts)
        return tuple(float(load.max() / load.mean()) for load in loads)
