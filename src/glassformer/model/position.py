"""How a model knows where its tokens stand.

A scheme may act at three joints and does nothing at those it leaves alone: `embed` adds to the token vectors,
`rotate` turns queries and keys, `bias` adds to the scores. The model's own position acts at `embed`; each
attention has one for `rotate` and `bias`, or shares the model's (`SharedSpec`), which then acts there.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Self, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.model.rotary_scaling import ScalingSpec
from glassformer.ops.distance import alibi_slopes, distance_bucket
from glassformer.ops.rotate import Layout, angles, rotate
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

    @property
    def source(self) -> "Position":
        """Whose work it does: its own, or that of the position it shares."""
        return self

    @property
    def biases(self) -> bool:
        """Whether it adds to scores."""
        return type(self.source).bias is not Position.bias

    def initialise(self, std: float) -> None:
        """Draw fresh weights, if it has any that don't start at zero or one; `std` is that of the token vectors."""


class NoPositionSpec(Spec):
    """Tokens without a place: only the causal mask tells order, for those who see more tokens stand later.

    Formula: x_t -> x_t, q_t -> q_t, k_s -> k_s

    Source: Haviv et al. 2022; Kazemnejad et al. 2023, NoPE.
    """

    kind: Literal["none"] = "none"
    acts: ClassVar[tuple[Joint, ...]] = ()
    limit: ClassVar[int | None] = None

    def build(self, width: int, heads: int) -> Position:
        """`width` is the width of what it acts on: the model's at `embed`, a head's at `rotate` and `bias`."""
        return Position()


class IntegerSpec(Spec):
    """The position itself, times `scale`, added to every component: the naive way, for comparison.

    It grows without limit and soon drowns the token; within a layer norm it vanishes altogether.

    Formula: x_t -> x_t + scale · t

    Source: introductions to the subject, as the first idea that comes to mind.
    """

    kind: Literal["integer"] = "integer"
    acts: ClassVar[tuple[Joint, ...]] = ("embed",)
    limit: ClassVar[int | None] = None
    scale: float = Field(default=1.0, gt=0)

    def build(self, width: int, heads: int) -> Position:
        return Integer(self.scale)


