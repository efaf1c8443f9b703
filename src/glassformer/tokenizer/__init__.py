"""Text to token ids and back: tokenizers trained from text or read from any usual file, and decoding as a stream."""

from glassformer.tokenizer.base import Framed, Span, Tokenizer
from glassformer.tokenizer.chat import Chat, ChatOptions
from glassformer.tokenizer.read import read_tokenizer
from glassformer.tokenizer.stream import StreamDecoder
from glassformer.tokenizer.train import KINDS, train_tokenizer

__all__ = [
    "KINDS",
    "Chat",
    "ChatOptions",
    "Framed",
    "Span",
    "StreamDecoder",
    "Tokenizer",
    "read_tokenizer",
    "train_tokenizer",
]
