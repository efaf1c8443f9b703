"""A model with another attention in its place: what multi-head, multi-query, grouped-query and latent would cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glassformer.model.attention import AttentionSpec, GroupedAttentionSpec, LatentAttentionSpec
from glassformer.model.count import cache_size, kinds
from glassformer.model.position import NoPositionSpec, RotarySpec
from glassformer.model.transformer import TransformerSpec
from glassformer.spec import Spec

RANK, TURNED = 4, 2
"""Latents are 4 heads wide, and half a head carries the position: the proportions of DeepSeek-V2 (2024, 3.1.2)."""
SOFTMAX: tuple[type[Spec], ...] = (GroupedAttentionSpec, LatentAttentionSpec)


@dataclass(frozen=True)
class Costs:
    """A model with one kind of attention: its name, whether it is the model's own, and what that is in numbers.

    cache:      numbers kept for each token, in all layers.
    parameters: of all self-attention.
    """

    name: str
    about: str
    loaded: bool
    cache: int
    parameters: int


def compare_attention(spec: TransformerSpec) -> list[Costs]:
    """The model with each kind of attention, with the heads and the head width that it has.

    Layers of other kinds than grouped and latent attention stay as they are. A model whose layers mix kinds, and is
    none of them, comes first by itself; one whose layers are all of other kinds gives nothing.
    """
    attentions = [block.attention for block in spec.blocks]
    if not any(isinstance(attention, SOFTMAX) for attention in attentions):
        return []
    rows: list[Costs] = []
    for name, change in KINDS.items():
        changed = [_changed(attention, change, spec.width) for attention in attentions]
        if None in changed:
            continue
        pairs = zip(spec.blocks, changed, strict=True)
        blocks = tuple(block.replace(attention=attention) for block, attention in pairs)
        shared = any(block.attention.position.kind == "shared" for block in blocks)
        # Where no layer takes the model's shared position any more, it has no place; it is no part of the attention.
        alone = spec.position.acts not in ((), ("embed",)) and not shared
        whole = spec.replace(blocks=blocks, **({"position": NoPositionSpec()} if alone else {}))
        about = _about(next(attention for attention in changed if isinstance(attention, SOFTMAX)))
        rows.append(_costs(name, about, whole, loaded=changed == attentions and not any(row.loaded for row in rows)))
    if not any(row.loaded for row in rows):
        rows.insert(0, _costs("as it is", "its layers differ", spec, loaded=True))
    return rows


def _changed(
    attention: AttentionSpec, change: Callable[[AttentionSpec, int], AttentionSpec | None], width: int
) -> AttentionSpec | None:
    return change(attention, width) if isinstance(attention, SOFTMAX) else attention


def _costs(name: str, about: str, spec: TransformerSpec, loaded: bool) -> Costs:
    parameters = sum(
        len(kind.layers) * sum(parameter.numel() for parameter in kind.block.attention.parameters())
        for kind in kinds(spec)
        if not kind.name.startswith("encoder.")
    )
    return Costs(name, about, loaded, cache_size(spec).per_token, parameters)


def _about(attention: Spec) -> str:
    """The numbers that make it what it is."""
    if isinstance(attention, LatentAttentionSpec):
        return f"latents {attention.rank} + {attention.turned}"
    if isinstance(attention, GroupedAttentionSpec):
        return f"{attention.kv_heads} keys" if attention.kv_heads > 1 else "1 key"
    return "as it is"


def _grouped(attention: AttentionSpec, width: int, kv_heads: int) -> AttentionSpec:
    if isinstance(attention, GroupedAttentionSpec):
        return attention.replace(kv_heads=kv_heads)
    assert isinstance(attention, LatentAttentionSpec)
    return GroupedAttentionSpec(
        heads=attention.heads,
        kv_heads=kv_heads,
        head_width=attention.head_width,
        position=attention.position,
        mask=attention.mask,
        bias=attention.bias,
    )


def _grouped_query(attention: AttentionSpec, width: int) -> AttentionSpec | None:
    """Its own groups where it has some, else the number of keys nearest to a quarter of the heads."""
    heads = attention.heads
    if isinstance(attention, GroupedAttentionSpec) and 1 < attention.kv_heads < heads:
        return attention
    between = [keys for keys in range(2, heads) if heads % keys == 0]
    return _grouped(attention, width, min(between, key=lambda keys: abs(keys - heads / 4))) if between else None


def _latent(attention: AttentionSpec, width: int) -> AttentionSpec:
    if isinstance(attention, LatentAttentionSpec):
        return attention
    C = attention.width_of_head(width)
    return LatentAttentionSpec(
        heads=attention.heads,
        rank=RANK * C,
        head_width=C,
        turned=max(2, C // TURNED // 2 * 2),
        value_width=C,
        position=RotarySpec(),
        mask=attention.mask,
    )


KINDS: Mapping[str, Callable[[AttentionSpec, int], AttentionSpec | None]] = {
    "MHA": lambda attention, width: _grouped(attention, width, attention.heads),
    "GQA": _grouped_query,
    "MQA": lambda attention, width: _grouped(attention, width, 1),
    "MLA": _latent,
}
"""Each kind by its usual name, and how an attention becomes one; None where its heads can't be grouped."""
