"""Tiny decoders for tests: every position with every kind of attention, random but never flat."""

import torch

from glassformer.model import Transformer, TransformerSpec
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec
from glassformer.model.feedforward import GatedSpec
from glassformer.model.mask import CausalSpec, WindowSpec
from glassformer.model.norm import RMSNormSpec
from glassformer.model.position import PositionSpec
from glassformer.model.transformer import NormalInitSpec
from glassformer.spec import Spec, members

CONTEXT = 48

ATTENTIONS: dict[str, dict[str, object]] = {
    "multi-head": {"heads": 4, "kv_heads": 4},
    "grouped": {"heads": 4, "kv_heads": 2},
    "multi-query": {"heads": 4, "kv_heads": 1},
    "window": {"heads": 4, "kv_heads": 2, "mask": WindowSpec(size=7)},
    "qk-norm": {"heads": 4, "kv_heads": 4, "qk_norm": RMSNormSpec(), "scale": 0.7},
    "wide heads": {"heads": 3, "kv_heads": 3, "head_width": 10, "bias": True, "out_bias": True},
}


def positions() -> list[Spec]:
    """One of each position there is."""
    return [
        position(length=CONTEXT) if "length" in position.model_fields else position()
        for position in members(PositionSpec)
    ]


def decoder_spec(position: Spec, attention: str = "grouped", **changes: object) -> TransformerSpec:
    inside = {} if position.acts in ((), ("embed",)) else {"position": position}
    block = BlockSpec(
        attention=GroupedAttentionSpec(**ATTENTIONS[attention], **inside),
        feedforward=GatedSpec(hidden=48),
    )
    settings = {"vocabulary": 97, "width": 32, "context": CONTEXT, "layers": 2, "blocks": (block,)}
    outside = {} if inside else {"position": position}
    return TransformerSpec(**{**settings, **outside, "init": NormalInitSpec(std=0.15), **changes})


def with_mask(spec: TransformerSpec, size: int | None) -> TransformerSpec:
    """The same model seeing `size` tokens back (None: all)."""
    mask = CausalSpec() if size is None else WindowSpec(size=size)
    blocks = tuple(block.replace(attention=block.attention.replace(mask=mask)) for block in spec.blocks)
    return spec.replace(blocks=blocks)


def build(spec: TransformerSpec, seed: int = 0) -> Transformer:
    """A model whose weights depend on nothing but the seed; the test's own random numbers stay as they are."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return spec.build().eval()
