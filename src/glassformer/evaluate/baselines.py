"""What a model has to beat: the bits per byte of token frequencies, of an n-gram model, of a compressor."""

import lzma
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int

from glassformer.errors import DataError
from glassformer.evaluate.ngram import NGram
from glassformer.evaluate.score import Score

CHARACTERS = 0x110000 - 0x800
"""Of Unicode, without surrogates."""
MARGIN = 0.01
"""A model is better than frequencies when it needs this share of bits less."""
Counts = Int[np.ndarray, "V"]
"""How often each token of a vocabulary comes."""


def count_tokens(parts: Iterable[Sequence[int] | Int[np.ndarray, "T"]], vocabulary: int) -> Counts:
    """The count of every token, 0 to `vocabulary` - 1, in all parts of a text together."""
    counts = np.zeros(vocabulary, np.int64)
    for part in parts:
        counts += np.bincount(np.asarray(part, np.int64), minlength=vocabulary)
    return counts


def unigram_bits_per_byte(train: Counts, held_out: Counts, bytes: int) -> float:
    """Bits per byte of held-out tokens by their frequencies in the training text.

    p(w) = (count(w) + 1) / (Σ count + V). `bytes` is the length of the text that the held-out tokens stand for. The
    bytes of a text may be the tokens, too, with V = 256.
    """
    p = (train + 1) / (train.sum() + len(train))
    return float(-(held_out * np.log2(p)).sum()) / _some(bytes)


def own_unigram_bits_per_byte(counts: Counts, bytes: int) -> float:
    """Bits per byte of tokens by the frequencies of their own text, each predicted from all the others.

    Of N tokens of K kinds, one that comes n times has p = (n - 1) / (N - 1 + K). One that comes once is new to the
    rest, which expects something new with (K - 1) / (N - 1 + K - 1), any of the V - K + 1 others alike.
    Leaving each out keeps a short text from predicting itself. Source: Witten & Bell 1991, method C.
    """
    kinds, total, once = np.count_nonzero(counts), counts.sum(), np.count_nonzero(counts == 1)
    again = counts[counts > 1]
    bits = -(again * np.log2((again - 1) / (total - 1 + kinds))).sum()
    if once:
        new = (kinds - 1) / (total - 1 + kinds - 1) if total > 1 else 1.0  # without a rest everything is new
        bits -= once * np.log2(new / (len(counts) - kinds + 1))
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
    better = "hardly" if score.bits_per_byte < unigram else "no"
    return (
        f"{better} better than unigram frequencies: the model needs {score.bits_per_byte:.3f} bits per byte, the "
        f"frequencies of single tokens {unigram:.3f}; it is untrained, or was trained on another kind of text"
    )


def _characters(text: str) -> Int[np.ndarray, "T"]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _some(bytes: int) -> int:
    if bytes < 1:
        raise DataError("no text to score", do="give a longer text")
    return bytes
