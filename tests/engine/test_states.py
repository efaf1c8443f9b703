"""Linear attention in the cache: a state for each sequence instead of its tokens."""

import math

import pytest
import torch

from decoders import CONTEXT, build, decoder_spec, mixed_spec
from glassformer.engine import Engine, EngineSpec, SamplingParams
from glassformer.engine.cache import PagedCache, PagePool, bytes_per_sequence, bytes_per_token, can_truncate
from glassformer.engine.pages import Lease, Span
from glassformer.errors import RequestError
from glassformer.model import Step, Trace
from glassformer.model.position import NoPositionSpec
from glassformer.tokenizer import train_tokenizer

LINEAR, MIXED = build(decoder_spec(NoPositionSpec(), "linear that fades")), build(mixed_spec())
both = pytest.mark.parametrize("model", [LINEAR, MIXED], ids=["linear", "mixed"])


def some_tokens(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 97, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def whole(model, tokens):
    return model(tokens, Step.whole(tokens))


@torch.no_grad()
def read(model, pool, lease, tokens, sizes):
    parts, start = [], 0
    for size in sizes:
        cache = PagedCache(pool, [lease], [size])
        parts.append(model(tokens[:, start : start + size], cache.step()))
        cache.advance()
        start += size
    return torch.cat(parts, dim=1)


@both
@torch.no_grad()
def test_ragged_rows_that_come_and_go_are_as_if_each_were_alone(model):
    """A third sequence joins while two are on their way, one of them ends, and its seat goes to a fourth."""
    pool, tokens = PagePool(model, pages=40, page_size=4, seats=3), some_tokens(4, 30)
    expected = [whole(model, tokens[row : row + 1])[0] for row in range(4)]
    leases = [Lease() for _ in range(4)]
    for counts in ({0: 5, 1: 12}, {0: 1, 1: 1, 2: 7}, {0: 3, 2: 1}, "end 1", {0: 2, 2: 9, 3: 11}, {0: 1, 2: 1, 3: 1}):
        if isinstance(counts, str):
            pool.ledger.take_back(leases[1])
            continue
        new = torch.zeros(len(counts), max(counts.values()), dtype=torch.long)
        starts = {row: leases[row].length for row in counts}
        for line, (row, count) in enumerate(counts.items()):
            new[line, :count] = tokens[row, starts[row] : starts[row] + count]
        cache = PagedCache(pool, [leases[row] for row in counts], list(counts.values()))
        logits = model(new, cache.step())
        cache.advance()
        assert logits.isfinite().all()
        for line, (row, count) in enumerate(counts.items()):
            torch.testing.assert_close(
                logits[line, :count], expected[row][starts[row] : starts[row] + count], atol=1e-5, rtol=0
            )
    assert leases[3].seat is not None
    assert len({lease.seat for lease in leases if lease.pages}) == 3


@both
def test_seats_are_lent_with_the_first_page_and_come_back_with_the_last(model):
    pool = PagePool(model, pages=40, page_size=4, seats=2)
    first, second, third = Lease(), Lease(), Lease()
    assert pool.ledger.lend(first, 3)
    assert pool.ledger.lend(second, 3)
    assert not pool.ledger.lend(third, 3)
    assert not third.pages
    with pytest.raises(RequestError, match="give back sequences"):
        PagedCache(pool, [third], [1])
    pool.ledger.take_back(first)
    assert first.seat is None
    assert pool.ledger.lend(third, 3)
    assert pool.ledger.free_seats == set()


def test_the_cache_takes_what_the_states_declare_and_nothing_for_each_token():
    C = W = 16
    assert bytes_per_token(LINEAR) == 0
    assert bytes_per_sequence(LINEAR) == 2 * 4 * 2 * (C * W + C)
    pool = PagePool(LINEAR, pages=10, page_size=8, span=Span(40, 40, 8), seats=3)
    assert [[tuple(state.shape) for state in layer] for layer in pool.states] == [[(3, 2, C, W), (3, 2, C)]] * 2
    assert not any(pool.stores)
    half = build(decoder_spec(NoPositionSpec(), "linear")).bfloat16()
    assert {state.dtype for layer in PagePool(half).states for state in layer} == {torch.float32}
    assert bytes_per_sequence(half) == 2 * 4 * 4 * (8 * 6 + 8)


@both
def test_no_token_is_taken_out_of_a_state_again(model):
    pool, lease = PagePool(model, page_size=4), Lease()
    read(model, pool, lease, some_tokens(1, 10), [10])
    assert not can_truncate(model)
    with pytest.raises(RequestError, match="keeps its past as a state"):
        pool.ledger.truncate(lease, 5)
    assert lease.length == 10
    pool.ledger.truncate(lease, 0)
    again = some_tokens(1, 10, seed=2)
    torch.testing.assert_close(read(model, pool, lease, again, [4, 6]), whole(model, again), atol=1e-5, rtol=0)


def test_a_model_without_states_can_go_back():
    assert can_truncate(build(decoder_spec(NoPositionSpec(), "grouped")))


@both
@torch.no_grad()
def test_a_seat_left_behind_with_no_numbers_in_it_harms_nobody(model):
    pool, tokens = PagePool(model, seats=1), some_tokens(1, 12)
    for layer in pool.states:
        for state in layer:
            state.fill_(math.nan)
    torch.testing.assert_close(read(model, pool, Lease(), tokens, [5, 7]), whole(model, tokens), atol=1e-5, rtol=0)


def test_wiping_a_lease_clears_its_state():
    pool, lease = PagePool(LINEAR), Lease()
    read(LINEAR, pool, lease, some_tokens(1, 5), [5])
    assert pool.states[0][0][lease.seat].any()
    pool.wipe(lease)
    assert not any(state[lease.seat].any() for layer in pool.states for state in layer)


@torch.no_grad()
def test_weights_are_shown_while_a_text_is_read_from_its_start_and_refused_after():
    tokens, trace = some_tokens(1, 9), Trace("blocks.0.pattern")
    pool, lease = PagePool(LINEAR), Lease()
    cache = PagedCache(pool, [lease], [8])
    LINEAR(tokens[:, :8], cache.step(trace))
    cache.advance()
    torch.testing.assert_close(trace.kept["blocks.0.pattern"].sum(-1), torch.ones(1, 2, 8))
    with pytest.raises(RequestError, match="keeps no tokens"):
        LINEAR(tokens[:, 8:], PagedCache(pool, [lease], [1]).step(trace))
    after = LINEAR(tokens[:, 8:], PagedCache(pool, [lease], [1]).step())
    torch.testing.assert_close(after, whole(LINEAR, tokens)[:, 8:], atol=1e-5, rtol=0)


def test_what_is_watched_of_a_later_token_is_what_it_was_in_the_whole():
    tokens = some_tokens(1, 20)
    full, last = Trace(["*.z", "*.q_features", "logits"]), Trace(["*.z", "*.q_features", "logits"])
    with torch.no_grad():
        LINEAR(tokens, Step.whole(tokens, full))
        pool, lease = PagePool(LINEAR), Lease()
        read(LINEAR, pool, lease, tokens[:, :19], [19])
        LINEAR(tokens[:, 19:], PagedCache(pool, [lease], [1]).step(last))
    for name, value in last.kept.items():
        token = full.kept[name][:, -1:] if name == "logits" else full.kept[name][:, :, -1:]
        torch.testing.assert_close(value, token, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["linear that fades", "mixed"])
@pytest.mark.parametrize("memory", [2**30, 0], ids=["plenty", "for one at a time"])
def test_the_engine_writes_what_the_model_would_alone(kind, memory):
    """Several requests, more than fit at once; greedy texts equal to those without any cache."""
    tokenizer = train_tokenizer("char", ["the quick brown fox jumps over the lazy dog, 今天天气真好\n"])
    size = {"vocabulary": tokenizer.vocabulary}
    model = build(mixed_spec(**size) if kind == "mixed" else decoder_spec(NoPositionSpec(), kind, **size))
    engine = Engine(model, tokenizer, EngineSpec(batch_size=3, page_size=4, memory=memory, budget=16))
    prompts = [row[: 4 + 2 * n].tolist() for n, row in enumerate(some_tokens(4, 12, seed=3))]
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    for prompt, done in zip(prompts, engine.generate(prompts, params), strict=True):
        tokens = list(prompt)
        for _ in range(8):
            logits = whole(model, torch.tensor([tokens]))[0, -1, : engine.vocabulary]
            tokens.append(int(logits.argmax()))
        assert list(done.tokens) == tokens[len(prompt) :]
    assert engine.pool.ledger.free_seats == set(range(1 if memory == 0 else 3))


def test_past_the_context_a_linear_model_still_knows_its_beginning():
    tokens = some_tokens(1, 3 * CONTEXT)
    pool, lease = PagePool(LINEAR, span=Span(tokens=16, reach=1, page_size=4)), Lease()
    cached = read(LINEAR, pool, lease, tokens, [16] * 9)
    torch.testing.assert_close(cached, whole(LINEAR, tokens), atol=1e-5, rtol=0)
    assert len(lease.pages) == 4


@pytest.mark.parametrize("kind", ["linear that fades", "mixed"])
def test_a_conversation_goes_on_from_its_state_and_begins_anew_where_it_parts_from_it(kind):
    tokenizer = train_tokenizer("char", ["the quick brown fox jumps over the lazy dog, 今天天气真好\n"])
    size = {"vocabulary": tokenizer.vocabulary}
    model = build(mixed_spec(**size) if kind == "mixed" else decoder_spec(NoPositionSpec(), kind, **size))
    engine = Engine(model, tokenizer, EngineSpec(batch_size=1, page_size=4))
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    first = engine.add([1, 2, 3, 4], params, keep=True)
    first.result()
    onward = engine.add([*first.sequence.tokens, 5, 6], params, after=first, keep=True)
    written = onward.result().tokens
    assert onward.sequence.reused == len(first.sequence.tokens) - 1, "the last token was written and not yet read"
    assert written == engine.add(onward.sequence.tokens[:10], params).result().tokens
    parted = engine.add([1, 2, 3, 9, 9], params, after=onward)
    assert parted.result().tokens == engine.add([1, 2, 3, 9, 9], params).result().tokens
    assert parted.sequence.reused == 0
