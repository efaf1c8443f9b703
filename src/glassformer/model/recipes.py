"""Recipes: functions that return the spec of a well-known architecture."""

from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec, PreNormSpec
from glassformer.model.embedding import TiedHeadSpec, TokenEmbeddingSpec, UntiedHeadSpec
from glassformer.model.feedforward import GatedSpec, MLPSpec
from glassformer.model.norm import LayerNormSpec, RMSNormSpec
from glassformer.model.position import LearnedSpec, RotarySpec
from glassformer.model.transformer import TransformerSpec


def gpt2(
    vocabulary: int, *, layers: int, width: int, heads: int, context: int, dropout: float = 0.0, bias: bool = True
) -> TransformerSpec:
    """Learned positions, LayerNorm first, GELU (tanh), multi-head attention, tied head. Source: Radford et al. 2019."""
    norm = LayerNormSpec(bias=bias)
    block = BlockSpec(
        attention=GroupedAttentionSpec(heads=heads, kv_heads=heads, bias=bias, out_bias=bias, dropout=dropout),
        feedforward=MLPSpec(hidden=4 * width, activation="gelu_tanh", bias=bias),
        norm=norm,
        wiring=PreNormSpec(dropout=dropout),
    )
    return TransformerSpec(
        vocabulary=vocabulary,
        width=width,
        context=context,
        layers=layers,
        embedding=TokenEmbeddingSpec(dropout=dropout),
        position=LearnedSpec(length=context),
        blocks=(block,),
        norm=norm,
        head=TiedHeadSpec(),
    )


def llama(
    vocabulary: int, *, layers: int, width: int, heads: int, kv_heads: int, context: int, tied: bool = False
) -> TransformerSpec:
    """Rotary positions, RMSNorm first, SwiGLU of 8/3 width (to a multiple of 32), grouped queries.

    Source: Touvron et al. 2023.
    """
    hidden = -(-8 * width // 3 // 32) * 32
    norm = RMSNormSpec(eps=1e-5)
    block = BlockSpec(
        attention=GroupedAttentionSpec(heads=heads, kv_heads=kv_heads, position=RotarySpec()),
        feedforward=GatedSpec(hidden=hidden),
        norm=norm,
    )
    return TransformerSpec(
        vocabulary=vocabulary,
        width=width,
        context=context,
        layers=layers,
        blocks=(block,),
        norm=norm,
        head=TiedHeadSpec() if tied else UntiedHeadSpec(),
    )
