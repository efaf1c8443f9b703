import math

import pytest
import torch

from decoders import CONTEXT, build, decoder_spec, pairs, positions, with_mask
from glassformer.engine.cache import PagedCache, PagePool, bytes_per_token
from glassformer.engine.pages import Lease, Span
from glassformer.errors import RequestError
from glassformer.model import Step, Trace
from glassformer.model.position import AlibiSpec, LearnedSpec, NoPositionSpec, RotarySpec

every_position = pytest.mark.parametrize("position", positions(), ids=lambda position: position.kind)
every_pair = pytest.mark.parametrize(
    ("position", "attention"), pairs(), ids=lambda value: value if isinstance(value, str) else value.kind
)
MODELS = {(position.kind, attention): build(decoder_spec(position, attention)) for position, attention in pairs()}


def some_tokens(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 97, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def whole(model, tokens):
    return model(tokens, Step.whole(tokens))


@torch.no_grad()
def in_chunks(model, pool, lease, tokens, sizes):
    """Logits of one sequence, fed to the cache in pieces."""
    parts, start = [], 0
    for size in sizes:
        cache = PagedCache(pool, [lease], [size])
        parts.append(model(tokens[:, start : start + size], cache.step()))
        cache.advance()
        start += size
    return torch.cat(parts, dim=1)


@every_pair
def test_a_token_at_a_time_gives_the_logits_of_the_whole(position, attention):
    model = MODELS[position.kind, attention]
    tokens = some_tokens(1, CONTEXT)
    lease, pool = Lease(), PagePool(model, page_size=4)
    cached = in_chunks(model, pool, lease, tokens, [9] + [1] * (CONTEXT - 9))
    torch.testing.assert_close(cached, whole(model, tokens), atol=1e-5, rtol=0)
    assert lease.length == CONTEXT


@every_pair
def test_a_prompt_read_in_chunks_gives_the_logits_of_the_whole(position, attention):
    model = MODELS[position.kind, attention]
    tokens = some_tokens(1, 40)
    cached = in_chunks(model, PagePool(model, page_size=4), Lease(), tokens, [5, 13, 1, 21])
    torch.testing.assert_close(cached, whole(model, tokens), atol=1e-5, rtol=0)


@every_pair
@pytest.mark.parametrize("lying", ["side by side", "scattered"])
@torch.no_grad()
def test_rows_of_unlike_length_are_as_if_each_were_alone(position, attention, lying):
    model = MODELS[position.kind, attention]
    tokens = some_tokens(3, 30)
    pool = PagePool(model, pages=60, page_size=4)
    leases = [Lease(), Lease(), Lease()]
    if lying == "scattered":  # pages taken in turns lie one behind the other for nobody
        for length in range(4, 32, 4):
            for lease in leases:
                for page in [page for page in pool.ledger.free if page % 2 == length // 4 % 2][:1]:
                    pool.ledger._take(lease, page)
        assert not any(lease.straight for lease in leases)
    passes = [(5, 12, 1), (1, 1, 1), (8, 2, 3), (1, 1, 1)]
    expected = [whole(model, tokens[row : row + 1])[0] for row in range(3)]
    for counts in passes:
        starts = [lease.length for lease in leases]
        new = torch.zeros(3, max(counts), dtype=torch.long)
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            new[row, :count] = tokens[row, start : start + count]
        cache = PagedCache(pool, leases, counts)
        logits = model(new, cache.step())
        cache.advance()
        for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
            torch.testing.assert_close(logits[row, :count], expected[row][start : start + count], atol=1e-5, rtol=0)
    assert torch.isfinite(logits).all(), "not even padding may divide 0 by 0"


@pytest.mark.parametrize("position", [RotarySpec(), AlibiSpec(), NoPositionSpec()], ids=lambda position: position.kind)
def test_a_window_keeps_only_what_it_sees_and_forgets_nothing_it_needs(position):
    model = build(decoder_spec(position, "window"))
    span = Span(tokens=7 - 1 + 5, reach=7, page_size=4)
    pool = PagePool(model, span=span)
    tokens = some_tokens(1, 200)
    sizes = [11, 5, 1, 1, 5, 4, 2] + [1] * 40 + [5] * 25
    lease = Lease()
    cached = in_chunks(model, pool, lease, tokens, sizes)
    torch.testing.assert_close(cached, whole(model, tokens[:, : sum(sizes)]), atol=1e-5, rtol=0)
    assert len(lease.pages) == 3 == span.pages


def test_past_the_context_a_token_sees_the_last_context_tokens():
    spec = decoder_spec(RotarySpec())
    model, windowed = build(spec), build(with_mask(spec, CONTEXT))
    tokens = some_tokens(1, 3 * CONTEXT)
    sizes = [CONTEXT - 3] + [1] * (2 * CONTEXT + 3)
    cached = in_chunks(model, PagePool(model, page_size=5), Lease(), tokens, sizes)
    torch.testing.assert_close(cached, whole(windowed, tokens), atol=1e-5, rtol=0)


def test_what_was_truncated_leaves_no_trace():
    model = build(decoder_spec(RotarySpec()))
    pool, lease = PagePool(model, page_size=4), Lease()
    kept, dropped = some_tokens(1, 30), some_tokens(1, 30, seed=2)
    first = in_chunks(model, pool, lease, kept[:, :10], [10])
    in_chunks(model, pool, lease, dropped[:, :20], [20])
    pool.ledger.truncate(lease, 10)
    assert lease.length == 10
    assert len(lease.pages) == 3
    rest = in_chunks(model, pool, lease, kept[:, 10:], [20])
    torch.testing.assert_close(torch.cat((first, rest), dim=1), whole(model, kept), atol=1e-5, rtol=0)


def test_a_ring_goes_back_as_far_as_it_has_not_written_over():
    model = build(decoder_spec(RotarySpec(), "window"))
    pool, lease = PagePool(model, span=Span(tokens=11, reach=7, page_size=4)), Lease()
    tokens = some_tokens(1, 40)
    in_chunks(model, pool, lease, torch.cat((tokens[:, :17], some_tokens(1, 3, seed=2)), dim=1), [5] * 4)
    pool.ledger.truncate(lease, 17)
    rest = in_chunks(model, pool, lease, tokens[:, 17:], [1, 5, 1, 5, 5, 5, 1])
    torch.testing.assert_close(rest, whole(model, tokens)[:, 17:], atol=1e-5, rtol=0)
    with pytest.raises(AssertionError, match="have been overwritten"):
        pool.ledger.truncate(lease, 3)


def test_the_cache_takes_the_memory_that_each_attention_declares():
    spec = decoder_spec(RotarySpec())
    full = spec.blocks[0]
    narrow = full.replace(attention=full.attention.replace(heads=4, kv_heads=1, head_width=6))
    model = build(spec.replace(blocks=(full, narrow), layers=4))
    pool = PagePool(model, pages=10, page_size=8, span=Span(40, 40, 8))
    shapes = [[tuple(store.shape) for store in layer] for layer in pool.stores]
    assert shapes == [[(80, 2, 8)] * 2, [(80, 1, 6)] * 2] * 2
    held = sum(store.numel() * store.element_size() for layer in pool.stores for store in layer)
    assert held == 80 * bytes_per_token(model) == 80 * 4 * 2 * (2 * 16 + 2 * 6)


@torch.no_grad()
def test_sequences_side_by_side_are_read_where_they_lie():
    model = MODELS["rotary", "grouped"]
    pool = PagePool(model, pages=5 * PagePool(model).span.pages)
    leases = [Lease(), Lease(), Lease()]
    prompt = PagedCache(pool, leases, [9, 9, 4])
    memory = prompt.layer(0).extend(*(torch.zeros(3, 9, 2, 8) for _ in range(2)))
    assert memory.gather()[0].data_ptr() not in {store.data_ptr() for store in pool.stores[0]}, "what it just computed"
    prompt.advance()
    step = PagedCache(pool, leases, [1, 1, 1])
    for read, store in zip(step.layer(1).gather(), pool.stores[1], strict=True):
        assert read.untyped_storage().data_ptr() == store.untyped_storage().data_ptr(), "a view, no copy"
        assert read.shape == (3, 10, 2, 8)
    unlike = PagedCache(pool, [leases[0], leases[2], leases[1]], [1, 1, 1]).layer(1).gather()[0]
    assert unlike.untyped_storage().data_ptr() != pool.stores[1][0].untyped_storage().data_ptr()


@torch.no_grad()
def test_moving_a_sequence_into_a_gap_keeps_what_it_remembers():
    model = MODELS["rotary", "grouped"]
    pool = PagePool(model, pages=3 * PagePool(model).span.pages)
    tokens = some_tokens(1, 30)
    gone, moved = Lease(), Lease()
    in_chunks(model, pool, gone, some_tokens(1, 20, seed=3), [20])
    first = in_chunks(model, pool, moved, tokens[:, :20], [20])
    assert moved.pages[0] == pool.span.pages
    pool.ledger.take_back(gone)
    pool.ledger.tidy()
    assert moved.pages[0] == 0
    assert moved.length == 20
    rest = in_chunks(model, pool, moved, tokens[:, 20:], [10])
    torch.testing.assert_close(torch.cat((first, rest), dim=1), whole(model, tokens), atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_wiped_lease_leaves_no_nan_to_its_next_owner():
    model = MODELS["rotary", "grouped"]
    pool, lease = PagePool(model), Lease()
    cache = PagedCache(pool, [lease], [20])
    cache.layer(0).extend(*(torch.full((1, 20, 2, 8), math.nan) for _ in range(2)))
    assert pool.stores[0][0].isnan().any()
    pool.wipe(lease)
    assert not pool.stores[0][0].isnan().any()


@every_position
@torch.no_grad()
def test_watching_shows_the_pattern_over_all_that_is_remembered(position):
    model = MODELS[position.kind, "grouped"]
    tokens = some_tokens(1, 20)
    full, last = Trace(["*.pattern", "logits"]), Trace(["*.pattern", "logits"])
    model(tokens, Step.whole(tokens, full))
    pool, lease = PagePool(model), Lease()
    in_chunks(model, pool, lease, tokens[:, :19], [19])
    model(tokens[:, 19:], PagedCache(pool, [lease], [1]).step(last))
    assert set(last.kept) == set(full.kept) == {"blocks.0.pattern", "blocks.1.pattern", "logits"}
    for name, value in last.kept.items():
        torch.testing.assert_close(value, full.kept[name][..., -1:, :], atol=1e-5, rtol=0)


def test_a_pool_without_pages_says_so():
    model = build(decoder_spec(LearnedSpec(length=CONTEXT)))
    pool = PagePool(model)
    PagedCache(pool, [Lease()], [CONTEXT])
    with pytest.raises(RequestError, match="no free pages"):
        PagedCache(pool, [Lease()], [1])
    with pytest.raises(RequestError, match="2 pages of 16 tokens, one sequence needs 3"):
        PagePool(model, pages=2)
