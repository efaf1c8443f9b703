"""The run folder: the resolved spec, the tokenizer, checkpoints, the log and its pictures.

run.json  tokenizer.json  log.csv  loss.png  best.json
checkpoints/step-00000500/{model.safetensors, spec.json, optimizer.safetensors, state.json}
"""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any, Self

from glassformer.checkpoint import (
    load_model,
    load_spec,
    load_tensors,
    save_model,
    save_tensors,
    write_file,
    write_folder,
)
from glassformer.checkpoint.locate import checkpoints
from glassformer.errors import CheckpointError, SpecError
from glassformer.model import Transformer, TransformerSpec
from glassformer.spec import Spec, check, read_tree
from glassformer.tokenizer import Tokenizer
from glassformer.train.optimizer import Optimizer
from glassformer.train.spec import TrainSpec


class DataSource(Spec):
    """Which prepared data a run learns from; `fingerprint` changes when the data do."""

    folder: str
    fingerprint: str


class RunFile(Spec):
    """What run.json holds."""

    train: TrainSpec
    data: DataSource


class State(Spec):
    """Where a run stands: all that isn't a tensor."""

    step: int = 0
    seconds: float = 0.0
    best_step: int | None = None
    best_loss: float | None = None


class RunFolder:
    """One run on disk. All of it is written atomically: a killed run can always go on from its last checkpoint."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, file: RunFile, tokenizer: Tokenizer | None) -> Self:
        """A new run.

        Raises:
            CheckpointError: there is something at `path` already.
        """
        cls.refuse_taken(path)
        run = cls(path)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"can't make the run folder: {error.strerror}", where=path) from None
        if tokenizer is not None:
            tokenizer.save(path)
        run.write(file)
        return run

    @staticmethod
    def refuse_taken(path: Path) -> None:
        """Refuse a path where a new run would cover something, or where nothing can be written."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            kind = "a run" if (path / "run.json").exists() else "something"
            raise CheckpointError(
                f"there is {kind} already", where=path, do=f"go on with --resume {path}, or choose another --out"
            )
        above = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
            raise CheckpointError("can't write there", where=above, do="choose another --out")

    def take(self) -> None:
        """From here on no other process can train this run, until `leave`; a process that dies lets go by itself.

        Raises:
            CheckpointError: another process has it.
        """
        if self._lock is not None:
            return
        try:
            lock = os.open(self.path / ".lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CheckpointError(f"can't write there: {error.strerror}", where=self.path) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise CheckpointError(
                "another process is training this run", where=self.path, do="wait for it, or stop it"
            ) from None
        except OSError:  # a file system without locks
            pass
        self._lock = lock

    def leave(self) -> None:
        """Let other processes train it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __del__(self) -> None:
        self.leave()

    def refuse_another(self, spec: TransformerSpec) -> None:
        """Refuse to go on with a model that differs from that of the newest checkpoint.

        Raises:
            CheckpointError: it belongs to another spec.
        """
        found = checkpoints(self.path)
        if found:
            folder = found[max(found)]
            saved, _ = load_spec(folder)
            if saved != spec:
                raise CheckpointError(
                    f"a checkpoint of another spec: {difference(saved.model_dump(), spec.model_dump())}",
                    where=folder,
                    do="resume with the spec of the run, or train anew",
                )

    @classmethod
    def open(cls, path: Path) -> tuple[Self, RunFile]:
        """A run that exists.

        Raises:
            CheckpointError: there is no run at `path`.
        """
        if not (path / "run.json").is_file():
            raise CheckpointError(
                "no run to resume: run.json is missing", where=path, do="give the folder that `train --out` made"
            )
        try:
            return cls(path), check(RunFile, read_tree(path / "run.json"), where=path / "run.json")
        except SpecError as error:
            raise CheckpointError(error.what, where=path / "run.json", do="restore the file from a backup") from None

    def write(self, file: RunFile) -> None:
        """Save the resolved spec."""
        write_file(self.path / "run.json", file.to_json().encode())

    @property
    def log(self) -> Path:
        return self.path / "log.csv"

    @property
    def picture(self) -> Path:
        return self.path / "loss.png"

    def save(self, model: Transformer, optimizer: Optimizer, state: State, keep: int) -> Path:
        """Write a checkpoint, then forget the older ones that are neither the best nor among the newest `keep`."""
        target = self.path / "checkpoints" / f"step-{state.step:08d}"

        def fill(folder: Path) -> None:
            save_model(folder, model)
            save_tensors(folder / "optimizer.safetensors", optimizer.state())
            (folder / "state.json").write_text(state.to_json(), encoding="utf-8")

        write_folder(target, fill)
        if state.best_step is not None and (self.path / "checkpoints" / f"step-{state.best_step:08d}").exists():
            best = {"step": state.best_step, "loss": state.best_loss}
            write_file(self.path / "best.json", (json.dumps(best) + "\n").encode())
        found = checkpoints(self.path)
        for step in list(found)[:-keep]:
            if step != state.best_step:
                shutil.rmtree(found[step], ignore_errors=True)
        return target

    def load(self, model: Transformer, optimizer: Optimizer) -> State:
        """Put the newest checkpoint into a model and its optimizer; the start of the run where there is none.

        Raises:
            CheckpointError: it is damaged, or belongs to another spec.
        """
        found = checkpoints(self.path)
        if not found:
            return State()
        folder = found[max(found)]
        self.refuse_another(model.spec)
        loaded = load_model(folder)
        if not (folder / "state.json").is_file():
            raise CheckpointError("state.json is missing: not a checkpoint of a run", where=folder, do="delete it")
        state = check(State, read_tree(folder / "state.json"), where=folder / "state.json")
        model.load_state_dict(loaded.model.state_dict())
        optimizer.load_state(load_tensors(folder / "optimizer.safetensors"), where=folder)
        return state


def difference(one: Any, other: Any, path: str = "") -> str:
    """The first field in which two trees of plain data differ, as `path: one, other`."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if one.get(key) != other.get(key):
                return difference(one.get(key), other.get(key), f"{path}.{key}" if path else key)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            if a != b:
                return difference(a, b, f"{path}.{index}")
    return f"{path} was {one!r}, is {other!r}"
