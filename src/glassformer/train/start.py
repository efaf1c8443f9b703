"""Starting and resuming runs: from a tree of settings and prepared data to a `Trainer` with its folder."""

import hashlib
from pathlib import Path
from typing import Any

from glassformer.errors import CheckpointError, DataError, SpecError
from glassformer.spec import check, override
from glassformer.train.data import Dataset
from glassformer.train.loop import Listener, Trainer
from glassformer.train.run import DataSource, RunFile, RunFolder
from glassformer.train.spec import TrainSpec


def fingerprint(dataset: Dataset) -> str:
    """What the data are: a hash of their shards' checksums and their tokenizer."""
    shards = [file.sha256 for split in dataset.meta.splits.values() for file in split.shards]
    return hashlib.sha256("\n".join([dataset.meta.tokenizer, *shards]).encode()).hexdigest()


def resolve(tree: dict[str, Any], dataset: Dataset) -> TrainSpec:
    """A tree of settings as a spec, with the data's vocabulary filled in where it isn't given.

    Raises:
        SpecError: a field is unknown or out of range, or the vocabulary is smaller than the data's.
    """
    model = tree.get("model")
    if isinstance(model, dict) and "vocabulary" not in model:
        tree = {**tree, "model": {**model, "vocabulary": dataset.vocabulary}}
    spec = check(TrainSpec, tree)
    if spec.model.vocabulary < dataset.vocabulary:
        raise SpecError(
            f"model.vocabulary is {spec.model.vocabulary}, the data have {dataset.vocabulary} tokens",
            do="leave it out: it is taken from the data",
        )
    return spec


def start_run(
    spec: TrainSpec, dataset: Dataset, out: Path, listen: Listener = lambda progress: None, dry: bool = False
) -> Trainer:
    """A new run in `out`, ready to `fit`; `dry`: only to `plan`, with nothing written.

    Raises:
        CheckpointError: `out` isn't empty. DataError: the data are too short. DeviceError: no such device or format.
    """
    file = RunFile(train=spec, data=DataSource(folder=str(dataset.folder.resolve()), fingerprint=fingerprint(dataset)))
    RunFolder.refuse_taken(out)
    trainer = Trainer(spec, dataset, RunFolder(out), listen)  # may refuse: nothing is written before
    if not dry:
        RunFolder.create(out, RunFile(train=trainer.spec, data=file.data), dataset.tokenizer())
        trainer.run.take()
    return trainer


def resume_run(
    path: Path, data: Path | None = None, settings: tuple[str, ...] = (), listen: Listener = lambda progress: None
) -> Trainer:
    """An existing run, where its newest checkpoint left it; `settings` change its spec from here on.

    Raises:
        CheckpointError: no run at `path`, a damaged checkpoint, other data than the run's, or nothing left to do.
    """
    run, file = RunFolder.open(path)
    folder = data or Path(file.data.folder)
    if not folder.exists():
        raise DataError("the data of this run are gone", where=folder, do="give --data FOLDER")
    dataset = Dataset.open(folder)
    if fingerprint(dataset) != file.data.fingerprint:
        raise CheckpointError("these are not the data of the run", where=folder, do="give those it began with")
    spec = check(TrainSpec, override(file.train.model_dump(mode="json"), settings), where=path / "run.json")
    run.take()  # before anything is read that another process might be changing
    try:
        run.refuse_another(spec.model)
        trainer = Trainer(spec, dataset, run, listen)
        if trainer.done >= 1:
            raise CheckpointError(
                f"nothing left to do: the run is at step {trainer.state.step:,} of {spec.max_steps:,}",
                where=path,
                do=f"to train on, raise --max-steps{' or --set max_seconds=…' if spec.max_seconds else ''}",
            )
        if spec != file.train:
            run.write(RunFile(train=trainer.spec, data=file.data))
    except BaseException:
        run.leave()
        raise
    return trainer
