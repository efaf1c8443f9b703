"""`glassformer describe`: what a model is made of and what it costs, from its spec alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree
from torch import nn

from glassformer.checkpoint import load_spec
from glassformer.checkpoint.document import read_document
from glassformer.cli.model import MODEL, Revision, find_model
from glassformer.model.block import Block
from glassformer.model.count import (
    cache_bytes_per_token,
    flops_per_token,
    outline,
    parameters_by_part,
    training_flops_per_token,
)
from glassformer.model.linear import Linear
from glassformer.model.transformer import TransformerSpec
from glassformer.model.watch import points
from glassformer.spec import Spec, check, read_tree

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


def describe(
    model: Annotated[str, typer.Argument(help=f"{MODEL} Or the JSON or YAML file of a spec.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    show_points: Annotated[bool, typer.Option("--points", help="List everything that can be watched.")] = False,
    which: Annotated[Literal["best", "last"], typer.Option(help="Which checkpoint of a run.")] = "best",
    revision: Revision = None,
) -> None:
    """Show the architecture of a model: shapes, parameters by part, cache and operations per token.

    Example: glassformer describe runs/first --points
    """
    spec, name = _read(find_model(model, revision), which)
    facts = _facts(spec, name)
    if as_json:
        print(json.dumps({**facts, **({"points": _points(spec)} if show_points else {})}, ensure_ascii=False))
        return
    page = [_tree(spec, name), Text(), _parts(facts), Text(), _costs(facts)]
    if show_points:
        page += [Text(), _points_table(spec)]
    Console(highlight=False).print(Group(*page))


def _read(path: Path, which: Literal["best", "last"]) -> tuple[TransformerSpec, str]:
    """A spec and its name; a file may be a model's spec or anything that has one as `model`, like a run.json."""
    if not path.is_file() or path.suffix not in (".json", ".yaml", ".yml"):
        return load_spec(path, which)
    tree = read_document(path) if path.suffix == ".json" else read_tree(path)
    return check(TransformerSpec, tree.get("model", tree), where=path), path.stem


def _facts(spec: TransformerSpec, name: str) -> dict[str, Any]:
    """Everything that is printed, as plain data."""
    flops = flops_per_token(spec, spec.context)
    return {
        "name": name,
        "spec": spec.model_dump(mode="json"),
        "parameters": parameters_by_part(spec),
        "layers": [
            {"layers": layers, "parameters": _size(block), "feedforward_share": _size(block.feedforward) / _size(block)}
            for block, layers in _blocks(spec)
        ],
        "cache_bytes_per_token": {name: cache_bytes_per_token(spec, size) for name, size in ELEMENT_BYTES.items()},
        "flops_per_token": {
            "context": spec.context,
            "prefill": flops.prefill,
            "decode": flops.decode,
            "training": training_flops_per_token(spec, spec.context),
        },
    }


def _points(spec: TransformerSpec) -> list[dict[str, Any]]:
    return [
        {
            "name": point.name,
            "axes": point.axes.split(),
            "sizes": _shape(point.axes, point.sizes),
            "meaning": point.meaning,
        }
        for point in points(spec).values()
    ]


def _shape(axes: str, sizes: Any) -> list[int | str]:
    """Sizes of a spec as numbers; those of a pass (B, T, S) stay letters."""
    return [int(axis) if axis.isdigit() else sizes.get(axis, axis) for axis in axes.split()]


def _blocks(spec: TransformerSpec) -> Iterator[tuple[Block, str]]:
    """One block of each kind, without memory, and the layers it stands for: "0-11", or "0, 2, 4, …, 10"."""
    step = len(spec.blocks)
    model, times = outline(spec)
    for index, (block, count) in enumerate(zip(model.blocks, times, strict=True)):
        assert isinstance(block, Block)
        last = index + (count - 1) * step
        if count == 1:
            yield block, str(index)
        else:
            yield (
                block,
                f"{index}-{last}"
                if step == 1
                else f"{index}, {index + step}, …, {last}"
                if count > 2
                else f"{index}, {last}",
            )


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _tree(spec: TransformerSpec, name: str) -> Tree:
    model, _ = outline(spec)
    total = parameters_by_part(spec)["total"]
    root = Tree(
        Text.assemble((name, "bold"), f"  {total:,} parameters, {spec.layers} layers, context {spec.context:,}")
    )
    _grow(root, "embedding", model.embedding, spec.embedding)
    _grow(root, "position", model.position, spec.position)
    for (block, layers), block_spec in zip(_blocks(spec), spec.blocks, strict=False):
        branch = root.add(
            Text.assemble((f"blocks {layers}", "bold cyan"), f"  {_size(block):,} each, {_brief(block_spec.wiring)}")
        )
        parts = {"norm1": block_spec.norm, "attention": block_spec.attention, "norm_cross": block_spec.norm}
        parts |= {"cross": block_spec.cross, "norm2": block_spec.norm, "feedforward": block_spec.feedforward}
        for part, part_spec in parts.items():
            if isinstance(module := getattr(block, part, None), nn.Module):
                _grow(branch, part, module, part_spec)
    _grow(root, "norm", model.norm, spec.norm)
    _grow(root, "head", model.head, spec.head)
    return root


