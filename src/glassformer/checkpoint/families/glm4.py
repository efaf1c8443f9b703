"""GLM-4: norms before and after, half of each head turned in neighbouring pairs, gate and up in one matrix.

Source: GLM Team 2024; Glm4ForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import Tree, flag
from glassformer.checkpoint.families.rope import rope_parameters, rotary
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec, SandwichNormSpec
from glassformer.model.transformer import TransformerSpec

NORMS = {
    "norm1": "input_layernorm",
    "norm1_after": "post_self_attn_layernorm",
    "norm2": "post_attention_layernorm",
    "norm2_after": "post_mlp_layernorm",
}


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm = parts.rms(config, eps=1.5625e-07)
    block = BlockSpec(
        attention=parts.attention(
            config,
            position=rotary(config, layout="interleaved", fraction=0.5),
            bias=flag(config, "attention_bias", default=True),
        ),
        feedforward=parts.gated(config),
        norm=norm,
        wiring=SandwichNormSpec(),
    )
    return parts.decoder(config, lambda index: block, norm)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    attention: Any = spec.blocks[0].attention
    table = rope_parameters(attention.position, partial=True)
    fraction = table.get("partial_rotary_factor", 1.0)
    return {
        **parts.fields(spec),
        "rope_parameters": table,
        "partial_rotary_factor": fraction,
        "attention_bias": attention.bias,
    }


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""

    def layer(there: str, here: str, block: BlockSpec) -> list[Rule]:
        return [
            *parts.attention_rules(f"{there}.self_attn", f"{here}.attention", block.attention, spec.width),
            *parts.gated_rules(f"{there}.mlp", f"{here}.feedforward", block.feedforward, fused=True),
        ]

    return parts.decoder_rules(spec, layer, NORMS)


FAMILY = parts.family("glm4", "Glm4ForCausalLM", read, write, rules)
