"""Tiny encoder-decoders for tests: positions as T5's and as Marian's, random but never flat."""

from decoders import CONTEXT
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.attention.cross import CrossAttentionSpec
from glassformer.model.block import BlockSpec, PostNormSpec
from glassformer.model.feedforward import GatedSpec, MLPSpec
from glassformer.model.mask import BidirectionalSpec
from glassformer.model.norm import LayerNormSpec
from glassformer.model.position import RelativeSpec, SharedSpec, SinusoidalSpec
from glassformer.model.transformer import EncoderSpec, NormalInitSpec, TransformerSpec


def seq2seq_spec(kind: str, vocabulary: int = 97, start: int = 0) -> TransformerSpec:
    """`kind` is "relative" (norms first, one bias for all layers) or "sinusoidal" (norms last)."""
    relative = kind == "relative"
    common = {"heads": 4, "kv_heads": 2}
    own = {"position": SharedSpec()} if relative else {}
    block = BlockSpec(
        attention=GroupedAttentionSpec(**common, **own),
        feedforward=GatedSpec(hidden=48),
        cross=CrossAttentionSpec(**common),
    )
    if not relative:
        block = block.replace(norm=LayerNormSpec(), wiring=PostNormSpec(), feedforward=MLPSpec(hidden=48, bias=True))
    reading = block.replace(cross=None, attention=block.attention.replace(mask=BidirectionalSpec()))
    position = RelativeSpec() if relative else SinusoidalSpec()
    there = RelativeSpec(bidirectional=True) if relative else SinusoidalSpec()
    encoder = EncoderSpec(context=CONTEXT, layers=2, position=there, blocks=(reading,), start=(start,))
    return TransformerSpec(
        vocabulary=vocabulary, width=32, context=CONTEXT, layers=2, position=position, blocks=(block,),
        encoder=encoder, init=NormalInitSpec(std=0.25),
    )  # fmt: skip