def _grow(parent: Tree, name: str, module: nn.Module, spec: Spec | None) -> None:
    """Add a module, with what its spec says, and below it every projection and norm."""
    size = _size(module)
    shapes = ", ".join(f"{part} {list(value.shape)}" for part, value in module.named_parameters(recurse=False))
    axes = f"{module.axes}  " if isinstance(module, Linear) else f"{_brief(spec)}  " if spec else ""
    branch = parent.add(
        Text.assemble((name, "cyan"), f"  {axes}", (f"{shapes}  " if shapes else "", "dim"), f"{size:,}")
    )
    for inner, child in module.named_children():
        if _size(child):
            _grow(branch, inner, child, None)


def _brief(spec: Spec) -> str:
    """A spec in a few words: its kind, and the fields that are not at their defaults."""
    said = []
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name != "kind" and value != field.default:
            said.append(f"{name} {_brief(value) if isinstance(value, Spec) else value}")
    kind = str(getattr(spec, "kind", ""))
    return f"{kind}({', '.join(said)})" if said else kind


def _parts(facts: dict[str, Any]) -> Table:
    table = Table("part", title="Parameters by part", title_justify="left", box=None)
    table.add_column("parameters", justify="right")
    table.add_column("share", justify="right")
    counts = facts["parameters"]
    for part, count in counts.items():
        table.add_row(
            part, f"{count:,}", f"{100 * count / counts['total']:.1f} %", style="bold" if part == "total" else ""
        )
    return table


def _costs(facts: dict[str, Any]) -> Text:
    flops, cache = facts["flops_per_token"], facts["cache_bytes_per_token"]
    shares = "; ".join(
        f"{100 * layer['feedforward_share']:.1f} % (layers {layer['layers']})" for layer in facts["layers"]
    )
    whole = {name: _units(size * flops["context"], "B", 1024) for name, size in cache.items()}
    return Text(
        f"Feed-forward's share of a layer's parameters: {shares}\n"
        f"Cache per token: {' or '.join(f'{size:,} bytes in {name}' for name, size in cache.items())} "
        f"(a full context: {' or '.join(whole.values())})\n"
        f"Operations per token at context {flops['context']:,}: prefill {_units(flops['prefill'], 'FLOP')}, "
        f"decode {_units(flops['decode'], 'FLOP')}, training {_units(flops['training'], 'FLOP')}"
    )


def _points_table(spec: TransformerSpec) -> Table:
    table = Table("point", "axes", "shape", "meaning", title="What can be watched", title_justify="left", box=None)
    pattern = spec.replace(layers=min(len(spec.blocks), spec.layers))
    layers = {str(index): layers for index, (_, layers) in enumerate(_blocks(spec))}
    for point in points(pattern).values():
        prefix, _, rest = point.name.partition("blocks.")
        index, _, inner = rest.partition(".")
        name = f"blocks.[{layers[index]}].{inner}" if not prefix and rest else point.name
        shape = ", ".join(map(str, _shape(point.axes, point.sizes)))
        table.add_row(Text(name), point.axes, Text(f"[{shape}]"), point.meaning)
    return table


def _units(value: float, unit: str, step: int = 1000) -> str:
    """A number with three digits and a prefix: 1.23 MFLOP, 4.56 MiB."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < step or prefix == "P":
            break
        value /= step
    binary = {"": "", "k": "Ki"}.get(prefix, f"{prefix}i") if step == 1024 else prefix
    return f"{value:.3g} {binary}{unit}"
