"""How good a model is: its exact loss on text, and what it has to beat."""

from glassformer.evaluate.baselines import (
    count_tokens,
    ngram_bits_per_byte,
    own_unigram_bits_per_byte,
    unigram_bits_per_byte,
    verdict,
    xz_bits_per_byte,
)
from glassformer.evaluate.score import (
    Rows,
    Score,
    Window,
    predicted_bytes,
    score_text,
    score_windows,
    text_windows,
)

__all__ = [
    "Rows",
    "Score",
    "Window",
    "count_tokens",
    "ngram_bits_per_byte",
    "own_unigram_bits_per_byte",
    "predicted_bytes",
    "score_text",
    "score_windows",
    "text_windows",
    "unigram_bits_per_byte",
    "verdict",
    "xz_bits_per_byte",
]
