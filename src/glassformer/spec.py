"""Spec: a description of something that can be built, as plain frozen data that survives JSON.

A field whose type is a union of specs is a choice; the `kind` of each member names it. The unions are
the registry: files, command-line overrides, forms and contract tests all read them.
"""

import difflib
import json
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from glassformer.errors import SpecError

S = TypeVar("S", bound="Spec")


class Spec(BaseModel):
    """Frozen; unknown fields are refused, with the name that was probably meant."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, value in data.items():
                if isinstance(value, bool) and name in cls.model_fields:
                    _refuse_truth_as_number(name, value, cls.model_fields[name].annotation)
                if name not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_field", "{message}", {"message": _unknown(str(name), cls.model_fields)}
                    )
        return data

    def to_json(self) -> str:
        """The spec as indented JSON; `read` gives back an equal spec."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked again as a whole."""
        return check(type(self), {**self.model_dump(), **changes})


class PlainLoader(yaml.SafeLoader):
    """YAML as JSON has it: a date is the text it is written in, not an object."""


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def members(union: Any) -> tuple[type[Spec], ...]:
    """The spec classes of a union, in order (a union of one is the class itself)."""
    if get_origin(union) is Annotated:
        union = get_args(union)[0]
    return get_args(union) if get_origin(union) in (Union, types.UnionType) else (union,)


def check(kind: type[S], tree: Any, where: object | None = None) -> S:
    """Plain data as a spec of type `kind`.

    Raises:
        SpecError: naming the path of the field, what was expected and what came.
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise SpecError(describe(error, tree), where=where) from None


def describe(error: ValidationError, tree: Any = None) -> str:
    """A pydantic error as one line: the path of each field and what is wrong with it (the first three).

    `tree` is the data that was checked; it tells the names in a path from the kinds that pydantic puts between them.
    """
    # A list whose items are wrong is also said to be too short: only what is wrong with the items helps.
    places = [problem["loc"] for problem in error.errors()]
    problems = [
        problem
        for problem in error.errors()
        if problem["type"] != "too_short"
        or not any(place != problem["loc"] and place[: len(problem["loc"])] == problem["loc"] for place in places)
    ]
    lines = []
    for problem in problems[:3]:
        path = ".".join(_path(problem["loc"], tree))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "union_tag_invalid":
            tag, expected = (problem.get("ctx", {})[name] for name in ("tag", "expected_tags"))
            message = _unknown(tag, [name.strip(" '") for name in expected.split(",")], "kind")
        if problem["type"] == "too_short":
            counts = problem.get("ctx", {})
            message = f"expected at least {counts['min_length']}, got {counts['actual_length']}"
        came = problem.get("input")
        shown = (
            ""
            if isinstance(came, dict | list | tuple | BaseModel) or problem["type"] == "missing"
            else f", got {came!r}"
        )
        if problem["type"] in ("unknown_field", "value_error"):
            shown = ""
        lines.append(f"{path}: {message}{shown}" if path else f"{message}{shown}")
    more = len(problems) - 3
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


def read_tree(path: Path) -> dict[str, Any]:
    """A YAML or JSON file as plain data."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), PlainLoader)
    except FileNotFoundError:
        raise SpecError("no such config file", where=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"can't read the config file: {error}", where=path) from None
    except RecursionError:
        raise SpecError("nested too deeply", where=path) from None
    except (yaml.YAMLError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        spot = f"{path}, line {place.line + 1}" if place else path
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise SpecError(f"not valid {kind}: {getattr(error, 'problem', error)}", where=spot) from None
    if not isinstance(tree, dict):
        raise SpecError(f"expected a mapping of fields, got {type(tree).__name__}", where=path)
    return tree


def read(kind: type[S], path: Path) -> S:
    """The spec in a YAML or JSON file."""
    return check(kind, read_tree(path), where=path)


def override(tree: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A copy of plain data with `path.to.field=value` settings applied (values are YAML; list items by number).

    A path that leads into nothing makes the mappings on its way; `check` refuses what doesn't belong.
    """
    try:
        tree = json.loads(json.dumps(tree))
    except (ValueError, TypeError, RecursionError) as error:  # YAML can hold what JSON can't: an alias of itself
        raise SpecError(f"expected plain fields and values: {error}") from None
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise SpecError(f"expected path.to.field=value, got {setting!r}", where="--set")
        *parents, last = path.split(".")
        node: Any = tree
        for depth, name in enumerate(parents):
            node = _child(node, name, where=".".join(parents[: depth + 1]))
        try:
            value = yaml.load(text, PlainLoader)
        except (yaml.YAMLError, ValueError, RecursionError):
            value = text
        if isinstance(node, list):
            node[_index(node, last, path)] = value
        else:
            # A new kind is a new part: what the old one had doesn't carry over.
            if last == "kind" and node.get("kind") != value:
                node.clear()
            node[last] = value
    return tree


def _child(node: Any, name: str, where: str) -> Any:
    if isinstance(node, list):
        child = node[_index(node, name, where)]
    else:
        child = node.get(name)
        if child is None:
            child = node[name] = {}
    if not isinstance(child, dict | list):
        raise SpecError(f"{where} is the value {child!r}, it has no fields", where="--set")
    return child


def _index(items: list[Any], name: str, where: str) -> int:
    if not name.isdecimal() or int(name) >= len(items):
        raise SpecError(f"{where}: expected a number from 0 to {len(items) - 1}, got {name!r}", where="--set")
    return int(name)


def _path(location: tuple[int | str, ...], tree: Any) -> Iterator[str]:
    """The names of a pydantic location as they stand in the data, without the kinds of union members between them."""
    for part in location:
        if isinstance(tree, dict) and part not in tree and part == tree.get("kind"):
            continue
        yield str(part)
        try:
            tree = tree[part]
        except (TypeError, LookupError):
            tree = None


def _refuse_truth_as_number(name: str, value: bool, annotation: Any) -> None:
    """YAML reads yes and on as true, which Python takes for 1."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    if bool not in kinds and Any not in kinds and {int, float} & set(kinds):
        what = f"{name}: expected a number, got {str(value).lower()}"
        raise PydanticCustomError("value_error", "{message}", {"message": what})


def _unknown(name: str, known: Iterable[str], what: str = "field") -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return f"unknown {what} {name!r}; {hint}"
