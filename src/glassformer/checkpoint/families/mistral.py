"""Mistral: Llama's parts, with a window in every layer. Source: Jiang et al. 2023; MistralForCausalLM."""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import Tree
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm = parts.rms(config)
    block = BlockSpec(
        attention=parts.attention(config, mask=parts.window(config)), feedforward=parts.gated(config), norm=norm
    )
    return parts.decoder(config, lambda index: block, norm)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    return {**parts.fields(spec), "sliding_window": parts.windows(spec)["sliding_window"]}


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    return parts.decoder_rules(spec, parts.dense_layer(spec))


FAMILY = parts.family("mistral", "MistralForCausalLM", read, write, rules)
