"""`glassformer prove-resume`: show, on your own run, that resuming is exact."""

import json as jsonlib
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from glassformer.cli.train import choose_spec
from glassformer.train.data import Dataset
from glassformer.train.prove import prove_resume


def prove(
    data: Annotated[Path, typer.Option(help="The folder that `prepare` made.")],
    recipe_name: Annotated[str | None, typer.Option("--recipe", help="A recipe by name.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML or JSON file with the fields of a run.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="path.to.field=value, for any field.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences in a step.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Train 20 steps whole and in parts (10 + 10, 5 + 5 + 10, torn in the middle of a step) and compare every bit.

    Example: glassformer prove-resume --recipe shakespeare --data data/shakespeare
    """
    dataset = Dataset.open(data)
    given = [*([f"batch_size={batch_size}"] if batch_size is not None else []), *(settings or [])]
    spec = choose_spec(recipe_name, config, dataset, tuple(given))
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        proofs = prove_resume(spec, dataset, Path(folder), say=lambda text: console.print(f"training {text}"))
    if json:
        typer.echo(jsonlib.dumps([{**asdict(proof), "holds": proof.holds} for proof in proofs]))
    else:
        table = Table("20 steps as", "weights", "optimizer", "log", box=None, padding=(0, 2, 0, 0))
        for proof in proofs:
            cells = (proof.same_weights, proof.same_optimizer, proof.same_log)
            table.add_row(proof.stops, *("equal" if same else "[red]differ[/red]" for same in cells))
        Console().print(table)
    raise typer.Exit(0 if all(proof.holds for proof in proofs) else 1)
