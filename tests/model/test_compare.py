"""What a model's cache and attention would be with another kind of it, against the formulas of each."""

import pytest

from glassformer.model import TransformerSpec
from glassformer.model.attention import GroupedAttentionSpec, LatentAttentionSpec
from glassformer.model.compare import Costs, compare_attention
from glassformer.model.count import cache_bytes_per_token
from glassformer.model.position import RotarySpec
from glassformer.model.recipes import llama

D, H, K, C, L = 64, 8, 2, 8, 3
LLAMA = llama(1000, layers=L, width=D, heads=H, kv_heads=K, context=128)
ROTARY = RotarySpec()


def with_attention(*attentions: GroupedAttentionSpec | LatentAttentionSpec) -> TransformerSpec:
    return LLAMA.replace(blocks=tuple(LLAMA.blocks[0].replace(attention=attention) for attention in attentions))


def rows(spec: TransformerSpec) -> dict[str, Costs]:
    return {row.name: row for row in compare_attention(spec)}


def test_each_kind_costs_what_its_formula_says():
    rank, turned = 4 * C, C // 2
    latent = D * H * (C + turned) + D * (rank + turned) + rank + rank * H * 2 * C + H * C * D
    expected = {
        "MHA": (2 * H * C, 4 * D * H * C),
        "GQA": (2 * K * C, 2 * D * H * C + 2 * D * K * C),
        "MQA": (2 * C, 2 * D * H * C + 2 * D * C),
        "MLA": (rank + turned, latent),
    }
    assert {name: (row.cache, row.parameters) for name, row in rows(LLAMA).items()} == {
        name: (L * cache, L * parameters) for name, (cache, parameters) in expected.items()
    }


@pytest.mark.parametrize(
    ("attention", "name"),
    [
        (GroupedAttentionSpec(heads=H, kv_heads=H, position=ROTARY), "MHA"),
        (GroupedAttentionSpec(heads=H, kv_heads=4, position=ROTARY), "GQA"),
        (GroupedAttentionSpec(heads=H, kv_heads=1, position=ROTARY), "MQA"),
        (LatentAttentionSpec(heads=H, rank=24, head_width=C, turned=4, value_width=C), "MLA"),
        (GroupedAttentionSpec(heads=1, kv_heads=1, position=ROTARY), "MHA"),
    ],
)
def test_the_kind_that_a_model_has_is_marked_and_costs_what_the_model_costs(attention, name: str):
    spec = with_attention(attention)
    found = compare_attention(spec)
    assert [row.name for row in found if row.loaded] == [name]
    loaded = next(row for row in found if row.loaded)
    assert loaded.cache == cache_bytes_per_token(spec, 1)
    built = spec.build().named_parameters()
    assert loaded.parameters == sum(value.numel() for name, value in built if ".attention." in name)


def test_latent_attention_is_compared_at_the_width_of_its_heads():
    spec = with_attention(LatentAttentionSpec(heads=H, rank=24, head_width=C, turned=4, value_width=C))
    assert rows(spec)["MHA"].cache == L * 2 * H * C


def test_heads_that_no_number_divides_have_no_groups():
    spec = with_attention(GroupedAttentionSpec(heads=7, kv_heads=7, head_width=C))
    assert list(rows(spec)) == ["MHA", "MQA", "MLA"]


def test_a_model_that_mixes_kinds_is_shown_by_itself():
    spec = with_attention(
        GroupedAttentionSpec(heads=H, kv_heads=1, position=ROTARY), GroupedAttentionSpec(heads=H, kv_heads=H)
    )
    found = rows(spec)
    assert found["as it is"].loaded
    assert found["as it is"].cache == 2 * 2 * C + 2 * H * C
    assert not found["MHA"].loaded
