"""Schedules: how the learning rate rises and falls over a run.

A schedule is a factor on every learning rate, from the step (for the warm-up, which is about the optimizer's
first estimates) and the share of the run that is done (for the rest).
"""

from math import cos, pi
from typing import Annotated, Literal

from pydantic import Field

from glassformer.spec import Spec


class ConstantSpec(Spec):
    """Warm-up, then always the same."""

    kind: Literal["constant"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)

    def factor(self, step: int, done: float) -> float:
        """The factor for `step` (from 0) when the share `done` of the run, 0 to 1, lies behind it."""
        return _warm(step, self.warmup_steps)


class CosineSpec(Spec):
    """Warm-up, then half a cosine down to `final`. Source: Loshchilov & Hutter 2017."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: int = Field(default=100, ge=0)
    final: float = Field(default=0.1, ge=0, le=1)

    def factor(self, step: int, done: float) -> float:
        falling = self.final + (1 - self.final) * 0.5 * (1 + cos(pi * min(1.0, done)))
        return _warm(step, self.warmup_steps) * falling


class StableDecaySpec(Spec):
    """Warm-up, stable, then straight to `final` over the last `decay` of the run. Source: Hu et al. 2024, 4.2."""

    kind: Literal["wsd"] = "wsd"
    warmup_steps: int = Field(default=100, ge=0)
    decay: float = Field(default=0.3, gt=0, le=1)
    final: float = Field(default=0.0, ge=0, le=1)

    def factor(self, step: int, done: float) -> float:
        left = min(1.0, max(0.0, (1 - done) / self.decay))
        return _warm(step, self.warmup_steps) * (self.final + (1 - self.final) * left)


ScheduleSpec = Annotated[ConstantSpec | CosineSpec | StableDecaySpec, Field(discriminator="kind")]


def _warm(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / steps) if steps else 1.0
