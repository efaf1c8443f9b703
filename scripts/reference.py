"""Renders docs/reference from the code: commands, specs and watch points. `--check` fails when a page is stale."""

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import typer
from pydantic.fields import FieldInfo

import glassformer
from glassformer.cli.app import build_app
from glassformer.model.watch import CATALOGUE
from glassformer.spec import Spec, members

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
AXES = (
    "B batch, T tokens, S keys, D width, H heads, K kv-heads, C head width, F hidden, V vocabulary; "
    "a number stands for itself"
)
ORIGIN = "<!-- Rendered from the code by `make docs`: change the code, not this page. -->"
FLOORS = ("model", "tokenizer", "engine", "checkpoint", "lens", "evaluate", "train", "rag", "lab", "server")
BOUNDS = {annotated_types.Ge: "≥", annotated_types.Gt: ">", annotated_types.Le: "≤", annotated_types.Lt: "<"}


def page(title: str, about: str, body: str) -> str:
    """A whole page, with the line that says where it comes from."""
    return f"# {title}\n\n{ORIGIN}\n\n{about}\n\n{body}"


def cell(text: str) -> str:
    """Text that can't break out of its cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# Commands


def render_commands() -> str:
    group: Any = typer.main.get_command(build_app())
    parts = [command(name, described) for name, described in group.commands.items()]
    about = "What `glassformer COMMAND --help` says. A user's mistake is one line on standard error and exit code 2."
    return page("Commands", about, "\n".join(parts))


def command(name: str, described: Any) -> str:
    """One command: what it does, its arguments and its options."""
    text, _, examples = (described.help or "").partition("Example:")
    shown = "".join(f"    {' '.join(line.split())}\n" for line in examples.split("Example:"))
    arguments, options = [], []
    for parameter in described.params:
        meaning = parameter.help or ""
        if parameter.param_type_name == "argument":
            arguments.append((f"`{parameter.name.upper()}`", meaning, "" if parameter.required else "optional"))
        else:
            names = ", ".join(f"`{one}`" for one in (*parameter.opts, *parameter.secondary_opts))
            options.append((names, meaning, default_of(parameter)))
    parts = [f"## {name}\n", f"{text.strip()}\n", shown]
    parts += [table(("argument", "meaning", ""), arguments)] if arguments else []
    parts += [table(("option", "meaning", "default"), options)] if options else []
    return "\n".join(parts)


def default_of(option: Any) -> str:
    if option.required:
        return "required"
    value = option.default
    if value is True:
        return "on"
    return "" if value is None or value is False or value == () or callable(value) else f"`{value}`"


# Specs


def spec_modules() -> list[ModuleType]:
    """Every module of the package that defines a spec, floor by floor."""
    found = [
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(glassformer.__path__, "glassformer.")
        if not info.name.endswith("__main__")
    ]
    rank = {floor: index for index, floor in enumerate(FLOORS)}
    found = [module for module in found if any(specs_of(module))]
    return sorted(found, key=lambda module: (rank[module.__name__.split(".")[1]], module.__name__))


def specs_of(module: ModuleType) -> Iterator[type[Spec]]:
    for name, value in vars(module).items():
        if _is_spec(value) and value.__module__ == module.__name__ and value.__name__ == name:
            yield value


def unions_of(module: ModuleType) -> Iterator[tuple[str, tuple[type[Spec], ...]]]:
    """The unions that a module defines, those of one member included: the choices there are for a part."""
    for name, value in vars(module).items():
        union = get_origin(value) is Annotated or (_is_spec(value) and value.__name__ != name)
        if union and all(member.__module__ == module.__name__ for member in members(value)):
            yield name, members(value)


def _is_spec(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Spec) and value is not Spec


def render_specs() -> str:
    modules = spec_modules()
    names = {frozenset(union): name for module in modules for name, union in unions_of(module)}
    parts = []
    for module in modules:
        parts.append(f"## `{module.__name__.removeprefix('glassformer.')}`\n")
        for name, union in unions_of(module):
            listed = ", ".join(f"[`{kind_of(member)}`](#{member.__name__.lower()})" for member in union)
            parts.append(f"<a id='{name.lower()}'></a>**{name}**, chosen by `kind`: {listed}\n")
        parts += [describe(spec, names) for spec in specs_of(module)]
    about = (
        "Every description of something that can be built, as it stands in `--config` files (YAML or JSON), in `--set "
        "path.to.field=value`, in a run's `run.json` and in a model's `spec.json`. Unknown fields are refused."
    )
    return page("Specs", about, "\n".join(parts))


def describe(spec: type[Spec], names: dict[frozenset[type[Spec]], str]) -> str:
    """One spec: what it says of itself, and its fields."""
    lines = [" ".join(line.split()) for line in (spec.__doc__ or "").strip().split("\n\n")]
    rows = [
        (f"`{name}`", typed(field.annotation, names), bounds(field), default(field), field.description or "")
        for name, field in spec.model_fields.items()
        if name != "kind"
    ]
    kind = [f"`kind: {kind_of(spec)}`\n"] if "kind" in spec.model_fields else []
    fields = [table(("field", "type", "", "default", "meaning"), rows)] if rows else []
    return "\n".join([f"### {spec.__name__}\n", *kind, *(f"{line}\n" for line in lines), *fields])


def kind_of(spec: type[Spec]) -> str:
    field = spec.model_fields.get("kind")
    return str(field.default) if field else spec.__name__


def typed(annotation: Any, names: dict[frozenset[type[Spec]], str]) -> str:
    """A type as a reader says it, linked where it is a spec."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return typed(inside[0], names)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in inside)
    if origin in (Union, UnionType):
        if name := names.get(frozenset(inside)):
            return f"[{name}](#{name.lower()})"
        return " or ".join(typed(one, names) for one in inside)
    if origin in (tuple, list, set, frozenset):
        return f"list of {typed(inside[0], names)}"
    if origin is dict:
        return f"mapping of {typed(inside[0], names)} to {typed(inside[1], names)}"
    if _is_spec(annotation):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return {NoneType: "null", str: "text", int: "integer", float: "number", bool: "true or false"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def bounds(field: FieldInfo) -> str:
    said = []
    for limit in field.metadata:
        for kind, sign in BOUNDS.items():
            if isinstance(limit, kind):
                said.append(f"{sign} {next(iter(vars_of(limit)))}")
        if isinstance(limit, annotated_types.MinLen):
            said.append(f"at least {limit.min_length}")
        if isinstance(limit, annotated_types.MaxLen):
            said.append(f"at most {limit.max_length}")
    return ", ".join(said)


def vars_of(limit: Any) -> Iterator[Any]:
    return (getattr(limit, name) for name in limit.__dataclass_fields__)


def default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{plain(field.get_default(call_default_factory=True))}`"


def plain(value: Any) -> str:
    """A default as one would write it; a spec by its kind and what differs from that kind's own defaults."""
    if isinstance(value, Spec):
        fields = type(value).model_fields
        changed = {
            name: getattr(value, name)
            for name, field in fields.items()
            if name != "kind" and (field.is_required() or getattr(value, name) != field.get_default())
        }
        inside = ", ".join(f"{name}={plain(one)}" for name, one in changed.items())
        return f"{kind_of(type(value))}({inside})" if inside else kind_of(type(value))
    return json.dumps(value, ensure_ascii=False, default=str)


# Watch points


def render_watch_points() -> str:
    about = (
        "All that can be watched in a pass, in its order; `glassformer describe MODEL --points` lists those of one "
        f"model with their sizes. Names inside block i are `blocks.i.NAME`. Axes: {AXES}."
    )
    rows = [(f"`{name}`", f"`{axes}`", meaning) for name, (axes, meaning) in CATALOGUE.items()]
    return page("Watch points", about, table(("name", "axes", "what it is"), rows))


PAGES = {"commands.md": render_commands, "specs.md": render_specs, "watch-points.md": render_watch_points}


def main() -> None:
    """Write the pages; with --check, only say which differ."""
    stale = []
    for name, render in PAGES.items():
        path, text = FOLDER / name, render()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.exit(f"stale in docs/reference: {', '.join(stale)} (run: make docs)")
    print(f"docs/reference: {', '.join(stale) + ' written' if stale else 'up to date'}")


if __name__ == "__main__":
    main()
