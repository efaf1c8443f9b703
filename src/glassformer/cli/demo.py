"""`glassformer demo`: text, a tokenizer, a trained model, its figures and its writing, in a few minutes."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from glassformer.checkpoint import write_file
from glassformer.checkpoint.locate import checkpoints
from glassformer.cli.compare import Comparison
from glassformer.cli.complete import interactive, one_completion, printable
from glassformer.cli.documents import read_documents
from glassformer.cli.evaluate import Judge
from glassformer.cli.installed_text import installed_documents, sizes
from glassformer.cli.name import command
from glassformer.cli.watch_training import TrainingConsole, print_plan
from glassformer.engine import Engine, SamplingParams
from glassformer.errors import CheckpointError, DataError, TokenizerError
from glassformer.model.device import choose_device
from glassformer.train import TrainSpec, recipe, start_run
from glassformer.train.data import Dataset, PrepareOptions, PrepareReport, prepare

TOKENIZER, VOCABULARY = "bpe", 2048
"""What gave the fewest held-out bits per byte in the time of a demo."""
LEAST, MOST = 10_000, 8_000_000
"""Bytes of text: fewer teach nothing, more can't be read in a few minutes."""
HELD_OUT = 0.07
EPOCHS = 40
"""A short text is read so often, and no more: after that a model only learns it by heart."""
WRITING = SamplingParams(max_tokens=100, temperature=0.8, top_p=0.95, seed=0)
INTERRUPTED = 130


def demo(
    text: Annotated[
        Path | None,
        typer.Argument(help="Your own text, a file or folder; without it, Python's documentation.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write; an earlier demo in it is replaced.")] = Path(
        "runs/demo"
    ),
    minutes: Annotated[float, typer.Option(help="Time to train for.", min=0.01)] = 2.5,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
) -> None:
    """Train a small model on real text, measure it, and write with it.

    Example: glassformer demo

    Example: glassformer demo my-book.txt --minutes 5
    """
    console, place = Console(highlight=False, soft_wrap=True), Place(out)
    try:
        if not place.keep(ask=not yes and sys.stdin.isatty(), anew=text is not None):
            documents = collect(text, place, console)
            place.clear(console)
            tokenise(documents, place, console)
            if not train_demo(place, minutes, console):
                place.tell_how_to_go_on(console)
                raise typer.Exit(INTERRUPTED)
            measure(place, console)
        write(place, console)
    except KeyboardInterrupt:
        place.tell_how_to_go_on(console)
        raise typer.Exit(INTERRUPTED) from None


@dataclass(frozen=True)
class Place:
    """The folder of a demo: its text, the data made of it, the run, and demo.json, which says that it is one."""

    folder: Path

    @property
    def marker(self) -> Path:
        return self.folder / "demo.json"

    @property
    def text(self) -> Path:
        return self.folder / "text.jsonl"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def keep(self, ask: bool, anew: bool) -> bool:
        """Whether to write with the model of the finished demo that is here; `anew` is the answer of a mere Enter.

        Raises:
            CheckpointError: there is something else in the folder.
        """
        if self.folder.exists() and not self.marker.is_file() and not _empty(self.folder):
            raise CheckpointError("there is something else already", where=self.folder, do="choose another --out")
        if not (ask and self.finished):
            return False
        return not typer.confirm(
            f"{self.folder} has a finished demo. Replace it? (n: write with its model)", default=anew
        )

    def clear(self, console: Console) -> None:
        """Make the folder that of a new demo, with nothing of an earlier one in it."""
        if self.marker.is_file():
            console.print(f"Replacing the demo in {self.folder}.")
            shutil.rmtree(self.folder.resolve())
        self.note(finished=False)

    def note(self, **what: object) -> None:
        """Write demo.json."""
        write_file(self.marker, (json.dumps(what, indent=2) + "\n").encode())

    def tell_how_to_go_on(self, console: Console) -> None:
        """What an interrupted user may do next."""
        if not checkpoints(self.run):
            console.print(f"\nStopped; nothing is trained yet. Begin again with: {command()} demo")
        elif self.finished:
            console.print(f'\nStopped. The model is whole: {command()} generate {self.run} "The beginning"')
        else:
            console.print(
                f"\nStopped and saved. Go on with: {command()} train --resume {self.run}\n"
                f'or write with it as it is: {command()} generate {self.run} "The beginning"'
            )

    @property
    def finished(self) -> bool:
        """Whether its model is trained to the end."""
        try:
            return json.loads(self.marker.read_text(encoding="utf-8")).get("finished") is True
        except (OSError, ValueError):
            return False


