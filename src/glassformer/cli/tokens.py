"""`glassformer tokens`: how a tokenizer cuts a text, token by token, and how well it does on Chinese and the rest."""

import json
import re
import unicodedata
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassformer.checkpoint import load_tokenizer
from glassformer.cli.given import read_text
from glassformer.cli.model import MODEL, find_model
from glassformer.errors import DataError
from glassformer.tokenizer import Span, Tokenizer

HAN = re.compile(
    "[\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]"
)
SCRIPTS = {"han": "Chinese (Han)", "other": "other text"}
COLOURS = ("on dark_blue", "on dark_green", "on dark_red", "on purple4", "on dark_cyan", "on orange4")
SHOWN = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"}


def tokens(
    tokenizer: Annotated[str, typer.Option(help=f"{MODEL} Or a file of a tokenizer.", show_default=False)],
    text: Annotated[
        str | None, typer.Argument(help="The text; - reads it from standard input.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Take the text from a UTF-8 file.", show_default=False)] = None,
    special: Annotated[
        bool, typer.Option("--special", help="Read <|endoftext|> and its like as special tokens.")
    ] = False,
    pattern: Annotated[
        str | None,
        typer.Option(help="For ranks of tiktoken: how words are cut (cl100k_base, qwen2 …).", show_default=False),
    ] = None,
    rows: Annotated[int, typer.Option(help="Tokens to list; the figures are of all.", min=0)] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with every token.")] = False,
) -> None:
    """Show each token of a text: id, bytes, the characters it covers; then bytes per token and tokens per character.

    Example: glassformer tokens "今天天气真好, isn't it?" --tokenizer runs/first
    """
    given = _text(text, file)
    rules = load_tokenizer(find_model(tokenizer), pattern=pattern)
    spans = rules.spans(given, parse_special=special)
    if as_json:
        listed = [_entry(rules, given, span) for span in spans]
        print(json.dumps({"tokens": listed, **_figures(rules, given, spans)}, ensure_ascii=False))
    else:
        _print(rules, given, spans, rows)


def _text(text: str | None, file: Path | None) -> str:
    given = read_text(text, file, "TEXT")
    if not given:
        raise DataError("the text has no characters", where=file or ("standard input" if text == "-" else "TEXT"))
    return given


def _entry(rules: Tokenizer, text: str, span: Span) -> dict[str, Any]:
    return {
        "id": span.token,
        "text": rules.decode([span.token]),
        "bytes": rules.token_bytes(span.token).hex(),
        "characters": text[span.start : span.end],
    }


def _figures(rules: Tokenizer, text: str, spans: list[Span]) -> dict[str, Any]:
    """Counts and rates, of the whole text and of each script in it."""
    size, count = dict.fromkeys(SCRIPTS, 0), dict.fromkeys(SCRIPTS, 0)
    for character in text:
        script = _script(character)
        size[script] += len(character.encode())
        count[script] += 1
    number = dict.fromkeys(SCRIPTS, 0.0)
    for span in spans:
        covered = text[span.start : span.end] or " "
        # A token that covers both scripts counts for each by its characters.
        for character in covered:
            number[_script(character)] += 1 / len(covered)
    scripts = {script: _rates(number[script], size[script], count[script]) for script in SCRIPTS if count[script]}
    about = {"kind": rules.kind, "vocabulary": rules.vocabulary, "fingerprint": rules.fingerprint}
    return {**_rates(len(spans), sum(size.values()), len(text)), "scripts": scripts, "tokenizer": about}


def _rates(number: float, size: int, characters: int) -> dict[str, float | int | None]:
    return {
        "count": round(number, 3),
        "bytes": size,
        "characters": characters,
        "bytes_per_token": size / number if number else None,
        "tokens_per_character": number / characters,
    }


def _script(character: str) -> str:
    return "han" if HAN.match(character) else "other"


def _print(rules: Tokenizer, text: str, spans: list[Span], rows: int) -> None:
    console = Console(highlight=False)
    table, line = Table(box=None), Text()
    table.add_column("id", justify="right")
    for name in ("token", "bytes", "characters"):
        table.add_column(name, overflow="fold")
    for span, colour in zip(spans[:rows], cycle(COLOURS), strict=False):
        shown = Text(_shown(rules, span.token), style=colour)
        line.append_text(shown)
        covered = "".join(map(_visible, text[span.start : span.end]))
        table.add_row(str(span.token), shown, rules.token_bytes(span.token).hex(" "), Text(covered))
    console.print(line, table, sep="\n\n")
    if len(spans) > rows:
        console.print(f"… and {len(spans) - rows:,} more tokens (--rows {len(spans)} lists all)")
    console.print()
    console.print(_summary(_figures(rules, text, spans)))


def _summary(figures: dict[str, Any]) -> Table:
    table = Table("", box=None)
    for name in ("tokens", "bytes", "characters", "bytes per token", "tokens per character"):
        table.add_column(name, justify="right")
    scripts = figures["scripts"] if len(figures["scripts"]) > 1 else {}
    for name, row in [*((SCRIPTS[script], row) for script, row in scripts.items()), ("all", figures)]:
        per_token = "" if row["bytes_per_token"] is None else f"{row['bytes_per_token']:.2f}"
        cells = f"{row['count']:,.10g}", f"{row['bytes']:,}", f"{row['characters']:,}", per_token
        table.add_row(name, *cells, f"{row['tokens_per_character']:.2f}")
    return table


def _shown(rules: Tokenizer, token: int) -> str:
    """A token made visible; bytes that are no whole character are escaped."""
    spelled = rules.token_bytes(token)
    named = token in rules.special_ids or rules.kind == "wordpiece"
    text = rules.decode([token]) if named else spelled.decode("utf-8", errors="backslashreplace")
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in SHOWN:
        return SHOWN[character]
    category = unicodedata.category(character)
    if category[0] in "CZ":
        return character.encode("unicode_escape").decode()
    return f"◌{character}" if category[0] == "M" else character
