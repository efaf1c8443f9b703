"""Text to token ids and back: four kinds of tokenizer, trained from text, and decoding as a stream."""

from glassformer.tokenizer.base import Span, Tokenizer
from glassformer.tokenizer.stream import StreamDecoder
from glassformer.tokenizer.train import KINDS, train_tokenizer

__all__ = ["KINDS", "Span", "StreamDecoder", "Tokenizer", "train_tokenizer"]
