"""Small data and small runs, for tests of training and of what comes after it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassformer.model.recipes import gpt2
from glassformer.spec import override
from glassformer.train import TrainSpec, resolve
from glassformer.train.data import Dataset, PrepareOptions, prepare

VERSES = "".join(f"{n} green bottles hanging on the wall, 墙上有{n}个绿瓶子。\n" for n in range(120))


def tiny_data(folder: Path, text: str = VERSES, **options: Any) -> Dataset:
    """Prepared characters of a short text."""
    source = folder / "source.txt"
    source.write_text(text, encoding="utf-8")
    prepare([source], "char", folder / "data", PrepareOptions(**options))
    return Dataset.open(folder / "data")


def tiny_spec(dataset: Dataset, settings: Sequence[str] = (), **fields: Any) -> TrainSpec:
    """A run of a few milliseconds a step."""
    model = gpt2(dataset.vocabulary, layers=2, width=16, heads=2, context=16)
    base = TrainSpec(model=model, batch_size=4, max_steps=20, dtype="float32", log_every=1).model_dump(mode="json")
    return resolve(override({**base, **fields}, settings), dataset)
