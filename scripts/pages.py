"""What pages that are rendered from the code are made of: docstrings, tables, the fields of specs, and their freshness.

A docstring has paragraphs. One that begins with `Formula:` holds formulas, one a line, in plain text; what follows
`Source:` or `Sources:`, to the end of its paragraph, is where the mechanism comes from.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from glassformer.spec import Spec

ORIGIN = "<!-- Rendered from the code by `make docs`: change the code, not this page. -->"
BOUNDS = {annotated_types.Ge: "≥", annotated_types.Gt: ">", annotated_types.Le: "≤", annotated_types.Lt: "<"}
Names = Mapping[frozenset[type[Spec]], str]
"""What each union is called, by its members."""


def page(title: str, about: str, body: str) -> str:
    """A whole page, with the line that says where it comes from."""
    return f"# {title}\n\n{ORIGIN}\n\n{about}\n\n{body}"


def cell(text: str) -> str:
    """Text that can't break out of its cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


@dataclass(frozen=True)
class Said:
    """What a docstring says: paragraphs of prose, formulas (one a line), and sources."""

    prose: tuple[str, ...]
    formula: tuple[str, ...]
    source: str

    @property
    def first(self) -> str:
        """Its first sentence."""
        return re.split(r"(?<=[.!?])\s", self.prose[0])[0] if self.prose else ""


def said(thing: Any) -> Said:
    """The docstring of a class, function or module, taken apart."""
    prose, formula, source = [], [], ""
    for paragraph in inspect.cleandoc(thing.__doc__ or "").split("\n\n"):
        if paragraph.startswith("Formula:"):
            formula = dedent(paragraph.removeprefix("Formula:")).strip().splitlines()
            continue
        text, _, found = re.sub(r"\bSources:", "Source:", paragraph).partition("Source:")
        source = " ".join(found.split()) or source
        prose += [" ".join(text.split())] if text.strip() else []
    return Said(tuple(prose), tuple(formula), source)


def block(lines: tuple[str, ...]) -> str:
    """Lines that keep their form."""
    return "\n".join(["```text", *lines, "```"]) + "\n"


# Specs


def is_spec(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Spec) and value is not Spec


def kind_of(spec: type[Spec]) -> str:
    field = spec.model_fields.get("kind")
    return str(field.default) if field else spec.__name__


def fields(spec: type[Spec], names: Names, specs: str = "") -> str:
    """The table of a spec's fields; `specs` is the page that types are linked to."""
    rows = [
        (f"`{name}`", typed(field.annotation, names, specs), bounds(field), default(field), field.description or "")
        for name, field in spec.model_fields.items()
        if name != "kind"
    ]
    described = any(row[-1] for row in rows)
    head = ("field", "type", "", "default", *(("meaning",) if described else ()))
    return table(head, [row if described else row[:-1] for row in rows]) if rows else ""


def typed(annotation: Any, names: Names, specs: str = "") -> str:
    """A type as a reader says it, linked where it is a spec."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return typed(inside[0], names, specs)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in inside)
    if origin in (Union, UnionType):
        if name := names.get(frozenset(inside)):
            return f"[{name}]({specs}#{name.lower()})"
        return " or ".join(typed(one, names, specs) for one in inside)
    if origin in (tuple, list, set, frozenset):
        return f"list of {typed(inside[0], names, specs)}"
    if origin is dict:
        return f"mapping of {typed(inside[0], names, specs)} to {typed(inside[1], names, specs)}"
    if is_spec(annotation):
        return f"[{annotation.__name__}]({specs}#{annotation.__name__.lower()})"
    return {NoneType: "null", str: "text", int: "integer", float: "number", bool: "true or false"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def bounds(field: FieldInfo) -> str:
    found = []
    for limit in field.metadata:
        for kind, sign in BOUNDS.items():
            if isinstance(limit, kind):
                found.append(f"{sign} {next(iter(_values(limit)))}")
        if isinstance(limit, annotated_types.MinLen):
            found.append(f"at least {limit.min_length}")
        if isinstance(limit, annotated_types.MaxLen):
            found.append(f"at most {limit.max_length}")
    return ", ".join(found)


def _values(limit: Any) -> Iterator[Any]:
    return (getattr(limit, name) for name in limit.__dataclass_fields__)


def default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{plain(field.get_default(call_default_factory=True))}`"


def plain(value: Any) -> str:
    """A default as one would write it; a spec by its kind and what differs from that kind's own defaults."""
    if isinstance(value, Spec):
        own = type(value).model_fields
        changed = {
            name: getattr(value, name)
            for name, field in own.items()
            if name != "kind" and (field.is_required() or getattr(value, name) != field.get_default())
        }
        inside = ", ".join(f"{name}={plain(one)}" for name, one in changed.items())
        return f"{kind_of(type(value))}({inside})" if inside else kind_of(type(value))
    return json.dumps(value, ensure_ascii=False, default=str)


# Freshness


def keep_fresh(folder: Path, pages: Mapping[str, Callable[[], str]]) -> None:
    """Write the pages of a folder, and remove others; with --check, only say which differ."""
    place = f"{folder.parent.name}/{folder.name}"
    stale = [path.name for path in folder.glob("*.md") if path.name not in pages]
    if "--check" not in sys.argv:
        for name in stale:
            (folder / name).unlink()
    for name, render in pages.items():
        path, text = folder / name, render()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.exit(f"stale in {place}: {', '.join(stale)} (run: make docs)")
    print(f"{place}: {', '.join(stale) + ' written' if stale else 'up to date'}")
