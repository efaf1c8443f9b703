"""How a model knows where its tokens stand.

A scheme may act at three joints and does nothing at those it leaves alone: `embed` adds to the token vectors,
`rotate` turns queries and keys, `bias` adds to the scores. The model's own position acts at `embed`; each
attention has one for `rotate` and `bias`.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Self, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from glassformer.ops.rotate import angles, rotate_halves
from glassformer.spec import Spec

Joint = Literal["embed", "rotate", "bias"]


class Position(nn.Module):
    """No position at all, and the base of every scheme."""

    def embed(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        return x

    def rotate(self, x: Float[Tensor, "B H T C"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B H T C"]:
        return x

    def bias(self, query: Int[Tensor, "#B T"], key: Int[Tensor, "#B S"]) -> Float[Tensor, "#B H T S"] | None:
        return None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Tables that are computed keep their precision in a model that is cast: they change their device alone."""
        tables = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # pyright: ignore[reportUnknownMemberType]
        for name, table in tables.items():
            setattr(self, name, table.to(cast("Tensor", getattr(self, name)).device))
        return self

    def initialise(self, std: float) -> None:
        """Draw fresh weights, if it has any that don't start at zero or one; `std` is that of the token vectors."""


class NoPositionSpec(Spec):
    """Tokens without a place: only the causal mask tells order."""

    kind: Literal["none"] = "none"
    acts: ClassVar[tuple[Joint, ...]] = ()
    limit: ClassVar[int | None] = None

    def build(self, width: int, heads: int) -> Position:
        """`width` is the width of what it acts on: the model's at `embed`, a head's at `rotate` and `bias`."""
        return Position()


class SinusoidalSpec(Spec):
    """sin and cos of geometrically spaced frequencies, added to the token vectors. Source: Vaswani et al. 2017, 3.5."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    acts: ClassVar[tuple[Joint, ...]] = ("embed",)
    limit: ClassVar[int | None] = None
    base: float = Field(default=10_000.0, gt=1)

    def build(self, width: int, heads: int) -> Position:
        return Sinusoidal(width, self.base)


class Sinusoidal(Position):
    frequency: Tensor

    def __init__(self, width: int, base: float):
        super().__init__()
        even = torch.arange(0, width, 2, dtype=torch.float64)
        self.register_buffer("frequency", (base ** (-even / width)).float(), persistent=False)

    def embed(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        angle = positions[..., None].to(self.frequency.dtype) * self.frequency  # [B, T, D/2]
        pairs = torch.stack((angle.sin(), angle.cos()), dim=-1)  # even components sine, odd ones cosine
        return x + pairs.flatten(-2)[..., : x.size(-1)].to(x.dtype)


class LearnedSpec(Spec):
    """A trained vector for each position up to `length`, added to the token vectors."""

    kind: Literal["learned"] = "learned"
    acts: ClassVar[tuple[Joint, ...]] = ("embed",)
    length: int = Field(ge=1)

    @property
    def limit(self) -> int | None:
        """The number of positions it knows."""
        return self.length

    def build(self, width: int, heads: int) -> Position:
        return Learned(self.length, width)


class Learned(Position):
    def __init__(self, length: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, width))

    def initialise(self, std: float) -> None:
        self.table.normal_(std=std)

    def embed(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        return x + self.table[positions.clamp_min(0)]  # padding stands at -1; nobody reads it


class RotarySpec(Spec):
    """Queries and keys turned by an angle proportional to position, so that scores see distance alone.

    `fraction` of each head is turned. Source: Su et al. 2021, RoFormer.
    """

    kind: Literal["rotary"] = "rotary"
    acts: ClassVar[tuple[Joint, ...]] = ("rotate",)
    limit: ClassVar[int | None] = None
    theta: float = Field(default=10_000.0, gt=1)
    fraction: float = Field(default=1.0, gt=0, le=1)

    def rotated(self, width: int) -> int:
        """How many components of a head of this width are turned."""
        return 2 * int(width * self.fraction / 2)

    def build(self, width: int, heads: int) -> Position:
        return Rotary(self.rotated(width), self.theta)


class Rotary(Position):
    frequency: Tensor

    def __init__(self, rotated: int, theta: float):
        super().__init__()
        even = torch.arange(0, rotated, 2, dtype=torch.float64)
        self.register_buffer("frequency", (theta ** (-even / rotated)).float(), persistent=False)

    def rotate(self, x: Float[Tensor, "B H T C"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B H T C"]:
        return rotate_halves(x, *angles(positions, self.frequency))


class AlibiSpec(Spec):
    """A penalty on scores that grows with distance, at a slope of each head's own. Source: Press et al. 2021."""

    kind: Literal["alibi"] = "alibi"
    acts: ClassVar[tuple[Joint, ...]] = ("bias",)
    limit: ClassVar[int | None] = None

    def build(self, width: int, heads: int) -> Position:
        return Alibi(heads)


class Alibi(Position):
    slope: Tensor

    def __init__(self, heads: int):
        super().__init__()
        self.register_buffer("slope", alibi_slopes(heads), persistent=False)

    def bias(self, query: Int[Tensor, "#B T"], key: Int[Tensor, "#B S"]) -> Float[Tensor, "#B H T S"]:
        distance = (query[:, None, :, None] - key[:, None, None, :]).abs()  # [B, 1, T, S]
        return -self.slope[:, None, None] * distance


def alibi_slopes(heads: int) -> Float[Tensor, "H"]:
    """2^(-8/n), 2^(-16/n), … for n heads; for a number that is no power of two, the next power's odd terms follow."""
    power = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    rest = [2.0 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(heads - power)]
    return torch.tensor(first + rest)


PositionSpec = Annotated[
    NoPositionSpec | SinusoidalSpec | LearnedSpec | RotarySpec | AlibiSpec, Field(discriminator="kind")
]
