"""Name tables: how the tensors of another program's checkpoint become ours, and ours theirs.

A table is a list of rules. Import applies them, export inverts them, and every tensor on both sides must be
accounted for.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from glassformer.checkpoint.gguf import Packed
from glassformer.checkpoint.tensors import Entry
from glassformer.errors import CheckpointError

Turn = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """Some of their tensors are some of ours.

    `load` makes ours of theirs, `save` theirs of ours, and `shapes` tells the shapes of theirs from those of ours.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    load: Turn
    save: Turn
    shapes: Callable[[Sequence[Shape]], Sequence[Shape]]


def same(theirs: str, ours: str) -> Rule:
    """The same tensor under another name."""
    return Rule((theirs,), (ours,), load=list, save=list, shapes=lambda shapes: shapes)


def transposed(theirs: str, ours: str) -> Rule:
    """A matrix that they store as [inputs, outputs]; ours is [outputs, inputs]."""

    def turn(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [tensor.t() for tensor in tensors]

    return Rule((theirs,), (ours,), load=turn, save=turn, shapes=lambda shapes: [shapes[0][::-1]])


def split(theirs: str, ours: Sequence[str], sizes: Sequence[int], *, transpose: bool = False) -> Rule:
    """One of theirs is several of ours, one after the other along the outputs (the first axis of ours)."""

    def load(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        whole = tensors[0].t() if transpose else tensors[0]
        return whole.split(list(sizes))

    def save(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        whole = torch.cat(list(tensors))
        return [whole.t() if transpose else whole]

    def shapes(parts: Sequence[Shape]) -> Sequence[Shape]:
        whole = (sum(part[0] for part in parts), *parts[0][1:])
        return [whole[::-1] if transpose else whole]

    return Rule((theirs,), tuple(ours), load, save, shapes)


def stacked(theirs: Sequence[str], ours: str) -> Rule:
    """Several of theirs, of one shape, are one of ours with an axis more: the experts of a layer."""

    def load(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.stack(list(tensors))]

    def shapes(parts: Sequence[Shape]) -> Sequence[Shape]:
        return [parts[0][1:]] * len(theirs)

    return Rule(tuple(theirs), (ours,), load, lambda tensors: list(tensors[0].unbind()), shapes)


def by_head(theirs: str, ours: Sequence[str], heads: int) -> Rule:
    """One of theirs holds several of ours head by head: for each head its rows of the first, of the second, …"""

    def load(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        apart = tensors[0].unflatten(0, (heads, len(ours), -1))  # [H, 3, C, …]
        return [part.flatten(0, 1).contiguous() for part in apart.unbind(1)]

    def save(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.stack([tensor.unflatten(0, (heads, -1)) for tensor in tensors], dim=1).flatten(0, 2)]

    def shapes(parts: Sequence[Shape]) -> Sequence[Shape]:
        return [(sum(part[0] for part in parts), *parts[0][1:])]

    return Rule((theirs,), tuple(ours), load, save, shapes)


def row(theirs: str, ours: str) -> Rule:
    """A vector that they store as a matrix of one row."""

    def save(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [tensors[0][None]]

    return Rule((theirs,), (ours,), lambda tensors: [tensors[0][0]], save, lambda shapes: [(1, *shapes[0])])


def filled(theirs: str, shape: Sequence[int], value: float) -> Rule:
    """A tensor that they always have and we leave out, because `value` everywhere changes nothing."""
    whole = tuple(shape)
    return Rule((theirs,), (), load=lambda _: [], save=lambda _: [torch.full(whole, value)], shapes=lambda _: [whole])


class Source(Protocol):
    """Tensors on disk, by their names there."""

    @property
    def entries(self) -> Mapping[str, Entry | Packed]: ...

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """One of them; numbers with a fraction as `dtype`."""
        ...


class RawSource(Source, Protocol):
    """Tensors whose bytes can be looked at as they lie there."""

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of one of them, some at a time."""
        ...


def alike(source: RawSource, one: str, other: str) -> bool:
    """Whether two tensors on disk are the same, in number format, shape and every number."""
    a, b = source.entries[one], source.entries[other]
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return all(piece == there for piece, there in zip(source.pieces(one), source.pieces(other), strict=True))


def check(
    rules: Iterable[Rule], shapes: Mapping[str, Shape], source: Source, unused: Sequence[str], where: Path
) -> None:
    """Refuse a checkpoint that lacks tensors, has others, or has them in other shapes; nothing is read yet.

    `shapes` are those of our model; `unused` are patterns of names that a checkpoint may hold without need.
    """
    expected = {
        name: shape
        for rule in rules
        for name, shape in zip(rule.theirs, rule.shapes([shapes[name] for name in rule.ours]), strict=True)
    }
    found = {
        name: entry.shape
        for name, entry in source.entries.items()
        if name in expected or not any(re.fullmatch(pattern, name) for pattern in unused)
    }
    problems = [
        _listed("missing", [name for name in expected if name not in found]),
        _listed("unexpected", [name for name in found if name not in expected]),
        _listed(
            "of another shape",
            [
                f"{name} (expected {list(shape)}, found {list(found[name])})"
                for name, shape in expected.items()
                if name in found and found[name] != shape
            ],
        ),
    ]
    whole = [
        f"{name} ({str(entry.dtype).removeprefix('torch.')})"
        for name in expected
        if (entry := source.entries.get(name)) is not None and not entry.dtype.is_floating_point
    ]
    problems.append(_listed("of whole numbers where weights have fractions (quantised?)", whole))
    if any(problems):
        what = "; ".join(problem for problem in problems if problem)
        raise CheckpointError(
            f"checkpoint of another spec: {what}", where=where, do="give the weights and the config of the same model"
        )


def imported(rules: Iterable[Rule], source: Source, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Our names and tensors, read from the disk rule by rule and converted on the way."""
    for rule in rules:
        yield from zip(rule.ours, rule.load([source.tensor(name, dtype) for name in rule.theirs]), strict=True)


def exported(rules: Iterable[Rule], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their names and tensors."""
    return {
        name: tensor
        for rule in rules
        for name, tensor in zip(rule.theirs, rule.save([tensors[name] for name in rule.ours]), strict=True)
    }


def _listed(kind: str, names: Sequence[str], most: int = 4) -> str:
    if not names:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    count = f"{len(names)} tensors" if len(names) > 1 else "1 tensor"
    return f"{count} {kind}: {', '.join(name[:120] for name in names[:most])}{more}"
