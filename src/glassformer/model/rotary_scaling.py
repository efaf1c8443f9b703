"""Scaling of rotary frequencies: how a model reads further than it was first trained to.

A rotary frequency is the angle, in radians, that its pair turns by from one position to the next. Each scheme slows
some of them, so that far positions land on angles the model knows.
"""

from math import ceil, floor, log, pi
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from glassformer.spec import Spec

Factor = Annotated[float, Field(ge=1)]
Length = Annotated[int, Field(ge=1)]
Frequencies = Float[Tensor, "R"]


class Scaling(Spec):
    """The base of every scheme. `plain` is theta^(-i/R) for the pairs i of R, in float64."""

    def near(self, plain: Frequencies, theta: float) -> Frequencies:
        """The frequencies that stand for the plain ones."""
        raise NotImplementedError

    def far(self, plain: Frequencies, theta: float) -> tuple[int, Frequencies] | None:
        """Other frequencies for rows that reach beyond so many positions; None: always the same."""
        return None

    @property
    def stretch(self) -> float:
        """What a turned vector is multiplied by."""
        return 1.0


class LinearScalingSpec(Scaling):
    """Every frequency divided by `factor`: positions are squeezed together, near ones too.

    Formula: f_i -> f_i / factor

    Source: Chen et al. 2023, position interpolation, eq. 4.
    """

    kind: Literal["linear"] = "linear"
    factor: Factor

    def near(self, plain: Frequencies, theta: float) -> Frequencies:
        return plain / self.factor


class NtkScalingSpec(Scaling):
    """A larger base: the slowest pair turns `factor` times more slowly, the fastest as before.

    The fast pairs tell near neighbours apart, which squeezing all alike would blur.

    Formula: f_i -> f_i · factor^(-i / (R - 1)), which is theta -> theta · factor^(R / (R - 1))

    Source: Peng et al. 2023, YaRN, eq. 16 ("NTK-aware").
    """

    kind: Literal["ntk"] = "ntk"
    factor: Factor

    def near(self, plain: Frequencies, theta: float) -> Frequencies:
        last = max(1, len(plain) - 1)
        return plain * self.factor ** (-torch.arange(len(plain), dtype=plain.dtype) / last)


class YarnScalingSpec(Scaling):
    """Pairs that turn often within `original` positions stay, those that hardly turn are slowed, with a ramp between.

    A pair that turns more than `fast` times stays, one that turns less than `slow` times is divided by `factor`;
    `stretched` defaults to 0.1 · ln(factor) + 1. `whole` takes whole pairs as the ends of the ramp.

    Formula:
        f_i -> (1 - r_i) · f_i + r_i · f_i / factor
        r_i = (i - first) / (last - first), between 0 and 1
        first = pair(fast), last = pair(slow),  pair(n) = R · ln(original / 2πn) / ln(theta)
        turned vectors are multiplied by stretched

    Source: Peng et al. 2023, YaRN, eqs. 17 to 23.
    """

    kind: Literal["yarn"] = "yarn"
    factor: Factor
    original: Length
    fast: float = Field(default=32.0, gt=0)
    slow: float = Field(default=1.0, gt=0)
    stretched: float | None = Field(default=None, gt=0)
    whole: bool = True

    def near(self, plain: Frequencies, theta: float) -> Frequencies:
        R = len(plain)
        first, last = self._pair(self.fast, R, theta), self._pair(self.slow, R, theta)
        if self.whole:
            first, last = floor(first), ceil(last)
        first, last = max(first, 0), min(last, 2 * R - 1)
        slowed = (torch.arange(R, dtype=plain.dtype) - first) / max(last - first, 0.001)
        slowed = slowed.clamp(0, 1)
        return plain * (1 - slowed) + plain / self.factor * slowed

    @property
    def stretch(self) -> float:
        return 0.1 * log(self.factor) + 1 if self.stretched is None else self.stretched

    def _pair(self, turns: float, pairs: int, theta: float) -> float:
        """Which pair turns so often within the original length (a fraction lies between two pairs)."""
        return pairs * log(self.original / (turns * 2 * pi)) / log(theta)


class LongRopeScalingSpec(Scaling):
    """A divisor for each pair, found by search: one list up to `original` positions, another beyond.

    Keys remembered from before the border keep the angles they had.

    Formula:
        f_i -> f_i / short_i     in a text that ends before position `original`
        f_i -> f_i / long_i      in a longer one
        turned vectors are multiplied by stretched

    Source: Ding et al. 2024, LongRoPE.
    """

    kind: Literal["longrope"] = "longrope"
    short: tuple[float, ...] = Field(min_length=1)
    long: tuple[float, ...] = Field(min_length=1)
    original: Length
    stretched: float = Field(default=1.0, gt=0)

    def near(self, plain: Frequencies, theta: float) -> Frequencies:
        return plain / torch.tensor(self.short, dtype=plain.dtype)

    def far(self, plain: Frequencies, theta: float) -> tuple[int, Frequencies] | None:
        return self.original, plain / torch.tensor(self.long, dtype=plain.dtype)

    @property
    def stretch(self) -> float:
        return self.stretched


class Llama3ScalingSpec(Scaling):
    """Waves longer than original / `low` are divided by `factor`, those shorter than original / `high` stay.

    Between, the two are mixed: what tells neighbours apart is kept, what counts whole contexts is stretched.

    Formula:
        f_i -> k_i · f_i + (1 - k_i) · f_i / factor
        k_i = (n_i - low) / (high - low), between 0 and 1;  n_i = original · f_i / 2π

    Source: Llama 3.1 (Grattafiori et al. 2024), as in its reference code.
    """

    kind: Literal["llama3"] = "llama3"
    factor: Factor
    original: Length
    low: float = Field(default=1.0, gt=0)
    high: float = Field(default=4.0, gt=0)

    def near(self, plain: Frequencies, theta: float) -> Frequencies:
        turns = self.original * plain / (2 * pi)  # how often a pair turns within the original length
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return plain * kept + plain / self.factor * (1 - kept)


ScalingSpec = Annotated[
    LinearScalingSpec | NtkScalingSpec | YarnScalingSpec | LongRopeScalingSpec | Llama3ScalingSpec,
    Field(discriminator="kind"),
]
