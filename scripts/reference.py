"""Renders docs/reference from the code: commands, specs and watch points. `--check` fails when a page is stale."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_origin

import typer
from pages import Names, block, fields, is_spec, keep_fresh, kind_of, page, said, table

import glassformer
from glassformer.cli.app import build_app
from glassformer.model.watch import CATALOGUE
from glassformer.spec import Spec, members

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
AXES = (
    "B batch, T tokens, S keys, D width, H heads, K kv-heads, C head width, F hidden, V vocabulary; "
    "a number stands for itself"
)
FLOORS = ("model", "tokenizer", "engine", "checkpoint", "lens", "evaluate", "train", "rag", "lab", "server")


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
        if is_spec(value) and value.__module__ == module.__name__ and value.__name__ == name:
            yield value


def unions_of(module: ModuleType) -> Iterator[tuple[str, tuple[type[Spec], ...]]]:
    """The unions that a module defines, those of one member included: the choices there are for a part."""
    for name, value in vars(module).items():
        union = get_origin(value) is Annotated or (is_spec(value) and value.__name__ != name)
        if union and all(member.__module__ == module.__name__ for member in members(value)):
            yield name, members(value)


def render_specs() -> str:
    modules = spec_modules()
    names, parts = union_names(), []
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


def describe(spec: type[Spec], names: Names) -> str:
    """One spec: what it says of itself, and its fields."""
    text, lines = said(spec), [f"### {spec.__name__}\n"]
    lines += [f"`kind: {kind_of(spec)}`\n"] if "kind" in spec.model_fields else []
    lines += [f"{paragraph}\n" for paragraph in text.prose]
    lines += [block(text.formula)] if text.formula else []
    lines += [f"Source: {text.source}\n"] if text.source else []
    return "\n".join([*lines, *filter(None, [fields(spec, names)])])


def union_names() -> dict[frozenset[type[Spec]], str]:
    """What each union of the package is called, by its members."""
    return {frozenset(union): name for module in spec_modules() for name, union in unions_of(module)}


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
    keep_fresh(FOLDER, PAGES)


if __name__ == "__main__":
    main()
