"""What a family is: the architecture of another program, written down as a spec and a name table.

What an architecture can't express is never listed by hand. A config is written from a spec, read back, and every
difference between the two specs is refused by name: a field that is added to the model tomorrow is covered today.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from glassformer.checkpoint.rename import Rule
from glassformer.errors import CheckpointError, SpecError
from glassformer.model.stack import StackSpec
from glassformer.model.transformer import TransformerSpec
from glassformer.spec import describe

Tree = Mapping[str, Any]

ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu_squared",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Activations by the names that Hugging Face gives them; the first name of each is the one that is exported."""

THEIR_ACTIVATION = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}

# Fields that say how a model was trained, or where it starts: the exported numbers don't depend on them.
OF_TRAINING = ("dropout", "init", "context")


MOST_LAYERS = 10_000  # the deepest published models have some hundred
FAR = 1000  # fields: of a model that can't even be compared

ABSENT = re.compile(r"'(\w+Spec)' object has no attribute '(\w+)'")
"""What is said of a part that lacks a field: a kind that the family has never heard of, perhaps newer than it."""


class MisfitError(CheckpointError):
    """A model that an architecture can't express, and in how many fields."""

    def __init__(self, what: str, fields: int):
        super().__init__(what)
        self.fields = fields


@dataclass(frozen=True)
class Family:
    """One architecture of Hugging Face's transformers.

    read:   their config.json as a spec.
    write:  a spec as their config.json; fields they can't express may be left out, `config` finds them.
    widen:  the same model with the parts that they always have and that change nothing when empty (biases of 0).
    rules:  the name table for a spec (not widened).
    prefix: what their names begin with; files of the bare model leave it out.
    unused: patterns of names that their checkpoints may hold without need.
    heads:  the architecture for each kind of head, where there are several.
    old:    endings of names that older files have, and what they are called now.
    tied:   the pattern of those of them that repeat the token vectors, for a head that is tied to these.
    settle: a config made definite by the names that the file beside it holds, where the config alone isn't.
    """

    model_type: str
    architecture: str
    read: Callable[[Tree], TransformerSpec]
    write: Callable[[TransformerSpec], dict[str, Any]]
    widen: Callable[[TransformerSpec], TransformerSpec]
    rules: Callable[[TransformerSpec], list[Rule]]
    prefix: str
    unused: tuple[str, ...] = ()
    heads: Mapping[str, str] = field(default_factory=dict[str, str])
    old: Mapping[str, str] = field(default_factory=dict[str, str])
    tied: str = r"lm_head\.weight"
    settle: Callable[[Tree, Collection[str]], Tree] = lambda config, names: config

    def architecture_of(self, spec: TransformerSpec) -> str:
        """What they call a model with this head."""
        return self.heads.get(spec.head.kind, self.architecture)

    def spec(self, config: Tree) -> TransformerSpec:
        """Their config as a spec; raises CheckpointError where it asks for what we don't have, or makes no sense."""
        if config.get("quantization_config") is not None:
            what = "the weights are quantised (quantization_config), in a format that isn't read"
            raise CheckpointError(what, do="take the model as it was before, or a GGUF file of it")
        try:
            return self.read(config)
        except ValidationError as error:
            raise CheckpointError(f"no usable {self.architecture} config: {describe(error)}") from None
        except SpecError as error:
            raise CheckpointError(f"no usable {self.architecture} config: {error.what}") from None
        except KeyError as error:
            raise CheckpointError(f"no usable {self.architecture} config: {error.args[0]} is missing") from None
        except (TypeError, ArithmeticError, AttributeError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"no usable {self.architecture} config: {error}") from None

    def config(self, spec: TransformerSpec) -> dict[str, Any]:
        """A spec as their config; raises MisfitError that names the fields the architecture can't express."""
        architecture = self.architecture_of(spec)
        try:
            widened = self.widen(spec)
            config = {**self.write(spec), "architectures": [architecture], "model_type": self.model_type}
        except AttributeError as error:
            if (absent := ABSENT.search(str(error))) is None:
                raise
            what = f"this model is no {architecture}: it writes {absent[2]}, which {absent[1]} doesn't have"
            raise MisfitError(what, FAR) from None
        try:
            back = self.spec(config)
        except CheckpointError as error:  # sizes that only make sense with parts that they don't have
            raise MisfitError(f"this model is no {architecture}: {error.what}", FAR) from None
        misfits = list(differences(plain(widened), plain(back)))
        if misfits:
            shown = "; ".join(f"{path} = {ours}: {architecture} has {theirs}" for path, ours, theirs in misfits[:4])
            more = f"; and {len(misfits) - 4} more" if len(misfits) > 4 else ""
            raise MisfitError(f"this model is no {architecture}: {shown}{more}", len(misfits))
        return config


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two trees differ: path and both values. Parts of unlike kind are one difference, not many."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.get("kind") != theirs.get("kind"):
            yield f"{path}.kind".lstrip("."), ours.get("kind"), theirs.get("kind")
            return
        for name in ours:
            yield from differences(ours[name], theirs.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{path}.{index}")
    elif ours != theirs:
        yield path, _brief(ours), _brief(theirs)


def plain(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as a tree in which equal models are equal: blocks unrolled, defaults written out, training left out."""
    tree = spec.model_dump(mode="json")
    tree["blocks"] = _unrolled(spec, spec.width)
    if spec.encoder is not None:
        tree["encoder"]["blocks"] = _unrolled(spec.encoder, spec.width)
        tree["encoder"]["embedding"] = (spec.encoder.embedding or spec.embedding).model_dump(mode="json")
        tree["encoder"]["shares"] = spec.encoder.embedding is None
    return _without_training(tree)


def _unrolled(stack: StackSpec, width: int) -> list[dict[str, Any]]:
    return [
        block.replace(
            attention=_written_out(block.attention, width),
            cross=_written_out(block.cross, width) if block.cross else None,
        ).model_dump(mode="json")
        for block in stack.each_block()
    ]


def _written_out(attention: Any, width: int) -> Any:
    """An attention with its width of head and scale, as far as its kind has them."""
    head = attention.width_of_head(width)
    defaults = {"scale": head**-0.5, "head_width": head}
    return attention.replace(
        **{
            name: value
            for name, value in defaults.items()
            if name in type(attention).model_fields and getattr(attention, name) is None
        }
    )


def _without_training(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _without_training(value) for name, value in tree.items() if name not in OF_TRAINING}
    return [_without_training(item) for item in tree] if isinstance(tree, list) else tree


def _brief(value: Any) -> Any:
    return value.get("kind", "given") if isinstance(value, dict) else value


def refuse(config: Tree, plain: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a config in which a field has another value than those given (a field that is missing is fine)."""
    for name, values in plain.items():
        if name in config and config[name] not in values:
            raise CheckpointError(
                f"{name} = {str(config[name])[:80]} is not supported (only {', '.join(map(str, values))})"
            )


def with_biases(part: Any, **biases: bool) -> Any:
    """A part with these biases set, as far as its kind has them."""
    return part.replace(**{name: value for name, value in biases.items() if name in type(part).model_fields})


def with_bias(norm: Any) -> Any:
    """A norm with a bias, where its kind can have one."""
    return norm.replace(bias=True) if norm is not None and norm.kind == "layer" else norm


def activation(name: Any) -> Any:
    """Our name of an activation of theirs."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise CheckpointError(f"activation {str(name)[:80]!r} is not known (known: {', '.join(ACTIVATIONS)})")
    return ACTIVATIONS[name]


def size(config: Tree, *names: str) -> int:
    """The first of these fields that is there; a config without any of them is refused."""
    for name in names:
        if config.get(name) is not None:
            value = config[name]
            if type(value) is not int or not 1 <= value < 2**40:
                raise CheckpointError(f"expected {name} to be a positive whole number, found {shown(value)}")
            return value
    raise CheckpointError(f"{names[0]} is missing")


def layers_of(config: Tree, *names: str) -> int:
    """A number of layers: one that could be, for every layer is described before a file is looked at."""
    count = size(config, *names)
    if count > MOST_LAYERS:
        raise CheckpointError(f"expected at most {MOST_LAYERS} layers, found {count}")
    return count


def shown(value: Any) -> str:
    """A value as the file has it: a text in quotes."""
    return json.dumps(value, ensure_ascii=False)[:80]


def flag(config: Tree, name: str, *, default: bool) -> bool:
    """A field that is true or false; null is false, as their program takes it."""
    value = config.get(name, default)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"expected {name} to be true or false, found {shown(value)}")
    return bool(value)


def number(config: Tree, name: str, default: float | None = None) -> Any:
    """A field that is a number, or null; whether it makes sense is for the spec to say."""
    value = config.get(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise CheckpointError(f"expected {name} to be a number, found {shown(value)}")
    return value


def listed(config: Tree, name: str) -> list[Any]:
    """A field that is a list; empty where it is null or missing."""
    value = config.get(name) or []
    if not isinstance(value, list):
        raise CheckpointError(f"expected {name} to be a list, found {shown(value)}")
    return value
