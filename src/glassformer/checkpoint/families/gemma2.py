"""Gemma 2: norms before and after with unit offset, soft-caps, GeGLU, a window in every other layer.

Source: Gemma Team 2024; Gemma2ForCausalLM.
"""

from typing import Any

from glassformer.checkpoint.families import parts
from glassformer.checkpoint.families.base import THEIR_ACTIVATION, Tree, flag, number, refuse, size
from glassformer.checkpoint.rename import Rule
from glassformer.model.block import BlockSpec, SandwichNormSpec
from glassformer.model.embedding import TiedHeadSpec, TokenEmbeddingSpec, UntiedHeadSpec
from glassformer.model.transformer import TransformerSpec

NORMS = {
    "norm1": "input_layernorm",
    "norm1_after": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "norm2_after": "post_feedforward_layernorm",
}


def read(config: Tree) -> TransformerSpec:
    """Their config as a spec."""
    kinds = parts.layer_kinds(config, lambda index: "full_attention" if index % 2 else "sliding_attention")
    norm = parts.rms(config, unit_offset=True)

    def block(index: int) -> BlockSpec:
        attention = attention_of(
            config,
            mask=parts.window(config, on=kinds[index] == "sliding_attention"),
            softcap=number(config, "attn_logit_softcapping", 50.0),
        )
        return block_of(config, attention, norm)

    return decoder(config, block, norm, softcap=number(config, "final_logit_softcapping", 30.0))


def attention_of(config: Tree, **fields: Any) -> Any:
    """Gemma's attention: scores are scaled by a number of its own."""
    refuse(config, {"use_bidirectional_attention": (False, None)})
    biased = flag(config, "attention_bias", default=False)
    scale = size({"query_pre_attn_scalar": 256, **config}, "query_pre_attn_scalar") ** -0.5
    return parts.attention(config, scale=scale, bias=biased, out_bias=biased, **fields)


def block_of(config: Tree, attention: Any, norm: Any) -> BlockSpec:
    """Gemma's block around an attention."""
    act = {"hidden_activation": "gelu_pytorch_tanh", **config}
    return BlockSpec(
        attention=attention,
        feedforward=parts.gated(act, act="hidden_activation"),
        norm=norm,
        wiring=SandwichNormSpec(),
    )


def decoder(config: Tree, block: Any, norm: Any, softcap: float | None) -> TransformerSpec:
    """Gemma's whole: token vectors are scaled by √width, and are the head too."""
    tied = flag(config, "tie_word_embeddings", default=True)
    return parts.decoder(
        config,
        block,
        norm,
        embedding=TokenEmbeddingSpec(scale=size(config, "hidden_size") ** 0.5),
        head=TiedHeadSpec(softcap=softcap) if tied else UntiedHeadSpec(softcap=softcap),
    )


def write(spec: TransformerSpec) -> dict[str, Any]:
    """A spec as their config."""
    block: Any = spec.blocks[0]
    attention, feedforward = block.attention, block.feedforward
    scale = getattr(attention, "scale", None) or attention.width_of_head(spec.width) ** -0.5
    return {
        **parts.fields(spec),
        **parts.windows(spec),
        "hidden_activation": THEIR_ACTIVATION[feedforward.activation],
        "query_pre_attn_scalar": max(1, round(scale**-2)),
        "attention_bias": parts.biased(attention),
        "attn_logit_softcapping": getattr(attention, "softcap", None),
        "final_logit_softcapping": getattr(spec.head, "softcap", None),
    }


def rules(spec: TransformerSpec) -> list[Rule]:
    """The name table."""
    return parts.decoder_rules(spec, parts.dense_layer(spec), NORMS)


FAMILY = parts.family("gemma2", "Gemma2ForCausalLM", read, write, rules)
