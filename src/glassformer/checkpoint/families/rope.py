"""Rotary positions in a config.json: the new field `rope_parameters`, or the old `rope_theta` and `rope_scaling`."""

import math
from typing import Any

from glassformer.checkpoint.families.base import Tree, flag, number, refuse, shown
from glassformer.errors import CheckpointError
from glassformer.model.position import RotarySpec
from glassformer.model.rotary_scaling import (
    LinearScalingSpec,
    Llama3ScalingSpec,
    LongRopeScalingSpec,
    ScalingSpec,
    YarnScalingSpec,
)
from glassformer.ops.rotate import Layout


def rotary(
    config: Tree, *, layout: Layout = "halves", theta: float = 10_000.0, fraction: float | None = None
) -> RotarySpec:
    """Their rotation; `theta` and `fraction` are what their program takes where the config doesn't say.

    Without a `fraction` their program always turns whole heads.
    """
    return rotary_of(facts(config), config, layout=layout, theta=theta, fraction=fraction)


def facts(config: Tree) -> dict[str, Any]:
    """All that a config says of its rotation, old fields and new ones in one table."""
    known: dict[str, Any] = {
        name: value for name in ("rope_theta", "partial_rotary_factor") if (value := number(config, name)) is not None
    }
    for name in ("rope_scaling", "rope_parameters"):
        known.update(table(config, name))
    return known


def table(config: Tree, name: str) -> dict[str, Any]:
    """A field that is a table; empty where it is null or missing."""
    found = config.get(name)
    if found is not None and not isinstance(found, dict):
        raise CheckpointError(f"expected {name} to be an object, found {shown(found)}")
    return found or {}


def rotary_of(
    known: Tree, config: Tree, *, layout: Layout = "halves", theta: float = 10_000.0, fraction: float | None = None
) -> RotarySpec:
    """The rotation that a table of facts describes."""
    if fraction is None:
        refuse(known, {"partial_rotary_factor": (1.0, None)})
    return RotarySpec(
        theta=number(known, "rope_theta") or theta,
        fraction=number(known, "partial_rotary_factor") or fraction or 1.0,
        layout=layout,
        scaling=_scaling(known, config),
    )


def _scaling(known: Tree, config: Tree) -> ScalingSpec | None:
    kind = known.get("rope_type", known.get("type", "default"))
    if kind == "default":
        return None
    original: Any = number(known, "original_max_position_embeddings") or number(
        config, "original_max_position_embeddings"
    )
    if kind == "linear":
        return LinearScalingSpec(factor=_given(known, "factor"))
    if kind == "llama3":
        return Llama3ScalingSpec(
            factor=_given(known, "factor"),
            original=original,
            low=_given(known, "low_freq_factor"),
            high=_given(known, "high_freq_factor"),
        )
    longest: Any = number(config, "max_position_embeddings")
    if kind == "yarn":
        original = original or longest
        factor = number(known, "factor") or longest / original
        return YarnScalingSpec(
            factor=factor,
            original=original,
            fast=number(known, "beta_fast") or 32,
            slow=number(known, "beta_slow") or 1,
            stretched=_yarn_stretch(known, factor),
            whole=flag(known, "truncate", default=True),
        )
    if kind in ("longrope", "su"):
        factor = longest / original if config.get("original_max_position_embeddings") else _given(known, "factor")
        stretched = number(known, "attention_factor")
        if stretched is None:
            stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return LongRopeScalingSpec(
            short=known["short_factor"], long=known["long_factor"], original=original, stretched=stretched
        )
    raise CheckpointError(
        f"rope_type = {str(kind)[:80]} is not supported (only default, linear, llama3, yarn, longrope)"
    )


def _given(known: Tree, name: str) -> float:
    if (value := number(known, name)) is None:
        raise CheckpointError(f"{name} is missing")
    return value


def _yarn_stretch(known: Tree, factor: float) -> float | None:
    """None stands for the paper's own 0.1 ln(factor) + 1."""
    if (given := number(known, "attention_factor")) is not None:
        return given
    one, other = number(known, "mscale"), number(known, "mscale_all_dim")
    return mscale(factor, one) / mscale(factor, other) if one and other else None


def mscale(factor: float, weight: float) -> float:
    """DeepSeek's variant of YaRN's stretch, with a weight."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def rope_parameters(position: Any, partial: bool = False) -> dict[str, Any]:
    """A rotation of ours as their table; what isn't one becomes the default, and the comparison will find it.

    `partial`: theirs may turn a part of a head.
    """
    if position.kind != "rotary":
        return {"rope_type": "default", "rope_theta": 10_000.0}
    table: dict[str, Any] = {"rope_theta": position.theta}
    if partial:
        table["partial_rotary_factor"] = position.fraction
    scaling = position.scaling
    if scaling is None or scaling.kind == "ntk":
        return {"rope_type": "default", **table}
    table |= {"rope_type": scaling.kind}
    if scaling.kind == "linear":
        return {**table, "factor": scaling.factor}
    table["original_max_position_embeddings"] = scaling.original
    if scaling.kind == "llama3":
        return {**table, "factor": scaling.factor, "low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
    if scaling.kind == "yarn":
        given = {} if scaling.stretched is None else {"attention_factor": scaling.stretched}
        ramp = {"beta_fast": scaling.fast, "beta_slow": scaling.slow, "truncate": scaling.whole}
        return {**table, "factor": scaling.factor, **ramp, **given}
    factors = {"short_factor": list(scaling.short), "long_factor": list(scaling.long)}
    return {**table, **factors, "factor": 1.0, "attention_factor": scaling.stretched}
