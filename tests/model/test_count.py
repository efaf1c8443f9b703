"""What a model costs, against formulas worked out by hand and against a model that is really built and run."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from glassformer.engine.cache import PagedCache, PagePool
from glassformer.engine.pages import Lease
from glassformer.errors import SpecError
from glassformer.model import Step, Trace, TransformerSpec
from glassformer.model.attention import GroupedAttentionSpec, LatentAttentionSpec, LinearAttentionSpec
from glassformer.model.attention.cross import CrossAttentionSpec
from glassformer.model.count import (
    CacheSize,
    cache_bytes,
    cache_bytes_per_sequence,
    cache_bytes_per_token,
    cache_size,
    flops_per_token,
    mean_keys,
    parameters_by_part,
    training_flops_per_token,
    windows,
)
from glassformer.model.embedding import PooledHeadSpec, TransformSpec
from glassformer.model.feedforward import ExpertsSpec
from glassformer.model.mask import BidirectionalSpec, CausalSpec, WindowSpec
from glassformer.model.norm import RMSNormSpec
from glassformer.model.recipes import gpt2, llama
from glassformer.model.transformer import EncoderSpec

GPT2_SMALL = gpt2(50257, layers=12, width=768, heads=12, context=1024)
LLAMA = llama(1000, layers=3, width=64, heads=8, kv_heads=2, context=128)


def mixed() -> TransformerSpec:
    """Five layers of a pattern of two, one with a window and q/k norm."""
    spec = llama(97, layers=5, width=32, heads=4, kv_heads=2, context=40)
    near = GroupedAttentionSpec(heads=4, kv_heads=1, mask=WindowSpec(size=8), qk_norm=RMSNormSpec())
    return spec.replace(blocks=(spec.blocks[0], spec.blocks[0].replace(attention=near)))


def test_gpt2_small_has_its_124_million_parameters():
    D = 768
    assert parameters_by_part(GPT2_SMALL) == {
        "embedding": 50257 * D,
        "position": 1024 * D,
        "attention": 12 * (4 * D * D + 4 * D),
        "feed-forward": 12 * (8 * D * D + 5 * D),
        "norms": 25 * 2 * D,
        "head": 0,
        "total": 124_439_808,
    }


def test_a_llama_counts_as_its_formula():
    D, F, C, H, K = 64, 192, 8, 8, 2
    assert parameters_by_part(LLAMA) == {
        "embedding": 1000 * D,
        "position": 0,
        "attention": 3 * (2 * D * H * C + 2 * D * K * C),
        "feed-forward": 3 * 3 * D * F,
        "norms": 7 * D,
        "head": 1000 * D,
        "total": 2 * 1000 * D + 3 * (2 * D * H * C + 2 * D * K * C + 3 * D * F) + 7 * D,
    }


@pytest.mark.parametrize("spec", [LLAMA, mixed(), gpt2(97, layers=2, width=32, heads=4, context=16)])
def test_the_parts_add_up_to_the_model_that_is_built(spec):
    counts = parameters_by_part(spec)
    built = sum(parameter.numel() for parameter in spec.build().parameters())
    assert counts.pop("total") == sum(counts.values()) == built


def test_operations_are_those_of_the_formula():
    D, F, C, H, K, T = 64, 192, 8, 8, 2, 128
    products = 2 * (3 * (2 * D * H * C + 2 * D * K * C + 3 * D * F) + 1000 * D)
    flops = flops_per_token(LLAMA, T)
    assert flops.prefill == products + 3 * 4 * H * C * (T + 1) / 2
    assert flops.decode == products + 3 * 4 * H * C * T
    assert training_flops_per_token(LLAMA, T) == 3 * flops.prefill


@pytest.mark.parametrize("tied", [True, False])
def test_operations_are_those_that_torch_counts(tied):
    spec = llama(97, layers=2, width=32, heads=4, kv_heads=4, context=24, tied=tied)
    block = spec.blocks[0]
    everything = block.attention.replace(mask=BidirectionalSpec())  # torch counts whole score matrices
    spec = spec.replace(blocks=(block.replace(attention=everything),))
    tokens = torch.zeros(1, 24, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        spec.build()(tokens, Step.whole(tokens, watch=Trace(["*.pattern"])))  # the path that torch can count
    assert counter.get_total_flops() == 24 * flops_per_token(spec, 24).prefill


def counted(spec: TransformerSpec, length: int, remembered: int = 0) -> float:
    """What torch counts for a token of a pass over `length` tokens, after `remembered` ones in the cache.

    It counts whole score matrices, and can't count in the fused kernel: so the pattern is watched.
    """
    model, watch = spec.build().eval(), Trace(["*.pattern"])
    tokens = torch.zeros(1, remembered + length, dtype=torch.long)
    step = Step.whole(tokens, watch=watch)
    with torch.no_grad():
        if remembered:
            pool, lease = PagePool(model), Lease()
            before = PagedCache(pool, [lease], [remembered])
            model(tokens[:, :remembered], before.step())
            before.advance()
            step = replace(PagedCache(pool, [lease], [length]).step(), watch=watch)
        with FlopCounterMode(display=False) as counter:
            model(tokens[:, remembered:], step)
    return counter.get_total_flops() / length


def of_kind(**changes: object) -> TransformerSpec:
    """A small model whose blocks have other parts."""
    spec = llama(97, layers=3, width=32, heads=4, kv_heads=2, context=24)
    return spec.replace(blocks=(spec.blocks[0].replace(**changes),))


LATENT = LatentAttentionSpec(heads=4, rank=16, query_rank=24, head_width=8, turned=4, value_width=8)
EXPERTS = ExpertsSpec(experts=8, chosen=2, hidden=16, shared=12)


@pytest.mark.parametrize(
    "spec",
    [
        of_kind(),
        of_kind(attention=GroupedAttentionSpec(heads=4, kv_heads=1, head_width=12, gate=True)),
        of_kind(attention=LATENT),
        of_kind(feedforward=EXPERTS),
    ],
    ids=["grouped", "multi-query with a gate", "latent", "experts"],
)
def test_reading_costs_what_torch_counts(spec: TransformerSpec):
    block = spec.blocks[0]
    everything = block.attention.replace(mask=BidirectionalSpec())
    whole = spec.replace(blocks=(block.replace(attention=everything),))
    assert counted(whole, 24) == pytest.approx(flops_per_token(whole, 24).prefill)


@pytest.mark.parametrize("spec", [of_kind(), of_kind(feedforward=EXPERTS)], ids=["grouped", "experts"])
def test_writing_a_token_costs_what_torch_counts(spec: TransformerSpec):
    assert counted(spec, 1, remembered=23) == flops_per_token(spec, 24).decode


def test_an_encoder_reads_at_the_cost_that_torch_counts_and_pools_once():
    spec = of_kind(attention=GroupedAttentionSpec(heads=4, kv_heads=4, mask=BidirectionalSpec()))
    pooled = spec.replace(head=PooledHeadSpec(transform=TransformSpec(activation="tanh")))
    assert counted(pooled, 24) == pytest.approx(flops_per_token(pooled, 24).prefill)


def test_an_encoder_decoder_counts_both_stacks():
    spec = seq2seq()
    built = spec.build().eval()
    counts = parameters_by_part(spec)
    cross = sum(p.numel() for name, p in built.named_parameters() if ".cross." in name)
    assert counts["cross-attention"] == cross
    assert counts["total"] == sum(p.numel() for p in built.parameters())
    source, tokens = torch.zeros(1, 20, dtype=torch.long), torch.zeros(1, 16, dtype=torch.long)
    flops = flops_per_token(spec, 16)
    with torch.no_grad(), FlopCounterMode(display=False) as encoding:
        memory = built.encode(source, Step.whole(source, watch=Trace(["*.pattern"])))
        built.prepare(memory)
    assert encoding.get_total_flops() == 20 * flops.source
    with torch.no_grad(), FlopCounterMode(display=False) as decoding:
        built(tokens, replace(Step.whole(tokens, watch=Trace(["*.pattern"])), memory=memory))
    unseen = 16 - mean_keys(CausalSpec(), 16)  # torch counts what a causal mask hides, too
    per_key = 2 * 2 * 4 * 16
    assert decoding.get_total_flops() == 16 * (flops.prefill + per_key * unseen)
    assert cache_size(spec) == CacheSize(per_token=2 * 2 * 32, per_sequence=0, per_source_token=2 * 2 * 32)
    assert cache_bytes(spec, 10, 2, source=20) == 2 * (10 + 20) * 2 * 2 * 32


def seq2seq() -> TransformerSpec:
    """Three layers that read, two that write and look at what was read."""
    spec = llama(97, layers=2, width=32, heads=4, kv_heads=4, context=16)
    block = spec.blocks[0]
    both_ways = block.replace(attention=block.attention.replace(mask=BidirectionalSpec()))
    encoder = EncoderSpec(context=20, layers=3, blocks=(both_ways,))
    return spec.replace(blocks=(block.replace(cross=CrossAttentionSpec(heads=4, kv_heads=4)),), encoder=encoder)


def test_a_window_ends_the_growth_of_its_layers():
    spec = mixed()  # layers 1 and 3 keep 8 tokens
    everything, near = 2 * 2 * 8, 2 * 1 * 8
    assert cache_bytes(spec, 5, 2) == 2 * 5 * (3 * everything + 2 * near)
    assert cache_bytes(spec, 40, 2) == 2 * (40 * 3 * everything + 8 * 2 * near)
    assert windows(spec) == {8: 2}


def test_keys_seen_are_those_of_the_mask():
    query, key = torch.arange(11)[:, None], torch.arange(11)
    for mask in (CausalSpec(), WindowSpec(size=4), WindowSpec(size=50), BidirectionalSpec()):
        assert mean_keys(mask, 11) == pytest.approx(mask.sees(query, key).sum().item() / 11)


def test_a_windowed_layer_reads_no_more_than_its_window():
    short, long = (flops_per_token(mixed(), context).decode for context in (8, 80))
    assert long - short == 3 * 4 * 32 * (80 - 8)  # three of the five layers see everything


def test_cache_bytes_follow_the_kv_heads_of_each_layer():
    assert cache_bytes_per_token(LLAMA, 2) == 2 * 3 * 2 * 2 * 8
    assert cache_bytes_per_token(GPT2_SMALL, 4) == 4 * 12 * 2 * 768
    assert cache_bytes_per_token(mixed(), 1) == 3 * 2 * 2 * 8 + 2 * 2 * 1 * 8


def test_a_model_of_a_trillion_parameters_is_counted_at_once():
    spec = llama(200_000, layers=10_000, width=8192, heads=64, kv_heads=8, context=2**20)
    assert parameters_by_part(spec)["total"] > 10**12
    assert flops_per_token(spec, 2**20).prefill > 10**12
    with pytest.raises(SpecError, match="larger than any tensor"):
        parameters_by_part(spec.replace(vocabulary=10**18))
    wide = spec.blocks[0].replace(attention=spec.blocks[0].attention.replace(head_width=10**12))
    with pytest.raises(SpecError, match="a size of 1000000000000 is larger than any model's"):
        parameters_by_part(spec.replace(blocks=(wide,)))


def test_counting_draws_no_random_numbers():
    before = torch.get_rng_state()
    parameters_by_part(LLAMA)
    assert torch.equal(before, torch.get_rng_state())


def half_linear() -> TransformerSpec:
    """Five layers of a pattern of two: full attention and linear."""
    spec = llama(97, layers=5, width=32, heads=4, kv_heads=2, context=40)
    linear = LinearAttentionSpec(heads=2, head_width=6, value_width=10)
    return spec.replace(blocks=(spec.blocks[0], spec.blocks[0].replace(attention=linear)))


def test_a_linear_layer_costs_the_same_wherever_a_token_stands_and_keeps_a_state_a_sequence():
    spec = half_linear()
    assert cache_bytes_per_token(spec, 2) == 2 * 3 * 2 * 2 * 8
    assert cache_bytes_per_sequence(spec, 4) == 4 * 2 * 2 * (6 * 10 + 6)
    assert cache_bytes_per_sequence(spec, 2) == cache_bytes_per_sequence(spec, 4), "sums are kept in float32"
    assert cache_bytes(spec, 40, 2) == 40 * cache_bytes_per_token(spec, 2) + cache_bytes_per_sequence(spec, 2)
    assert cache_bytes_per_sequence(LLAMA, 4) == 0
    linear = spec.replace(blocks=spec.blocks[1:])
    near, far = flops_per_token(linear, 8), flops_per_token(linear, 80)
    assert near == far
    products = 2 * (5 * (2 * 32 * 12 + 32 * 20 + 20 * 32 + 3 * 32 * 96) + 97 * 32)
    assert near.decode == near.prefill == products + 5 * 4 * 2 * 6 * (10 + 1)


def test_a_window_to_both_sides_shows_its_keys():
    mask = BidirectionalSpec(window=2)
    assert mean_keys(mask, 10) == (6 * 5 + 2 * (3 + 4)) / 10
    assert mean_keys(BidirectionalSpec(), 10) == 10
