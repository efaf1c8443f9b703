"""What a MODEL argument means: a path, a name that was pulled, or a model of the hub."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from glassformer.checkpoint import hub
from glassformer.checkpoint.catalogue import CATALOGUE
from glassformer.checkpoint.pull import pulled
from glassformer.cli.name import command
from glassformer.errors import CheckpointError

HUB = "hf:"
MODEL = "A run, a checkpoint, a model folder or file, a pulled name, or a model of the hub (owner/name)."
Revision = Annotated[
    str | None, typer.Option(help="Of a model of the hub: a branch, a tag or a commit.", show_default=False)
]


def find_model(model: str, revision: str | None = None) -> Path:
    """The path of a model, which is downloaded first where it is one of the hub's that isn't here.

    What exists on this machine wins, and what lies in a folder that exists is never looked for elsewhere; `hf:` before
    a name always means the hub.

    Raises:
        CheckpointError: a name that was never pulled, or anything that `hub.fetch` finds wrong.
    """
    path = Path(model).expanduser()
    if model.startswith(HUB):
        return _fetch(model.removeprefix(HUB), revision)
    if _is_of_the_hub(model, path):
        try:
            return _fetch(model, revision)
        except CheckpointError as error:
            what = f"no such path here; as a model of the hub: {error.what}"
            raise type(error)(what, where=model, do=error.do) from None
    if revision is not None:
        raise CheckpointError("only a model of the hub has revisions", where=model, do=f"write {HUB}owner/name for one")
    if path.exists() or os.sep in model:
        return path
    if model in CATALOGUE:
        found = pulled(model, models_folder())
        if found is None:
            raise CheckpointError("this model is not here yet", where=model, do=f"run: {command()} pull {model}")
        return found
    if near := [name for name in CATALOGUE if name.startswith(model.lower())] or get_close_matches(
        model, CATALOGUE, cutoff=0.4
    ):
        raise CheckpointError("no such path, and no name of a model", where=model, do=f"did you mean {near[0]}?")
    return path


def models_folder() -> Path:
    """Where pulled models lie: GLASSFORMER_MODELS, or glassformer/models in the user's cache."""
    if own := os.environ.get("GLASSFORMER_MODELS"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "glassformer" / "models"


@contextmanager
def download_bar(name: str) -> Iterator[hub.Progress]:
    """A bar with bytes, rate and time left on a terminal; it appears when there is something to download."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    task = bar.add_task(name, start=False)

    def show(done: int, total: int) -> None:
        if not bar.live.is_started:
            bar.start()
            bar.start_task(task)
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def _fetch(name: str, revision: str | None) -> Path:
    with download_bar(name) as progress:
        return hub.fetch(name, revision, progress=progress)


def _is_of_the_hub(model: str, path: Path) -> bool:
    return bool(hub.NAME.fullmatch(model)) and not path.exists() and not path.parent.exists()
