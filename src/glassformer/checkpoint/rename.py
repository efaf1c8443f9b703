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

from glassformer.checkpoint.tensors import Entry
from glassformer.errors import CheckpointError

Turn = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True)
class Rule:
    """Some of their tensors are some of ours: `load` makes ours of theirs, `save` theirs of ours."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    load: Turn
    save: Turn


def same(theirs: str, ours: str) -> Rule:
    """The same tensor under another name."""
    return Rule((theirs,), (ours,), load=list, save=list)


def transposed(theirs: str, ours: str) -> Rule:
    """A matrix that they store as [inputs, outputs]; ours is [outputs, inputs]."""
    return Rule((theirs,), (ours,), load=_transpose, save=_transpose)


def split(theirs: str, ours: Sequence[str], sizes: Sequence[int], *, transpose: bool = False) -> Rule:
    """One of theirs is several of ours, one after the other along the outputs (the first axis of ours)."""

    def load(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        whole = tensors[0].t() if transpose else tensors[0]
        return whole.split(list(sizes))

    def save(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        whole = torch.cat(list(tensors))
        return [whole.t() if transpose else whole]

    return Rule((theirs,), tuple(ours), load, save)


def filled(theirs: str, shape: Sequence[int], value: float) -> Rule:
    """A tensor that they always have and we leave out, because `value` everywhere changes nothing."""
    return Rule((theirs,), (), load=lambda _: [], save=lambda _: [torch.full(tuple(shape), value)])


def _transpose(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return [tensor.t() for tensor in tensors]


class Source(Protocol):
    """Tensors on disk, by their names there."""

    @property
    def entries(self) -> Mapping[str, Entry]: ...

    def read(self, name: str) -> Tensor: ...


Shapes = Mapping[str, Sequence[int]]


def check(rules: Iterable[Rule], shapes: Shapes, source: Source, unused: Sequence[str], where: Path) -> None:
    """Refuse a checkpoint that lacks tensors, has others, or has them in other shapes; nothing is read yet.

    `shapes` are those of our model; `unused` are patterns of names that a checkpoint may hold without need.
    """
    expected = dict(_their_shapes(rules, shapes))
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
                if name in found and tuple(found[name]) != tuple(shape)
            ],
        ),
    ]
    if any(problems):
        what = "; ".join(problem for problem in problems if problem)
        raise CheckpointError(
            f"checkpoint of another spec: {what}", where=where, do="give the weights and the spec of the same model"
        )


def imported(rules: Iterable[Rule], source: Source) -> Iterator[tuple[str, Tensor]]:
    """Our names and tensors, read from the disk rule by rule."""
    for rule in rules:
        yield from zip(rule.ours, rule.load([source.read(name) for name in rule.theirs]), strict=True)


def exported(rules: Iterable[Rule], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their names and tensors."""
    return {
        name: tensor
        for rule in rules
        for name, tensor in zip(rule.theirs, rule.save([tensors[name] for name in rule.ours]), strict=True)
    }


def _their_shapes(rules: Iterable[Rule], shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What export would write, tried on tensors without memory: so import and export can't disagree."""
    for rule in rules:
        outlines = [torch.empty(tuple(shapes[name]), device="meta") for name in rule.ours]
        for name, tensor in zip(rule.theirs, rule.save(outlines), strict=True):
            yield name, tuple(tensor.shape)


def _listed(kind: str, names: Sequence[str], most: int = 4) -> str:
    if not names:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    count = f"{len(names)} tensors" if len(names) > 1 else "1 tensor"
    return f"{count} {kind}: {', '.join(name[:120] for name in names[:most])}{more}"
