"""`glassformer eval`: how well a model predicts prepared data or a text file."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from glassformer.checkpoint import load_model
from glassformer.cli.device import DTypeName, choose_dtype
from glassformer.cli.documents import read_documents
from glassformer.cli.model import MODEL, Revision, find_model
from glassformer.errors import CheckpointError, DataError
from glassformer.evaluate import (
    Score,
    Window,
    count_tokens,
    own_unigram_bits_per_byte,
    predicted_bytes,
    score_windows,
    text_windows,
    unigram_bits_per_byte,
    verdict,
)
from glassformer.model import Transformer
from glassformer.model.device import choose_device
from glassformer.tokenizer import Tokenizer
from glassformer.train.data import Dataset, TokenSplit, validation_windows
from glassformer.train.run import RunFolder

AT_ONCE = 8192
"""Tokens in a pass, where --batch-size doesn't say."""
STRETCH = 1 << 22
"""Tokens of a split that are counted at once."""


def evaluate(
    model: Annotated[str, typer.Argument(help=MODEL, show_default=False)],
    data: Annotated[
        Path | None, typer.Option(help="Prepared data: its whole validation split.", show_default=False)
    ] = None,
    text: Annotated[Path | None, typer.Option(help="A text file, or a folder of them.", show_default=False)] = None,
    which: Annotated[Literal["best", "last"], typer.Option(help="Which checkpoint of a run.")] = "best",
    stride: Annotated[
        int | None,
        typer.Option(help="With --text: predict so many tokens in a window and only see the others.", min=1),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Windows in a pass; fitting when left out.", min=1, show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    dtype: Annotated[DTypeName, typer.Option(help="Number format of the blocks; the loss is always exact.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    revision: Revision = None,
) -> None:
    """Measure a model on text: loss in nats per token, bits per byte, perplexity.

    Example: glassformer eval runs/first --data data/first

    Example: glassformer eval runs/first --text book.txt --json
    """
    if (data is None) == (text is None):
        raise DataError(
            "expected --data FOLDER or --text FILE, one of the two", do="glassformer eval RUN --data FOLDER"
        )
    if stride is not None and text is None:
        raise DataError("a stride goes with --text only", where="--stride", do="leave it out")
    place = choose_device(device)
    judge = Judge.of(find_model(model, revision), which, place, choose_dtype(dtype, place), batch_size)
    with _bar(quiet=as_json) as judge.on_progress:
        if data is not None:
            result = judge.on_data(Dataset.open(data))
        else:
            assert text is not None
            result = judge.on_text(text, stride)
    if as_json:
        print(json.dumps(result.plain(), ensure_ascii=False))
    else:
        result.print(Console(highlight=False))


@dataclass(frozen=True)
class Result:
    """A model's score, and the bits per byte of the unigram frequencies that it should beat."""

    score: Score
    unigram: float

    @property
    def warning(self) -> str | None:
        return verdict(self.score, self.unigram)

    def plain(self) -> dict[str, float | int | str | None]:
        """Everything as plain data."""
        score = asdict(self.score)
        if math.isinf(self.score.perplexity):  # JSON has no infinity
            score["perplexity"] = None
        return {**score, "unigram_bits_per_byte": self.unigram, "warning": self.warning}

    def print(self, console: Console) -> None:
        score = self.score
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_row("loss", f"{score.loss:.4f}", "nats per token")
        table.add_row("bits per byte", f"{score.bits_per_byte:.4f}", f"unigram frequencies: {self.unigram:.4f}")
        table.add_row("perplexity", f"{score.perplexity:,.2f}", "per token")
        table.add_row("predicted", f"{score.tokens:,}", f"tokens, {score.bytes:,} bytes, in {score.seconds:.1f} s")
        console.print(table)
        if self.warning:
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"warning: {self.warning}", markup=False)


