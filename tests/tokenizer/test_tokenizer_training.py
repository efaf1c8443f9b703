"""Training: deterministic, equal to a plain re-implementation, honest about what vocabulary a text allows."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from tokenizers import models, trainers

import glassformer
from data_sets import data_set
from glassformer.errors import TokenizerError
from glassformer.tokenizer import KINDS, Tokenizer, train_tokenizer
from glassformer.tokenizer.pieces import byte_alphabet
from glassformer.tokenizer.sample import PIECE, cut, spread
from glassformer.tokenizer.split import words
from tokenizer_texts import CHINESE, CODE, HARD, TEXT, texts

TRAIN = """
import sys
from glassformer.tokenizer import KINDS, train_tokenizer
text = sys.stdin.buffer.read().decode()
for kind in KINDS:
    print(train_tokenizer(kind, [text], None if kind == "char" else 700).fingerprint)
"""


def test_the_same_text_gives_the_same_tokenizer_in_every_process() -> None:
    def fingerprints(seed: str, parallel: str) -> list[str]:
        source = str(Path(glassformer.__file__).parents[1])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel, "PYTHONPATH": source}
        command = [sys.executable, "-c", TRAIN]
        done = subprocess.run(command, input="".join(TEXT).encode(), env=environment, capture_output=True, check=True)
        return done.stdout.decode().split()

    first = fingerprints("1", "true")
    assert len(set(first)) == len(KINDS)
    assert first == fingerprints("2", "false") == fingerprints("3", "true")


@pytest.mark.parametrize("kind", KINDS)
def test_too_large_a_vocabulary_names_the_one_that_is_possible(kind: str) -> None:
    with pytest.raises(TokenizerError, match="too large for this text, which allows") as caught:
        train_tokenizer(kind, [CHINESE, CODE], 100_000)
    found = re.search(r"allows (\d+)", str(caught.value))
    assert found
    possible = int(found[1])
    assert train_tokenizer(kind, [CHINESE, CODE], possible).vocabulary == possible
    assert train_tokenizer(kind, [CHINESE, CODE]).vocabulary == possible
    with pytest.raises(TokenizerError, match=f"allows {possible}"):
        train_tokenizer(kind, [CHINESE, CODE], possible + 1)


@pytest.mark.parametrize(("kind", "least"), [("char", 257), ("bpe", 257), ("unigram", 257), ("wordpiece", 7)])
def test_too_small_a_vocabulary_names_the_least(kind: str, least: int) -> None:
    smallest = train_tokenizer(kind, TEXT, least)
    assert smallest.vocabulary == least
    assert smallest.decode(smallest.encode("天a")) == smallest.normalise("天a")
    with pytest.raises(TokenizerError, match=f"too small: .* need {least}"):
        train_tokenizer(kind, TEXT, least - 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nothing", [[], [""], ["", ""]])
def test_a_text_without_characters_is_an_error(kind: str, nothing: list[str]) -> None:
    with pytest.raises(TokenizerError, match="no characters"):
        train_tokenizer(kind, nothing)


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(TokenizerError, match="among char, bpe, wordpiece, unigram, got 'bpr'"):
        train_tokenizer("bpr", TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_in_the_text_is_an_error(kind: str) -> None:
    with pytest.raises(TokenizerError, match="surrogate"):
        train_tokenizer(kind, ["good", "bad \udc80"])


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_can_be_learnt_from(kind: str) -> None:
    tokenizer = train_tokenizer(kind, [text for text in HARD if text])
    for text in HARD:
        assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalise(text)


@pytest.mark.parametrize("kind", KINDS)
def test_more_special_tokens_can_be_named(kind: str) -> None:
    tokenizer = train_tokenizer(kind, TEXT, None if kind == "char" else 600, special=["<|user|>", "<|name|>"])
    asked = tokenizer.encode("<|user|><|name|>", parse_special=True)
    assert asked == [tokenizer.special["<|user|>"], tokenizer.special["<|name|>"]]
    assert tokenizer.special["<|endoftext|>"] == tokenizer.eos
    assert not {*asked} & {*tokenizer.encode("<|user|><|name|>")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["name", "天", ""])
def test_a_special_token_that_could_be_a_word_is_refused(kind: str, name: str) -> None:
    with pytest.raises(TokenizerError, match="may also be a word"):
        train_tokenizer(kind, TEXT, special=[name])


def test_characters_are_numbered_by_code_point_then_bytes_then_the_end() -> None:
    tokenizer = train_tokenizer("char", ["banana", "天 "])
    assert [tokenizer.decode([token]) for token in range(5)] == [" ", "a", "b", "n", "天"]
    assert b"".join(map(tokenizer.token_bytes, range(5, 261))) == bytes(range(256))
    assert (tokenizer.eos, tokenizer.vocabulary) == (261, 262)
    assert tokenizer.encode("天é") == [4, 5 + 0xC3, 5 + 0xA9]


def test_a_smaller_character_vocabulary_keeps_the_most_frequent() -> None:
    tokenizer = train_tokenizer("char", ["aaabbc" * 5], 259)
    assert [tokenizer.decode([token]) for token in range(2)] == ["a", "b"]
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"


def test_bpe_learns_the_merges_of_the_algorithm(trained: dict[str, Tokenizer]) -> None:
    merges = json.loads(trained["bpe"]._rules)["model"]["merges"]
    assert [tuple(merge) for merge in merges[:120]] == plain_merges("".join(TEXT), 120)


def plain_merges(text: str, number: int) -> list[tuple[str, str]]:
    """BPE as in Sennrich et al. (2016), algorithm 1; of equally frequent pairs, the one made of older tokens."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    age = {letter: rank for rank, letter in enumerate(sorted(letters.values()))}
    count = Counter(word for piece in TEXT for part in cut(piece) for word, _ in words().pre_tokenize_str(part))
    split = {word: [letters[byte] for byte in word.encode()] for word in count}
    merges = []
    for _ in range(number):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += count[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], age[pair[0]], age[pair[1]]))
        merges.append(best)
        age["".join(best)] = len(age)
        for parts in split.values():
            at = 0
            while at < len(parts) - 1:
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = ["".join(best)]
                at += 1
    return merges


