"""`glassformer describe`: what a model is made of and what it costs, from its spec alone."""

import json
from dataclasses import asdict
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
from glassformer.errors import SpecError
from glassformer.model.compare import compare_attention
from glassformer.model.count import (
    Kind,
    cache_bytes,
    cache_bytes_per_sequence,
    cache_bytes_per_token,
    cache_size,
    flops_per_token,
    kinds,
    outline,
    parameters_by_part,
    training_flops_per_token,
    windows,
)
from glassformer.model.linear import Linear
from glassformer.model.stack import Stack, StackSpec
from glassformer.model.transformer import TransformerSpec
from glassformer.spec import Spec, check, read_tree

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


def describe(
    model: Annotated[str, typer.Argument(help=f"{MODEL} Or the JSON or YAML file of a spec.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    show_points: Annotated[bool, typer.Option("--points", help="List everything that can be watched.")] = False,
    which: Annotated[Literal["best", "last"], typer.Option(help="Which checkpoint of a run.")] = "best",
    context: Annotated[
        int | None,
        typer.Option(help="Count the cache and operations at so many tokens; the model's own when left out.", min=1),
    ] = None,
    revision: Revision = None,
) -> None:
    """Show the architecture of a model: shapes, parameters by part, cache and operations per token.

    It ends with what the cache would be with multi-head, grouped-query, multi-query or latent attention.

    Example: glassformer describe runs/first --points

    Example: glassformer describe runs/first --context 32768
    """
    spec, name = _read(find_model(model, revision), which)
    facts = _facts(spec, name, _length(spec, context))
    if as_json:
        print(json.dumps({**facts, **({"points": _points(spec)} if show_points else {})}, ensure_ascii=False))
        return
    page = [_tree(spec, name), Text(), _parts(facts), Text(), _costs(facts)]
    if facts["attention_compared"]:
        page += [Text(), _compared(facts)]
    if show_points:
        page += [Text(), _points_table(spec)]
    Console(highlight=False).print(Group(*page))


MOST = 2**24
"""Tokens of a context: far more than any model reads at once."""


def _read(path: Path, which: Literal["best", "last"]) -> tuple[TransformerSpec, str]:
    """A spec and its name; a file may be a model's spec or anything that has one as `model`, like a run.json."""
    if not path.is_file() or path.suffix not in (".json", ".yaml", ".yml"):
        return load_spec(path, which)
    tree = read_document(path) if path.suffix == ".json" else read_tree(path)
    return check(TransformerSpec, tree.get("model", tree), where=path), path.stem


def _length(spec: TransformerSpec, asked: int | None) -> int:
    """The context that costs are counted at; one beyond what the positions know is refused."""
    limits = [spec.position.limit, *(block.attention.position.limit for block in spec.blocks)]
    most = min((limit for limit in limits if limit is not None), default=None)
    if asked is not None and asked > MOST:
        raise SpecError("costs are counted at contexts that can be", where="--context", do=f"give at most {MOST:,}")
    if asked is not None and most is not None and asked > most:
        raise SpecError(f"the model knows {most} positions", where="--context", do=f"give at most {most}")
    return asked or spec.context


def _facts(spec: TransformerSpec, name: str, context: int) -> dict[str, Any]:
    """Everything that is printed, as plain data."""
    flops, kept = flops_per_token(spec, context), cache_size(spec)
    source = spec.encoder.context if spec.encoder else 0
    return {
        "name": name,
        "spec": spec.model_dump(mode="json"),
        "parameters": parameters_by_part(spec),
        "layers": [
            {
                "layers": _listed(kind),
                "parameters": _size(kind.block),
                "feedforward_share": _size(kind.block.feedforward) / _size(kind.block),
            }
            for kind in kinds(spec)
        ],
        "cache_bytes_per_token": {name: cache_bytes_per_token(spec, size) for name, size in ELEMENT_BYTES.items()},
        "cache_bytes_per_sequence": {
            name: cache_bytes_per_sequence(spec, size) for name, size in ELEMENT_BYTES.items()
        },
        "cache": {
            "bytes_per_source_token": {name: size * kept.per_source_token for name, size in ELEMENT_BYTES.items()},
            "windows": [{"tokens": limit, "layers": layers} for limit, layers in windows(spec).items()],
            "context": context,
            "source": source,
            "bytes": {name: cache_bytes(spec, context, size, source) for name, size in ELEMENT_BYTES.items()},
        },
        "flops_per_token": {
            "context": context,
            "prefill": flops.prefill,
            "decode": flops.decode if _writes(spec) else None,
            "source": flops.source or None,
            "training": training_flops_per_token(spec, context),
        },
        "attention_compared": [asdict(costs) for costs in compare_attention(spec)] if _writes(spec) else [],
    }


def _writes(spec: TransformerSpec) -> bool:
    """Whether a model writes token by token, and so has a cache; an encoder reads all at once."""
    return all(block.attention.mask.kind != "bidirectional" for block in spec.blocks)


def _points(spec: TransformerSpec) -> list[dict[str, Any]]:
    return [
        {
            "name": point.name,
            "axes": point.axes.split(),
            "sizes": _shape(point.axes, point.sizes),
            "meaning": point.meaning,
        }
        for point in spec.points().values()
    ]


def _shape(axes: str, sizes: Any) -> list[int | str]:
    """Sizes of a spec as numbers; those of a pass (B, T, S) stay letters."""
    return [int(axis) if axis.isdigit() else sizes.get(axis, axis) for axis in axes.split()]


def _listed(kind: Kind) -> str:
    """The layers of a kind: "0-11", or "0, 2, …, 10"; an encoder's with its name before."""
    numbers, where = kind.layers, "encoder " if kind.name.startswith("encoder.") else ""
    if len(numbers) == 1:
        return f"{where}{numbers[0]}"
    if numbers.step == 1:
        return f"{where}{numbers[0]}-{numbers[-1]}"
    return where + ", ".join(map(str, numbers[:2] if len(numbers) == 2 else [*numbers[:2], "…", numbers[-1]]))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _tree(spec: TransformerSpec, name: str) -> Tree:
    model, total = outline(spec), parameters_by_part(spec)["total"]
    layers = f"{spec.layers} layers" if spec.encoder is None else f"{spec.encoder.layers} + {spec.layers} layers"
    root = Tree(Text.assemble((name, "bold"), f"  {total:,} parameters, {layers}, context {spec.context:,}"))
    _grow(root, "embedding", model.embedding, spec.embedding)
    if spec.encoder is not None and model.encoder is not None:
        branch = root.add(Text.assemble(("encoder", "bold"), f"  context {spec.encoder.context:,}"))
        if model.encoder.embedding is not None:
            _grow(branch, "embedding", model.encoder.embedding, spec.encoder.embedding)
        _grow_stack(branch, model.encoder, spec.encoder, [kind for kind in kinds(spec) if "encoder." in kind.name])
    _grow_stack(root, model, spec, [kind for kind in kinds(spec) if "encoder." not in kind.name])
    _grow(root, "head", model.head, spec.head)
    return root


def _grow_stack(parent: Tree, stack: Stack, spec: StackSpec, layers: list[Kind]) -> None:
    """Add a stack: its position, its blocks by kind, its norms."""
    _grow(parent, "position", stack.position, spec.position)
    if stack.embedding_norm is not None:
        _grow(parent, "embedding_norm", stack.embedding_norm, None)
    for kind in layers:
        head = f"blocks {_listed(kind).removeprefix('encoder ')}"
        text = f"  {_size(kind.block):,} each, {_brief(kind.spec.wiring)}"
        branch = parent.add(Text.assemble((head, "bold cyan"), text))
        parts = {"norm1": kind.spec.norm, "attention": kind.spec.attention, "norm_cross": kind.spec.norm}
        parts |= {"cross": kind.spec.cross, "norm2": kind.spec.norm, "feedforward": kind.spec.feedforward}
        for part, part_spec in parts.items():
            if isinstance(module := getattr(kind.block, part, None), nn.Module):
                _grow(branch, part, module, part_spec)
    _grow(parent, "norm", stack.norm, spec.norm)


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
    shares = "; ".join(
        f"{100 * layer['feedforward_share']:.1f} % (layers {layer['layers']})" for layer in facts["layers"]
    )
    return Text("\n".join([f"Feed-forward's share of a layer's parameters: {shares}", *_cache(facts), _flops(facts)]))


def _cache(facts: dict[str, Any]) -> list[str]:
    """What is remembered of a text, and how that grows."""
    if facts["flops_per_token"]["decode"] is None:
        return ["Cache: none, it reads a text as a whole"]
    cache, per_token = facts["cache"], facts["cache_bytes_per_token"]
    whole = " or ".join(_units(size, "B", 1024) for size in cache["bytes"].values())
    at = "a full context" if cache["context"] == facts["spec"]["context"] else f"{cache['context']:,} tokens"
    states = facts["cache_bytes_per_sequence"]
    state = f", and {max(states.values()):,} bytes per sequence" if any(states.values()) else ""
    lines = [f"Cache per token: {_bytes(per_token)}{state} ({at}: {whole})"]
    for window in cache["windows"]:
        lines.append(f"  {window['layers']} layers keep {window['tokens']:,} tokens, and forget those before")
    if any(cache["bytes_per_source_token"].values()):
        per_token = _bytes(cache["bytes_per_source_token"])
        lines.append(f"  and per token of the source: {per_token} ({cache['source']:,} of them are counted)")
    return lines


def _bytes(sizes: dict[str, int]) -> str:
    return " or ".join(f"{size:,} bytes in {name}" for name, size in sizes.items())


def _flops(facts: dict[str, Any]) -> str:
    flops = facts["flops_per_token"]
    said = [
        f"{name} {_units(flops[name], 'FLOP')}"
        for name in ("source", "prefill", "decode", "training")
        if flops[name] is not None
    ]
    return f"Operations per token at context {flops['context']:,}: {', '.join(said)}"


def _compared(facts: dict[str, Any]) -> Table:
    title = "With another attention of the same heads and head width"
    table = Table("attention", title=title, title_justify="left", box=None)
    for column in (*(f"cache per token, {name}" for name in ELEMENT_BYTES), "parameters of attention"):
        table.add_column(column, justify="right")
    table.add_column("")
    for row in facts["attention_compared"]:
        sizes = [f"{row['cache'] * size:,} bytes" for size in ELEMENT_BYTES.values()]
        mark = "<- this model" if row["loaded"] else ""
        style = "bold" if row["loaded"] else ""
        table.add_row(f"{row['name']}, {row['about']}", *sizes, f"{row['parameters']:,}", mark, style=style)
    return table


def _points_table(spec: TransformerSpec) -> Table:
    table = Table("point", "axes", "shape", "meaning", title="What can be watched", title_justify="left", box=None)
    pattern = spec.replace(layers=min(len(spec.blocks), spec.layers))
    layers = {kind.name.rpartition(".")[2]: _listed(kind) for kind in kinds(spec) if "encoder." not in kind.name}
    for point in pattern.points().values():
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
