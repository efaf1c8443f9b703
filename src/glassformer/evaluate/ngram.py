"""An n-gram model: the next symbol from the few before it, by interpolated modified Kneser-Ney smoothing."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

UNIFORM_DISCOUNT = 0.75
"""Taken off every count where a text is too small to estimate discounts from."""


@dataclass(frozen=True)
class Level:
    """All n-grams of one length n. A context is an (n-1)-gram, by its number in the level below (0 where n is 1).

    keys: context · alphabet + last symbol, ascending; an n-gram's number is its place here.
    discounted: the count of each, less its discount. totals: of the counts after each context.
    backoff: what was discounted after each context, as a share: the weight of the level below.
    """

    keys: Int[np.ndarray, "N"]
    discounted: Float[np.ndarray, "N"]
    totals: Float[np.ndarray, "contexts"]
    backoff: Float[np.ndarray, "contexts"]

    def find(self, keys: Int[np.ndarray, "M"]) -> Int[np.ndarray, "M"]:
        """The numbers of n-grams, -1 for those that never occurred."""
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)


class NGram:
    """The distribution of a symbol after the `order` - 1 before it, learnt from a text.

    p_n(w | c) = (count(c w) - D) / Σ count(c ·) + backoff(c) · p_{n-1}(w | c without its first), down to 1 / alphabet.
    Counts are of occurrences at the highest order, of different symbols before the n-gram at all lower ones; D is D1,
    D2 or D3+ by the count. Every distribution sums to 1. Source: Chen & Goodman 1999, "An empirical study …", 4.1.
    """

    def __init__(self, symbols: Int[np.ndarray, "T"], alphabet: int, order: int = 5):
        """Learn from `symbols`, numbers from 0 to `alphabet` - 1."""
        assert order >= 1
        assert len(symbols) > 0
        self.alphabet, self.order = alphabet, order
        tables = _count(symbols.astype(np.int64), alphabet, order)
        contexts = [1, *(len(keys) for keys, _ in tables[:-1])]
        self.levels = [
            _smooth(keys, counts, alphabet, size) for (keys, counts), size in zip(tables, contexts, strict=True)
        ]

    def probabilities(self, symbols: Int[np.ndarray, "T"]) -> Float[np.ndarray, "T"]:
        """The probability of each symbol after those before it in the same text."""
        symbols = symbols.astype(np.int64)
        p = np.full(len(symbols), 1 / self.alphabet)
        context = np.zeros(len(symbols), np.int64)
        for level in self.levels:
            # A context that never occurred, or that nothing ever followed, knows nothing: the level below stands.
            known = np.flatnonzero((context >= 0) & (level.totals[context] > 0))
            before = context[known]
            found = level.find(before * self.alphabet + symbols[known])
            share = np.where(found >= 0, level.discounted[found], 0.0) / level.totals[before]
            p[known] = share + level.backoff[before] * p[known]
            context = np.full(len(symbols), -1)
            context[1:][known[known < len(symbols) - 1]] = found[known < len(symbols) - 1]
        return p


def _count(
    symbols: Int[np.ndarray, "T"], alphabet: int, order: int
) -> list[tuple[Int[np.ndarray, "N"], Int[np.ndarray, "N"]]]:
    """Keys and counts of the n-grams of every length, 1 to `order`."""
    tables = []
    numbers = np.zeros(len(symbols) + 1, np.int64)  # of the (n-1)-gram that ends before each place
    counts = np.zeros(0, np.int64)
    for n in range(1, min(order, len(symbols)) + 1):
        keys, first, ending, counts = np.unique(
            numbers[: len(symbols) - n + 1] * alphabet + symbols[n - 1 :],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        if tables:
            # The (n-1)-gram at the end of each n-gram, which so has one more symbol before it.
            ends = numbers[first + 1]
            tables[-1] = (tables[-1][0], np.bincount(ends, minlength=len(tables[-1][0])))
        tables.append((keys, counts))
        numbers = ending
    return tables


def _smooth(keys: Int[np.ndarray, "N"], counts: Int[np.ndarray, "N"], alphabet: int, contexts: int) -> Level:
    discount = np.array(_discounts(counts))[counts.clip(max=3)]
    context = keys // alphabet
    totals = np.bincount(context, counts, minlength=contexts).astype(float)
    freed = np.bincount(context, discount, minlength=contexts)
    return Level(keys, counts - discount, totals, freed / np.maximum(totals, 1))


def _discounts(counts: Int[np.ndarray, "N"]) -> tuple[float, float, float, float]:
    """What is taken off counts of 0, 1, 2 and 3 or more, from how many n-grams have each count."""
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == count)) for count in (1, 2, 3, 4))
    if min(n1, n2, n3) > 0:
        y = n1 / (n1 + 2 * n2)
        d1, d2, d3 = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
        if 0 < d1 < 1 and 0 < d2 < 2 and 0 < d3 < 3:
            return 0.0, d1, d2, d3
    return 0.0, UNIFORM_DISCOUNT, UNIFORM_DISCOUNT, UNIFORM_DISCOUNT
