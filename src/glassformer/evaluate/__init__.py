"""How good a model is: whole-split loss and bits per byte."""

from glassformer.evaluate.score import Score, score_text, score_windows

__all__ = ["Score", "score_text", "score_windows"]
