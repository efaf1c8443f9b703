"""Llama 2 and 3, and SmolLM 1 and 2: rotary positions, RMSNorm, gated feed-forward, grouped queries.

Source: Touvron et al. 2023; LlamaForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import Tree, flag, refuse, with_biases
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    refuse(config, {"pretraining_tp": (1, None)})
    norm, biased = parts.rms(config), flag(config, "attention_bias", default=False)
    block = BlockSpec(
        attention=parts.attention(config, bias=biased, out_bias=biased),
        feedforward=parts.gated(config, bias=flag(config, "mlp_bias", default=False)),
        norm=norm,
    )
    return parts.decoder(config, lambda index: block, norm)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    block = spec.blocks[0]
    biased = parts.biased(block.attention)
    return {**parts.fields(spec), "attention_bias": biased, "mlp_bias": getattr(block.feedforward, "bias", False)}


def widen(spec: TransformerSpec) -> TransformerSpec:
    """With every gain, and all biases of attention where it has some."""
    blocks = []
    for block in spec.blocks:
        biased = parts.biased(block.attention)
        blocks.append(block.replace(attention=with_biases(block.attention, bias=biased, out_bias=biased)))
    return parts.wide_norms(spec.replace(blocks=tuple(blocks)))


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    return parts.decoder_rules(spec, parts.dense_layer(spec))


FAMILY = parts.family("llama", "LlamaForCausalLM", read, write, rules, widen=widen)