@dataclass
class Judge:
    """A model, and how it is run to be measured."""

    model: Transformer
    tokenizer: Tokenizer
    device: torch.device
    dtype: torch.dtype = torch.float32
    batch_size: int | None = None
    boundaries: bool = False
    on_progress: Callable[[int, int], None] = lambda done, total: None

    @classmethod
    def of(
        cls,
        path: Path,
        which: Literal["best", "last"],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        batch_size: int | None = None,
    ) -> "Judge":
        """The model of a run or folder.

        Raises:
            CheckpointError: there is none, it has no tokenizer, or it doesn't say what follows a text.
        """
        loaded = load_model(path, device=device, which=which)
        if not loaded.spec.writes or loaded.spec.encoder is not None:
            what = "only a model that continues texts (a decoder) can be scored on one"
            raise CheckpointError(what, where=path, do="this one reads them: see fill and embed")
        if loaded.tokenizer is None:
            raise CheckpointError("the model has no tokenizer", where=path, do="put tokenizer.json beside its weights")
        return cls(loaded.model, loaded.tokenizer, device, dtype, batch_size, _apart(path))

    def on_data(self, dataset: Dataset) -> Result:
        """The score on the whole validation split; unigram frequencies are those of the training split.

        Raises:
            DataError: another tokenizer made the data, or nothing is held out.
        """
        if dataset.meta.tokenizer != self.tokenizer.fingerprint:
            raise DataError(
                f"these tokens are of another tokenizer than the model's (fingerprint {dataset.meta.tokenizer[:12]}…, "
                f"the model's is {self.tokenizer.fingerprint[:12]}…)",
                where=dataset.folder,
                do="give the data that the model was trained on, or score text with --text",
            )
        train, held_out = dataset.split("train"), dataset.split("validation")
        context = self.model.spec.context
        windows = validation_windows(held_out, context, self._rows(context), self.boundaries)
        first = held_out.read(0, min(1, held_out.tokens)).tolist()
        bytes = predicted_bytes(self.tokenizer, first, held_out.bytes)
        score = self._score(windows, bytes, held_out.tokens - 1)
        learnt = count_tokens(_stretches(train, 0), dataset.vocabulary)
        predicted = count_tokens(_stretches(held_out, 1), dataset.vocabulary)
        return Result(score, unigram_bits_per_byte(learnt, predicted, bytes))

    def on_text(self, path: Path, stride: int | None = None) -> Result:
        """The score on a text file or a folder of them; unigram frequencies are those of the text itself.

        Several documents are one after the other, each ended by the tokenizer's end token.

        Raises:
            DataError: no text, too short a text, or a stride longer than the context.
        """
        context = self.model.spec.context
        if stride is not None and stride > context:
            raise DataError(f"a stride of {stride} skips tokens: the context is {context}", where="--stride")
        documents = list(read_documents(path))
        end = [self.tokenizer.eos] if len(documents) > 1 else []
        tokens = [token for ids in map(self.tokenizer.encode, documents) for token in (*ids, *end)]
        bytes = predicted_bytes(self.tokenizer, tokens, sum(len(document.encode()) for document in documents))
        if len(tokens) < 2 or bytes < 1:
            raise DataError(f"{len(tokens)} tokens: none to predict from another", where=path, do="give a longer text")
        score = self._score(text_windows(tokens, context, self._rows(context), stride), bytes, len(tokens) - 1)
        return Result(score, own_unigram_bits_per_byte(count_tokens([tokens[1:]], self.tokenizer.vocabulary), bytes))

    def _score(self, windows: Iterable[Window], bytes: int, total: int) -> Score:
        return score_windows(
            self.model,
            windows,
            bytes,
            device=self.device,
            dtype=self.dtype,
            on_progress=lambda done: self.on_progress(done, total),
        )

    def _rows(self, context: int) -> int:
        return self.batch_size or max(1, AT_ONCE // context)


def _apart(path: Path) -> bool:
    """Whether the run at `path` learnt with documents that don't see each other; elsewhere they may."""
    return (path / "run.json").is_file() and RunFolder.open(path)[1].train.boundaries


def _stretches(split: TokenSplit, start: int) -> Iterator[np.ndarray]:
    """The tokens of a split from one on, a few million at a time."""
    for first in range(start, split.tokens, STRETCH):
        yield split.read(first, min(first + STRETCH, split.tokens))


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, when that is a terminal; it yields what tells it how far things are."""
    columns = TextColumn("scoring"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
