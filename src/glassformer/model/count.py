"""What a model costs: parameters, floating-point operations and cache bytes, from its spec alone.

A model is built without memory, with one block of each kind, so a model of any size is counted at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from glassformer.errors import SpecError
from glassformer.model import attention
from glassformer.model.embedding import Head
from glassformer.model.feedforward import Experts
from glassformer.model.linear import Linear
from glassformer.model.mask import MaskSpec
from glassformer.model.norm import Norm
from glassformer.model.position import Position
from glassformer.model.transformer import Transformer, TransformerSpec
from glassformer.model.unfilled import Unfilled

MAX_SIZE = 2**24  # of width, hidden width and heads: tables that are computed from them take real memory

PARTS = ("embedding", "position", "attention", "feed-forward", "norms", "head")

_PARTS_BY_NAME = {"attention": "attention", "feedforward": "feed-forward", "embedding": "embedding", "head": "head"}


@dataclass(frozen=True)
class Flops:
    """Forward floating-point operations for one token.

    prefill: the average over a context that is read in one pass (which is what training does, too).
    decode:  a new token at the end of a full context whose keys and values are remembered.
    """

    prefill: float
    decode: float


def outline(spec: TransformerSpec) -> tuple[Transformer, list[int]]:
    """A model without memory that has each block of the pattern once, and how many layers each of them stands for.

    Raises:
        SpecError: sizes that no tensor can have.
    """
    pattern = min(len(spec.blocks), spec.layers)
    widest = max(spec.width, *(size for block in spec.blocks for size in block.sizes(spec.width).values()))
    if widest > MAX_SIZE:
        raise SpecError(f"a size of {widest} is larger than any model's (at most {MAX_SIZE})")
    try:
        with Unfilled():
            model = spec.replace(layers=pattern).build()
    except (RuntimeError, OverflowError):
        raise SpecError("these sizes are larger than any tensor can be") from None
    return model, [len(range(index, spec.layers, len(spec.blocks))) for index in range(pattern)]


def parameters_by_part(spec: TransformerSpec) -> dict[str, int]:
    """Parameters by part, and in "total". A tied matrix counts once, as embedding; q/k norms count as norms."""
    counts: dict[str, int] = dict.fromkeys(PARTS, 0)
    for name, module, times in _modules(spec):
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        if own:
            counts[_part(name, module)] += times * own
    return {**counts, "total": sum(counts.values())}


def flops_per_token(spec: TransformerSpec, context: int) -> Flops:
    """Forward operations for one token of a context: 2 for each multiply-add of a matrix product.

    A projection costs 2 · inputs · outputs; a query costs 4 · H · C for each key it sees (its score, and its share of
    the values), and a token of linear attention 4 · H · C · (C + 1), wherever it stands. Norms, activations and softmax
    are left out: beside the products they are small.
    """
    products = 0
    for _, module, times in _modules(spec):
        if isinstance(module, Linear):
            products += 2 * times * module.weight.numel()
        elif isinstance(module, Experts):
            each = sum(part.weight[0].numel() for part in (module.gate, module.up, module.down) if part is not None)
            products += 2 * times * each * module.spec.chosen
        elif isinstance(module, Head) and module.own is None:
            products += 2 * spec.width * spec.vocabulary
    prefill = decode = float(products)
    for block, times in zip(spec.blocks, outline(spec)[1], strict=False):
        sizes, mask = block.attention.sizes(spec.width), block.attention.mask
        if block.attention.kind == "linear":  # into the state, and out of it; chunks add no more than that again
            state = 4 * times * sizes["H"] * sizes["C"] * (sizes["W"] + 1)
            prefill, decode = prefill + state, decode + state
            continue
        per_key = 2 * times * sizes["H"] * (sizes["C"] + sizes["W"])  # a score, and a share of a value
        prefill += per_key * mean_keys(mask, context)
        decode += per_key * float(mask.sees(torch.tensor(context - 1), torch.arange(context)).sum())
    return Flops(prefill, decode)


def training_flops_per_token(spec: TransformerSpec, context: int) -> float:
    """Operations of a training step for one token: a backward pass costs two forward passes."""
    return 3 * flops_per_token(spec, context).prefill


def cache_bytes_per_token(spec: TransformerSpec, element_bytes: int) -> int:
    """Bytes that a cache keeps for each token of a sequence (in layers with a window: until it is full)."""
    model, times = outline(spec)
    layers = zip(model.remembers, times, strict=True)
    return sum(count * attention.cache_bytes_per_token(kept, element_bytes) for kept, count in layers)


def cache_bytes_per_sequence(spec: TransformerSpec, element_bytes: int) -> int:
    """Bytes that a cache keeps for a sequence however long it is: the states of linear attention."""
    model, times = outline(spec)
    layers = zip(model.remembers, times, strict=True)
    return sum(count * attention.cache_bytes_per_sequence(kept, element_bytes) for kept, count in layers)


def has_experts(spec: TransformerSpec) -> bool:
    """Whether any layer is a mixture of experts."""
    return any(block.feedforward.kind == "experts" for block in spec.blocks)


def mean_keys(mask: MaskSpec, context: int) -> float:
    """How many keys a query sees on average when a context is read in one pass."""
    if mask.kind == "bidirectional":
        return float(context)
    if mask.kind in ("causal", "window"):
        reach = min(mask.reach or context, context)
        return (reach * (reach + 1) / 2 + (context - reach) * reach) / context  # 1, 2, … reach, reach, reach, …
    keys = torch.arange(context)
    rows = (keys[start : start + 1024, None] for start in range(0, context, 1024))
    return sum(float(mask.sees(queries, keys).sum()) for queries in rows) / context


def _modules(spec: TransformerSpec) -> Iterator[tuple[str, nn.Module, int]]:
    """Every module with its name, and how many times the full model has it."""
    model, times = outline(spec)
    named = cast("Iterator[tuple[str, nn.Module]]", model.named_modules())  # torch leaves it untyped
    for name, module in named:
        path = name.split(".")
        yield name, module, times[int(path[1])] if path[0] == "blocks" and len(path) > 1 else 1


def _part(name: str, module: nn.Module) -> str:
    if isinstance(module, Norm):
        return "norms"
    if isinstance(module, Position):
        return "position"
    return next(_PARTS_BY_NAME[word] for word in name.split(".") if word in _PARTS_BY_NAME)
