"""Imported tokenizers beside the libraries that made their files, on real English and Chinese."""

import copy
import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
import tiktoken.load
import tokenizers
from reference_texts import TRICKY, lines, trained

from data_sets import data_set
from glassformer.tokenizer import Tokenizer, read_tokenizer

pytestmark = pytest.mark.real

TRAINED: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe"},
    "llama": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
              "remove_extra_whitespaces": False},
    "bpe-symbols": {"model_type": "bpe", "user_defined_symbols": "<sep>,<u>,▁▁"},
    "bpe-lines": {"model_type": "bpe", "user_defined_symbols": "<sep>,\n", "byte_fallback": True,
                  "remove_extra_whitespaces": False, "split_digits": True, "add_dummy_prefix": False},
    "unigram": {"model_type": "unigram"},
    "unigram-symbols": {"model_type": "unigram", "user_defined_symbols": "<sep>,<u>", "byte_fallback": True},
    "unigram-words": {"model_type": "unigram", "user_defined_symbols": "the,的,n,你好,he"},
    "unigram-suffix": {"model_type": "unigram", "treat_whitespace_as_suffix": True, "control_symbols": "<c>"},
    "unigram-folded": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf", "split_by_whitespace": False},
}  # fmt: skip
FILES = ("cluecorpussmall_spm", "test_ja_model", "test_model")


@cache
def pair(name: str) -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
    path = trained(name, **TRAINED[name]) if name in TRAINED else data_set("tokenizer-spm") / f"{name}.model"
    return read_tokenizer(path), sentencepiece.SentencePieceProcessor(model_file=str(path))


@pytest.mark.parametrize("name", [*FILES, *TRAINED])
def test_ids_are_those_of_sentencepiece(name: str):
    ours, theirs = pair(name)
    assert ours.encode_batch(lines()) == theirs.encode(lines())


@pytest.mark.parametrize("name", [*FILES, *TRAINED])
def test_ids_and_text_of_tricky_texts_are_those_of_sentencepiece(name: str):
    ours, theirs = pair(name)
    for text in TRICKY:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        if theirs.unk_id() not in ids:  # which SentencePiece shows as ⁇
            # Where ▁ itself stands in the text, SentencePiece drops more than the one space that it had put there.
            assert ours.decode(ids).lstrip(" ") == theirs.decode(ids).lstrip(" "), text


@pytest.mark.parametrize("name", ["test_model", "unigram", "unigram-words"])
def test_sums_of_long_texts_start_anew_where_those_of_sentencepiece_do(name: str):
    ours, theirs = pair(name)
    text = " ".join(lines())[:300_000]
    assert sum(theirs.get_score(token) for token in theirs.encode(text)) < -200_000  # it starts anew at -100,000
    assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cluecorpussmall_spm", '      "010-84191902,010-84191906,010-84191919"'),
        ("test_ja_model", '      "010-66550888"'),
        ("test_ja_model", '        "message": "10,000,000美元，它的票房怎么样啊？"'),
    ],
)
def test_of_ways_that_are_as_probable_that_of_sentencepiece_is_taken(name: str, text: str):
    """In sums of 64 bits another way comes out, by the last digit."""
    ours, theirs = pair(name)
    assert ours.encode(text) == theirs.encode(text)
    for span, piece in zip(ours.spans(text), theirs.encode(text, out_type=str), strict=True):
        covered = unicodedata.normalize("NFKC", text[span.start : span.end]).strip()
        assert piece == "▁" or covered == piece.strip("▁")


def test_saved_sums_of_32_bits_are_read_again(tmp_path: Path):
    ours, theirs = pair("test_ja_model")
    ours.save(tmp_path)
    again, copied = Tokenizer.load(tmp_path), copy.deepcopy(ours)
    assert again.fingerprint == copied.fingerprint == ours.fingerprint
    for tokenizer in (again, copied):
        assert tokenizer.encode_batch(lines()[6000:7000]) == theirs.encode(lines()[6000:7000])


def test_control_symbols_are_read_when_asked_and_plain_text_otherwise():
    ours, theirs = pair("unigram")
    assert ours.encode("a</s>", parse_special=True)[-1] == theirs.eos_id()
    assert theirs.eos_id() not in ours.encode("a</s>")


@cache
def ranks() -> dict[bytes, int]:
    return tiktoken.load.load_tiktoken_bpe(str(data_set("tokenizer-tiktoken") / "cl100k_base.tiktoken"))


def patterns() -> dict[str, Any]:
    return json.loads((data_set("tokenizer-tiktoken") / "patterns.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "given"), [("cl100k_base", "name"), ("o200k_base", "pattern")])
def test_ids_are_those_of_tiktoken(name: str, given: str):
    pattern = patterns()[name]["pat_str"]
    special = json.loads(patterns()["cl100k_base"]["special_tokens"])
    theirs = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks(), special_tokens=special)
    path = data_set("tokenizer-tiktoken") / "cl100k_base.tiktoken"
    ours = read_tokenizer(path, pattern=name if given == "name" else pattern, special=special)
    texts = [*TRICKY, *lines()]
    assert ours.encode_batch(texts) == theirs.encode_ordinary_batch(texts)
    assert ours.encode("a<|endoftext|>", parse_special=True) == theirs.encode("a<|endoftext|>", allowed_special="all")
    assert [ours.decode(ids) for ids in ours.encode_batch(texts)] == texts


def test_a_file_of_ranks_is_known_by_its_name():
    tokenizer = read_tokenizer(data_set("tokenizer-tiktoken"))
    assert tokenizer.special == json.loads(patterns()["cl100k_base"]["special_tokens"])
    assert tokenizer.vocabulary == 100277
    assert tokenizer.encode("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]


@pytest.mark.parametrize(("name", "lower"), [("uncased", True), ("chinese", True), ("cased", False)])
def test_ids_of_bert_are_those_of_the_library(name: str, lower: bool):
    path = data_set("tokenizer-bert") / f"bert-base-{name}-vocab.txt"
    theirs = tokenizers.BertWordPieceTokenizer(str(path), lowercase=lower)
    texts = [*TRICKY, *lines()]
    expected = [encoding.ids[1:-1] for encoding in theirs.encode_batch(texts)]
    assert read_tokenizer(path).encode_batch(texts) == expected


def test_ids_of_gpt2_are_those_of_the_library():
    folder = data_set("tokenizer-gpt2")
    theirs = tokenizers.ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    ours, texts = read_tokenizer(folder), [*TRICKY, *lines()]
    assert ours.encode_batch(texts) == [encoding.ids for encoding in theirs.encode_batch(texts)]
    assert ours.special == {"<|endoftext|>": 50256}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_whole_corpora_have_the_ids_of_sentencepiece(name: str):
    ours, theirs = pair(name)
    assert ours.encode_batch(lines(10**9)) == theirs.encode(lines(10**9))


@pytest.mark.slow
def test_whole_corpora_have_the_ids_of_tiktoken():
    pattern = patterns()["cl100k_base"]["pat_str"]
    theirs = tiktoken.Encoding("cl100k_base", pat_str=pattern, mergeable_ranks=ranks(), special_tokens={})
    ours = read_tokenizer(data_set("tokenizer-tiktoken"))
    assert ours.encode_batch(lines(10**9)) == theirs.encode_ordinary_batch(lines(10**9))
