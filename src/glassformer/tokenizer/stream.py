"""Decoding a token at a time: text comes out as soon as it is certain, never half a character."""

import codecs

from glassformer.tokenizer.base import Tokenizer


class StreamDecoder:
    """Turns a stream of token ids into text; what `push` and `finish` give, joined, is `tokenizer.decode(ids)`."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False):
        """With `skip_special`, special tokens add no text."""
        self.tokenizer, self.skip_special = tokenizer, skip_special
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._first = True

    def push(self, token: int) -> str:
        """The text that `token` makes certain: "" while a character is incomplete. Constant time."""
        if self.skip_special and token in self.tokenizer.special_ids:
            return ""
        piece = self.tokenizer.piece(token, first=self._first)
        self._first = False
        return self._bytes.decode(piece)

    def finish(self) -> str:
        """The rest: U+FFFD for a character that never became complete. The decoder is then as new."""
        self._first = True
        rest = self._bytes.decode(b"", final=True)
        self._bytes.reset()
        return rest
