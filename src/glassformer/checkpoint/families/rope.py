"""Rotary positions in a config.json: the new field `rope_parameters`, or the old `rope_theta` and `rope_scaling`."""

import math
from typing import Any

from glassformer.checkpoint.families.base import Tree, refuse
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
        name: config[name] for name in ("rope_theta", "partial_rotary_factor") if config.get(name) is not None
    }
    for name in ("rope_scaling", "rope_parameters"):
        extra = config.get(name) or {}
        if not isinstance(extra, dict):
            raise CheckpointError(f"config.json: expected {name} to be an object, found {str(extra)[:80]}")
        known.update(extra)
    return known


def rotary_of(
    known: Tree, config: Tree, *, layout: Layout = "halves", theta: float = 10_000.0, fraction: float | None = None
) -> RotarySpec:
    """The rotation that a table of facts describes."""
    if fraction is None:
        refuse(known, {"partial_rotary_factor": (1.0, None)})
    return RotarySpec(
        theta=known.get("rope_theta") or theta,
        fraction=known.get("partial_rotary_factor") or fraction or 1.0,
        layout=layout,
        scaling=_scaling(known, config),
    )


def _scaling(known: Tree, config: Tree) -> ScalingSpec | None:
    kind = known.get("rope_type", known.get("type", "default"))
    if kind == "default":
        return None
    original: Any = known.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    if kind == "linear":
        return LinearScalingSpec(factor=known["factor"])
    if kind == "llama3":
        return Llama3ScalingSpec(
            factor=known["factor"], original=original, low=known["low_freq_factor"], high=known["high_freq_factor"]
        )
    longest: Any = config.get("max_position_embeddings")
    if kind == "yarn":
        original = original or longest
        factor = known.get("factor") or longest / original
        return YarnScalingSpec(
            factor=factor,
            original=original,
            fast=known.get("beta_fast") or 32,
            slow=known.get("beta_slow") or 1,
            stretched=_yarn_stretch(known, factor),
            whole=known.get("truncate", True),
        )
    if kind in ("longrope", "su"):
        factor = longest / original if config.get("original_max_position_embeddings") else known["factor"]
        stretched = known.get("attention_factor")
        if stretched is None:
            stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return LongRopeScalingSpec(
            short=known["short_factor"], long=known["long_factor"], original=original, stretched=stretched
        )
    raise CheckpointError(
        f"config.json: rope_type = {str(kind)[:80]} is not supported (only default, linear, llama3, yarn, longrope)"
    )


def _yarn_stretch(known: Tree, factor: float) -> float | None:
    """None stands for the paper's own 0.1 ln(factor) + 1."""
    if known.get("attention_factor") is not None:
        return known["attention_factor"]
    one, other = known.get("mscale"), known.get("mscale_all_dim")
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