class Integer(Position):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def embed(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        return x + self.scale * positions[..., None].to(x.dtype)


class SinusoidalSpec(Spec):
    """Sines and cosines of geometrically spaced frequencies, added to the token vectors.

    Each place has a vector of its own, and a shift by a distance is one rotation of it, wherever it begins.
    `layout`: sines and cosines in turns, as in the paper, or all sines before all cosines, as in Marian.

    Formula:
        x_t[2i]   -> x_t[2i]   + sin(t / base^(2i/D))
        x_t[2i+1] -> x_t[2i+1] + cos(t / base^(2i/D))     i = 0 … D/2 - 1

    Source: Vaswani et al. 2017, 3.5.
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    acts: ClassVar[tuple[Joint, ...]] = ("embed",)
    limit: ClassVar[int | None] = None
    base: float = Field(default=10_000.0, gt=1)
    layout: Layout = "interleaved"

    def build(self, width: int, heads: int) -> Position:
        return Sinusoidal(width, self.base, self.layout)


class Sinusoidal(Position):
    frequency: Tensor

    def __init__(self, width: int, base: float, layout: Layout):
        super().__init__()
        even = torch.arange(0, width, 2, dtype=torch.float64)
        self.layout: Layout = layout
        self.register_buffer("frequency", (base ** (-even / width)).float(), persistent=False)

    def embed(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        angle = positions[..., None].to(self.frequency.dtype) * self.frequency  # [B, T, ceil(D/2)]
        if self.layout == "halves":
            pairs = torch.cat((angle.sin(), angle.cos()), dim=-1)
        else:
            pairs = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return x + pairs[..., : x.size(-1)].to(x.dtype)


class LearnedSpec(Spec):
    """A trained vector for each position up to `length`, added to the token vectors: simple, and blind beyond it.

    The table may begin with `unused` rows that no token stands at, as in RoBERTa and BART.

    Formula: x_t -> x_t + table[t + unused]

    Source: Gehring et al. 2017; Radford et al. 2018, GPT.
    """

    kind: Literal["learned"] = "learned"
    acts: ClassVar[tuple[Joint, ...]] = ("embed",)
    length: int = Field(ge=1)
    unused: int = Field(default=0, ge=0, le=1024)

    @property
    def limit(self) -> int | None:
        """The number of positions it knows."""
        return self.length

    def build(self, width: int, heads: int) -> Position:
        return Learned(self.length, self.unused, width)


class Learned(Position):
    def __init__(self, length: int, unused: int, width: int):
        super().__init__()
        self.unused = unused
        self.table = nn.Parameter(torch.empty(unused + length, width))

    def initialise(self, std: float) -> None:
        self.table.normal_(std=std)

    def embed(self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        return x + self.table[positions.clamp_min(0) + self.unused]  # padding stands at -1; nobody reads it


class RotarySpec(Spec):
    """Queries and keys turned by an angle proportional to position, so that scores see distance alone.

    `fraction` of each head is turned; `layout` says which components are a pair, `scaling` how the angles are slowed
    for contexts longer than the model was first trained on.

    Formula:
        (a, b) -> (a cos φ - b sin φ, a sin φ + b cos φ)     for each pair of components of q_t and k_t
        φ = t · theta^(-i/R)                                 pair i = 0 … R - 1, R = ⌊C · fraction / 2⌋

    Source: Su et al. 2021, RoFormer, eq. 34.
    """

    kind: Literal["rotary"] = "rotary"
    acts: ClassVar[tuple[Joint, ...]] = ("rotate",)
    limit: ClassVar[int | None] = None
    theta: float = Field(default=10_000.0, gt=1)
    fraction: float = Field(default=1.0, gt=0, le=1)
    layout: Layout = "halves"
    scaling: ScalingSpec | None = None

    def rotated(self, width: int) -> int:
        """How many components of a head of this width are turned."""
        return 2 * int(width * self.fraction / 2)

    def fits(self, width: int) -> None:
        """Refuse a head that can't be divided into pairs, or lists of factors of another length."""
        if width % 2:
            raise ValueError(f"rotary positions turn pairs: head_width ({width}) must be even")
        if not self.rotated(width):
            raise ValueError(
                f"position.fraction ({self.fraction}) of head_width ({width}) is not a single pair to turn"
            )
        if self.scaling is not None and self.scaling.kind == "longrope":
            pairs = self.rotated(width) // 2
            if {len(self.scaling.short), len(self.scaling.long)} != {pairs}:
                raise ValueError(
                    f"position.scaling has {len(self.scaling.short)} short and {len(self.scaling.long)} long factors, "
                    f"expected one for each of {pairs} pairs"
                )

    def build(self, width: int, heads: int) -> Position:
        return Rotary(self.rotated(width), self)


class Rotary(Position):
    frequency: Tensor
    far: Tensor | None

    def __init__(self, rotated: int, spec: RotarySpec):
        super().__init__()
        self.layout: Layout = spec.layout
        self.stretch, self.border = 1.0, 0
        plain = spec.theta ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
        near, far = plain, None
        if spec.scaling is not None:
            near, self.stretch = spec.scaling.near(plain, spec.theta), spec.scaling.stretch
            if (beyond := spec.scaling.far(plain, spec.theta)) is not None:
                self.border, far = beyond[0], beyond[1].float()
        self.register_buffer("frequency", near.float(), persistent=False)
        self.register_buffer("far", far, persistent=False)

    def rotate(self, x: Float[Tensor, "B H T C"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B H T C"]:
        cos, sin = angles(positions, self.frequency)
        if self.far is not None:  # each row by its own furthest token
            beyond = (positions.amax(dim=-1) >= self.border)[:, None, None, None]
            cos, sin = (
                torch.where(beyond, far, near)
                for far, near in zip(angles(positions, self.far), (cos, sin), strict=True)
            )
        if self.stretch != 1.0:
            cos, sin = cos * self.stretch, sin * self.stretch
        return rotate(x, cos, sin, self.layout)


class AlibiSpec(Spec):
    """A penalty on scores that grows with distance: nothing is learned, so texts may be longer than in training.

    Each head has its own slope, so some look near and some far.

    Formula:
        score[h, t, s] -> score[h, t, s] - slope_h · |t - s|
        slope_h = 2^(-8 (h+1) / H)     h = 0 … H - 1, where H is a power of two

    Source: Press et al. 2021, ALiBi.
    """

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


class RelativeSpec(Spec):
    """A trained addition to each head's scores for every distance; far distances share logarithmic buckets.

    Without `bidirectional`, keys behind the query share the bucket of distance 0 (a causal mask hides them anyway);
    with it, each side has half of the buckets.

    Formula:
        score[h, t, s] -> score[h, t, s] + table[bucket(t - s), h]
        bucket(d) = d                                              d < E = buckets/2
        bucket(d) = E + ⌊(buckets - E) · ln(d/E) / ln(furthest/E)⌋    else, at most buckets - 1

    Source: Raffel et al. 2020, T5, 2.1.
    """

    kind: Literal["relative"] = "relative"
    acts: ClassVar[tuple[Joint, ...]] = ("bias",)
    limit: ClassVar[int | None] = None
    buckets: int = Field(default=32, ge=4, le=2**20, multiple_of=4)
    furthest: int = Field(default=128, ge=4, le=2**40)
    bidirectional: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        exact = self.buckets // (4 if self.bidirectional else 2)
        if self.furthest <= exact:
            raise ValueError(f"furthest ({self.furthest}) must be more than the {exact} distances with an own bucket")
        return self

    def build(self, width: int, heads: int) -> Position:
        return Relative(self, heads)


class Relative(Position):
    def __init__(self, spec: RelativeSpec, heads: int):
        super().__init__()
        self.spec = spec
        self.table = nn.Parameter(torch.empty(spec.buckets, heads))

    def initialise(self, std: float) -> None:
        self.table.normal_(std=std)

    def bias(self, query: Int[Tensor, "#B T"], key: Int[Tensor, "#B S"]) -> Float[Tensor, "#B H T S"]:
        spec, distance = self.spec, query[:, :, None] - key[:, None, :]
        bucket = distance_bucket(distance, spec.buckets, spec.furthest, spec.bidirectional)
        return self.table[bucket].permute(0, 3, 1, 2)


class SharedSpec(Spec):
    """The model's own position, at this attention: one table of distances for all layers, as in T5.

    Formula: that of model.position, with the same weights in every layer

    Source: Raffel et al. 2020, T5, 2.1.
    """

    kind: Literal["shared"] = "shared"
    acts: ClassVar[tuple[Joint, ...]] = ("rotate", "bias")
    limit: ClassVar[int | None] = None

    def build(self, width: int, heads: int) -> Position:
        return Shared()


class Shared(Position):
    """Stands where the position of an attention does; `of` says whose work it hands on."""

    def __init__(self) -> None:
        super().__init__()
        self._shared: tuple[Position, ...] = ()  # in a tuple it is no part of this module: its weights count once

    def of(self, position: Position) -> None:
        self._shared = (position,)

    @property
    def source(self) -> Position:
        return self._shared[0]

    def rotate(self, x: Float[Tensor, "B H T C"], positions: Int[Tensor, "#B T"]) -> Float[Tensor, "B H T C"]:
        return self._shared[0].rotate(x, positions)

    def bias(self, query: Int[Tensor, "#B T"], key: Int[Tensor, "#B S"]) -> Float[Tensor, "#B H T S"] | None:
        return self._shared[0].bias(query, key)


PositionSpec = Annotated[
    NoPositionSpec | IntegerSpec | SinusoidalSpec | LearnedSpec | RotarySpec | AlibiSpec | RelativeSpec | SharedSpec,
    Field(discriminator="kind"),
]
