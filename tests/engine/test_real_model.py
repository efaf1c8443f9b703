import pytest
import torch
from stories import read_model, read_tokenizer

from data_sets import data_set
from glassformer.engine import Engine, SamplingParams

pytestmark = pytest.mark.real

BEGINNING = [1]
# What llama2.c prints for this model in 200 greedy steps: the expected output of its own tests.
PUBLISHED = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big, red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, let's go to the "
    "park.\" Lily was sad and didn't know what to do. She said, \"I want to play with your ball, but I can't find "
    "it.\"\nLily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\"\nLily "
    "didn't want to help her mom, so she"
)


@pytest.fixture(scope="module")
def stories():
    folder = data_set("stories260k")
    return read_model(folder / "stories260K.bin"), read_tokenizer(folder / "tok512.bin")


def test_a_published_model_writes_its_published_text(stories):
    (completion,) = Engine(*stories).generate([BEGINNING], SamplingParams(max_tokens=200, temperature=0))
    assert completion.text.strip().startswith(PUBLISHED)


@pytest.mark.slow
def test_past_its_context_a_model_writes_as_surely_as_before(stories):
    # Seeing all 1500 tokens, which it never learned, it grows less sure of itself: from -1.26 to -1.62 a token.
    params = SamplingParams(max_tokens=1500, seed=3, ignore_eos=True)
    completions = Engine(*stories).generate([BEGINNING] * 6, params)
    logprobs = torch.tensor([completion.logprobs for completion in completions])
    before, after = float(logprobs[:, :500].mean()), float(logprobs[:, 1000:].mean())
    assert after > before - 0.15
