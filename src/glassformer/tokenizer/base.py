"""The tokenizer: text to token ids and back, exactly; a thin shell around the Rust library `tokenizers`."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import tokenizers

from glassformer.errors import TokenizerError
from glassformer.tokenizer.files import read_files, write_files
from glassformer.tokenizer.pieces import Pieces, read_pieces
from glassformer.tokenizer.viterbi import FLOAT32, SUMS, sums_of_32_bits

EOS = "<|endoftext|>"
OTHER_EOS = ("</s>", "<eos>", "<|end_of_text|>", "<|im_end|>", "[SEP]")  # when a foreign tokenizer names none


class Span(NamedTuple):
    """A token and the characters of the text that it covers, from `start` up to `end` (a part of one: all of it)."""

    token: int
    start: int
    end: int


class Framed(NamedTuple):
    """Token ids with the special tokens that stand around a text or two, and for each the text it belongs to (0, 1)."""

    tokens: list[int]
    types: list[int]


class Tokenizer:
    """Encodes and decodes text. Never adds a token, never parses one out of plain text unless asked.

    kind: char, bpe, wordpiece, unigram, or other (a foreign scheme).
    vocabulary: the number of ids, byte and special tokens included.
    special: id by name of every special token.
    fingerprint: sha256 of the rules; equal fingerprints encode equally.
    """

    def __init__(self, rules: str, config: Mapping[str, Any] | None = None):
        """`rules` is the text of a tokenizer.json, `config` the tree of a tokenizer_config.json."""
        self._plain, self._config = _settled(rules), dict(config or {})
        self._rules = self._plain.to_str(pretty=True)
        tree: dict[str, Any] = json.loads(self._rules)
        # Whether special tokens are parsed is a state of the Rust object, so there is one object for each way.
        self._plain.encode_special_tokens = True
        self.kind = _kind(tree)
        self._cut = sums_of_32_bits(tree, self._config.get(SUMS))
        if self._cut:
            self._plain.pre_tokenizer = self._cut
        # The vocabulary is many times the rest, and Rust has it already.
        self._tree = {**tree, "model": {k: v for k, v in tree["model"].items() if k not in ("vocab", "merges")}}
        self.vocabulary = max(self._plain.get_vocab(with_added_tokens=True).values()) + 1
        self.special: dict[str, int] = {
            token["content"]: token["id"] for token in self._tree["added_tokens"] if token["special"]
        }

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """The tokenizer of a folder (or of a tokenizer.json itself).

        Raises:
            TokenizerError: when there is none, or it can't be read.
        """
        rules, config = read_files(Path(folder))
        try:
            return cls(rules, config)
        except TokenizerError as error:
            raise TokenizerError(error.what, where=folder, do=error.do) from None

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json and tokenizer_config.json, which `transformers.AutoTokenizer` reads to the same ids."""
        write_files(Path(folder), self._rules, dict(self.config))

    def __reduce__(self) -> tuple[Any, ...]:
        # The Rust object forgets on its way to another process that special tokens are plain text.
        return type(self), (self._rules, self._config)

    @cached_property
    def fingerprint(self) -> str:
        rules = json.loads(self._rules) | ({SUMS: FLOAT32} if self._cut else {})
        canonical = json.dumps(rules, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def config(self) -> Mapping[str, Any]:
        """What tokenizer_config.json says beside the rules (names of special tokens, chat template …)."""
        return self._named() | self._config

    @cached_property
    def eos(self) -> int:
        """The id of the token between documents: `<|endoftext|>`, or what a foreign tokenizer calls its end."""
        named = self._config.get("eos_token")
        named = named.get("content") if isinstance(named, dict) else named
        for name in (named, EOS, *OTHER_EOS):
            if name and (token := self._plain.token_to_id(name)) is not None:
                return token
        raise TokenizerError("this tokenizer has no token for the end of a document", do=f"add {EOS} to it")

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Token ids of `text`. What looks like a special token is plain text, unless `parse_special`."""
        return self.encode_batch([text], parse_special=parse_special)[0]

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """Token ids of many texts, in parallel threads."""
        rust = self._parsing if parse_special else self._plain
        try:
            encodings = rust.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            for text in texts:
                _refuse_surrogates(text)
            raise
        return [encoding.ids for encoding in encodings]

    def frame(
        self, text: str, pair: str | None = None, *, limit: int | None = None, parse_special: bool = False
    ) -> Framed:
        """`text`, or two, with the special tokens its rules put around them: `[CLS] … [SEP]`, `<s> … </s>`, `… </s>`.

        No more than `limit` tokens in all: the longer text loses its last ones. Rules that say nothing add nothing.

        Raises:
            TokenizerError: when `limit` has no room for the special tokens.
        """
        rust = self._parsing if parse_special else self._plain
        texts = [text] if pair is None else [text, pair]
        for one in texts:
            _refuse_surrogates(one)
        parts = [rust.encode(one, add_special_tokens=False) for one in texts]
        if limit is not None:
            room = limit - rust.num_special_tokens_to_add(pair is not None)
            if room < 0:
                raise TokenizerError(f"{limit} tokens have no room for the {limit - room} special ones")
            for part, size in zip(parts, _shares([len(part.ids) for part in parts], room), strict=True):
                part.truncate(size)
        whole = rust.post_process(*parts, add_special_tokens=True)
        return Framed(whole.ids, whole.type_ids)

    def spans(self, text: str, *, parse_special: bool = False, plain: Sequence[tuple[int, int]] = ()) -> list[Span]:
        """The tokens of `text`, each with its place in it; special tokens aren't parsed inside the places `plain`."""
        if parse_special and plain:
            return self._spans_apart(text, plain)
        ids = self.encode(text, parse_special=parse_special)
        pieces = [self.piece(token, first=False) for token in ids]
        if b"".join(pieces) == text.encode("utf-8"):
            return _places(ids, pieces, text)
        # What normalises its text knows best where its tokens come from.
        rust = self._parsing if parse_special else self._plain
        offsets = rust.encode(text, add_special_tokens=False).offsets
        return [Span(token, *place) for token, place in zip(ids, offsets, strict=True)]

    def _spans_apart(self, text: str, plain: Sequence[tuple[int, int]]) -> list[Span]:
        """Cuts the text at special tokens outside `plain`, as the Rust library does with all of them."""
        found, place, names = list[Span](), 0, self._special_pattern
        for match in names.finditer(text) if names else ():
            name = next(name for name in match.groupdict() if match[name] is not None)
            start, end = match.span(name)
            if any(start < stop and begin < end for begin, stop in plain):
                continue
            found += self._section(text, place, match.start())
            found.append(Span(self.special[match[name]], *match.span()))
            place = match.end()
        return found + self._section(text, place, len(text))

    def _section(self, text: str, start: int, end: int) -> list[Span]:
        spans = self.spans(text[start:end])
        if start and spans and '"first"' in json.dumps(self._tree["pre_tokenizer"]):
            what = "this tokenizer can't read a text in parts, which the text of a special token in a message asks for"
            raise TokenizerError(what, do="take it out of the message")
        return [Span(span.token, span.start + start, span.end + start) for span in spans]

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        """Special tokens with the white space that they swallow; the longest first."""
        parts: list[str] = []
        for mark in sorted(self._tree["added_tokens"], key=lambda mark: -len(mark["content"])):
            if mark["special"]:
                before, behind = (r"\s*" if mark[side] else "" for side in ("lstrip", "rstrip"))
                parts.append(f"{before}(?P<t{mark['id']}>{re.escape(mark['content'])}){behind}")
        return re.compile("|".join(parts)) if parts else None

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD, as in `bytes.decode(errors="replace")`."""
        parts: list[bytes] = []
        for token in ids:
            if not (skip_special and token in self.special_ids):
                parts.append(self.piece(token, first=not parts))
        return b"".join(parts).decode("utf-8", errors="replace")

    def normalise(self, text: str) -> str:
        """What `decode(encode(text))` gives back: `text` itself for every lossless kind.

        WordPiece: without control characters, accents and capitals, each run of white space one space, words,
        punctuation marks and Han characters set apart by single spaces, and every word that the
        vocabulary can't spell replaced by [UNK] (BERT, uncased).
        """
        if self.kind != "wordpiece":
            return text if self._plain.normalizer is None else self.decode(self.encode(text))
        normalizer, split, unknown = self._plain.normalizer, self._plain.pre_tokenizer, self._tree["model"]["unk_token"]
        plain = normalizer.normalize_str(text) if normalizer else text
        words = [word for word, _ in split.pre_tokenize_str(plain)]
        spelled = [[token.value for token in self._plain.model.tokenize(word)] for word in words]
        return " ".join(unknown if unknown in parts else word for word, parts in zip(words, spelled, strict=True))

    def name(self, token: int) -> str | None:
        """What the vocabulary calls a token (`Ġthe`, `##ing`, `▁of`, `<0x0A>`, `</s>`); None for an id without one."""
        return self._plain.id_to_token(self._checked(token))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, without the space that WordPiece puts between words; b"" if special."""
        return self._pieces.own[self._checked(token)]

    def piece(self, token: int, *, first: bool) -> bytes:
        """The bytes that a token adds to a text, as its first token or after others (special tokens: their name)."""
        pieces = self._pieces
        return (pieces.first if first else pieces.later)[self._checked(token)]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self.special.values())

    @cached_property
    def _parsing(self) -> tokenizers.Tokenizer:
        rust = tokenizers.Tokenizer.from_str(self._rules)
        if self._cut:
            rust.pre_tokenizer = self._cut
        return rust

    @cached_property
    def _pieces(self) -> Pieces:
        tokens = [self._plain.id_to_token(token) or "" for token in range(self.vocabulary)]
        return read_pieces(tokens, self.special_ids, self._tree["decoder"])

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.vocabulary:
            raise TokenizerError(f"expected token ids from 0 to {self.vocabulary - 1}, got {token}")
        return token

    def _named(self) -> dict[str, Any]:
        """The tokenizer_config.json that transformers needs beside the rules."""
        bert = {role: name for role in _BERT_ROLES if (name := _BERT_ROLES[role]) in self.special}
        ends = {"bos_token": EOS, "eos_token": EOS, "pad_token": EOS} if EOS in self.special else {}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 10**30,  # how transformers spells "no limit": the model has one, the tokenizer none
        } | (ends | bert)


