"""Gemma 3 (text): Gemma 2 with normed queries and keys instead of soft-caps, five windows to one full layer.

Layers with a window turn by another base than the full ones. Source: Gemma Team 2025; Gemma3ForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import gemma2, parts
from glassformer.checkpoint.families.base import Tree, number
from glassformer.checkpoint.families.rope import facts, rope_parameters, rotary_of
from glassformer.model.block import BlockSpec
from glassformer.model.position import RotarySpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    every = number(config, "sliding_window_pattern") or number(config, "_sliding_window_pattern") or 6
    kinds = parts.layer_kinds(config, lambda i: "sliding_attention" if (i + 1) % every else "full_attention")
    norm = parts.rms(config, unit_offset=True)

    def block(index: int) -> BlockSpec:
        windowed = kinds[index] == "sliding_attention"
        attention = gemma2.attention_of(
            config,
            mask=parts.window(config, on=windowed),
            position=rotation(config, windowed),
            qk_norm=norm,
            softcap=number(config, "attn_logit_softcapping"),
        )
        return gemma2.block_of(config, attention, norm)

    return gemma2.decoder(config, block, norm, softcap=number(config, "final_logit_softcapping"))


def rotation(config: Tree, windowed: bool) -> RotarySpec:
    """That of a layer: the base and the scaling of full layers, or the base of those with a window."""
    known = facts(config)
    table = known.get("sliding_attention" if windowed else "full_attention")
    if isinstance(table, dict):
        return rotary_of(table, config, theta=1e4 if windowed else 1e6)
    if windowed:
        return RotarySpec(theta=number(config, "rope_local_base_freq") or 1e4)
    return rotary_of(known, config, theta=1e6)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    found: dict[str, Any] = {}
    for block in spec.blocks:
        kind = "sliding_attention" if block.attention.mask.kind == "window" else "full_attention"
        found[kind] = rope_parameters(block.attention.position)
    either = next(iter(found.values()))
    both = {"full_attention": either, "sliding_attention": either} | found
    return {**gemma2.write(spec), "rope_parameters": both, "rope_theta": both["full_attention"]["rope_theta"]}


FAMILY = parts.family("gemma3_text", "Gemma3ForCausalLM", read, write, gemma2.rules)
