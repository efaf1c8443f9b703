"""Qwen1.5's and Qwen2's mixtures of experts, with a shared expert behind a gate. Source: Qwen2MoeForCausalLM."""

from typing import Any

from glassformer.checkpoint.families import parts, qwen2
from glassformer.checkpoint.families.base import Tree, refuse, size
from glassformer.checkpoint.families.qwen3_moe import experts, has_experts, mixture_fields
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    refuse(config, {"qkv_bias": (True,)})
    norm, kinds = parts.rms(config), qwen2.layer_kinds(config)
    mixture = experts(config, shared=size(config, "shared_expert_intermediate_size"), shared_gate=True)

    def block(index: int) -> BlockSpec:
        mask = parts.window(config, on=kinds[index] == "sliding_attention")
        feedforward = mixture if has_experts(config, index) else parts.gated(config)
        return BlockSpec(attention=parts.attention(config, mask=mask, bias=True), feedforward=feedforward, norm=norm)

    return parts.decoder(config, block, norm)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    mixtures = [block.feedforward for block in spec.blocks if block.feedforward.kind == "experts"]
    shared = mixtures[0].shared if mixtures else None
    return {**qwen2.write(spec), **mixture_fields(spec), "shared_expert_intermediate_size": shared or 1}


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    return parts.decoder_rules(spec, parts.mixed_layer(spec, lambda attention: (True, False)))


FAMILY = parts.family("qwen2_moe", "Qwen2MoeForCausalLM", read, write, rules, widen=qwen2.widen)
