"""Tiny decoders for tests: every position with every kind of attention, random but never flat."""

import torch

from glassformer.model import Transformer, TransformerSpec
from glassformer.model.attention import GroupedAttentionSpec, LatentAttentionSpec, LinearAttentionSpec
from glassformer.model.block import BlockSpec
from glassformer.model.feedforward import GatedSpec
from glassformer.model.mask import BlocksSpec, CausalSpec, SinksSpec, WindowSpec
from glassformer.model.norm import RMSNormSpec
from glassformer.model.position import NoPositionSpec, PositionSpec, RelativeSpec
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
    "qk-norm over all": {"heads": 4, "kv_heads": 2, "qk_norm": RMSNormSpec(), "qk_norm_over": "all"},
    "softcap": {"heads": 4, "kv_heads": 2, "softcap": 3.0},
    "sink and gate": {"heads": 4, "kv_heads": 2, "sink": True, "gate": True, "mask": WindowSpec(size=9)},
    "first tokens and a window": {"heads": 4, "kv_heads": 2, "mask": SinksSpec(size=5, first=2)},
    "blocks": {"heads": 4, "kv_heads": 2, "mask": BlocksSpec(size=4, local=2, first=1, stride=3)},
    "latent": {"kind": "latent", "heads": 4, "rank": 12, "head_width": 6, "turned": 4, "value_width": 5},
    "linear": {"kind": "linear", "heads": 4, "value_width": 6},
    "linear that fades": {"kind": "linear", "heads": 2, "decay": True, "bias": True},
}

KINDS = {"grouped": GroupedAttentionSpec, "latent": LatentAttentionSpec, "linear": LinearAttentionSpec}


def takes(attention: str, position: Spec) -> bool:
    """Whether a kind of attention can have a position: latent attention only turns, linear does neither."""
    inside = position.acts not in ((), ("embed",))
    return {"latent": position.kind == "rotary", "linear": False}.get(attention, True) if inside else True


def positions() -> list[Spec]:
    """One of each position there is."""
    return [
        position(length=CONTEXT) if "length" in position.model_fields else position()
        for position in members(PositionSpec)
    ]


def pairs() -> list[tuple[Spec, str]]:
    """Every position with every attention that can have it."""
    return [
        (position, attention)
        for position in positions()
        for attention in ATTENTIONS
        if takes(str(ATTENTIONS[attention].get("kind", "grouped")), position)
    ]


def decoder_spec(position: Spec, attention: str = "grouped", **changes: object) -> TransformerSpec:
    inside = position.acts not in ((), ("embed",))
    kind = KINDS[str(ATTENTIONS[attention].get("kind", "grouped"))]
    own = position if inside else NoPositionSpec()
    block = BlockSpec(attention=kind(**{**ATTENTIONS[attention], "position": own}), feedforward=GatedSpec(hidden=48))
    settings = {"vocabulary": 97, "width": 32, "context": CONTEXT, "layers": 2, "blocks": (block,)}
    outside = (
        {"position": position} if not inside else {"position": RelativeSpec()} if position.kind == "shared" else {}
    )
    return TransformerSpec(**{**settings, **outside, "init": NormalInitSpec(std=0.15), **changes})


def mixed_spec(**changes: object) -> TransformerSpec:
    """Four layers: full attention, linear, a window, linear that fades."""
    names = ("grouped", "linear", "window", "linear that fades")
    blocks = tuple(decoder_spec(NoPositionSpec(), name).blocks[0] for name in names)
    return decoder_spec(NoPositionSpec(), blocks=blocks, layers=4, **changes)


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
