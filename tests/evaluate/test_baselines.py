"""Baselines against values worked out by hand, and distributions that must sum to one."""

import lzma
import math
from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_sets import data_set
from glassformer.errors import DataError
from glassformer.evaluate import (
    Score,
    count_tokens,
    ngram_bits_per_byte,
    own_unigram_bits_per_byte,
    unigram_bits_per_byte,
    verdict,
    xz_bits_per_byte,
)
from glassformer.evaluate.ngram import NGram

SYMBOLS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def probability(model: NGram, context: list[int], symbol: int) -> float:
    return float(model.probabilities(np.array([*context, symbol]))[-1])


def test_counts_are_of_all_parts_together():
    assert count_tokens([[0, 3, 3], np.array([3, 1])], 5).tolist() == [1, 1, 0, 3, 0]


def test_unigram_probabilities_count_every_token_once_more():
    # counts 3, 1, 0, 0 become 4/8, 2/8, 1/8, 1/8: 1, 2, 3, 3 bits
    assert unigram_bits_per_byte(np.array([3, 1, 0, 0]), np.array([1, 1, 1, 1]), bytes=3) == pytest.approx(9 / 3)
    assert unigram_bits_per_byte(np.array([3, 1, 0, 0]), np.array([0, 0, 0, 2]), bytes=2) == pytest.approx(6 / 2)


def test_own_frequencies_leave_out_the_token_they_predict():
    # a a b of a vocabulary of 4. Each a: the rest is a b, 1 / (2 + 2). b: the rest is a a, and something new has
    # 1 / (2 + 1), one of 3: 1/9.
    bits = 2 * math.log2(4) + math.log2(9)
    assert own_unigram_bits_per_byte(np.array([2, 0, 0, 1]), bytes=3) == pytest.approx(bits / 3)


@settings(deadline=None)
@given(SYMBOLS.filter(lambda symbols: len(symbols) > 1))
def test_own_frequencies_are_those_of_each_rest_by_witten_and_bell(tokens: list[int]):
    bits = 0.0
    for place, token in enumerate(tokens):
        rest = Counter(tokens[:place] + tokens[place + 1 :])
        total, kinds = len(tokens) - 1, len(rest)
        new = kinds / (total + kinds) / (5 - kinds)
        bits -= math.log2(rest[token] / (total + kinds) if token in rest else new)
    assert own_unigram_bits_per_byte(count_tokens([tokens], 5), bytes=1) == pytest.approx(bits)


def test_own_frequencies_of_a_single_token_are_one_of_the_vocabulary():
    assert own_unigram_bits_per_byte(count_tokens([[7]], 16), bytes=2) == pytest.approx(4 / 2)


def test_own_frequencies_of_a_long_text_cost_its_entropy():
    tokens = np.random.default_rng(0).choice(4, 100_000, p=[0.5, 0.25, 0.125, 0.125])
    assert own_unigram_bits_per_byte(count_tokens([tokens], 4), bytes=100_000) == pytest.approx(1.75, abs=0.02)


def test_a_bigram_model_by_hand():
    # a b a c: bigrams ab, ba, ac once each. Too few for estimated discounts: 0.75 off every count.
    # Lowest order: a, b, c have one kind of symbol before each (b; a; a), 3 in all, of an alphabet of 4.
    model = NGram(np.array([0, 1, 0, 2]), alphabet=4, order=2)
    freed = 3 * 0.75 / 3
    b = 0.25 / 3 + freed / 4
    d = freed / 4
    assert probability(model, [], 1) == pytest.approx(b)
    assert probability(model, [], 3) == pytest.approx(d)
    # After a: b and c once each, so 2 · 0.75 of 2 is freed.
    assert probability(model, [0], 1) == pytest.approx(0.25 / 2 + 0.75 * b)
    assert probability(model, [0], 3) == pytest.approx(0.75 * d)
    # After c nothing ever came, after d neither: the lower order stands.
    assert probability(model, [2], 1) == pytest.approx(b)
    assert probability(model, [3], 1) == pytest.approx(b)


def test_discounts_are_estimated_where_the_text_is_large_enough():
    # 4 symbols once, 2 twice, 1 three times: Y = 4/8, D1 = 1 - 2·½·2/4 = ½, D2 = 2 - 3·½·1/2 = 1.25, D3+ = 3 - 0.
    # D3+ = 3 would take all: one discount for all counts stands in.
    small = NGram(np.array([0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6]), alphabet=7, order=1)
    assert probability(small, [], 0) == pytest.approx((0.25 + 0.75) / 11)
    # One more with four: D3+ = 3 - 4·½·1/1 = 1.
    counted = [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7]
    freed = 4 * 0.5 + 2 * 1.25 + 2 * 1.0
    model = NGram(np.array(counted), alphabet=10, order=1)
    for symbol, left in {0: 0.5, 4: 0.75, 6: 2.0, 7: 3.0, 9: 0.0}.items():
        assert probability(model, [], symbol) == pytest.approx((left + freed / 10) / 15)


@settings(deadline=None)
@given(text=SYMBOLS, order=st.integers(1, 4), context=st.lists(st.integers(0, 3), max_size=5))
def test_every_distribution_of_the_ngram_model_sums_to_one(text: list[int], order: int, context: list[int]):
    model = NGram(np.array(text), alphabet=4, order=order)
    p = [probability(model, context, symbol) for symbol in range(4)]
    assert sum(p) == pytest.approx(1)
    assert min(p) > 0