def test_unigram_takes_the_most_probable_segmentation(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["unigram"]
    score = dict(json.loads(tokenizer._rules)["model"]["vocab"])

    def best(word: str) -> float:
        value = [0.0] + [-np.inf] * len(word)
        for end in range(1, len(word) + 1):
            value[end] = max(value[start] + score.get(word[start:end], -np.inf) for start in range(end))
        return value[-1]

    count = Counter(word for text in TEXT for word, _ in words().pre_tokenize_str(text) if score.keys() >= set(word))
    assert len(count) > 300
    for word in count:
        parts = [tokenizer.decode([token]) for token in tokenizer.encode(word)]
        assert sum(score[part] for part in parts) == pytest.approx(best(word))


@pytest.mark.real
def test_unigram_explains_unseen_text_at_least_as_well_as_the_librarys_trainer() -> None:
    text = next(data_set("tinyshakespeare").glob("*.txt")).read_text(encoding="utf-8")[:400_000]
    seen, unseen = text[:360_000], text[360_000:]
    rust = tokenizers.Tokenizer(models.Unigram())
    rust.pre_tokenizer = words()
    rust.train_from_iterator(cut(seen), trainers.UnigramTrainer(vocab_size=1743, show_progress=False))
    theirs = rust.encode(unseen).ids
    tokenizer = train_tokenizer("unigram", [seen], 2000)
    ours = tokenizer.encode(unseen)
    assert len(ours) < len(theirs)
    assert bits(ours) < bits(theirs)


def bits(ids: list[int]) -> float:
    """What the tokens cost when each is drawn by itself, with their own frequencies."""
    count = np.array(list(Counter(ids).values()))
    return float(-(count * np.log2(count / count.sum())).sum())


@settings(max_examples=100, deadline=None)
@given(text=texts())
def test_words_are_the_whole_text_in_bounded_parts(text: str) -> None:
    for long in (text, text * 40):
        parts = [word for word, _ in words().pre_tokenize_str(long)]
        assert "".join(parts) == long
        assert max(map(len, parts), default=0) <= 28


def test_words_are_what_a_reader_would_expect() -> None:
    text = "It's Tom_2's 1984 天气真好。\n    if (x_y): # ok\n"
    parts = "It|'s| Tom|_|2|'s| |1|9|8|4| |天气真好|。⏎|   | if| (|x|_y|):| #| ok|⏎"
    assert "|".join(word for word, _ in words().pre_tokenize_str(text)).replace("\n", "⏎") == parts


def test_han_without_a_space_is_cut_into_bounded_words() -> None:
    parts = [word for word, _ in words().pre_tokenize_str("长" * 1000)]
    assert max(map(len, parts)) == 12


def test_a_sample_is_the_text_itself_when_that_is_small() -> None:
    given = [CHINESE * 100, "", "a b " * 3000]
    assert "".join(spread(given, 10**6)) == "".join(given)
    assert max(map(len, spread(given, 10**6))) <= PIECE


def test_a_sample_is_bounded_and_spread_evenly() -> None:
    numbered = [f"{number:06d}" for number in range(10_000)]
    sample = spread(iter(numbered), 6000)
    taken = [int(text) for text in sample]
    assert 500 <= len(sample) <= 1000
    assert set(np.diff(taken)) == {16}
    assert taken[-1] >= 10_000 - 16


def test_pieces_of_a_long_text_end_at_white_space_where_there_is_some() -> None:
    assert all(piece.startswith(" ") for piece in list(cut("word " * 5000))[1:])
    assert [len(piece) for piece in cut("长" * 10_000)] == [PIECE, PIECE, 10_000 - 2 * PIECE]
    assert "".join(cut(" " * 9000 + "a")) == " " * 9000 + "a"
