"""A proof, on a user's own run, that stopping and resuming changes not one bit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from glassformer.checkpoint import load_tensors
from glassformer.checkpoint.locate import checkpoints
from glassformer.train.data import Dataset
from glassformer.train.history import Row, read_log
from glassformer.train.loop import Trainer
from glassformer.train.spec import TrainSpec
from glassformer.train.start import resume_run, start_run

PLANS: tuple[tuple[int, ...], ...] = ((20,), (10, 20), (5, 10, 20))


@dataclass(frozen=True)
class Proof:
    """What one way of stopping and resuming gave, against the run that was never stopped."""

    stops: str
    same_weights: bool
    same_optimizer: bool
    same_log: bool

    @property
    def holds(self) -> bool:
        """Equal in everything, bit for bit."""
        return self.same_weights and self.same_optimizer and self.same_log


def prove_resume(
    spec: TrainSpec, dataset: Dataset, folder: Path, say: Callable[[str], None] = lambda text: None
) -> list[Proof]:
    """Train 20 steps whole, as 10 + 10, as 5 + 5 + 10, and stopped in the middle of a step's micro-batches.

    Each part is a fresh `Trainer` that knows only what is on the disk. `folder` gets the runs.
    """
    micro = spec.micro_batch_size or (spec.batch_size // 2 if spec.batch_size % 2 == 0 else None)
    spec = spec.replace(
        max_steps=20, max_seconds=None, log_every=1, evaluate_every=100, save_every=100, micro_batch_size=micro, keep=9
    )
    runs = {}
    for stops in PLANS:
        name = " + ".join(str(b - a) for a, b in zip((0, *stops), stops, strict=False))
        say(name)
        runs[name] = _run(spec, dataset, folder / name.replace(" ", ""), stops)
    if micro is not None and micro < spec.batch_size:
        say("7½ + 12½")
        runs["7 and half a step + the rest"] = _run(spec, dataset, folder / "torn", (), torn=7)
    whole, *others = (_outcome(path) for path in runs.values())
    return [_compare(name, whole, other) for name, other in zip(list(runs)[1:], others, strict=True)]


def _run(spec: TrainSpec, dataset: Dataset, path: Path, stops: Sequence[int], torn: int | None = None) -> Path:
    trainer = start_run(spec, dataset, path)
    if torn is not None:
        _tear(trainer, torn)
        trainer.fit()
        stops, trainer = (spec.max_steps,), resume_run(path)
    for index, stop in enumerate(stops):
        trainer.fit(until=stop)
        if index + 1 < len(stops):
            trainer = resume_run(path)
    return path


def _tear(trainer: Trainer, step: int) -> None:
    """Ask for a stop within a step, after its first micro-batch."""
    loss = trainer.loss

    def torn_loss(*inputs: object, **named: object) -> Tensor:
        trainer.stop.asked = trainer.state.step == step
        return loss(*inputs, **named)

    trainer.loss = torn_loss


def _outcome(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], list[tuple[object, ...]]]:
    last = checkpoints(path)[20]
    rows = [_what_counts(row) for row in read_log(path / "log.csv")]
    return load_tensors(last / "model.safetensors"), load_tensors(last / "optimizer.safetensors"), rows


def _what_counts(row: Row) -> tuple[object, ...]:
    """All of a row but how fast it went."""
    return row.step, row.tokens, row.loss, row.gradient_norm, row.learning_rate, row.validation_loss, row.load


def _compare(name: str, one: tuple, other: tuple) -> Proof:
    return Proof(name, _same(one[0], other[0]), _same(one[1], other[1]), one[2] == other[2])


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
