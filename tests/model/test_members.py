"""The contract of every part: each member of each union, set into a small model, against what must hold for all."""

import json

import pytest
import torch
from model_examples import (
    CAUSAL,
    MODELS,
    PER_TOKEN,
    SMALL,
    UNIONS,
    B,
    D,
    T,
    V,
    all_models,
    examples,
    logits_of,
    random_model,
    randomised,
    some_tokens,
)
from plain_formula import formula_logits

from glassformer.model import Step, Trace, TransformerSpec
from glassformer.spec import check, members

every_model = pytest.mark.parametrize("name", MODELS)
every_model_of_tokens = pytest.mark.parametrize("name", PER_TOKEN)
every_causal_model = pytest.mark.parametrize("name", CAUSAL)
PLACES = torch.arange(T).expand(B, T)


@pytest.mark.parametrize("union", UNIONS)
def test_every_member_of_a_union_has_an_example_in_the_small_table(union):
    missing = [member.__name__ for member in members(UNIONS[union]) if not SMALL.get(member)]
    assert not missing, "add an example to SMALL in tests/model/model_examples.py"


def test_the_small_table_holds_nothing_that_is_in_no_union():
    assert set(SMALL) == {member for union in UNIONS.values() for member in members(union)}
    assert len(all_models()) == sum(len(examples(union)) for union in UNIONS)


@pytest.mark.parametrize("union", UNIONS)
def test_members_of_a_union_are_told_apart_by_their_kind(union):
    kinds = [member.model_fields["kind"].default for member in members(UNIONS[union])]
    assert len(set(kinds)) == len(kinds)


@every_model
def test_a_spec_survives_json(name):
    spec = MODELS[name]
    assert check(TransformerSpec, json.loads(spec.to_json())) == spec


@every_model
def test_logits_are_those_of_the_plain_formula(name):
    model, tokens = random_model(name), some_tokens()
    logits = logits_of(model, tokens)
    sizes = {"B": B, "T": T, "V": V, "D": D, **model.spec.head.sizes()}
    assert logits.shape == tuple(sizes[axis] for axis in model.spec.head.logits.split())
    assert logits.std() > 0.1
    torch.testing.assert_close(logits.double(), formula_logits(model, tokens, PLACES), atol=2e-5, rtol=1e-5)


@every_model
def test_a_gradient_reaches_every_parameter(name):
    model, tokens = randomised(MODELS[name]), some_tokens()
    logits = model(tokens, Step.whole(tokens))
    (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    unreached = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-4]
    assert not unreached


@every_causal_model
def test_a_later_token_changes_nothing_before_it(name):
    model, tokens = random_model(name), some_tokens()
    before = logits_of(model, tokens)
    for t in range(1, T):
        changed = tokens.clone()
        changed[:, t] = (tokens[:, t] + 1) % V
        after = logits_of(model, changed)
        if "experts" in name:  # tokens are read expert by expert, in products of other shapes
            torch.testing.assert_close(after[:, :t], before[:, :t], atol=1e-6, rtol=0)
        else:
            assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.allclose(after[:, t], before[:, t], atol=1e-3)


@pytest.mark.parametrize("name", sorted(set(PER_TOKEN) - set(CAUSAL)))
def test_without_a_causal_mask_the_last_token_reaches_the_first(name):
    model, tokens = random_model(name), some_tokens()
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % V
    assert not torch.allclose(logits_of(model, changed)[:, 0], logits_of(model, tokens)[:, 0], atol=1e-3)


@every_model
def test_rows_of_a_batch_know_nothing_of_each_other(name):
    model, tokens = random_model(name), some_tokens(rows=3)
    together = logits_of(model, tokens)
    for row in range(3):
        torch.testing.assert_close(logits_of(model, tokens[row : row + 1])[0], together[row], atol=1e-5, rtol=1e-5)


@every_model
def test_watching_changes_nothing_and_shows_exactly_the_points(name):
    model, tokens, trace = random_model(name), some_tokens(), Trace()
    watched = logits_of(model, tokens, Step.whole(tokens, watch=trace))
    torch.testing.assert_close(watched, logits_of(model, tokens), atol=1e-5, rtol=1e-5)
    stated = {name: point.shape(B=B, T=T, S=T) for name, point in model.spec.points().items()}
    assert {name: tuple(value.shape) for name, value in trace.kept.items()} == stated
    assert list(trace.kept) == list(stated)
    assert torch.equal(trace.kept["logits"], watched)
    assert not any(value.requires_grad for value in trace.kept.values())


@every_model
def test_editing_any_point_changes_the_logits_and_handing_it_back_does_not(name):
    model, tokens = randomised(MODELS[name].replace(layers=1)), some_tokens()
    plain = logits_of(model, tokens)
    for point in model.spec.points():
        same = Trace(keep=(), edits={point: torch.clone})
        torch.testing.assert_close(logits_of(model, tokens, Step.whole(tokens, same)), plain, atol=1e-5, rtol=1e-5)
        other = Trace(keep=(), edits={point: _disturb})
        change = logits_of(model, tokens, Step.whole(tokens, other)) - plain
        assert change.abs().max() > 1e-3, f"editing {point} does nothing"


def _disturb(value):
    if value.dtype == torch.bool:  # every query sees the last key alone
        return torch.zeros_like(value).index_fill(-1, torch.tensor(value.size(-1) - 1), True)
    return value + torch.randn(value.shape, generator=torch.Generator().manual_seed(3))


@every_model_of_tokens
def test_packed_documents_are_read_as_if_each_stood_alone(name):
    model, lengths = random_model(name), (3, 1, 4)
    documents = [some_tokens(rows=1, length=length, seed=length) for length in lengths]
    packed = torch.cat(documents, dim=1)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    segments = torch.cat([torch.full((length,), n) for n, length in enumerate(lengths)])[None]
    alone = torch.cat([logits_of(model, document) for document in documents], dim=1)
    torch.testing.assert_close(
        logits_of(model, packed, Step(positions, segments=segments)), alone, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(formula_logits(model, packed, positions, segments), alone.double(), atol=2e-5, rtol=1e-5)


@every_model_of_tokens
def test_rows_that_share_their_positions_may_be_packed_differently(name):
    model, tokens = random_model(name), some_tokens()
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]])
    logits = logits_of(model, tokens, Step(torch.arange(T)[None], segments=segments))
    torch.testing.assert_close(logits.double(), formula_logits(model, tokens, PLACES, segments), atol=2e-5, rtol=1e-5)


@every_model
@pytest.mark.parametrize("watched", [False, True])
def test_padding_is_never_read_and_never_breaks_a_number(name, watched):
    """Rows of unlike length, padded at the left, at the right, and everywhere."""
    model, tokens = randomised(MODELS[name]), some_tokens(rows=4)
    positions = torch.tensor([[-1, -1, 0, 1, 2, 3, 4], [0, 1, 2, -1, -1, -1, -1], list(range(7)), [-1] * 7])
    trace = Trace() if watched else Trace(keep=())
    logits = model(tokens, Step(positions, watch=trace))
    assert logits.isfinite().all()
    assert all(value.isfinite().all() for value in trace.kept.values())
    for row, real in enumerate(positions >= 0):
        if real.any():
            alone = logits_of(model, tokens[row : row + 1, real])[0]
            mine = logits[row, real] if name in PER_TOKEN else logits[row]
            torch.testing.assert_close(mine, alone, atol=1e-5, rtol=1e-5)
    (logits[positions >= 0] if name in PER_TOKEN else logits).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
