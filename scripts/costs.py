"""The model that pages of mechanisms measure in, with one part of it exchanged, and what each then costs.

It is GPT-2 small in today's parts: 12 layers, width 768, 12 heads, a vocabulary of 50,257 and a context of 1,024. What
a new member needs beyond its defaults is found in SIZES by the name of the field.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from glassformer.errors import SpecError
from glassformer.model import TransformerSpec
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.attention.cross import CrossAttentionSpec
from glassformer.model.block import BlockSpec
from glassformer.model.count import cache_bytes, cache_size, flops_per_token, parameters_by_part
from glassformer.model.feedforward import ExpertsSpec, GatedSpec, MLPSpec
from glassformer.model.mask import BidirectionalSpec
from glassformer.model.norm import LayerNormSpec, RMSNormSpec
from glassformer.model.position import RelativeSpec, RotarySpec
from glassformer.model.rotary_scaling import LongRopeScalingSpec
from glassformer.model.transformer import EncoderSpec
from glassformer.spec import Spec

CONTEXT, FAR = 1024, 8192
ELEMENT_BYTES = 2  # bfloat16

SIZES: Mapping[str, Any] = {
    "heads": 12, "kv_heads": 12, "head_width": 64, "value_width": 64, "rank": 256, "turned": 32, "hidden": 3072,
    "experts": 8, "chosen": 2, "size": 256, "length": 1024, "factor": 8.0, "original": 1024, "labels": ("no", "yes"),
}  # fmt: skip
"""What a part of the standard model is given where its spec has no default."""

INSTEAD: Mapping[type[Spec], Mapping[str, Any]] = {
    GatedSpec: {"hidden": 2048},  # as many parameters as the MLP
    ExpertsSpec: {"hidden": 1024},  # as much work as the MLP
    LongRopeScalingSpec: {"short": (1.0,) * 32, "long": tuple(1.0 + 7 * pair / 31 for pair in range(32))},
}
MORE: Mapping[type[Spec], tuple[Mapping[str, Any], ...]] = {
    GroupedAttentionSpec: ({"kv_heads": 4}, {"kv_heads": 1}, {"gate": True}),
    CrossAttentionSpec: ({"kv_heads": 4},),
    RotarySpec: ({"fraction": 0.5},),
    LayerNormSpec: ({"bias": False},),
    RMSNormSpec: ({"gain": False},),
    ExpertsSpec: ({"experts": 32, "chosen": 4, "hidden": 512}, {"shared": 1024}),
}
"""Further settings whose costs are worth seeing."""


def settings(member: type[Spec]) -> list[Any]:
    """A member as it would stand in the standard model, and in some other settings.

    Raises:
        SystemExit: a field without a default whose size isn't known here.
    """
    needed = [name for name, field in member.model_fields.items() if field.is_required()]
    given = {name: SIZES[name] for name in needed if name in SIZES} | INSTEAD.get(member, {})
    if missing := sorted(set(needed) - set(given)):
        raise SystemExit(f"{member.__name__}: give {', '.join(missing)} a default, or a size in scripts/costs.py")
    return [member(**{**given, **more}) for more in ({}, *MORE.get(member, ()))]


def standard() -> TransformerSpec:
    """The model that every part is put into."""
    attention = GroupedAttentionSpec(heads=12, kv_heads=12, position=RotarySpec())
    block = BlockSpec(attention=attention, feedforward=MLPSpec(hidden=3072))
    return TransformerSpec(vocabulary=50257, width=768, context=CONTEXT, layers=12, blocks=(block,))


def model_with(place: str, part: Any) -> TransformerSpec:
    """The standard model with a part in its place."""
    spec = standard()
    block = spec.blocks[0]

    def changed(**changes: Any) -> TransformerSpec:
        return spec.replace(blocks=(block.replace(**changes),))

    def attending(**changes: Any) -> TransformerSpec:
        return changed(attention=block.attention.replace(**changes))

    if place == "position":
        if part.kind == "shared":
            sharing = block.replace(attention=block.attention.replace(position=part))
            return spec.replace(position=RelativeSpec(), blocks=(sharing,))
        if {"rotate", "bias"} & set(part.acts):
            return attending(position=part)
        return attending(position={"kind": "none"}).replace(position=part)
    if place == "scaling":
        return attending(position=RotarySpec(scaling=part))
    if place == "mask":
        return attending(mask=part)
    if place == "norm":
        return changed(norm=part).replace(norm=part)
    if place == "cross":
        reading = block.replace(attention=block.attention.replace(mask=BidirectionalSpec()))
        encoder = EncoderSpec(context=CONTEXT, layers=12, blocks=(reading,))
        return spec.replace(blocks=(block.replace(cross=part),), encoder=encoder)
    if place == "transform":
        return spec.replace(head=spec.head.replace(transform=part))
    return changed(**{place: part}) if place in BlockSpec.model_fields else spec.replace(**{place: part})


HEAD = (
    "setting", "parameters", "prefill, FLOPs a token", "decode, FLOPs a token", f"decode at {FAR:,}",
    "cache of a token", f"cache of {CONTEXT:,}", f"cache of {FAR:,}",
)  # fmt: skip


@cache
def costs(spec: TransformerSpec) -> tuple[int | float | None, ...]:
    """What stands in a row: None where there is no such thing (decoding of what can't write)."""
    near, far = flops_per_token(spec, CONTEXT), flops_per_token(spec, FAR)
    attention = spec.blocks[0].attention
    writes = attention.mask.kind != "bidirectional" and spec.head.logits == "B T V"
    limits = [limit for limit in (spec.position.limit, attention.position.limit) if limit is not None]
    reaches = writes and all(limit >= FAR for limit in limits)
    return (
        parameters_by_part(spec)["total"],
        near.prefill,
        near.decode if writes else None,
        far.decode if reaches else None,
        cache_bytes(spec, 1, ELEMENT_BYTES) if writes and not _state(spec) else None,
        cache_bytes(spec, CONTEXT, ELEMENT_BYTES) if writes else None,
        cache_bytes(spec, FAR, ELEMENT_BYTES) if reaches else None,
    )


def _state(spec: TransformerSpec) -> bool:
    """Whether a sequence has a state, so that no token of it has a size of its own."""
    return cache_size(spec).per_sequence > 0


def row(name: str, spec: TransformerSpec, base: TransformerSpec | None) -> tuple[str, ...]:
    """A row of a table of costs; beside a base each number is followed by the difference."""
    own = costs(spec)
    beside = costs(base) if base is not None else own
    units = (_count, _flops, _flops, _flops, _bytes, _bytes, _bytes)
    cells = []
    for unit, value, other in zip(units, own, beside, strict=True):
        if value is None:
            cells.append("")
        elif other is None or value == other:
            cells.append(unit(value))
        else:
            cells.append(f"{unit(value)} ({'+' if value > other else '−'}{unit(abs(value - other))})")
    return (name, *cells)


def memory(spec: TransformerSpec) -> str:
    """What a source costs, in words; nothing where there is none."""
    if spec.encoder is None:
        return ""
    kept, read = ELEMENT_BYTES * cache_size(spec).per_source_token, flops_per_token(spec, CONTEXT).source
    return (
        f"Beside these, once for a source of {spec.encoder.context:,}: {_flops(read)} FLOPs to read a token of it, "
        f"and {_bytes(kept)} kept for it."
    )


def free(specs: list[TransformerSpec], base: TransformerSpec) -> bool:
    """Whether all of them cost exactly what the base does."""
    return all(costs(spec) == costs(base) for spec in specs)


def _count(value: float) -> str:
    return f"{int(value):,}"


def _flops(value: float) -> str:
    return f"{value / 1e6:,.1f} M"


def _bytes(value: float) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:,.{0 if value % size == 0 else 1}f} {unit}"
    return f"{value:,.0f} B"


def buildable(place: str, part: Any) -> TransformerSpec:
    """The model with a part, or the end of the program with what is wrong with it."""
    try:
        return model_with(place, part)
    except SpecError as error:
        raise SystemExit(f"{type(part).__name__} doesn't fit the standard model: {error}") from None
