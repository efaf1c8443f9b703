"""Scores against a loop that predicts one token at a time in float64, and against transformers' own loss."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from checkpoint.small_models import random_model, small_gpt2, small_llama
from glassformer.errors import DataError
from glassformer.evaluate import Rows, Score, score_text, score_windows, text_windows
from glassformer.evaluate.score import IGNORED
from glassformer.model import Step, Transformer
from glassformer.tokenizer import train_tokenizer
from glassformer.train.data import validation_windows
from token_splits import write_split

TEXT = "今天天气真好。 The weather is fine today, naïve or not 🙂.\n" * 7


def one_by_one(model: Transformer, tokens: list[int], context: int, stride: int | None = None) -> float:
    """Nats of every token after the first, each from a pass of its own in float64 over what its window shows."""
    stride, nats, done = stride or context, 0.0, 0
    for start in range(0, len(tokens), stride):
        for place in range(max(done, start) + 1, min(start + context, len(tokens) - 1) + 1):
            seen = torch.tensor([tokens[start:place]])
            with torch.no_grad():
                logits = model(seen, Step.whole(seen))[0, -1].double()
            nats -= logits.log_softmax(-1)[tokens[place]].item()
            done = place
    assert done == len(tokens) - 1
    return nats


def ids(count: int, vocabulary: int = 97) -> list[int]:
    return np.random.default_rng(count).integers(0, vocabulary, count).tolist()


@pytest.fixture(scope="module", params=[small_gpt2, small_llama])
def model(request) -> Transformer:
    return random_model(request.param()).double()


@pytest.mark.parametrize("count", [2, 24, 25, 26, 100])
@pytest.mark.parametrize("stride", [None, 7, 1])
def test_the_loss_is_that_of_predicting_each_token_alone(model: Transformer, count: int, stride: int | None):
    tokens = ids(count)
    score = score_windows(model, text_windows(tokens, 24, 3, stride), bytes=count)
    nats = one_by_one(model, tokens, 24, stride)
    assert score.tokens == count - 1
    assert score.loss == pytest.approx(nats / (count - 1), rel=1e-6)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / count, rel=1e-6)
    assert score.perplexity == pytest.approx(math.exp(nats / (count - 1)), rel=1e-5)


@pytest.mark.parametrize(("context", "stride"), [(8, None), (8, 8), (8, 3), (8, 1), (5, 4)])
@pytest.mark.parametrize("count", range(1, 30))
def test_windows_predict_every_token_but_the_first_once(count: int, context: int, stride: int | None):
    text = list(range(100, 100 + count))
    predicted: list[int] = []
    for window in text_windows(text, context, 2, stride):
        assert window.tokens.shape == window.targets.shape
        assert window.tokens.shape[1] == context
        places = window.targets != IGNORED
        assert torch.equal(window.tokens[places] + 1, window.targets[places])
        predicted += window.targets[places].tolist()
    assert predicted == text[1:]


def test_a_stride_lets_every_prediction_see_at_least_the_rest_of_a_context():
    for number, row in enumerate(row for window in text_windows(range(50), 10, 4, 3) for row in window.targets):
        first_predicted = int((row != IGNORED).nonzero()[0])
        assert first_predicted == (0 if number == 0 else 7)


def test_prepared_data_and_its_text_get_the_same_score(tmp_path):
    tokens = ids(130)
    model = random_model(small_llama())
    split = write_split(tmp_path, tokens, shard_tokens=50)
    prepared = score_windows(model, validation_windows(split, 24, 4), bytes=130)
    assert prepared.loss == score_windows(model, text_windows(tokens, 24, 4), bytes=130).loss


def test_documents_in_one_row_are_scored_as_if_they_were_alone(tmp_path):
    tokens, starts = ids(60), [0, 11, 31, 45]
    model = random_model(small_llama(context=60))
    split = write_split(tmp_path, tokens, starts)
    together = score_windows(model, validation_windows(split, 60, 1, boundaries=True), bytes=60)
    documents = [tokens[a:b] for a, b in zip(starts, [*starts[1:], 60], strict=True)]
    alone = [score_windows(model, text_windows(document, 60, 1), bytes=1) for document in documents]
    assert together.tokens == sum(score.tokens for score in alone) == 56
    assert together.loss * 56 == pytest.approx(sum(score.loss * score.tokens for score in alone), rel=1e-6)


@pytest.mark.parametrize("spec", [small_gpt2, small_llama])
def test_the_loss_is_that_of_transformers_on_the_exported_model(spec, tmp_path):
    from transformers import AutoModelForCausalLM

    from glassformer.checkpoint.export import export_folder

    model = random_model(spec())
    export_folder(model, None, tmp_path / "exported")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    tokens = torch.tensor([ids(24)])
    with torch.no_grad():
        loss = theirs(tokens, labels=tokens).loss.item()
    assert score_windows(model, text_windows(tokens[0].tolist(), 24, 1), bytes=24).loss == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_bits_per_byte_are_of_all_bytes_after_the_first_token(kind: str):
    tokenizer = train_tokenizer(kind, [TEXT], None if kind == "char" else 300)
    model = random_model(small_llama(vocabulary=tokenizer.vocabulary))
    tokens = tokenizer.encode(TEXT)
    score = score_text(model, tokenizer, TEXT, batch_size=4)
    assert score.tokens == len(tokens) - 1
    assert score.bytes == len(tokenizer.decode(tokens[1:]).encode())
    assert score.bits_per_byte == pytest.approx(score.loss * score.tokens / score.bytes / math.log(2))


def test_a_model_of_equal_scores_pays_the_logarithm_of_its_vocabulary():
    tokenizer = train_tokenizer("char", [TEXT])
    model = random_model(small_llama(vocabulary=tokenizer.vocabulary, tied=True))
    torch.nn.init.zeros_(model.embedding.weight)
    score = score_text(model, tokenizer, TEXT)
    assert score.loss == pytest.approx(math.log(tokenizer.vocabulary), rel=1e-6)
    assert score.perplexity == pytest.approx(tokenizer.vocabulary, rel=1e-5)


def test_dropout_is_off_meanwhile_and_on_again_after():
    model = random_model(small_gpt2(dropout=0.5)).train()
    model.blocks[0].eval()
    windows = list(text_windows(ids(100), 24, 2))
    losses = {score_windows(model, windows, bytes=100).loss for _ in range(3)}
    assert len(losses) == 1
    assert model.training
    assert model.blocks[1].training
    assert not model.blocks[0].training


def test_a_failing_window_leaves_the_model_training():
    def windows():
        yield from text_windows(ids(30), 24, 2)
        raise RuntimeError("the disk is gone")

    model = random_model(small_gpt2()).train()
    with pytest.raises(RuntimeError, match="gone"):
        score_windows(model, windows(), bytes=30)
    assert model.training


def test_training_goes_on_after_scoring():
    model = random_model(small_llama()).train()
    score_windows(model, text_windows(ids(30), 24, 2), bytes=30)
    tokens = torch.tensor([ids(24)])
    model(tokens, Step.whole(tokens)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_half_precision_comes_close_and_is_really_used():
    model = random_model(small_llama())
    windows = list(text_windows(ids(200), 24, 4))
    exact = score_windows(model, windows, bytes=200)
    half = score_windows(model, windows, bytes=200, dtype=torch.bfloat16)
    assert half.loss == pytest.approx(exact.loss, rel=0.02)
    assert half.loss != exact.loss


def test_scores_of_a_large_vocabulary_come_in_parts(monkeypatch):
    model = random_model(small_llama())
    windows = list(text_windows(ids(200), 24, 4))
    whole = score_windows(model, windows, bytes=200)
    sizes: list[Tensor] = []
    model.head.register_forward_hook(lambda _module, _inputs, logits: sizes.append(logits.shape[1]))
    monkeypatch.setattr("glassformer.evaluate.score.LOGITS_AT_ONCE", 97 * 10)
    assert score_windows(model, windows, bytes=200).loss == pytest.approx(whole.loss, rel=1e-6)
    assert max(sizes) == 10


def test_progress_counts_predicted_tokens():
    told: list[int] = []
    score_windows(random_model(small_llama()), text_windows(ids(60), 24, 1), bytes=60, on_progress=told.append)
    assert told == [24, 48, 59]


@pytest.mark.parametrize("tokens", [[], [5]])
def test_a_text_without_a_second_token_is_refused(tokens: list[int]):
    with pytest.raises(DataError, match="nothing to predict"):
        score_windows(random_model(small_llama()), text_windows(tokens, 24, 1), bytes=len(tokens))


def test_a_model_that_is_not_a_number_is_refused():
    model = random_model(small_llama())
    torch.nn.init.constant_(model.norm.weight, torch.nan)
    with pytest.raises(DataError, match="not a number"):
        score_windows(model, text_windows(ids(30), 24, 1), bytes=30)


def test_a_hopeless_model_has_a_perplexity_without_bound():
    assert Score.of(nats=8000.0, tokens=10, bytes=10, seconds=1.0).perplexity == math.inf


def test_rows_may_bring_positions_of_their_own():
    model = random_model(small_gpt2())
    tokens = torch.tensor([ids(12)])
    positions = torch.arange(5, 17)[None]
    score = score_windows(model, [Rows(tokens[:, :-1], tokens[:, 1:], positions[:, :-1])], bytes=12)
    with torch.no_grad():
        logits = model(tokens[:, :-1], Step(positions[:, :-1]))[0].double()
    nats = -logits.log_softmax(-1).gather(1, tokens[0, 1:, None]).sum().item()
    assert score.loss * 11 == pytest.approx(nats, rel=1e-6)