def collect(text: Path | None, place: Place, console: Console) -> list[str]:
    """The documents to learn from.

    Raises:
        DataError: nothing that is text, or too little of it.
    """
    if text is None:
        named = list(installed_documents())
        parts = ", ".join(f"{size / 1e6:.2f} MB {name}" for name, size in sizes(named).items() if size)
        documents, source = [document for _, document in named], f"Python's own documentation ({parts or 'none found'})"
    else:
        documents, source = list(read_documents(text, leave_out=place.folder, limit=MOST)), str(text)
    size = sum(len(document.encode()) for document in documents)
    if size < LEAST:
        raise DataError(
            f"{size:,} bytes of text are {LEAST - size:,} too few to learn from",
            where=source,
            do=f"give a text of at least {LEAST:,} bytes: {command()} demo FILE",
        )
    some = "the first " if size >= MOST else ""
    console.print(
        Text.assemble(("Text   ", "bold"), f"{some}{size / 1e6:.2f} MB of {source}, documents: {len(documents):,}")
    )
    return documents


def tokenise(documents: list[str], place: Place, console: Console) -> None:
    """Write the text and its tokens; documents are held out by chance, of a single one the last part."""
    lines = (json.dumps({"text": document}, ensure_ascii=False) for document in documents)
    write_file(place.text, "".join(f"{line}\n" for line in lines).encode())
    report = _prepare(place)
    console.print(
        f"[bold]Tokens[/] {report.tokens['train']:,} to learn from, {report.tokens['validation']:,} held out "
        f"({report.split}); {report.tokenizer}, vocabulary {report.vocabulary:,}, "
        f"{report.bytes['train'] / report.tokens['train']:.2f} bytes per token"
    )


def _prepare(place: Place) -> PrepareReport:
    options = PrepareOptions(vocab_size=VOCABULARY, validation=HELD_OUT)
    try:
        return prepare([place.text], TOKENIZER, place.data, options)
    except TokenizerError:  # a short text allows no vocabulary of this size: take the largest that it does
        return prepare([place.text], TOKENIZER, place.data, options.replace(vocab_size=None))


def train_demo(place: Place, minutes: float, console: Console) -> bool:
    """Train, live; False when the user stopped it before its end."""
    dataset = Dataset.open(place.data)
    trainer = start_run(demo_run(dataset, minutes), dataset, place.run)
    print_plan(trainer.plan(), trainer)
    watch = TrainingConsole()
    trainer.listen = watch
    with watch.live():
        trainer.fit()
    if trainer.done < 1:
        return False
    place.note(finished=True)
    console.print(f"[bold]Run[/]    {place.run}: curves in {trainer.run.picture}, numbers in {trainer.run.log}")
    return True


def demo_run(dataset: Dataset, minutes: float) -> TrainSpec:
    """The recipe of the demo, for as long as the time or the text lasts."""
    spec = recipe("demo", dataset.vocabulary)
    tokens = dataset.split("train").tokens
    context = min(spec.model.context, max(1, tokens // 4))
    steps = max(100, EPOCHS * tokens // (spec.batch_size * context))
    return spec.replace(
        model=spec.model.replace(context=context).model_dump(),
        max_steps=steps,
        max_seconds=60 * minutes,
        evaluate_every=max(20, steps // 8),  # the best of them is kept, should a short text be learnt by heart
    )


def measure(place: Place, console: Console) -> None:
    """The model's held-out bits per byte beside those of simpler predictors; noted in demo.json."""
    judge, dataset = Judge.of(place.run, "best", choose_device("auto")), Dataset.open(place.data)
    result = judge.on_data(dataset)
    comparison = Comparison.on(dataset, judge.tokenizer, result.score.bits_per_byte, result.unigram)
    console.print()
    console.print(comparison.table())
    console.print(f"over {result.score.bytes:,} bytes that no predictor has learnt from; docs/evaluation.md says how")
    place.note(finished=True, bits_per_byte={"model": comparison.model, **comparison.baselines()})


def write(place: Place, console: Console) -> None:
    """Samples, then a completion token by token: together with the user at a terminal, alone elsewhere."""
    judge, dataset = Judge.of(place.run, "best", choose_device("auto")), Dataset.open(place.data)
    engine = Engine(judge.model, judge.tokenizer)
    prompts = beginnings(dataset, engine)
    for prompt, completion in zip(prompts, engine.generate(prompts, WRITING), strict=True):
        console.print()
        console.print(Text.assemble((printable(judge.tokenizer.decode(prompt)), "bold"), printable(completion.text)))
    console.print()
    if sys.stdin.isatty() and sys.stdout.isatty():
        interactive(engine, console=console)
    else:
        params = WRITING.replace(max_tokens=16)
        one_completion(engine, judge.tokenizer.decode(prompts[0]), params, console=console)
    console.print()
    console.print(f'Write on with: {command()} generate {place.run} "The beginning" --show-probabilities 5')


def beginnings(dataset: Dataset, engine: Engine, count: int = 2, length: int = 8) -> list[list[int]]:
    """The first tokens of held-out documents: what the samples go on from."""
    split = dataset.split("validation")
    starts = split.document_starts.tolist() or [0]
    chosen = [starts[len(starts) * number // count] for number in range(min(count, len(starts)))]
    prompts = [split.read(start, min(start + length, split.tokens)).tolist() for start in chosen]
    return [[token for token in prompt if token not in engine.tokenizer.special_ids] for prompt in prompts]


def _empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
