"""`glassformer fill`: a masked language model says what may stand in the gaps of a text."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassformer.cli.complete import BAR, shown
from glassformer.cli.device import DTypeName
from glassformer.cli.given import read_text
from glassformer.cli.load import load_with_tokenizer
from glassformer.cli.model import MODEL, Revision, find_model
from glassformer.engine.encode import Gap
from glassformer.engine.encode import fill as fill_gaps
from glassformer.tokenizer import Tokenizer


def fill(
    model: Annotated[str, typer.Argument(help=f"A masked language model, such as BERT. {MODEL}", show_default=False)],
    text: Annotated[
        str | None, typer.Argument(help="A text with gaps; - reads it from standard input.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Take the text from a UTF-8 file.", show_default=False)] = None,
    top: Annotated[int, typer.Option(help="Candidates to show for each gap.", min=1)] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    dtype: Annotated[DTypeName, typer.Option(help="Number format of the weights.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    revision: Revision = None,
) -> None:
    """Fill the gaps of a text ([MASK], or <mask>), with the model's own probabilities.

    Example: glassformer fill models/bert-base-chinese "今天[MASK]气真好。"
    """
    given = read_text(text, file, "TEXT")
    loaded, tokenizer = load_with_tokenizer(find_model(model, revision), device, dtype)
    tokens, gaps = fill_gaps(loaded.model, tokenizer, given, top)
    filled = _filled(tokenizer, tokens, gaps)
    if as_json:
        objects = [
            [{"token": token, "text": shown(tokenizer, token), "probability": p} for token, p in gap.candidates]
            for gap in gaps
        ]
        print(json.dumps({"text": filled, "gaps": objects}, ensure_ascii=False))
        return
    console = Console(highlight=False)
    for number, gap in enumerate(gaps, start=1):
        if len(gaps) > 1:
            console.print(Text(f"gap {number}", style="bold"))
        console.print(_table(tokenizer, gap))
    console.print(Text(filled))


def _filled(tokenizer: Tokenizer, tokens: list[int], gaps: list[Gap]) -> str:
    """The text with the likeliest token in every gap."""
    best = {gap.place: gap.candidates[0][0] for gap in gaps}
    return tokenizer.decode([best.get(place, token) for place, token in enumerate(tokens)], skip_special=True)


def _table(tokenizer: Tokenizer, gap: Gap) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for token, p in gap.candidates:
        percent = f"{100 * p:.1f} %" if p >= 0.001 else "< 0.1 %"
        table.add_row(Text(shown(tokenizer, token)), percent, Text("█" * round(p * BAR) or "▏"))
    return table
