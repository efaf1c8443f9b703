"""One trained tokenizer of each kind."""

import pytest

from glassformer.tokenizer import KINDS, Tokenizer, train_tokenizer
from tokenizer_texts import TEXT


@pytest.fixture(scope="session")
def trained() -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(kind, TEXT, None if kind == "char" else 700) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, trained: dict[str, Tokenizer]) -> Tokenizer:
    return trained[request.param]


@pytest.fixture(params=["char", "bpe", "unigram"])
def lossless(request: pytest.FixtureRequest, trained: dict[str, Tokenizer]) -> Tokenizer:
    return trained[request.param]
