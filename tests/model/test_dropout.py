"""Dropout is inverted dropout (survivors grow by 1 / (1 - p)) and stands where a spec says, shown by its effect."""

import pytest
import torch
import torch.nn.functional as F
from model_examples import SMALL, base, logits_of, randomised, some_tokens, with_attention, with_block
from torch import Tensor, nn

from glassformer.model import Step, Trace, TransformerSpec
from glassformer.model.attention import GroupedAttentionSpec, LatentAttentionSpec
from glassformer.model.block import OutputNormSpec, ParallelSpec, PostNormSpec, PreNormSpec, SandwichNormSpec
from glassformer.model.embedding import ClassifierHeadSpec, SpanHeadSpec, TokenClassifierHeadSpec, TokenEmbeddingSpec
from glassformer.model.feedforward import GatedSpec, MLPSpec

P = 0.25
PLACES = {
    TokenEmbeddingSpec: base().replace(embedding=TokenEmbeddingSpec(dropout=P)),
    GroupedAttentionSpec: with_attention(base(), dropout=P),
    LatentAttentionSpec: with_block(
        base(),
        attention=LatentAttentionSpec(heads=4, rank=8, head_width=4, turned=2, value_width=4, dropout=P),
    ),
    PreNormSpec: with_block(base(), wiring=PreNormSpec(dropout=P)),
    PostNormSpec: with_block(base(), wiring=PostNormSpec(dropout=P)),
    OutputNormSpec: with_block(base(), wiring=OutputNormSpec(dropout=P)),
    SandwichNormSpec: with_block(base(), wiring=SandwichNormSpec(dropout=P)),
    ParallelSpec: with_block(base(), wiring=ParallelSpec(dropout=P)),
    MLPSpec: with_block(base(), feedforward=MLPSpec(hidden=16, dropout=P)),
    GatedSpec: with_block(base(), feedforward=GatedSpec(hidden=16, dropout=P)),
    ClassifierHeadSpec: base().replace(head=ClassifierHeadSpec(labels=("a", "b", "c"), dropout=P)),
    TokenClassifierHeadSpec: base().replace(head=TokenClassifierHeadSpec(labels=("a", "b", "c"), dropout=P)),
    SpanHeadSpec: base().replace(head=SpanHeadSpec(dropout=P)),
}


def kept_in_training(spec: TransformerSpec, keep="*", tokens: Tensor | None = None, alter=None) -> dict[str, Tensor]:
    """What a training pass shows, block 0 only by its short names."""
    model = randomised(spec).train()
    if alter:
        alter(model)
    tokens = some_tokens(rows=30) if tokens is None else tokens
    trace = Trace(keep)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        logits_of(model, tokens, Step.whole(tokens, trace))
    return {name.removeprefix("blocks.0."): value for name, value in trace.kept.items()}


def assert_dropped(after: Tensor, before: Tensor) -> None:
    """Each component is zero or grown, and the share of zeros is about P."""
    kept = (after - before / (1 - P)).abs() < 1e-4
    gone = after.abs() < 1e-4
    assert (kept | gone).all()
    share = (gone & ~kept).float().mean()
    assert share == pytest.approx(P, abs=0.03)


def test_every_place_that_has_a_dropout_is_tested_here():
    assert {member for member in SMALL if "dropout" in member.model_fields} == set(PLACES)


@pytest.mark.parametrize("spec", PLACES.values(), ids=[member.__name__ for member in PLACES])
def test_dropout_is_off_in_evaluation_and_on_in_training(spec):
    tokens, model = some_tokens(), randomised(spec)
    first = logits_of(model, tokens)
    assert torch.equal(first, logits_of(model, tokens))
    model.train()
    torch.manual_seed(0)
    assert not torch.allclose(logits_of(model, tokens), first)


def test_dropout_keeps_the_expectation():
    torch.manual_seed(0)
    x = torch.linspace(0.5, 2, 8)
    drawn = F.dropout(x.expand(40_000, 8), P)
    error = drawn.std(dim=0) / 40_000**0.5
    assert ((drawn.mean(dim=0) - x).abs() < 5 * error).all()


def test_embedding_dropout_acts_on_token_and_position_together():
    kept = kept_in_training(PLACES[TokenEmbeddingSpec])
    assert_dropped(kept["resid_pre"], kept["position"])
    assert torch.equal(kept["resid_mid"], kept["resid_pre"] + kept["attention_out"])


@pytest.mark.parametrize("member", [GroupedAttentionSpec, LatentAttentionSpec])
@pytest.mark.parametrize("keep", [["*.[vz]", "*.resid_*", "*.attention_out"], "*"], ids=["fused", "written out"])
def test_attention_dropout_acts_on_the_weights(keep, member):
    """A token that sees itself alone has the weight 1: what it mixes is its value, grown, or nothing."""
    kept = kept_in_training(PLACES[member], keep, tokens=some_tokens(rows=500, length=1))
    value = kept["v"].repeat_interleave(4 // kept["v"].size(1), dim=1)
    heads = kept["z"].abs().amax(-1) > 0
    torch.testing.assert_close(kept["z"][heads], value[heads] / (1 - P))
    assert 1 - heads.float().mean() == pytest.approx(P, abs=0.05)
    assert torch.equal(kept["resid_mid"], kept["resid_pre"] + kept["attention_out"])


def test_the_pattern_is_shown_before_dropout():
    pattern = kept_in_training(PLACES[GroupedAttentionSpec])["pattern"]
    torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]))


WIRINGS = [PreNormSpec, PostNormSpec, OutputNormSpec, SandwichNormSpec, ParallelSpec]


@pytest.mark.parametrize("member", WIRINGS)
def test_dropout_of_a_wiring_acts_on_what_is_added_never_on_the_stream(member):
    def without_norms(model):
        for name in model.spec.blocks[0].norms:
            setattr(model.blocks[0], name, nn.Identity())

    kept = kept_in_training(PLACES[member], alter=None if member is PreNormSpec else without_norms)
    assert torch.equal(kept["resid_pre"], kept["position"])
    assert_dropped(kept["resid_mid"] - kept["resid_pre"], kept["attention_out"])
    assert_dropped(kept["resid_post"] - kept["resid_mid"], kept["ffn_out"])


@pytest.mark.parametrize("member", [MLPSpec, GatedSpec])
def test_feed_forward_dropout_acts_on_the_hidden_units(member):
    def with_identity_down(model):
        model.blocks[0].feedforward.down.weight.data = torch.eye(16)

    kept = kept_in_training(PLACES[member], alter=with_identity_down)
    assert_dropped(kept["ffn_out"], kept["ffn_act"])
    assert torch.equal(kept["resid_post"], kept["resid_mid"] + kept["ffn_out"])


@pytest.mark.parametrize("member", [TokenClassifierHeadSpec, SpanHeadSpec])
def test_dropout_of_a_head_acts_on_what_it_reads(member):
    """A projection of ones turned into a sum shows how many components are left."""

    def summing(model):
        with torch.no_grad():
            model.head.labels.weight.fill_(1.0)
            model.head.labels.bias.zero_()
            model.norm = Ones()

    kept = kept_in_training(PLACES[member], alter=summing)
    sums, width = kept["logits"] * (1 - P), base().width
    torch.testing.assert_close(sums, sums.round())
    assert 0 < sums.min() < sums.max() <= width
    assert float(sums.mean()) / width == pytest.approx(1 - P, abs=0.03)


class Ones(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)
