"""Batches: a pure function of seed and step, and the whole validation split once."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.errors import DataError
from glassformer.train.data import IGNORED, Batch, Batches, validation_windows
from token_splits import write_split


def starts_of(batch: Batch) -> list[int]:
    """Where rows begin, when tokens are their own places."""
    return batch.tokens[:, 0].tolist()


def test_targets_are_the_next_tokens(tmp_path: Path):
    batch = Batches(write_split(tmp_path, range(500)), context=16, batch_size=6, seed=1).batch(3)
    assert batch.tokens.shape == batch.targets.shape == (6, 16)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.targets, batch.tokens + 1)
    assert torch.equal(batch.tokens, batch.tokens[:, :1] + torch.arange(16))
    assert batch.positions is None
    assert batch.segments is None


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_slicing_into_ranks_and_micro_batches_gives_the_same_rows(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
):
    tokens = data.draw(st.integers(30, 300))
    starts = sorted(data.draw(st.sets(st.integers(1, tokens - 1), max_size=9)) | {0})
    folder = tmp_path_factory.mktemp("split")
    split = write_split(folder, range(tokens), starts, shard_tokens=data.draw(st.integers(1, 90)))
    size, context = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 20))
    settings = {"context": context, "batch_size": size, "seed": data.draw(st.integers(0, 9)), "boundaries": True}
    step = data.draw(st.integers(0, 40))
    whole = Batches(split, **settings).batch(step)
    cuts = sorted(data.draw(st.sets(st.integers(0, size), max_size=4)) | {0, size})
    others = Batches(split, **settings)  # another process, which has seen other steps
    others.batch(step + 5)
    parts = [others.batch(step, slice(a, b)) for a, b in pairwise(cuts)]
    strided = [others.batch(step, slice(rank, None, 2)) for rank in range(min(2, size))]
    for name in ("tokens", "targets", "positions", "segments"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
        for rank, part in enumerate(strided):
            assert torch.equal(getattr(part, name), getattr(whole, name)[rank::2])


@pytest.mark.parametrize(("tokens", "context", "batch_size"), [(1000, 16, 4), (1000, 7, 32), (200, 64, 5), (65, 64, 3)])
def test_an_epoch_goes_through_every_window_once_in_a_new_order(
    tmp_path: Path, tokens: int, context: int, batch_size: int
):
    batches = Batches(write_split(tmp_path, range(tokens)), context, batch_size, seed=5)
    stream = [start for step in range(4 * batches.windows) for start in starts_of(batches.batch(step))]
    epochs = [stream[at : at + batches.windows] for at in range(0, 4 * batches.windows, batches.windows)]
    for epoch in epochs:
        offset = min(epoch)
        assert offset < 2 * context
        assert sorted(epoch) == [offset + window * context for window in range(batches.windows)]
        assert max(epoch) + context < tokens
    if batches.windows > 5:
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    assert batches.tokens_per_epoch == batches.windows * context


def test_every_token_is_met_as_input_and_as_target_over_the_epochs(tmp_path: Path):
    batches = Batches(write_split(tmp_path, range(77)), context=10, batch_size=6, seed=0)
    rows = [batches.batch(step) for step in range(40)]
    assert set(torch.cat([row.tokens.flatten() for row in rows]).tolist()) == set(range(76))
    assert set(torch.cat([row.targets.flatten() for row in rows]).tolist()) == set(range(1, 77))


def test_the_order_of_a_seed_is_pinned_so_that_old_runs_can_be_resumed(tmp_path: Path):
    split = write_split(tmp_path, range(1000))
    assert starts_of(Batches(split, 16, 4, seed=0).batch(0)) == PINNED[0]
    assert starts_of(Batches(split, 16, 4, seed=0).batch(100)) == PINNED[1]
    assert starts_of(Batches(split, 16, 4, seed=1).batch(0)) == PINNED[2]


PINNED = ([851, 83, 627, 579], [940, 476, 92, 508], [355, 147, 419, 275])


def test_the_epoch_and_identity_of_a_batch_are_told(tmp_path: Path):
    batches = Batches(write_split(tmp_path, range(1000)), context=16, batch_size=12, seed=0)
    batch = batches.batch(10, slice(4, 8))
    places = ", ".join(map(str, starts_of(batch)))
    assert batch.identity == f"step 10, rows 4–7: train tokens from {places}"
    assert batch.epoch == 120 / batches.windows
    assert batches.batch(0).identity.endswith(" and 4 more")


def expected_places(tokens: int, starts: list[int], first: int, context: int) -> tuple[list[int], list[int], list[int]]:
    """Positions, segments and targets of one row, token by token."""
    document = [sum(start <= token for start in starts) for token in range(tokens)]
    positions, segments, targets = [], [], []
    for token in range(first, first + context):
        positions.append(token - max(first, starts[document[token] - 1]))
        segments.append(document[token] - document[first])
        targets.append(token + 1 if document[token] == document[token + 1] else IGNORED)
    return positions, segments, targets


@pytest.mark.parametrize("starts", [[0], [0, 5, 6, 7, 50, 99], [0, *range(3, 100, 9)]])
def test_with_boundaries_each_document_counts_from_zero_and_predicts_only_itself(tmp_path: Path, starts: list[int]):
    batches = Batches(write_split(tmp_path, range(100), starts), context=12, batch_size=8, seed=2, boundaries=True)
    for step in range(5):
        batch = batches.batch(step)
        assert batch.positions is not None
        assert batch.segments is not None
        for row, first in enumerate(starts_of(batch)):
            came = (batch.positions[row].tolist(), batch.segments[row].tolist(), batch.targets[row].tolist())
            assert came == expected_places(100, starts, first, 12)


def test_without_boundaries_documents_run_on(tmp_path: Path):
    batch = Batches(write_split(tmp_path, range(100), [0, 30, 60]), context=12, batch_size=8, seed=2).batch(0)
    assert (batch.targets != IGNORED).all()


def test_text_shorter_than_a_context_is_refused_with_what_is_missing(tmp_path: Path):
    split = write_split(tmp_path, range(64))
    with pytest.raises(
        DataError, match=r"train split has 64 tokens, 1 too few for a context of 64 .*set model.context=63"
    ):
        Batches(split, context=64, batch_size=2, seed=0)
    assert Batches(split, context=63, batch_size=2, seed=0).windows == 1
    with pytest.raises(DataError, match=r"has 64 tokens, 193 too few for a context of 256"):
        Batches(split, context=256, batch_size=2, seed=0)


@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(2, 200), context=st.integers(1, 40), batch_size=st.integers(1, 7), cut=st.integers(1, 199))
def test_validation_predicts_every_token_but_the_first_exactly_once(
    tokens: int, context: int, batch_size: int, cut: int, tmp_path_factory: pytest.TempPathFactory
):
    starts = [0, cut] if cut < tokens else [0]
    split = write_split(tmp_path_factory.mktemp("split"), range(tokens), starts, shard_tokens=37)
    batches = list(validation_windows(split, context, batch_size))
    predicted = torch.cat([batch.targets[batch.targets != IGNORED] for batch in batches])
    assert predicted.tolist() == list(range(1, tokens))
    seen = torch.cat([(batch.tokens + 1)[batch.targets != IGNORED] for batch in batches])
    assert torch.equal(seen, predicted)
    assert all(len(batch.tokens) == batch_size for batch in batches[:-1])
    apart = list(validation_windows(split, context, batch_size, boundaries=True))
    predicted = torch.cat([batch.targets[batch.targets != IGNORED] for batch in apart])
    assert predicted.tolist() == [token for token in range(1, tokens) if token not in starts]


def test_a_split_of_one_token_has_nothing_to_validate_on(tmp_path: Path):
    with pytest.raises(DataError, match="1 tokens: none to predict"):
        next(validation_windows(write_split(tmp_path, [3]), 8, 2))


def test_reading_crosses_shards(tmp_path: Path):
    tokens = np.random.default_rng(0).integers(0, 60_000, 500)
    split = write_split(tmp_path, tokens, shard_tokens=64)
    assert len(split) == split.tokens == 500
    for start, stop in [(0, 500), (0, 64), (63, 65), (64, 128), (10, 400), (499, 500), (70, 70)]:
        assert np.array_equal(split.read(start, stop), tokens[start:stop])
    assert split.read(0, 5).dtype == np.int64
