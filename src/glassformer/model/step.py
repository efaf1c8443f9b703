"""Step: the one argument that flows down a model beside x: where the tokens stand, what is remembered, who watches.

Only facts about this pass; never configuration.
"""

from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.model.watch import OFF, Watcher


@dataclass(frozen=True)
class Kept:
    """One thing that an attention must remember between passes, and what it costs."""

    name: str
    shape: tuple[int, ...]
    per: Literal["token", "sequence", "memory"] = "token"
    limit: int | None = None  # tokens after which the oldest may be forgotten (a window)


@runtime_checkable
class Remembered(Protocol):
    """What a layer has seen so far, old and new."""

    @property
    def positions(self) -> Tensor:
        """[B, S] where each remembered token stands; -1 marks an empty slot."""
        ...

    @property
    def segments(self) -> Tensor | None:
        """[B, S] which document each belongs to, or None where there is one."""
        ...

    def gather(self) -> tuple[Tensor, ...]:
        """Everything remembered, one tensor [B, S, …] for each `Kept`. A kernel that reads pages need not call it."""
        ...


@runtime_checkable
class LayerCache(Protocol):
    def extend(self, *new: Tensor) -> Remembered:
        """Remember `new` (each [B, T, …]) and return all that is remembered."""
        ...


@runtime_checkable
class Cache(Protocol):
    def layer(self, index: int) -> LayerCache: ...


@dataclass(frozen=True)
class Step:
    """One pass over tokens [B, T].

    positions: [B, T] where each token stands in its sequence, or [1, T] where all rows agree; -1 marks padding.
    segments:  [B, T] which document each belongs to; tokens of different segments never see each other.
    plain:     every row is one sequence standing at 0 … T-1 and nothing is remembered, so "sees all before" is
               a triangle and needs no mask.
    """

    positions: Int[Tensor, "#B T"]
    segments: Int[Tensor, "B T"] | None = None
    cache: Cache | None = None
    watch: Watcher = OFF
    plain: bool = False

    @staticmethod
    def whole(tokens: Int[Tensor, "B T"], watch: Watcher = OFF) -> "Step":
        """The pass that sees whole sequences from their start."""
        positions = torch.arange(tokens.size(1), device=tokens.device)[None]
        return Step(positions, watch=watch, plain=True)

    def layer(self, index: int) -> "LayerStep":
        """The same step as layer `index` sees it, so that modules never know their index."""
        cache = None if self.cache is None else self.cache.layer(index)
        return LayerStep(self.positions, self.segments, cache, self.watch.at(f"blocks.{index}"), self.plain)


@dataclass(frozen=True)
class LayerStep:
    """A step within one layer."""

    positions: Tensor
    segments: Tensor | None
    cache: LayerCache | None
    watch: Watcher
    plain: bool

    def unwatched(self) -> "LayerStep":
        """The same, for a part inside a part: its inner values have no names of their own."""
        return replace(self, watch=OFF)

    def remember(self, *new: Tensor) -> Remembered:
        """Hand over what the next passes will need (each [B, T, …]) and get all that is remembered."""
        return ThisPass(self.positions, self.segments, new) if self.cache is None else self.cache.extend(*new)


@dataclass(frozen=True)
class ThisPass:
    """The memory of a pass without a cache: what it brought itself."""

    positions: Tensor
    segments: Tensor | None
    new: tuple[Tensor, ...]

    def gather(self) -> tuple[Tensor, ...]:
        return self.new
