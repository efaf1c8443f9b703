"""Watching: what a Trace keeps, edits and asks for."""

import pytest
import torch
from model_examples import H, base, logits_of, randomised, some_tokens

from glassformer.errors import RequestError
from glassformer.model import OFF, Step, Trace
from glassformer.model.watch import CATALOGUE

INNER = ("scores_raw", "scores", "mask", "pattern")


@pytest.fixture(scope="module")
def model():
    return randomised(base())


def traced(model, **given):
    tokens, trace = some_tokens(), Trace(**given)
    return logits_of(model, tokens, Step.whole(tokens, trace)), trace


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ((), []),
        ("logits", ["logits"]),
        (["blocks.1.pattern", "logits"], ["blocks.1.pattern", "logits"]),
        ("*.z", ["blocks.0.z", "blocks.1.z"]),
        ("blocks.?.resid_p*", [f"blocks.{i}.resid_{p}" for i in (0, 1) for p in ("pre", "post")]),
    ],
)
def test_a_trace_keeps_the_names_that_match_and_no_others(model, keep, kept):
    assert list(traced(model, keep=keep)[1].kept) == kept


@pytest.mark.parametrize("given", [
    {"keep": "pattern"}, {"keep": ["logits", "blocks.2.z"]},
    {"edits": {"blocks.0.patern": torch.clone}}, {"edits": {"*.z": torch.clone}},
])  # fmt: skip
def test_names_that_no_point_has_are_refused(model, given):
    with pytest.raises(RequestError, match="no point of this model is called"):
        traced(model, **given)


def test_a_misspelt_name_is_answered_with_the_nearest(model):
    with pytest.raises(RequestError, match=r"for example 'blocks\.0\.pattern'"):
        traced(model, keep=(), edits={"blocks.0.patern": torch.clone})


def test_a_whole_block_is_kept_by_its_scope(model):
    kept = traced(model, keep="blocks.1.*")[1].kept
    assert list(kept) == [f"blocks.1.{name}" for name in model.spec.blocks[0].points()]


def test_scopes_nest_and_share_what_is_kept():
    trace = Trace("a.b.x")
    inner = trace.at("a").at("b")
    inner("x", torch.ones(1))
    inner("y", torch.ones(1))
    assert list(trace.kept) == ["a.b.x"]
    assert inner.wants("x")
    assert not inner.wants("y")
    assert not trace.wants("x")


def test_an_edited_point_is_wanted_though_it_is_not_kept():
    trace = Trace(keep=(), edits={"blocks.0.pattern": torch.clone})
    assert trace.at("blocks.0").wants(*INNER)
    assert not trace.at("blocks.1").wants(*INNER)


def test_an_edit_acts_in_its_own_layer_and_is_kept_as_the_pass_went_on(model):
    _, plain = traced(model)
    _, edited = traced(model, edits={"blocks.1.z": torch.zeros_like})
    assert not edited.kept["blocks.1.z"].any()
    assert torch.equal(edited.kept["blocks.0.z"], plain.kept["blocks.0.z"])
    assert not edited.kept["blocks.1.attention_out"].any()
    assert torch.equal(edited.kept["blocks.1.resid_mid"], edited.kept["blocks.1.resid_pre"])


def test_ablating_a_head_is_the_same_as_taking_its_rows_out_of_the_output_projection(model):
    def without_head_2(z):
        return z.index_fill(1, torch.tensor(2), 0.0)

    ablated, _ = traced(model, edits={"blocks.0.z": without_head_2})
    pruned = randomised(base())
    with torch.no_grad():
        C = pruned.blocks[0].attention.head_width
        pruned.blocks[0].attention.out.weight[:, 2 * C : 3 * C] = 0
    torch.testing.assert_close(ablated, logits_of(pruned, some_tokens()), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(ablated, logits_of(model, some_tokens()), atol=1e-2)


def test_the_points_of_one_head_are_those_that_make_up_the_next(model):
    kept = traced(model)[1].kept
    q, k, v = (kept[f"blocks.0.{name}"].double() for name in ("q_rotated", "k_rotated", "v"))
    k, v = k.repeat_interleave(H // k.size(1), dim=1), v.repeat_interleave(H // v.size(1), dim=1)
    raw = q @ k.mT
    torch.testing.assert_close(kept["blocks.0.scores_raw"].double(), raw, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kept["blocks.0.scores"].double(), raw / q.size(-1) ** 0.5, atol=1e-5, rtol=1e-5)
    hidden = raw.masked_fill(~kept["blocks.0.mask"], -torch.inf)
    pattern = torch.softmax(hidden / q.size(-1) ** 0.5, dim=-1)
    torch.testing.assert_close(kept["blocks.0.pattern"].double(), pattern, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kept["blocks.0.z"].double(), pattern @ v, atol=1e-5, rtol=1e-5)
    for stream, added, total in (
        ("resid_pre", "attention_out", "resid_mid"),
        ("resid_mid", "ffn_out", "resid_post"),
    ):
        assert torch.equal(kept[f"blocks.0.{stream}"] + kept[f"blocks.0.{added}"], kept[f"blocks.0.{total}"])
    assert torch.equal(kept["blocks.0.resid_post"], kept["blocks.1.resid_pre"])


def test_gradients_flow_through_a_watched_pass(model):
    tokens = some_tokens()
    grown = randomised(base())
    grown(tokens, Step.whole(tokens, Trace())).sum().backward()
    bare = randomised(base())
    bare(tokens, Step.whole(tokens)).sum().backward()
    for (name, a), b in zip(grown.named_parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-3, rtol=1e-3, msg=name)


def test_two_traces_on_one_model_know_nothing_of_each_other(model):
    first = traced(model, keep="logits", edits={"logits": torch.zeros_like})[1]
    second = traced(model, keep="logits")[1]
    assert not first.kept["logits"].any()
    assert second.kept["logits"].any()


def test_nobody_watching_hands_back_the_very_value():
    x = torch.ones(2)
    assert OFF("q", x) is x
    assert OFF.at("blocks.0") is OFF
    assert not OFF.wants(*CATALOGUE)


def test_points_are_all_in_the_catalogue_and_know_their_meaning(model):
    for name, point in model.spec.points().items():
        axes, meaning = CATALOGUE[name.split(".")[-1]]
        assert (point.name, point.axes, point.meaning) == (name, axes, meaning)
