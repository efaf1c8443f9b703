"""What a model costs: parameters, floating-point operations and cache bytes, from its spec alone.

A model is built without memory, with one block of each kind, so a model of any size is counted at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import cast

import torch
from torch import nn

from glassformer.errors import SpecError
from glassformer.model.attention import LatentAttentionSpec
from glassformer.model.block import Block, BlockSpec
from glassformer.model.embedding import Head
from glassformer.model.feedforward import Experts
from glassformer.model.linear import Linear
from glassformer.model.mask import MaskSpec
from glassformer.model.norm import Norm
from glassformer.model.position import Position
from glassformer.model.stack import Stack, StackSpec
from glassformer.model.step import Kept
from glassformer.model.transformer import Transformer, TransformerSpec
from glassformer.model.unfilled import Unfilled

STATE_BYTES = 4  # states are sums over a whole text: they are kept in at least float32
MAX_SIZE = 2**24  # of width, hidden width and heads: tables that are computed from them take real memory

PARTS = ("embedding", "position", "attention", "feed-forward", "norms", "head")
CROSS = "cross-attention"
"""A part that only encoder-decoders have."""

_PARTS_BY_NAME = {
    "attention": "attention", "cross": CROSS, "feedforward": "feed-forward", "embedding": "embedding", "head": "head",
}  # fmt: skip
_OF_THE_SOURCE = ("encoder.", ".cross.k.", ".cross.v.")
"""What is computed once for each token of the source, and not for those that are written."""


@dataclass(frozen=True)
class Flops:
    """Forward floating-point operations for one token.

    prefill: the average over a context that is read in one pass (which is what training does, too).
    decode:  a new token at the end of a full context whose keys and values are remembered.
    source:  in an encoder-decoder, a token of a full source that the encoder reads; the others then read all of it.
    """

    prefill: float
    decode: float
    source: float = 0.0


@dataclass(frozen=True)
class Kind:
    """The layers of a stack that are alike: their spec, one of them without memory, and how many there are.

    name is "blocks.0", or "encoder.blocks.0"; layers are their numbers.
    """

    name: str
    spec: BlockSpec
    block: Block
    layers: range
    stack: StackSpec


def outline(spec: TransformerSpec) -> Transformer:
    """A model without memory that has each block of its patterns once.

    Raises:
        SpecError: sizes that no tensor can have.
    """
    stacks = [spec, *([spec.encoder] if spec.encoder else [])]
    blocks = [block for stack in stacks for block in stack.blocks]
    crossing = [size for block in blocks if block.cross for size in block.cross.sizes(spec.width).values()]
    widest = max(spec.width, *crossing, *(size for block in blocks for size in block.sizes(spec.width).values()))
    if widest > MAX_SIZE:
        raise SpecError(f"a size of {widest} is larger than any model's (at most {MAX_SIZE})")
    try:
        with Unfilled():
            encoder = spec.encoder and spec.encoder.replace(layers=_pattern(spec.encoder))
            return spec.replace(layers=_pattern(spec), encoder=encoder).build()
    except (RuntimeError, OverflowError):
        raise SpecError("these sizes are larger than any tensor can be") from None


def kinds(spec: TransformerSpec, model: Transformer | None = None) -> list[Kind]:
    """The layers of a model by kind, those of an encoder first; `model` is its outline, where that is made already."""
    model = model or outline(spec)
    stacks: list[tuple[str, StackSpec, Stack]] = [("", spec, model)]
    if spec.encoder is not None and model.encoder is not None:
        stacks.insert(0, ("encoder.", spec.encoder, model.encoder))
    return [
        Kind(
            f"{prefix}blocks.{index}",
            block,
            cast("Block", module),
            range(index, stack.layers, len(stack.blocks)),
            stack,
        )
        for prefix, stack, built in stacks
        for index, (block, module) in enumerate(zip(stack.blocks, built.blocks, strict=False))
    ]


def parameters_by_part(spec: TransformerSpec) -> dict[str, int]:
    """Parameters by part, and in "total". A tied matrix counts once, as embedding; q/k norms count as norms."""
    counts: dict[str, int] = dict.fromkeys(PARTS, 0)
    for name, module, times in _modules(spec):
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        if own:
            part = _part(name, module)
            counts[part] = counts.get(part, 0) + times * own
    return {**counts, "total": sum(counts.values())}


def flops_per_token(spec: TransformerSpec, context: int) -> Flops:
    """Forward operations for one token of a context: 2 for each multiply-add of a matrix product.

    A projection costs 2 · inputs · outputs; a query costs 4 · H · C for each key it sees (its score, and its share of
    the values); a state that takes the place of keys costs 4 for each of its numbers (to change it, and to read it). A
    head that reads a whole text costs its part for each token. Norms, activations and softmax are left out: beside the
    products they are small.
    """
    products = {"": 0.0, "encoder.": 0.0}
    once = context if spec.head.kind in ("pooled", "classifier") else 1
    for name, module, times in _modules(spec):
        side = "encoder." if any(part in f"{name}." for part in _OF_THE_SOURCE) else ""
        products[side] += times * _products(module, spec) / (once if name.startswith("head") else 1)
    flops = Flops(products[""], products[""], products["encoder."])
    for kind in kinds(spec):
        flops = _plus(flops, _mixing(kind, spec, context))
    return flops


def _products(module: nn.Module, spec: TransformerSpec) -> int:
    """Operations of one module for one token."""
    if isinstance(module, Linear):
        return 2 * module.weight.numel()
    if isinstance(module, Experts):
        each = sum(part.weight[0].numel() for part in (module.gate, module.up, module.down) if part is not None)
        return 2 * each * module.spec.chosen
    if isinstance(module, Head) and module.own is None:
        return 2 * spec.width * spec.vocabulary
    return 0


def _mixing(kind: Kind, spec: TransformerSpec, context: int) -> Flops:
    """What the layers of a kind spend on mixing values, or on their states, for one token."""
    times, states = len(kind.layers), sum(prod(kept.shape) for kept in _kept(kind) if kept.per == "sequence")
    if states:
        flops = Flops(4.0 * times * states, 4.0 * times * states)
    else:
        attention, sizes = kind.spec.attention, kind.spec.attention.sizes(spec.width)
        per_key = 2 * times * sizes["H"] * (sizes["C"] + sizes["W"])  # a score, and a share of a value
        length = kind.stack.context if kind.name.startswith("encoder.") else context
        seen = float(attention.mask.sees(torch.tensor(length - 1), torch.arange(length)).sum())
        decode = per_key * seen if attention.kind != "latent" else times * _latent(attention, seen)
        flops = Flops(per_key * mean_keys(attention.mask, length), decode)
    if kind.name.startswith("encoder."):
        return Flops(0.0, 0.0, flops.prefill)
    if kind.spec.cross is not None and spec.encoder is not None:
        sizes = kind.spec.cross.sizes(spec.width)
        read = 2.0 * times * sizes["H"] * (sizes["C"] + sizes["W"]) * spec.encoder.context
        flops = _plus(flops, Flops(read, read))
    return flops


def _latent(spec: LatentAttentionSpec, keys: float) -> float:
    """One new token of latent attention over so many remembered ones, in the cheaper of its two forms.

    Its own key and value, or its query carried over to the latents, are among the projections already.
    """
    absorbed = 2 * spec.heads * keys * (2 * spec.rank + spec.turned)
    opening = 2 * spec.rank * spec.heads * (spec.head_width + spec.value_width)
    expanded = 2 * spec.heads * keys * (spec.head_width + spec.turned + spec.value_width) + opening * (keys - 1)
    return float(min(absorbed, expanded))


def training_flops_per_token(spec: TransformerSpec, context: int) -> float:
    """Operations of a training step for one token: a backward pass costs two forward passes.

    In an encoder-decoder a token of the target, with one of the source.
    """
    flops = flops_per_token(spec, context)
    return 3 * (flops.prefill + flops.source)


@dataclass(frozen=True)
class CacheSize:
    """Numbers that a cache keeps: for each token (in layers with a window only until it is full), for a sequence
    whatever its length, and for each token of an encoder's source.
    """

    per_token: int
    per_sequence: int
    per_source_token: int


def cache_size(spec: TransformerSpec) -> CacheSize:
    """What a cache keeps, in numbers."""
    sums = {"token": 0, "sequence": 0, "memory": 0}
    for kept, layers, _ in _remembered(spec):
        sums[kept.per] += prod(kept.shape) * layers
    return CacheSize(sums["token"], sums["sequence"], sums["memory"])


def cache_bytes_per_token(spec: TransformerSpec, element_bytes: int) -> int:
    """Bytes that a cache keeps for each token of a sequence (in layers with a window: until it is full)."""
    return element_bytes * cache_size(spec).per_token


def cache_bytes_per_sequence(spec: TransformerSpec, element_bytes: int) -> int:
    """Bytes that a cache keeps for a sequence however long it is: the states of linear attention."""
    return max(STATE_BYTES, element_bytes) * cache_size(spec).per_sequence


def cache_bytes(spec: TransformerSpec, context: int, element_bytes: int, source: int = 0) -> int:
    """Bytes that a cache keeps at a context of so many tokens, windows at their limits, for a source of so many."""
    grows = sum(
        prod(kept.shape) * layers * (source if kept.per == "memory" else min(context, kept.limit or context))
        for kept, layers, _ in _remembered(spec)
        if kept.per != "sequence"
    )
    return element_bytes * grows + cache_bytes_per_sequence(spec, element_bytes)


def windows(spec: TransformerSpec) -> dict[int, int]:
    """How many layers forget all but so many tokens, by that number."""
    found: dict[int, set[int]] = {}
    for kept, _, layers in _remembered(spec):
        if kept.per == "token" and kept.limit is not None:
            found.setdefault(kept.limit, set()).update(layers)
    return {limit: len(layers) for limit, layers in sorted(found.items())}


def _remembered(spec: TransformerSpec) -> Iterator[tuple[Kept, int, range]]:
    """Everything that the layers of a decoder keep, with how many layers keep it, and which."""
    for kind in kinds(spec):
        if not kind.name.startswith("encoder."):
            yield from ((kept, len(kind.layers), kind.layers) for kept in _kept(kind))


def _kept(kind: Kind) -> tuple[Kept, ...]:
    return kind.block.remembers


def has_experts(spec: TransformerSpec) -> bool:
    """Whether any layer is a mixture of experts."""
    return any(block.feedforward.kind == "experts" for block in spec.blocks)


def mean_keys(mask: MaskSpec, context: int) -> float:
    """How many keys a query sees on average when a context is read in one pass."""
    if mask.kind == "bidirectional" and mask.window is None:
        return float(context)
    if mask.kind in ("causal", "window"):
        reach = min(mask.reach or context, context)
        return (reach * (reach + 1) / 2 + (context - reach) * reach) / context  # 1, 2, … reach, reach, reach, …
    keys = torch.arange(context)
    rows = (keys[start : start + 1024, None] for start in range(0, context, 1024))
    return sum(float(mask.sees(queries, keys).sum()) for queries in rows) / context


def _pattern(stack: StackSpec) -> int:
    return min(len(stack.blocks), stack.layers)


def _plus(one: Flops, other: Flops) -> Flops:
    return Flops(one.prefill + other.prefill, one.decode + other.decode, one.source + other.source)


def _modules(spec: TransformerSpec) -> Iterator[tuple[str, nn.Module, int]]:
    """Every module with its name, and how many times the full model has it."""
    model = outline(spec)
    times = {kind.name: len(kind.layers) for kind in kinds(spec, model)}
    named = cast("Iterator[tuple[str, nn.Module]]", model.named_modules())  # torch leaves it untyped
    for name, module in named:
        path = name.split(".")
        depth = path.index("blocks") + 2 if "blocks" in path else 0
        yield name, module, times.get(".".join(path[:depth]), 1)


def _part(name: str, module: nn.Module) -> str:
    if isinstance(module, Norm):
        return "norms"
    if isinstance(module, Position):
        return "position"
    return next(_PARTS_BY_NAME[word] for word in name.split(".") if word in _PARTS_BY_NAME)
