"""`glassformer train`: from prepared data to a run folder with a model in it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer.cli.watch_training import TrainingConsole, print_plan
from glassformer.errors import SpecError
from glassformer.spec import override, read_tree
from glassformer.train import RECIPES, Trainer, TrainSpec, recipe, resolve, resume_run, start_run
from glassformer.train.data import Dataset


def train(
    recipe_name: Annotated[str | None, typer.Option("--recipe", help=f"One of {', '.join(RECIPES)}.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML or JSON file with the fields of a run.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder that `prepare` made.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to make.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run, from its newest checkpoint.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="path.to.field=value, for any field.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences in a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of the optimizer (Muon's, where there is one).")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Updates in the whole run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides weights, order of data and dropout.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto (the faster here), float32, bfloat16.")] = None,
    compile: Annotated[bool | None, typer.Option("--compile/--no-compile", help="With torch.compile.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and stop.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Train a model: live loss, checkpoints, curves. Ctrl-C saves and tells how to go on.

    Example: glassformer train --recipe shakespeare --data data/shakespeare --out runs/shakespeare

    Example: glassformer train --config my.yaml --data data/books --out runs/books --set optimizer.learning_rate=3e-4
    """
    flags = {
        "batch_size": batch_size, "optimizer.learning_rate": learning_rate, "max_steps": max_steps, "seed": seed,
        "device": device, "dtype": dtype, "compile": compile,
    }  # fmt: skip
    given = (*(f"{name}={_yaml(value)}" for name, value in flags.items() if value is not None), *(settings or ()))
    console = TrainingConsole(quiet=json)
    if resume is None:
        trainer = _new(recipe_name, config, data, out, given, dry_run)
    else:
        _refuse_beside_resume({"--out": out, "--recipe": recipe_name, "--config": config})
        trainer = resume_run(resume, data, given)
        if given and not json:
            typer.echo(f"changed from here on: {', '.join(given)}", err=True)
    trainer.listen = console
    print_plan(trainer.plan(), trainer, quiet=json)
    if dry_run:
        return
    with console.live():
        state = trainer.fit()
    console.finish(trainer, state, as_json=json)


def _new(
    recipe_name: str | None, config: Path | None, data: Path | None, out: Path | None, given: tuple[str, ...], dry: bool
) -> Trainer:
    if data is None or out is None:
        missing = "--data (made by `glassformer prepare`)" if data is None else "--out (the run folder to make)"
        raise SpecError(f"missing {missing}")
    dataset = Dataset.open(data)
    return start_run(choose_spec(recipe_name, config, dataset, given), dataset, out, dry=dry)


def choose_spec(recipe_name: str | None, config: Path | None, dataset: Dataset, settings: tuple[str, ...]) -> TrainSpec:
    """The spec that a recipe or a file names, with settings applied and the data's vocabulary filled in."""
    if (recipe_name is None) == (config is None):
        raise SpecError("expected one of --recipe NAME or --config FILE", do=f"recipes: {', '.join(RECIPES)}")
    tree: dict[str, Any]
    tree = read_tree(config) if config else recipe(str(recipe_name), dataset.vocabulary).model_dump(mode="json")
    return resolve(override(tree, settings), dataset)


def _refuse_beside_resume(options: dict[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise SpecError(f"{name} doesn't go with --resume: the run has its own", do="use --set to change a field")


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