def test_distributions_sum_to_one_where_discounts_are_estimated():
    text = (np.random.default_rng(0).geometric(0.5, 3000) - 1).clip(max=5)
    model = NGram(text, alphabet=7, order=3)
    for context in product(range(7), repeat=2):
        assert sum(probability(model, [*context], symbol) for symbol in range(7)) == pytest.approx(1)


def _slow_kneser_ney(train: list[int], alphabet: int, order: int, context: tuple[int, ...], symbol: int) -> float:
    """The same formula on dictionaries, one context at a time."""

    def grams(n: int) -> Counter[tuple[int, ...]]:
        return Counter(tuple(train[i : i + n]) for i in range(len(train) - n + 1))

    def discounts(counts: Counter[tuple[int, ...]]) -> list[float]:
        n = [sum(count == k for count in counts.values()) for k in range(5)]
        if n[1] and n[2] and n[3]:
            y = n[1] / (n[1] + 2 * n[2])
            d = [0.0, *(k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))]
            if all(0 < d[k] < k for k in (1, 2, 3)):
                return d
        return [0.0, 0.75, 0.75, 0.75]

    p = 1 / alphabet
    for n in range(1, order + 1):
        if n - 1 > len(context):
            break
        counts = grams(n) if n == order else Counter(gram[1:] for gram in grams(n + 1))
        d = discounts(counts)
        before = context[len(context) - n + 1 :]
        after = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == before}
        if not after:
            break
        total = sum(after.values())
        freed = sum(d[min(count, 3)] for count in after.values())
        count = after.get(symbol, 0)
        p = (count - d[min(count, 3)]) / total + freed / total * p
    return p


def test_the_ngram_model_is_the_formula_term_by_term():
    random = np.random.default_rng(1)
    train = (random.geometric(0.45, 500) - 1).clip(max=4)
    text = random.integers(0, 6, 60)
    p = NGram(train, alphabet=6, order=3).probabilities(text)
    for place, symbol in enumerate(text):
        before = tuple(text[max(0, place - 2) : place].tolist())
        assert p[place] == pytest.approx(_slow_kneser_ney(train.tolist(), 6, 3, before, int(symbol)))


def test_an_order_that_the_text_is_too_short_for_is_its_length():
    assert NGram(np.array([0, 1]), alphabet=2, order=5).probabilities(np.array([0, 1, 0])).min() > 0


def test_characters_that_the_training_text_lacks_are_paid_for_by_name():
    # Train: a once. Order 1, alphabet a and "another": a = (0.25 + 0.75/2), another = 0.75/2, then one of the others.
    a, another = 0.625, 0.375
    bits = -math.log2(a) - math.log2(another) + math.log2(0x110000 - 0x800 - 1)
    assert ngram_bits_per_byte("a", "a气", order=1) == pytest.approx(bits / 4)


def test_context_makes_regular_text_cheap():
    train, text = "今天天气真好。" * 50, "今天天气真好。" * 5
    by_order = [ngram_bits_per_byte(train, text, order) for order in (1, 2, 3)]
    assert all(more < less for less, more in pairwise(by_order))
    assert by_order[-1] < 0.15


def test_xz_pays_for_what_the_training_text_did_not_have():
    train, new = "The quick brown fox jumps over the lazy dog. " * 40, "Pack my box with five dozen liquor jugs! "
    assert xz_bits_per_byte(train, train[:900]) < 0.2
    preset = 9 | lzma.PRESET_EXTREME
    longer = len(lzma.compress((train + new).encode(), preset=preset)) - len(
        lzma.compress(train.encode(), preset=preset)
    )
    assert xz_bits_per_byte(train, new) == 8 * longer / len(new)
    assert xz_bits_per_byte("", new) > xz_bits_per_byte(train, new) > 3


@pytest.mark.parametrize("baseline", [ngram_bits_per_byte, xz_bits_per_byte])
def test_nothing_held_out_is_refused(baseline):
    with pytest.raises(DataError, match="no text to score"):
        baseline("some text", "")


def test_a_model_no_better_than_frequencies_is_called_so():
    score = Score.of(nats=3 * math.log(2) * 100, tokens=50, bytes=100, seconds=1.0)
    assert score.bits_per_byte == pytest.approx(3.0)
    assert verdict(score, unigram=3.2) is None
    for unigram in (3.01, 3.0, 2.5):
        warning = verdict(score, unigram)
        assert warning is not None
        assert "3.000" in warning
        assert f"{unigram:.3f}" in warning


@pytest.mark.real
def test_shakespeare_costs_less_with_every_longer_context_and_more_with_xz():
    text = (data_set("tinyshakespeare") / "input.txt").read_text(encoding="utf-8")
    train, held_out = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    by_order = [ngram_bits_per_byte(train, held_out, order) for order in range(1, 6)]
    assert by_order == pytest.approx([4.829, 3.583, 2.940, 2.480, 2.252], abs=2e-3)
    counts = [count_tokens([np.frombuffer(part.encode(), np.uint8)], 256) for part in (train, held_out)]
    assert unigram_bits_per_byte(*counts, len(held_out)) == pytest.approx(by_order[0], abs=2e-3)
    assert xz_bits_per_byte(train, held_out) == pytest.approx(2.518, abs=0.02)
