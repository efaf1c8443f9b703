"""Training a tokenizer from text: character, byte-level BPE, WordPiece or Unigram; deterministic, in bounded memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from glassformer.errors import TokenizerError
from glassformer.tokenizer.base import EOS, Tokenizer
from glassformer.tokenizer.pieces import byte_alphabet
from glassformer.tokenizer.sample import cut, spread
from glassformer.tokenizer.split import words
from glassformer.tokenizer.unigram import BYTES, UnigramTrainer, unigram_model

DEFAULT_VOCABULARY = 8192
MOST_CHARACTERS = 0x110000  # of Unicode
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"
LONGEST_WORD = 100  # characters; BERT reads longer words as [UNK]

# Bytes of text that training looks at, spread evenly over all of it: what bounds memory (docs/tokenizers.md).
SAMPLE = 16_000_000
UNIGRAM_SAMPLE = 8_000_000


def train_tokenizer(
    kind: str, texts: Iterable[str], vocabulary: int | None = None, *, special: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer of one of KINDS, learnt from `texts`; the same texts give the same tokenizer.

    `vocabulary` counts every id, bytes and special tokens included. None means: for char, all characters of the text;
    else at most 8192, and fewer where the text allows no more. `special` names tokens beside `<|endoftext|>`.

    Raises:
        TokenizerError: on a text without characters, and when `vocabulary` is smaller than the bytes and special
            tokens need or larger than the text allows (with the number that is possible).
    """
    if kind not in _TRAIN:
        raise TokenizerError(f"expected a kind of tokenizer among {', '.join(KINDS)}, got {kind!r}")
    names = list(dict.fromkeys([*(BERT if kind == "wordpiece" else ()), *special, EOS]))
    _check_names(kind, names)
    _check_least(kind, vocabulary, len(names))
    largest = vocabulary or (MOST_CHARACTERS if kind == "char" else DEFAULT_VOCABULARY)
    try:
        rust = _TRAIN[kind](texts, largest - len(names))
    except UnicodeEncodeError:
        raise TokenizerError("the text holds half a surrogate pair, which is no character of Unicode") from None
    rust.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    possible = rust.get_vocab_size(with_added_tokens=True)
    if vocabulary and possible < vocabulary:
        what = f"a {kind} vocabulary of {vocabulary} is too large for this text, which allows {possible}"
        raise TokenizerError(what, do=f"ask for at most {possible}, or give more text")
    return Tokenizer(rust.to_str())


def _check_names(kind: str, names: list[str]) -> None:
    split = pre_tokenizers.BertPreTokenizer() if kind == "wordpiece" else words()
    for name in names:
        # A name that is cut into several words can't be learnt as a token from plain text.
        if len(split.pre_tokenize_str(name)) < 2:
            raise TokenizerError(f"the special token {name!r} may also be a word of the text", do="name it as <|name|>")


def _check_least(kind: str, vocabulary: int | None, names: int) -> None:
    least, parts = names + len(BYTES), f"256 bytes and {names} special tokens"
    if kind == "wordpiece":
        least, parts = names + 1, f"{names} special tokens and one character"
    if vocabulary is not None and vocabulary < least:
        raise TokenizerError(f"a {kind} vocabulary of {vocabulary} is too small: {parts} need {least}")


def _train_char(texts: Iterable[str], places: int) -> tokenizers.Tokenizer:
    """Every character is a token; those that find no place, and those never seen, are spelled in bytes."""
    count: Counter[str] = Counter()
    for text in texts:
        for piece in cut(text):
            piece.encode("utf-8")  # refuses half a surrogate pair
            count.update(piece)
    if not count:
        raise _empty()
    frequent = sorted(count, key=lambda character: (-count[character], character))
    tokens = [*sorted(frequent[: places - len(BYTES)]), *BYTES]
    # BPE without merges: each character by itself, or its bytes.
    rust = tokenizers.Tokenizer(models.BPE(_numbered(tokens), [], byte_fallback=True))
    rust.decoder = _byte_fallback()
    return rust


def _train_bpe(texts: Iterable[str], places: int) -> tokenizers.Tokenizer:
    """Byte-level BPE: 256 bytes, and the pairs that occurred most often, merged one by one."""
    sample = _sampled(texts, SAMPLE)
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.Sequence(
        [words(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=places, min_frequency=2, show_progress=False, initial_alphabet=list(byte_alphabet())
    )
    rust.train_from_iterator(sample, trainer)
    return rust


def _train_unigram(texts: Iterable[str], places: int) -> tokenizers.Tokenizer:
    """Unigram: 256 bytes, and the pieces that make the text most probable. Spaces are ordinary characters."""
    sample = _sampled(texts, UNIGRAM_SAMPLE)
    score = UnigramTrainer(sample, places - len(BYTES)).train()
    rust = tokenizers.Tokenizer(unigram_model(score))
    rust.pre_tokenizer = words()
    rust.decoder = _byte_fallback()
    return rust


def _train_wordpiece(texts: Iterable[str], places: int) -> tokenizers.Tokenizer:
    """BERT's WordPiece, uncased: words in pieces, of which all but the first carry ##."""
    lines = [_bert_words(text) for text in _sampled(texts, SAMPLE)]
    starts = Counter(character for line in lines for word in line for character in word)
    inside = Counter(PREFIX + character for line in lines for word in line for character in word[1:])
    units = starts + inside
    if not units:
        raise _empty()
    # The library numbers the ##-characters in the order of a hash map, which changes from run to run; given as its
    # special tokens they come in ours.
    alphabet = sorted(units, key=lambda unit: (-units[unit], unit))[:places]
    known = set(alphabet)
    spelled = (" ".join(word for word in line if _spells(word, known)) for line in lines)
    rust = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=places, min_frequency=2, show_progress=False, special_tokens=sorted(alphabet)
    )
    rust.train_from_iterator(spelled, trainer)
    learnt = rust.get_vocab(with_added_tokens=False)
    tokens = [*BERT, *sorted(learnt, key=learnt.__getitem__)]
    rust = tokenizers.Tokenizer(
        models.WordPiece(_numbered(tokens), unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
    )
    rust.normalizer, rust.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece(PREFIX, cleanup=False)
    return rust


def _bert_words(text: str) -> list[str]:
    plain = normalizers.BertNormalizer().normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(plain)]


def _spells(word: str, known: set[str]) -> bool:
    return len(word) <= LONGEST_WORD and word[0] in known and all(PREFIX + character in known for character in word[1:])


def _sampled(texts: Iterable[str], limit: int) -> list[str]:
    sample = spread(texts, limit)
    if not any(sample):
        raise _empty()
    return sample


def _empty() -> TokenizerError:
    return TokenizerError("the text to learn from has no characters", do="give a text that isn't empty")


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _byte_fallback() -> decoders.Decoder:
    return decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])


_TRAIN: dict[str, Callable[[Iterable[str], int], tokenizers.Tokenizer]] = {
    "char": _train_char,
    "bpe": _train_bpe,
    "wordpiece": _train_wordpiece,
    "unigram": _train_unigram,
}
KINDS = tuple(_TRAIN)
