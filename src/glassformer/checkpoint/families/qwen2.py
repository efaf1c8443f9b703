"""Qwen2 and Qwen2.5: Llama's parts with biases at q, k and v; a window in the upper layers, where it is on.

Source: Yang et al. 2024; Qwen2ForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import Tree, flag, number, with_biases
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm, kinds = parts.rms(config), layer_kinds(config)

    def block(index: int) -> BlockSpec:
        mask = parts.window(config, on=kinds[index] == "sliding_attention")
        return BlockSpec(
            attention=parts.attention(config, mask=mask, bias=True), feedforward=parts.gated(config), norm=norm
        )

    return parts.decoder(config, block, norm)


def layer_kinds(config: Tree) -> list[str]:
    """Which layers have the window: those from `max_window_layers` on, where it is on at all."""
    on = flag(config, "use_sliding_window", default=False) and number(config, "sliding_window")

    def default(index: int) -> str:
        return "sliding_attention" if on and index >= number(config, "max_window_layers", 28) else "full_attention"

    return (
        parts.layer_kinds(config, default) if on else ["full_attention"] * parts.layers_of(config, "num_hidden_layers")
    )


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    windows = parts.windows(spec)
    return {**parts.fields(spec), **windows, "use_sliding_window": windows["sliding_window"] is not None}


def widen(spec: TransformerSpec) -> TransformerSpec:
    """With every gain, and the biases at q, k and v."""
    blocks = tuple(block.replace(attention=with_biases(block.attention, bias=True)) for block in spec.blocks)
    return parts.wide_norms(spec.replace(blocks=blocks))


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    return parts.decoder_rules(spec, parts.dense_layer(spec, lambda attention: (True, False)))


FAMILY = parts.family("qwen2", "Qwen2ForCausalLM", read, write, rules, widen=widen)
