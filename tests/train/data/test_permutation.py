"""The shuffled order without a table."""

from collections import Counter
from itertools import pairwise

import pytest

from glassformer.train.data.permutation import Permutation, draw


@pytest.mark.parametrize("size", [*range(1, 70), 127, 128, 129, 1000, 4097])
def test_every_place_is_visited_exactly_once(size: int):
    for epoch in range(3):
        order = Permutation(size, draw(7, epoch)[1:])
        assert sorted(order) == list(range(size))


def test_numbers_drawn_for_unlike_keys_are_unlike():
    drawn = [number for seed in range(20) for epoch in range(20) for number in draw(seed, epoch)]
    assert len(set(drawn)) == len(drawn)
    assert draw(1, 2) == draw(1, 2) != draw(2, 1)


@pytest.mark.parametrize("size", [5, 10, 37])
def test_each_number_comes_at_each_place_about_equally_often(size: int):
    epochs = 100 * size
    seen = Counter()
    for epoch in range(epochs):
        seen.update(enumerate(Permutation(size, draw(0, epoch)[1:])))
    chi_squared = sum((seen[place, number] - 100) ** 2 / 100 for place in range(size) for number in range(size))
    freedom = (size - 1) ** 2
    assert abs(chi_squared - freedom) < 6 * (2 * freedom) ** 0.5


def test_neighbours_in_an_order_are_not_neighbours_in_the_text():
    size = 5000
    near = total = 0
    for epoch in range(20):
        order = list(Permutation(size, draw(3, epoch)[1:]))
        near += sum(abs(a - b) <= 50 for a, b in pairwise(order))
        total += size - 1
    assert 0.01 < near / total < 0.03  # 101 of 5,000 by chance: 0.02


def test_a_place_of_a_huge_order_is_found_at_once():
    order = Permutation(10**15, draw(0, 0)[1:])
    visited = [order[place] for place in range(1000)]
    assert len(set(visited)) == 1000
    assert max(visited) > 9 * 10**14
    with pytest.raises(IndexError):
        order[10**15]
