"""Fresh weights: standard deviations as the spec says, parameter by parameter."""

import math

import pytest
import torch
from model_examples import base, logits_of, some_tokens

from glassformer.model import Step, Trace, TransformerSpec
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec
from glassformer.model.embedding import UntiedHeadSpec
from glassformer.model.feedforward import GatedSpec, MLPSpec
from glassformer.model.norm import LayerNormSpec
from glassformer.model.position import LearnedSpec
from glassformer.model.transformer import NormalInitSpec, QuietInitSpec

WIDTH, HIDDEN, LAYERS = 96, 160, 3
TO_STREAM = ("attention.out.weight", "feedforward.down.weight")


def model(init, **changes):
    attention = GroupedAttentionSpec(heads=4, kv_heads=4, bias=True, out_bias=True)
    blocks = tuple(
        BlockSpec(attention=attention, feedforward=kind(hidden=HIDDEN, bias=True), norm=LayerNormSpec())
        for kind in (MLPSpec, GatedSpec)
    )
    spec = TransformerSpec(vocabulary=200, width=WIDTH, context=100, layers=LAYERS, blocks=blocks, init=init)
    torch.manual_seed(0)
    return spec.replace(
        norm=LayerNormSpec(), head=UntiedHeadSpec(), position=LearnedSpec(length=100), **changes
    ).build()


def matrices(built):
    return {name: value.detach() for name, value in built.named_parameters() if value.dim() == 2}


def assert_deviations(built, expected):
    for name, weight in matrices(built).items():
        wanted = expected(name, weight)
        assert float(weight.std()) == pytest.approx(wanted, rel=0.04), name
        assert abs(float(weight.mean())) <= 5 * wanted / weight.numel() ** 0.5, name


@pytest.mark.parametrize("std", [0.02, 0.3])
def test_normal_is_one_deviation_and_smaller_where_it_writes_to_the_stream(std):
    built = model(NormalInitSpec(std=std))
    assert_deviations(built, lambda name, _: std / math.sqrt(2 * LAYERS) if name.endswith(TO_STREAM) else std)


def test_quiet_is_one_over_the_square_root_of_the_inputs():
    def expected(name, weight):
        if name in ("embedding.weight", "position.table"):
            return 0.5
        return 0.0 if name.endswith(TO_STREAM) else 0.1 if name == "head.own.weight" else 2 / math.sqrt(weight.size(1))

    assert_deviations(model(QuietInitSpec(embedding=0.5, gain=2, head=0.1)), expected)


def test_a_quiet_model_starts_as_the_identity_with_even_odds():
    built, tokens, trace = model(QuietInitSpec()), some_tokens(), Trace(["*.resid_*", "position"])
    logits = logits_of(built, tokens, Step.whole(tokens, trace))
    assert all(torch.equal(value, trace.kept["position"]) for value in trace.kept.values())
    assert len(trace.kept) == 1 + 3 * LAYERS
    assert not logits.any()


@pytest.mark.parametrize("init", [NormalInitSpec(), QuietInitSpec()])
def test_gains_start_at_one_and_biases_at_zero(init):
    vectors = {name: value for name, value in model(init).named_parameters() if value.dim() == 1}
    assert {name.rsplit(".", 1)[-1] for name in vectors} == {"weight", "bias"}
    for name, value in vectors.items():
        assert torch.equal(value, torch.full_like(value, float(name.endswith("weight")))), name


def test_matrices_that_write_to_the_stream_are_exactly_those_two_of_each_block():
    marked = [name for name, part in model(NormalInitSpec()).named_modules() if getattr(part, "to_stream", False)]
    assert marked == [f"blocks.{i}.{name.removesuffix('.weight')}" for i in range(LAYERS) for name in TO_STREAM]


def test_the_same_seed_draws_the_same_weights_and_another_seed_others():
    def drawn(seed):
        torch.manual_seed(seed)
        return torch.cat([value.flatten() for value in base().build().parameters()])

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


def test_a_tied_head_has_no_weights_of_its_own():
    names = [name for name, _ in base().build().named_parameters()]
    assert not any(name.startswith("head") for name in names)


def test_a_fresh_gpt_style_model_predicts_about_evenly():
    spec = base().replace(init=NormalInitSpec())
    torch.manual_seed(0)
    tokens = some_tokens(rows=8)
    loss = torch.nn.functional.cross_entropy(
        logits_of(spec.build(), tokens).flatten(0, 1), tokens.roll(-1, 1).flatten()
    )
    assert float(loss) == pytest.approx(math.log(spec.vocabulary), abs=0.1)
