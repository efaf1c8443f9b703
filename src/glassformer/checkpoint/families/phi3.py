"""Phi-3: Llama's parts, with q, k and v in one matrix, and gate and up in another; LongRoPE for long contexts.

Source: Abdin et al. 2024; Phi3ForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import Tree, number
from glassformer.checkpoint.families.rope import rope_parameters, rotary
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec, PreNormSpec
from glassformer.model.embedding import TokenEmbeddingSpec
from glassformer.model.transformer import TransformerSpec


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    norm = parts.rms(config, eps=1e-5)
    block = BlockSpec(
        attention=parts.attention(config, mask=parts.window(config), position=rotary(config, fraction=1.0)),
        feedforward=parts.gated(config),
        norm=norm,
        wiring=PreNormSpec(dropout=number(config, "resid_pdrop", 0.0)),
    )
    embedding = TokenEmbeddingSpec(dropout=number(config, "embd_pdrop", 0.0))
    return parts.decoder(config, lambda index: block, norm, embedding=embedding)


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    position = spec.blocks[0].attention.position
    scaling = getattr(position, "scaling", None)
    table = rope_parameters(position, partial=True)
    return {
        **parts.fields(spec),
        "sliding_window": parts.windows(spec)["sliding_window"],
        "original_max_position_embeddings": getattr(scaling, "original", spec.context),
        "rope_parameters": table,
        "partial_rotary_factor": table.get("partial_rotary_factor", 1.0),
        "resid_pdrop": spec.blocks[0].wiring.dropout,
        "embd_pdrop": spec.embedding.dropout,
    }


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""

    def layer(there: str, here: str, block: BlockSpec) -> list[Rule]:
        attention = parts.attention_rules(
            f"{there}.self_attn", f"{here}.attention", block.attention, spec.width, fused="qkv_proj"
        )
        return attention + parts.gated_rules(f"{there}.mlp", f"{here}.feedforward", block.feedforward, fused=True)

    return parts.decoder_rules(spec, layer)


FAMILY = parts.family("phi3", "Phi3ForCausalLM", read, write, rules)
