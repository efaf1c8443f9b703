"""Positions: worked examples, and what each scheme promises."""

import math

import pytest
import torch
from model_examples import base, logits_of, randomised, some_tokens, with_attention
from plain_formula import sinusoid, slopes

from glassformer.model import Step, Trace
from glassformer.model.mask import BidirectionalSpec
from glassformer.model.position import (
    AlibiSpec,
    LearnedSpec,
    NoPositionSpec,
    RotarySpec,
    SinusoidalSpec,
)
from glassformer.ops.distance import alibi_slopes


def encoding(width: int, positions: torch.Tensor) -> torch.Tensor:
    """What sinusoidal positions add, [T, D]."""
    return SinusoidalSpec().build(width, 1).embed(torch.zeros(1, len(positions), width), positions[None])[0]


def test_sinusoidal_values_are_those_of_the_worked_example():
    expected = torch.tensor(
        [
            [0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.99995],
            [0.9093, -0.4161, 0.0200, 0.9998],
            [0.1411, -0.9900, 0.0300, 0.9996],
        ]
    )
    torch.testing.assert_close(encoding(4, torch.arange(4)), expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_sinusoidal_values_are_those_of_the_formula_for_even_and_odd_widths(width):
    positions = torch.tensor([0, 1, 17, 1000])
    expected = torch.tensor([sinusoid(p, width) for p in positions.tolist()])
    torch.testing.assert_close(encoding(width, positions), expected, atol=1e-4, rtol=0)


def test_a_shift_of_sinusoidal_positions_is_one_rotation_wherever_it_starts():
    k, D = 5, 16
    shift = torch.zeros(D, D, dtype=torch.float64)
    for pair in range(D // 2):
        angle = k / 10_000 ** (2 * pair / D)
        sin, cos = math.sin(angle), math.cos(angle)
        shift[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor([[cos, sin], [-sin, cos]])
    here, there = encoding(D, torch.arange(100)).double(), encoding(D, torch.arange(100) + k).double()
    torch.testing.assert_close(here @ shift.T, there, atol=1e-5, rtol=0)
    torch.testing.assert_close(shift @ shift.T, torch.eye(D, dtype=torch.float64))


def rotated(spec: RotarySpec, x: torch.Tensor, position: int) -> torch.Tensor:
    return spec.build(x.size(-1), 1).rotate(x[None, None, None], torch.tensor([[position]]))[0, 0, 0]


@pytest.mark.parametrize("spec", [RotarySpec(), RotarySpec(theta=500_000), RotarySpec(fraction=0.5)])
@pytest.mark.parametrize("distance", [0, 1, 7, 100])
def test_rotary_scores_see_distance_alone(spec, distance):
    q, k = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    scores = [float(rotated(spec, q, at + distance) @ rotated(spec, k, at)) for at in (0, 1, 64, 1000)]
    assert max(scores) - min(scores) < 2e-3
    assert abs(scores[0] - float(rotated(spec, q, distance + 1) @ k)) > 1e-3


def test_rotary_positions_turn_without_stretching_and_leave_position_zero():
    x = torch.randn(32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(rotated(RotarySpec(), x, 0), x)
    for at in (1, 10, 1000):
        assert rotated(RotarySpec(), x, at).norm() == pytest.approx(float(x.norm()), rel=1e-5)


def test_a_partial_rotation_passes_the_rest_unchanged():
    x = torch.randn(20, generator=torch.Generator().manual_seed(2))
    turned = rotated(RotarySpec(fraction=0.4), x, 3)
    assert torch.equal(turned[8:], x[8:])
    torch.testing.assert_close(turned[:8], rotated(RotarySpec(), x[:8], 3))
    assert RotarySpec(fraction=0.4).rotated(20) == 8


def test_the_first_pair_turns_by_one_radian_a_position_and_later_pairs_more_slowly():
    one = torch.tensor([1.0, 1.0, 0.0, 0.0])
    turned = rotated(RotarySpec(theta=100), one, 2)
    expected = torch.tensor([math.cos(2), math.cos(0.2), math.sin(2), math.sin(0.2)])
    torch.testing.assert_close(turned, expected)


@pytest.mark.parametrize(
    ("position", "table"), [(RotarySpec(), "frequency"), (SinusoidalSpec(), "frequency"), (AlibiSpec(), "slope")]
)
def test_a_cast_model_keeps_the_precision_of_its_position_tables(position, table):
    module = position.build(64, 12)
    before = getattr(module, table).clone()
    module.to(torch.bfloat16)
    assert torch.equal(getattr(module, table), before)
    assert module.half().to("meta") is module
    assert getattr(module, table).is_meta


def test_learned_positions_are_cast_with_the_model():
    assert LearnedSpec(length=3).build(4, 1).to(torch.bfloat16).table.dtype == torch.bfloat16


def test_far_positions_stay_apart_in_a_model_cast_to_bfloat16():
    x = torch.ones(1, 1, 2, 64, dtype=torch.bfloat16)
    module = RotarySpec().build(64, 1).to(torch.bfloat16)
    near, far = module.rotate(x, torch.tensor([[4000, 4001]]))[0, 0].float()
    assert (near - far).abs().max() > 0.4  # bfloat16 can't tell 4000 from 4001


def test_alibi_slopes_of_eight_heads_halve_from_one_half():
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]


@pytest.mark.parametrize("heads", range(1, 34))
def test_alibi_slopes_are_those_of_the_papers_recursion(heads):
    assert alibi_slopes(heads).tolist() == pytest.approx(slopes(heads))


def test_twelve_alibi_heads_fill_in_every_other_slope_of_sixteen():
    assert alibi_slopes(12)[8:].tolist() == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


def test_alibi_takes_slope_times_distance_off_each_score():
    bias = AlibiSpec().build(4, 2).bias(torch.tensor([[2, 3]]), torch.tensor([[0, 3, 2]]))
    slope = torch.tensor([1 / 16, 1 / 256])
    assert torch.equal(bias[0], -slope[:, None, None] * torch.tensor([[2.0, 1, 0], [3, 0, 1]]))


def test_scores_hold_the_bias_before_the_mask():
    model = randomised(with_attention(base(), position=AlibiSpec()))
    tokens, trace = some_tokens(), Trace("blocks.0.scores*")
    logits_of(model, tokens, Step.whole(tokens, trace))
    places = torch.arange(tokens.size(1))
    bias = -alibi_slopes(4)[:, None, None] * (places[:, None] - places).abs()
    scaled = trace.kept["blocks.0.scores_raw"] / 2  # heads of width 4
    torch.testing.assert_close(trace.kept["blocks.0.scores"], scaled + bias)


def test_learned_positions_add_their_row_and_end_with_their_table():
    module = LearnedSpec(length=3).build(4, 1)
    torch.nn.init.normal_(module.table)
    x = torch.zeros(1, 3, 4)
    assert torch.equal(module.embed(x, torch.tensor([[2, 0, 1]]))[0], module.table[[2, 0, 1]])
    with pytest.raises(IndexError):
        module.embed(x, torch.tensor([[1, 2, 3]]))


def test_without_positions_and_mask_attention_only_permutes():
    """ "Cat chases dog" and "dog chases cat" give the same weights in another order, and the same vectors."""
    model = randomised(with_attention(base(), mask=BidirectionalSpec(), position=NoPositionSpec()))
    tokens, order = some_tokens(rows=1), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    here, there = Trace("*"), Trace("*")
    logits_of(model, tokens, Step.whole(tokens, here))
    logits_of(model, tokens[:, order], Step.whole(tokens, there))
    pattern = here.kept["blocks.1.pattern"]
    torch.testing.assert_close(there.kept["blocks.1.pattern"], pattern[:, :, order][..., order])
    torch.testing.assert_close(there.kept["logits"], here.kept["logits"][:, order], atol=1e-5, rtol=1e-5)


def test_a_causal_mask_alone_tells_order_from_the_second_layer_on():
    tokens = some_tokens(rows=1)
    swapped = tokens[:, [1, 0, 2, 3, 4, 5, 6]]
    one, two = (randomised(base().replace(layers=layers)) for layers in (1, 2))
    torch.testing.assert_close(logits_of(one, tokens)[:, -1], logits_of(one, swapped)[:, -1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits_of(two, tokens)[:, -1], logits_of(two, swapped)[:, -1], atol=1e-3)
