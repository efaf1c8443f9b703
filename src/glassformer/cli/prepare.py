"""`glassformer prepare`: text files to token shards, ready to train on."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from glassformer.spec import check
from glassformer.train import data


def prepare(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Text files, or folders of them.")],
    tokenizer: Annotated[
        str, typer.Option(help="char, bpe, wordpiece or unigram (trained on this text), or a folder with a tokenizer.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; an earlier one is replaced as a whole.")],
    vocab_size: Annotated[int | None, typer.Option(help="Tokens of the trained tokenizer.", min=1)] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Unicode NFC, no control characters, no repeats.")] = False,
    validation: Annotated[float, typer.Option(help="Share of the text held out.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Chooses the documents held out.")] = 0,
    encoding: Annotated[str | None, typer.Option(help="Of all files; guessed for each when left out.")] = None,
    split_on: Annotated[str | None, typer.Option(help="What stands between documents, as <|endoftext|>.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Turn text into training data: txt, md, jsonl ({"text": …}), parquet (column text), source code; also gzipped.

    Example: glassformer prepare books/ notes.jsonl.gz --tokenizer bpe --vocab-size 8000 --out data/books
    """
    options = check(
        data.PrepareOptions,
        {
            "vocab_size": vocab_size,
            "validation": validation,
            "clean": clean,
            "seed": seed,
            "encoding": encoding,
            "split_on": split_on,
        },
        where="prepare",
    )
    with _bars() as show:
        report = data.prepare(paths, tokenizer, out, options, show)
    if json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _print(report, out)


class RateColumn(ProgressColumn):
    """Millions (of bytes or characters) a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed / 1e6:.1f} M/s" if speed else "", style="progress.data.speed")


@contextmanager
def _bars() -> Iterator[data.Report]:
    """One bar a stage on stderr, when that is a terminal."""
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TextColumn("to go"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:

        def show(progress: data.Progress) -> None:
            if progress.stage not in tasks:
                for earlier in bars.tasks:  # their stage is over, and their clock stops
                    if not earlier.finished:
                        bars.update(earlier.id, total=1, completed=1)
                tasks[progress.stage] = bars.add_task(progress.stage, total=progress.total)
            bars.update(tasks[progress.stage], completed=progress.done, total=progress.total)

        yield show


def _print(report: data.PrepareReport, out: Path) -> None:
    lines = [f"{_number(report.files, 'file')}: {_counts(report.encodings)}"]
    if report.skipped:
        some = f"; such as {', '.join(report.skipped_examples)}" if report.skipped_examples else ""
        lines.append(f"left out: {_counts(report.skipped)}{some}")
    if report.empty_documents:
        lines.append(f"left out: {_number(report.empty_documents, 'empty document')}")
    if report.cleaning:
        lines.append(f"cleaned: {_cleaned(report.cleaning)}")
    typer.echo("\n".join(lines))
    Console().print(_table(report))
    typer.echo(f"validation: {report.split}; tokenizer: {report.tokenizer}, vocabulary {report.vocabulary:,}")
    typer.echo(f"written to {out}")


def _table(report: data.PrepareReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("split")
    for name in ("documents", "characters", "bytes", "tokens", "bytes per token"):
        table.add_column(name, justify="right")
    for split in data.SPLITS:
        sizes = (report.documents[split], report.characters[split], report.bytes[split], report.tokens[split])
        ratio = f"{report.bytes[split] / report.tokens[split]:.2f}" if report.tokens[split] else ""
        table.add_row(split, *(f"{size:,}" for size in sizes), ratio)
    return table


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _cleaned(cleaning: data.CleaningReport) -> str:
    return (
        f"{cleaning.normalised:,} documents put into NFC, {cleaning.control_characters:,} control characters "
        f"and {cleaning.repeated:,} repeated documents removed"
    )
