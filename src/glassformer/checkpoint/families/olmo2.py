"""OLMo 2: norms on what is added rather than on what is read; queries and keys normed over all heads together.

Source: OLMo Team 2025; Olmo2ForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import llama, parts
from glassformer.checkpoint.families.base import Tree, flag
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec, OutputNormSpec
from glassformer.model.transformer import TransformerSpec

NORMS = {"norm1": "post_attention_layernorm", "norm2": "post_feedforward_layernorm"}


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm, biased = parts.rms(config, eps=1e-5), flag(config, "attention_bias", default=False)
    block = BlockSpec(
        attention=parts.attention(config, qk_norm=norm, qk_norm_over="all", bias=biased, out_bias=biased),
        feedforward=parts.gated(config),
        norm=norm,
        wiring=OutputNormSpec(),
    )
    return parts.decoder(config, lambda index: block, norm)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    attention = spec.blocks[0].attention
    return {**parts.fields(spec), "attention_bias": parts.biased(attention)}


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    return parts.decoder_rules(spec, parts.dense_layer(spec), NORMS)


FAMILY = parts.family("olmo2", "Olmo2ForCausalLM", read, write, rules, widen=llama.widen)
