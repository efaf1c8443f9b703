"""Qwen3: Llama's parts with each head's queries and keys normed. Source: Yang et al. 2025; Qwen3ForCausalLM."""

from typing import Any

from glassformer.checkpoint.families import llama, parts
from glassformer.checkpoint.families.base import Tree, flag
from glassformer.checkpoint.families.qwen2 import layer_kinds
from glassformer.checkpoint.families.qwen2 import write as write_qwen2
from glassformer.model.block import BlockSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm, kinds = parts.rms(config), layer_kinds(config)
    biased = flag(config, "attention_bias", default=False)

    def block(index: int) -> BlockSpec:
        mask = parts.window(config, on=kinds[index] == "sliding_attention")
        return BlockSpec(
            attention=parts.attention(config, mask=mask, qk_norm=norm, bias=biased, out_bias=biased),
            feedforward=parts.gated(config),
            norm=norm,
        )

    return parts.decoder({"head_dim": 128, **config}, block, norm)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    attention = spec.blocks[0].attention
    return {**write_qwen2(spec), "attention_bias": parts.biased(attention)}


FAMILY = parts.family("qwen3", "Qwen3ForCausalLM", read, write, llama.rules, widen=llama.widen)
