"""Optimizers: AdamW for everything, or Muon for the hidden matrices with AdamW for the rest."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from glassformer.errors import CheckpointError
from glassformer.model.linear import ExpertLinear, Linear
from glassformer.spec import Spec

Named = dict[str, nn.Parameter]


class AdamWSpec(Spec):
    """Adam with decoupled weight decay on matrices. Source: Loshchilov & Hutter 2019, algorithm 2."""

    kind: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)

    def build(self, model: nn.Module, dtype: torch.dtype = torch.float32) -> "Optimizer":
        """An optimizer for all parameters of a model; `dtype` is the format of the run's matrix products."""
        return Optimizer(self.parts(dict(model.named_parameters())))

    def parts(self, named: Named) -> list[tuple[torch.optim.Optimizer, Named]]:
        """AdamW over some parameters. Norm gains and biases aren't decayed: zero is no better a value for them."""
        groups = []
        for decays in (True, False):
            part = {name: p for name, p in named.items() if (p.ndim >= 2) is decays}
            if part:
                adam = torch.optim.AdamW(
                    part.values(), lr=self.learning_rate, betas=(self.beta1, self.beta2), eps=self.eps,
                    weight_decay=self.weight_decay if decays else 0.0, fused=True,
                )  # fmt: skip
                groups.append((adam, part))
        return groups


class MuonSpec(Spec):
    """Momentum whose direction is made orthogonal, for the matrices inside the blocks; AdamW for all else.

    The experts of a mixture are matrices each.

    `learning_rate` is Muon's. Source: Jordan et al. 2024, Muon.
    """

    kind: Literal["muon"] = "muon"
    learning_rate: float = Field(default=0.02, gt=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    iterations: int = Field(default=5, ge=1, le=20)
    rest: AdamWSpec = AdamWSpec(learning_rate=3e-3, beta1=0.8, beta2=0.95, weight_decay=0.0)

    def build(self, model: nn.Module, dtype: torch.dtype = torch.float32) -> "Optimizer":
        """As AdamWSpec.build; orthogonalisation runs in `dtype`."""
        named = dict(model.named_parameters())
        hidden = {
            f"{name}.weight": module.weight
            for name, module in model.named_modules()
            if isinstance(module, Linear | ExpertLinear) and "V" not in module.axes.writes.split()
        }
        rest = {name: p for name, p in named.items() if name not in hidden}
        return Optimizer([(Muon(hidden.values(), self, dtype), hidden), *self.rest.parts(rest)])


OptimizerSpec = Annotated[AdamWSpec | MuonSpec, Field(discriminator="kind")]


class Muon(torch.optim.Optimizer):
    """One momentum buffer a matrix; the step is the nearest orthogonal matrix to it (Nesterov's look ahead included).

    Matrices of one shape are stacked and made orthogonal together. A step has size 1 in every direction, and
    √(outputs/inputs) where a matrix widens, so that activations change alike whatever the shape.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], spec: MuonSpec, dtype: torch.dtype):
        super().__init__(matrices, {"lr": spec.learning_rate})
        self.spec, self.dtype = spec, dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            alike: defaultdict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike[matrix.shape].append(matrix)
            for shape, matrices in alike.items():
                self._step(matrices, group["lr"], group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5)

    def _step(self, matrices: list[Tensor], rate: float, size: float) -> None:
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        momenta = [self.state[matrix]["momentum"] for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - self.spec.momentum)
        ahead = torch._foreach_lerp(gradients, momenta, self.spec.momentum)
        stacked = torch.stack(list(ahead)).to(self.dtype)  # [N, o, i], or [N, experts, o, i]
        steps = orthogonalise(stacked.flatten(0, -3), self.spec.iterations).view_as(stacked).unbind()
        if self.spec.weight_decay:
            torch._foreach_mul_(matrices, 1 - rate * self.spec.weight_decay)
        torch._foreach_add_(matrices, [step.to(matrices[0].dtype) for step in steps], alpha=-size)


def orthogonalise(g: Float[Tensor, "N o i"], iterations: int) -> Float[Tensor, "N o i"]:
    """U Vᵀ of each matrix's singular value decomposition, nearly: every singular value ends between 0.7 and 1.2.

    Newton–Schulz iteration with an odd quintic whose slope at zero is as steep as can be; bfloat16
    suffices, because the iteration corrects its own errors. Source: Jordan et al. 2024.
    """
    tall = g.size(-2) > g.size(-1)
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(iterations):
        s = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Optimizer:
    """What the loop steps: one or more torch optimizers, with one schedule and one state by parameter name."""

    def __init__(self, parts: list[tuple[torch.optim.Optimizer, Named]]):
        self._parts = parts
        self._rates = [part.param_groups[0]["lr"] for part, _ in parts]

    @property
    def learning_rate(self) -> float:
        """The first part's current rate (Muon's where there is one), for the log."""
        return float(self._parts[0][0].param_groups[0]["lr"])

    def step(self, factor: float) -> None:
        """One update at `factor` times the learning rates; gradients are dropped after it."""
        for (part, _), rate in zip(self._parts, self._rates, strict=True):
            part.param_groups[0]["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """All it remembers, as tensors: `parameter.name/moment`."""
        return {f"{name}/{key}": value for name, key, value in self._entries()}

    def load_state(self, tensors: dict[str, Tensor], where: object) -> None:
        """Put back what `state` gave."""
        names = {name for _, named in self._parts for name in named}
        strangers = {key.rpartition("/")[0] for key in tensors} - names
        if strangers:
            raise CheckpointError(f"optimizer state of unknown parameters: {sorted(strangers)[:3]}", where=where)
        for part, named in self._parts:
            for name, parameter in named.items():
                mine = {
                    key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")
                }
                part.state[parameter] = mine

    def _entries(self) -> Iterator[tuple[str, str, Tensor]]:
        for part, named in self._parts:
            for name, parameter in named.items():
                entry: dict[str, Any] = part.state.get(parameter, {})
                for key, value in entry.items():
                    yield name, key, value
