"""Published vectors: ids that the tokenizers' own projects give for given texts."""

import json
from pathlib import Path

import pytest

from data_sets import data_set
from glassformer.checkpoint import load_tokenizer
from glassformer.tokenizer import Tokenizer, read_tokenizer

pytestmark = pytest.mark.real
FILES = {
    "Xenova__gpt2": ("tokenizer-gpt2", "", 26),
    "Xenova__bert-base-uncased": ("tokenizer-bert", "bert-base-uncased-vocab.txt", 30),
    "Xenova__bge-base-zh-v1.5": ("tokenizer-bert", "bert-base-chinese-vocab.txt", 7),
}
TIDIED = {" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m", " 's": "'s"}
TIDIED |= {" 've": "'ve", " 're": "'re"}


def tidied(text: str) -> str:
    """What decoding in transformers did to spaces before punctuation when these vectors were written."""
    for apart, joined in TIDIED.items():
        text = text.replace(apart, joined)
    return text


@pytest.mark.parametrize("name", FILES)
def test_ids_tokens_and_text_are_those_of_the_golden_file(name: str):
    folder, file, count = FILES[name]
    tokenizer = read_tokenizer(data_set(folder) / file)
    cases = json.loads((data_set("golden-hf-tokenization") / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    assert len(cases) == count
    for case in cases.values():
        texts = [case["text"], case["text_pair"]] if "text_pair" in case else [case["text"]]
        assert tokenizer.frame(*texts, parse_special=True).tokens == case["ids"]
        ids = [token for text in texts for token in tokenizer.encode(text, parse_special=True)]
        assert names_of(tokenizer, ids) == case["tokens"]
        assert tidied(tokenizer.decode(case["ids"])) == case["decoded"]


def names_of(tokenizer: Tokenizer, ids: list[int]) -> list[str | None]:
    return [tokenizer.name(token) for token in ids]


def test_a_pair_of_bert_has_types():
    tokenizer = read_tokenizer(data_set("tokenizer-bert") / "bert-base-uncased-vocab.txt")
    assert tokenizer.frame("hello", "world").tokens == [101, 7592, 102, 2088, 102]
    assert tokenizer.frame("hello", "world").types == [0, 0, 0, 1, 1]
    assert tokenizer.frame("hello world", "world", limit=5).tokens == [101, 7592, 102, 2088, 102]
    assert tokenizer.frame("hello world", limit=3).tokens == [101, 7592, 102]


@pytest.mark.parametrize(("name", "kind"), [("gpt-2", "bpe"), ("bert-bge", "wordpiece"), ("phi-3", "other")])
def test_a_gguf_vocabulary_gives_the_ids_of_its_vectors(name: str, kind: str):
    path = data_set("llamacpp-vocab") / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{path}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    expected = Path(f"{path}.out").read_text(encoding="utf-8").split("\n")
    tokenizer = load_tokenizer(path)
    assert tokenizer.kind == kind
    assert len(texts) == len(expected) == 47
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text) == [int(token) for token in ids.split()], text
