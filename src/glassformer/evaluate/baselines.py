"""What a model has to beat: the bits per byte of token frequencies, of an n-gram model, of a compressor."""

import lzma
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from glassformer.errors import DataError
from glassformer.evaluate.ngram import NGram
from glassformer.evaluate.score import Score

CHARACTERS = 0x110000 - 0x800
"""Of Unicode, without surrogates."""
MARGIN = 0.01
"""A model is better than frequencies when it needs this share of bits less."""
Tokens = Sequence[int] | Int[np.ndarray, "T"]


def unigram_bits_per_byte(train: Tokens, held_out: Tokens, vocabulary: int, bytes: int) -> float:
    """Bits per byte of held-out tokens by their frequencies in the training text, each counted once more than it came.

    Tokens are numbers from 0 to `vocabulary` - 1 (a text's bytes with 256 will do too); `bytes` is the length of the
    text that the held-out ones stand for.
    """
    return frequency_bits_per_byte(np.bincount(np.asarray(train, np.int64), minlength=vocabulary), held_out, bytes)


def frequency_bits_per_byte(counts: Int[np.ndarray, "V"], held_out: Tokens, bytes: int) -> float:
    """The same from the training text's count of every token: p(w) = (count(w) + 1) / (Σ count + V)."""
    p = (counts + 1) / (counts.sum() + len(counts))
    return float(-np.log2(p[np.asarray(held_out, np.int64)]).sum()) / _some(bytes)


def own_unigram_bits_per_byte(tokens: Tokens, vocabulary: int, bytes: int) -> float:
    """Bits per byte of tokens by the frequencies of their own text, each predicted from all the others.

    Of N tokens of K kinds, one that comes n times has p = (n - 1) / (N - 1 + K). One that comes once is new to the
    rest, which expects something new with (K - 1) / (N - 1 + K - 1), any of the vocabulary - K + 1 alike.
    Leaving each out keeps a short text from predicting itself. Source: Witten & Bell 1991, method C.
    """
    counts = np.bincount(np.asarray(tokens, np.int64), minlength=vocabulary)
    counts = counts[counts > 0]
    total, kinds, once = counts.sum(), len(counts), np.count_nonzero(counts == 1)
    again = counts[counts > 1]
    bits = -(again * np.log2((again - 1) / (total - 1 + kinds))).sum()
    if once:
        rest = max(kinds - 1, 1)  # a single token stands alone: it is one of the vocabulary
        bits -= once * np.log2(rest / max(total - 1 + kinds - 1, 1) / (vocabulary - kinds + 1))
    return float(bits) / _some(bytes)


def ngram_bits_per_byte(train: str, held_out: str, order: int = 5) -> float:
    """Bits per byte of held-out text by a Kneser-Ney model of `order` characters (order - 1 of context).

    A character that the training text doesn't have is first "another", then any of Unicode's others alike.
    """
    known, learnt = np.unique(_characters(train), return_inverse=True)
    text = _characters(held_out)
    places = np.searchsorted(known, text).clip(max=len(known) - 1)
    symbols = np.where(known[places] == text, places, len(known))
    p = NGram(learnt, len(known) + 1, order).probabilities(symbols)
    strange = np.count_nonzero(symbols == len(known))
    bits = -np.log2(p).sum() + strange * np.log2(CHARACTERS - len(known))
    return float(bits) / _some(len(held_out.encode()))


def xz_bits_per_byte(train: str, held_out: str) -> float:
    """Bits by which held-out text lengthens the xz file (preset 9e) of the training text, per byte.

    With `train` empty: xz on the held-out text alone. xz sees back 64 MiB, so all of a training text up to that.
    """
    known = train.encode()
    alone, both = (
        len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) for text in (known, known + held_out.encode())
    )
    return 8 * (both - alone) / _some(len(held_out.encode()))


def verdict(score: Score, unigram: float) -> str | None:
    """A warning when a model's score is no better than the bits per byte of unigram frequencies, else None."""
    if score.bits_per_byte < unigram * (1 - MARGIN):
        return None
    return (
        f"no better than unigram frequencies: the model needs {score.bits_per_byte:.3f} bits per byte, the frequencies "
        f"of single tokens {unigram:.3f}; it is untrained, or was trained on another kind of text"
    )


def _characters(text: str) -> Int[np.ndarray, "T"]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _some(bytes: int) -> int:
    if bytes < 1:
        raise DataError("no text to score", do="give a longer text")
    return bytes
