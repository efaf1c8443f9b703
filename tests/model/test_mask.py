"""Masks: one predicate on positions and segments."""

import pytest
import torch
from model_examples import base, examples, randomised, some_tokens, with_attention

from glassformer.model import Step, Trace
from glassformer.model.mask import BidirectionalSpec, CausalSpec, WindowSpec, visible


def rows(mask, query, key, **segments):
    seen = visible(mask, torch.tensor([query]), torch.tensor([key]), **segments)[0, 0]
    return ["".join("x" if cell else "." for cell in row) for row in seen.tolist()]


def test_causal_sees_itself_and_before():
    assert rows(CausalSpec(), [0, 1, 2], [0, 1, 2]) == ["x..", "xx.", "xxx"]


def test_a_window_counts_the_token_itself():
    assert rows(WindowSpec(size=2), [0, 1, 2, 3], [0, 1, 2, 3]) == ["x...", "xx..", ".xx.", "..xx"]
    assert rows(WindowSpec(size=1), [0, 1, 2], [0, 1, 2]) == ["x..", ".x.", "..x"]


def test_bidirectional_sees_all():
    assert rows(BidirectionalSpec(), [0, 1, 2], [0, 1, 2]) == ["xxx", "xxx", "xxx"]


@pytest.mark.parametrize("mask", examples("mask"))
def test_no_mask_shows_an_empty_slot(mask):
    seen = visible(mask, torch.arange(-1, 9)[None], torch.tensor([[-1, 3, -1, 5]]))
    assert not seen[..., [0, 2]].any()
    assert seen[..., [1, 3]].any()


@pytest.mark.parametrize("mask", examples("mask"))
def test_no_mask_lets_segments_see_each_other(mask):
    places, segments = torch.arange(6)[None], torch.tensor([[0, 0, 1, 1, 1, 2]])
    seen = visible(mask, places, places, segments, segments)[0, 0]
    assert not seen[segments[0][:, None] != segments[0]].any()
    assert torch.equal(seen[2:5, 2:5], visible(mask, places, places)[0, 0, 2:5, 2:5])


def test_slots_of_a_cache_may_stand_in_any_order():
    assert rows(WindowSpec(size=3), [4], [4, 1, 2, -1, 3, 5]) == ["x.x.x."]


@pytest.mark.parametrize("mask", examples("mask"))
def test_a_mask_sees_as_far_as_it_says_and_no_further(mask):
    places = torch.arange(100)[None]
    if mask.reach is not None:
        query, key = visible(mask, places, places)[0, 0].nonzero().t()
        assert (query - key).max() + 1 == min(mask.reach, 100)


@pytest.mark.parametrize("mask", examples("mask"))
def test_hidden_keys_get_no_weight_at_all_and_rows_sum_to_one(mask):
    tokens, trace = some_tokens(), Trace(["*.mask", "*.pattern"])
    randomised(with_attention(base(), mask=mask))(tokens, Step.whole(tokens, trace))
    pattern, seen = trace.kept["blocks.1.pattern"], trace.kept["blocks.1.mask"].expand(-1, 4, -1, -1)
    assert (pattern[~seen] == 0).all()
    assert (pattern[seen] > 0).all()
    torch.testing.assert_close(pattern.sum(-1), torch.ones(2, 4, 7))


def test_attention_to_oneself_alone_hands_the_values_through():
    tokens, trace = some_tokens(), Trace(["*.v", "*.z"])
    randomised(with_attention(base(), mask=WindowSpec(size=1)))(tokens, Step.whole(tokens, trace))
    torch.testing.assert_close(trace.kept["blocks.0.z"], trace.kept["blocks.0.v"].repeat_interleave(2, dim=1))
