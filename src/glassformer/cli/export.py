"""`glassformer export`: a trained model as a Hugging Face folder."""

from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console

from glassformer.checkpoint import load_model
from glassformer.checkpoint.export import export_folder
from glassformer.checkpoint.families import FAMILIES
from glassformer.cli.model import MODEL, Revision, find_model
from glassformer.errors import CheckpointError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export(
    run: Annotated[str, typer.Argument(help=MODEL, show_default=False)],
    out: Annotated[Path, typer.Argument(help="The folder to write.", show_default=False)],
    family: Annotated[
        str, typer.Option(help=f"The architecture to export to: {', '.join(FAMILIES)}, or auto for one that fits.")
    ] = "auto",
    which: Annotated[Literal["best", "last"], typer.Option(help="Which checkpoint of a run.")] = "best",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="The number format of the weights.")
    ] = "float32",
    revision: Revision = None,
) -> None:
    """Write a model for Hugging Face's transformers, which give the same logits.

    Example: glassformer export runs/first exported --dtype bfloat16
    """
    loaded = load_model(find_model(run, revision), dtype=DTYPES[dtype], which=which)
    if out.resolve() == loaded.folder.resolve():
        raise CheckpointError("an export would take the place of the model itself", where=out, do="name another folder")
    chosen = export_folder(loaded.model, loaded.tokenizer, out, family)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{loaded.folder} is now {chosen.architecture} in {out}", markup=False)
    if loaded.tokenizer is None:
        console.print("It has no tokenizer: none was found beside the weights.", markup=False)
