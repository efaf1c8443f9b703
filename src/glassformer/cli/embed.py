"""`glassformer embed`: texts become vectors."""

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from glassformer.checkpoint.atomic import write_file
from glassformer.cli.device import DTypeName
from glassformer.cli.given import read_text
from glassformer.cli.load import load_with_tokenizer
from glassformer.cli.model import MODEL, Revision, find_model
from glassformer.engine.encode import embed as embed_texts
from glassformer.errors import DataError
from glassformer.model.embedding import Pooling

SHOWN = 12  # texts whose similarities fit on a screen


def embed(
    model: Annotated[str, typer.Argument(help=f"One made for sentences at best. {MODEL}", show_default=False)],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts, one vector each.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option(help="Take the lines of a UTF-8 file (- is standard input).", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a NumPy array, float32 [texts, width].", show_default=False)
    ] = None,
    pooling: Annotated[
        Pooling | None, typer.Option(help="Instead of the model's own way, or else the mean.", show_default=False)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Texts in one pass.", min=1)] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    dtype: Annotated[DTypeName, typer.Option(help="Number format of the weights.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a text.")] = False,
    revision: Revision = None,
) -> None:
    """Turn texts into vectors; without --out or --json, show how alike they are (cosines).

    Example: glassformer embed models/all-MiniLM-L6-v2 "A man is eating." "Someone has lunch." "It rains."
    """
    given = _texts(texts, file)
    if out is not None and out.suffix != ".npy":
        raise DataError("expected a name that ends in .npy", where=out, do="write vectors.npy, say")
    loaded, tokenizer = load_with_tokenizer(find_model(model, revision), device, dtype)
    cut: list[int] = []
    vectors = embed_texts(loaded.model, tokenizer, given, pooling, batch_size, cut.append).float().cpu()
    if cut:
        what = (
            f"{len(cut)} of {len(given)} texts are longer than {loaded.spec.context} tokens, the longest has {max(cut)}"
        )
        sys.stderr.write(f"{what}: what is beyond is not in their vectors\n")
    if out is not None:
        write_file(out, _npy(vectors))
        sys.stderr.write(f"{len(given)} vectors of {vectors.size(1)} components: {out}\n")
    if as_json:
        for text, vector in zip(given, vectors.tolist(), strict=True):
            print(json.dumps({"text": text, "vector": vector}, ensure_ascii=False))
    elif out is None:
        _show(given, vectors)


def _texts(texts: list[str] | None, file: Path | None) -> list[str]:
    if texts and file is not None:
        raise DataError("expected TEXTS or --file, one of the two")
    if texts:
        return texts
    whole = read_text("-", None, "TEXTS") if file is None or str(file) == "-" else read_text(None, file, "TEXTS")
    lines = [line for line in whole.splitlines() if line.strip()]
    if not lines:
        raise DataError("there are no texts", where=file or "standard input", do="give one a line")
    return lines


def _npy(vectors: Tensor) -> bytes:
    """The bytes of a NumPy file."""
    file = BytesIO()
    np.save(file, vectors.numpy(), allow_pickle=False)
    return file.getvalue()


def _show(texts: list[str], vectors: Tensor) -> None:
    console = Console(highlight=False)
    console.print(f"{len(texts)} vectors of {vectors.size(1)} components")
    unit = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
    few = texts[:SHOWN]
    table = Table("", *(str(number) for number in range(1, len(few) + 1)), box=None, pad_edge=False)
    for number, text in enumerate(few, start=1):
        cosines = (unit[number - 1] @ unit[: len(few)].T).tolist()
        table.add_row(Text(f"{number} {text[:40]}"), *(f"{cosine:.3f}" for cosine in cosines))
    console.print(table)
    if len(texts) > SHOWN:
        console.print(f"… and {len(texts) - SHOWN} more: --out or --json gives all")