_BERT_ROLES = {
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def _refuse_surrogates(text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        what = "the text holds half a surrogate pair, which is no character (bytes that are no UTF-8 give such)"
        raise TokenizerError(what) from None


def _shares(lengths: list[int], room: int) -> list[int]:
    """How much of each length stays when no more than `room` may: the longest gives way first."""
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    first, second = lengths
    if first + second <= room:
        return lengths
    shorter = min(first, second, room // 2)
    return [shorter, room - shorter] if first < second else [room - shorter, shorter]


def _places(ids: list[int], pieces: list[bytes], text: str) -> list[Span]:
    """Spans of tokens whose bytes, joined, are the text."""
    characters = [index for index, character in enumerate(text) for _ in character.encode("utf-8")]
    spans, start = list[Span](), 0
    for token, piece in zip(ids, pieces, strict=True):
        end = start + len(piece)
        spans.append(Span(token, characters[start], characters[end - 1] + 1))
        start = end
    return spans


def _settled(rules: str) -> tokenizers.Tokenizer:
    """The Rust object of rules, without cutting or padding (a foreign file may ask for both)."""
    try:
        rust = tokenizers.Tokenizer.from_str(rules)
    except Exception as error:  # the library raises bare Exceptions
        first_line = str(error).partition("\n")[0]
        raise TokenizerError(f"not the rules of a tokenizer: {first_line}", do="save the tokenizer again") from None
    if rust.get_vocab_size(with_added_tokens=True) == 0:
        raise TokenizerError("the tokenizer has no tokens")
    rust.no_truncation()
    rust.no_padding()
    return rust


def _kind(tree: dict[str, Any]) -> str:
    model, decoder = tree["model"], json.dumps(tree["decoder"])
    if model["type"] == "BPE":
        if '"ByteLevel"' in decoder:
            return "bpe"
        return "char" if model["byte_fallback"] and not model["merges"] else "other"
    return {"WordPiece": "wordpiece", "Unigram": "unigram"}.get(model["type"], "other")
