"""Step: the one argument that flows down a model beside x: where the tokens stand, what is remembered, who watches.

Only facts about this pass; never configuration.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
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

    def recall(self) -> tuple[Tensor, ...] | None:
        """What is kept for each sequence, one tensor [B, …] for each `Kept`; None where all of them begin here."""
        ...

    def keep(self, *state: Tensor) -> None:
        """Keep `state` (each [B, …]) in place of what `recall` gave."""
        ...


@runtime_checkable
class Cache(Protocol):
    def layer(self, index: int) -> LayerCache: ...


@dataclass(frozen=True)
class Memory:
    """What an encoder has read, for the decoder's cross-attention.

    states:    [B, M, D] the encoder's last states.
    positions: [B, M] where each source token stands (or [1, M] where all rows agree); -1 marks padding.

    What a layer makes of the states (its keys and values) is made at the first pass and kept here, so that decoding
    pays for it once. A memory that is to be trained through belongs to one pass.
    """

    states: Float[Tensor, "B M D"]
    positions: Int[Tensor, "#B M"]
    made: dict[int, tuple[Tensor, ...]] = field(default_factory=dict[int, tuple[Tensor, ...]])

    def take(self, rows: Int[Tensor, "n"]) -> "Memory":
        """The memory of these rows, with all that was made of it (for a batch that changes, or beams that split)."""
        made = {layer: tuple(part[rows] for part in parts) for layer, parts in self.made.items()}
        return Memory(self.states[rows], self.positions.expand(self.states.size(0), -1)[rows], made)

    def layer(self, index: int) -> "LayerMemory":
        return LayerMemory(self, index)


@dataclass(frozen=True)
class LayerMemory:
    """The memory as one layer sees it."""

    memory: Memory
    index: int

    def recall(self, make: Callable[[Tensor], tuple[Tensor, ...]]) -> Remembered:
        """What `make(states)` gives (each [B, M, …]): made once, then remembered."""
        if self.index not in self.memory.made:
            self.memory.made[self.index] = make(self.memory.states)
        return ThisPass(self.memory.positions, None, self.memory.made[self.index])


@dataclass(frozen=True)
class Step:
    """One pass over tokens [B, T].

    positions: [B, T] where each token stands in its sequence, or [1, T] where all rows agree; -1 marks padding.
    segments:  [B, T] which document each belongs to; tokens of different segments never see each other.
    plain:     every row is one sequence standing at 0 … T-1 and nothing is remembered, so "sees all before" is
               a triangle and needs no mask.
    types:     [B, T] which text of a pair each token belongs to (0 or 1), for models that embed it.
    memory:    what the encoder has read, for models that attend to it.
    """

    positions: Int[Tensor, "#B T"]
    segments: Int[Tensor, "B T"] | None = None
    cache: Cache | None = None
    watch: Watcher = OFF
    plain: bool = False
    types: Int[Tensor, "B T"] | None = None
    memory: Memory | None = None

    @staticmethod
    def whole(tokens: Int[Tensor, "B T"], watch: Watcher = OFF, memory: Memory | None = None) -> "Step":
        """The pass that sees whole sequences from their start."""
        positions = torch.arange(tokens.size(1), device=tokens.device)[None]
        return Step(positions, watch=watch, plain=True, memory=memory)

    @staticmethod
    def padded(tokens: Int[Tensor, "B T"], real: Bool[Tensor, "B T"], watch: Watcher = OFF) -> "Step":
        """The pass over rows of unlike length; `real` is false at padding, which no token sees."""
        positions = (real.cumsum(dim=1) - 1).masked_fill(~real, -1)
        return Step(positions, watch=watch)

    def within(self, scope: str) -> "Step":
        """The same step as a part of the model sees it: what it shows is named `scope.…`."""
        return replace(self, watch=self.watch.at(scope))

    def layer(self, index: int) -> "LayerStep":
        """The same step as layer `index` sees it, so that modules never know their index."""
        cache = None if self.cache is None else self.cache.layer(index)
        memory = None if self.memory is None else self.memory.layer(index)
        watch = self.watch.at(f"blocks.{index}")
        return LayerStep(self.positions, self.segments, cache, watch, self.plain, memory)


@dataclass(frozen=True)
class LayerStep:
    """A step within one layer."""

    positions: Tensor
    segments: Tensor | None
    cache: LayerCache | None
    watch: Watcher
    plain: bool
    memory: LayerMemory | None = None

    def within(self, scope: str) -> "LayerStep":
        """The same, for a part whose names are prefixed with `scope.`."""
        return replace(self, watch=self.watch.at(scope))

    def unwatched(self) -> "LayerStep":
        """The same, for a part inside a part: its inner values have no names of their own."""
        return replace(self, watch=OFF)

    def remember(self, *new: Tensor) -> Remembered:
        """Hand over what the next passes will need (each [B, T, …]) and get all that is remembered."""
        return ThisPass(self.positions, self.segments, new) if self.cache is None else self.cache.extend(*new)

    def recall(self) -> tuple[Tensor, ...] | None:
        """What was kept for each sequence, [B, …] each; None where nothing came before this pass."""
        return None if self.cache is None else self.cache.recall()

    def keep(self, *state: Tensor) -> None:
        """Hand over what is to be kept for each sequence from now on, [B, …] each."""
        if self.cache is not None:
            self.cache.keep(*state)


@dataclass(frozen=True)
class ThisPass:
    """The memory of a pass without a cache: what it brought itself."""

    positions: Tensor
    segments: Tensor | None
    new: tuple[Tensor, ...]

    def gather(self) -> tuple[Tensor, ...]:
        return self.new
