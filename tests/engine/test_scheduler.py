import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import glassformer
from glassformer.engine.pages import Ledger, Span
from glassformer.engine.scheduler import Scheduler
from glassformer.engine.sequence import Sequence

ENGINE = Path(glassformer.__file__).parent / "engine"


def make(pages, batch_size=4, budget=16, tokens=24, page_size=4):
    span = Span(tokens, tokens, page_size)
    return Scheduler(Ledger(pages, span, lambda *_: None), batch_size, budget)


def serve(scheduler, passes=10_000):
    """Play the engine: every planned chunk is read, and each sequence whose last token was read writes one more."""
    log = []
    for _ in range(passes):
        chunks = scheduler.plan()
        if not chunks:
            break
        log.append([(chunk.sequence, chunk.sequence.lease.length, chunk.count) for chunk in chunks])
        for chunk in chunks:
            sequence = chunk.sequence
            assert chunk.tokens == sequence.tokens[sequence.lease.length :][: chunk.count]
            sequence.lease.length += chunk.count
            assert chunk.last == (sequence.lease.length == len(sequence.tokens))
            if chunk.last:
                sequence.tokens.append(7)
                if len(sequence.tokens) >= sequence.most:
                    scheduler.remove(sequence)
    return log


@given(
    lengths=st.lists(st.tuples(st.integers(1, 24), st.integers(1, 40)), min_size=1, max_size=8),
    extra=st.integers(0, 20),
    batch_size=st.integers(1, 5),
    budget=st.integers(1, 40),
)
def test_everyone_is_served_within_the_limits_and_every_page_comes_back(lengths, extra, batch_size, budget):
    scheduler = make(pages=6 + extra, batch_size=batch_size, budget=budget)
    sequences = [Sequence([1] * prompt, most=prompt + new) for prompt, new in lengths]
    for sequence in sequences:
        scheduler.add(sequence)
    log = serve(scheduler)
    assert [len(sequence.tokens) for sequence in sequences] == [sequence.most for sequence in sequences]
    assert scheduler.ledger.free == set(range(scheduler.ledger.pages))
    for chunks in log:
        assert len(chunks) <= batch_size
        counts = [count for _, _, count in chunks]
        assert max(counts) == 1 or len(chunks) * max(counts) <= budget
        assert len(chunks) * max(counts) <= 2 * sum(counts), "padding is at most half"


def test_the_last_to_come_steps_back_when_pages_run_out_and_the_first_never_does():
    scheduler = make(pages=7, batch_size=3, budget=64)
    first, second, third = (Sequence([1] * 4, most=24) for _ in range(3))
    for sequence in (first, second, third):
        scheduler.add(sequence)
    log = serve(scheduler)
    reads = {id(sequence): [start for chunks in log for who, start, _ in chunks if who is sequence]
             for sequence in (first, second, third)}  # fmt: skip
    assert reads[id(first)].count(0) == 1, "the first was read once"
    assert reads[id(third)].count(0) + reads[id(second)].count(0) > 2, "others were read again"
    ends = [
        max(i for i, chunks in enumerate(log) if any(who is s for who, *_ in chunks)) for s in (first, second, third)
    ]
    assert ends == sorted(ends), "first come, first served"


def test_reading_and_writing_take_turns():
    scheduler = make(pages=60, budget=4)
    writer, reader = Sequence([1] * 2, most=20), Sequence([1] * 20, most=22)
    scheduler.add(writer)
    serve(scheduler, passes=1)
    scheduler.add(reader)
    log = serve(scheduler, passes=8)
    assert [len(chunks) == 1 and chunks[0][0] is reader for chunks in log] == [False, True] * 4


def test_a_sequence_that_is_not_wanted_any_more_frees_its_place():
    scheduler = make(pages=12, batch_size=1)
    first, second = Sequence([1] * 5, most=20), Sequence([1] * 5, most=20)
    scheduler.add(first)
    scheduler.add(second)
    serve(scheduler, passes=2)
    scheduler.remove(first)
    scheduler.remove(first)
    assert [chunk.sequence for chunk in scheduler.plan()] == [second]
    scheduler.remove(second)
    assert scheduler.plan() == []
    assert len(scheduler.ledger.free) == 12


@pytest.mark.parametrize("module", ["scheduler", "pages", "sequence"])
def test_scheduling_needs_no_torch(module):
    tree = ast.parse((ENGINE / f"{module}.py").read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    own = {"glassformer.engine.pages", "glassformer.engine.sequence", "glassformer.errors"}
    assert imported <= own | {"collections", "collections.abc", "dataclasses", "itertools"}
