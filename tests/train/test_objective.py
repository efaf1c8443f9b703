"""Objectives against the losses of transformers, on the same weights; and small tasks that they teach."""

import pytest
import torch
import transformers
from torch import nn

from decoders import build
from glassformer.checkpoint import load_model
from glassformer.model import Step
from glassformer.model.attention import GroupedAttentionSpec
from glassformer.model.block import BlockSpec
from glassformer.model.embedding import ClassifierHeadSpec, SpanHeadSpec, TiedHeadSpec
from glassformer.model.feedforward import GatedSpec
from glassformer.model.mask import BidirectionalSpec
from glassformer.model.position import RotarySpec
from glassformer.model.transformer import NormalInitSpec, TransformerSpec
from glassformer.train.data import IGNORED
from glassformer.train.objective import classify, corrupt, masked, seq2seq, span
from seq2seq_models import seq2seq_spec

BERT = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
        "max_position_embeddings": 32}  # fmt: skip
T5 = {"vocab_size": 50, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 0, "pad_token_id": 0}  # fmt: skip


def both(kind, config, folder):
    """A model of theirs with random weights, and the same as ours."""
    torch.manual_seed(0)
    theirs = kind(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    theirs.save_pretrained(folder)
    return theirs, load_model(folder).model


def some(high, *shape, low=0, seed=1):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_masked_is_the_loss_of_a_masked_language_model(tmp_path):
    theirs, ours = both(transformers.BertForMaskedLM, transformers.BertConfig(**BERT), tmp_path)
    tokens, targets = some(50, 3, 11), some(50, 3, 11, seed=2)
    targets[:, ::3] = IGNORED
    expected = theirs(tokens, labels=targets).loss
    torch.testing.assert_close(masked(ours, tokens, targets) / (targets != IGNORED).sum(), expected)


@torch.no_grad()
def test_seq2seq_is_the_loss_of_an_encoder_decoder_with_padding_on_both_sides(tmp_path):
    theirs, ours = both(transformers.T5ForConditionalGeneration, transformers.T5Config(**T5), tmp_path)
    source, targets = some(50, 3, 9, low=1), some(50, 3, 7, low=1, seed=2)
    real = torch.arange(9) < torch.tensor([[9], [4], [6]])
    targets[1, 5:] = IGNORED
    expected = theirs(source, attention_mask=real.long(), labels=targets).loss
    loss = seq2seq(ours, source, targets, Step.padded(source, real))
    torch.testing.assert_close(loss / (targets != IGNORED).sum(), expected)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "labels"),
    [("SequenceClassification", some(3, 4)), ("TokenClassification", some(3, 4, 11))],
)
def test_classify_is_the_loss_of_a_classifier(kind, labels, tmp_path):
    config = transformers.BertConfig(**BERT, num_labels=3)
    theirs, ours = both(getattr(transformers, f"BertFor{kind}"), config, tmp_path)
    tokens = some(50, 4, 11)
    torch.testing.assert_close(classify(ours, tokens, labels) / labels.numel(), theirs(tokens, labels=labels).loss)


@torch.no_grad()
def test_span_is_the_loss_of_question_answering(tmp_path):
    theirs, ours = both(transformers.BertForQuestionAnswering, transformers.BertConfig(**BERT), tmp_path)
    tokens, places = some(50, 4, 11), some(11, 4, 2)
    expected = theirs(tokens, start_positions=places[:, 0], end_positions=places[:, 1]).loss
    torch.testing.assert_close(span(ours, tokens, places) / 8, expected)


def test_corruption_hides_the_shares_of_the_paper_and_never_a_special_token():
    tokens, special, mask = some(1000, 400, 500, low=3), torch.tensor([0, 1, 2]), 1000
    tokens[:, 0], tokens[:, -1] = 1, 2
    hidden, targets = corrupt(tokens, special, mask, 1000, generator=torch.Generator().manual_seed(0))
    chosen = targets != IGNORED
    assert not chosen[:, [0, -1]].any()
    assert torch.equal(targets[chosen], tokens[chosen])
    assert torch.equal(hidden[~chosen], tokens[~chosen])
    assert float(chosen[:, 1:-1].float().mean()) == pytest.approx(0.15, abs=0.003)
    assert float((hidden[chosen] == mask).float().mean()) == pytest.approx(0.8, abs=0.01)
    assert float((hidden[chosen] == tokens[chosen]).float().mean()) == pytest.approx(0.1, abs=0.01)
    again = corrupt(tokens, special, mask, 1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again[0], hidden)


def encoder(head, vocabulary=24):
    attention = GroupedAttentionSpec(heads=4, kv_heads=4, position=RotarySpec(), mask=BidirectionalSpec())
    block = BlockSpec(attention=attention, feedforward=GatedSpec(hidden=48))
    return build(
        TransformerSpec(
            vocabulary=vocabulary, width=32, context=24, layers=2, blocks=(block,), head=head,
            init=NormalInitSpec(std=0.1),
        )
    ).train()  # fmt: skip


def taught(model: nn.Module, loss, steps=250):
    """The model after some steps on `loss(step)`, a mean."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
    return model.eval()


def test_an_encoder_learns_to_fill_what_only_both_sides_tell():
    """Of a b c with b = a + c a token in the middle is known from its two neighbours alone."""

    def batch(seed):
        first, last = some(10, 64, seed=2 * seed), some(10, 64, seed=2 * seed + 1)
        return torch.stack((first, first + last, last), dim=1)

    def loss(step):
        tokens = batch(step)
        hidden, targets = tokens.clone(), torch.full_like(tokens, IGNORED)
        hidden[:, 1], targets[:, 1] = 20, tokens[:, 1]
        return masked(model, hidden, targets) / 64

    model = encoder(TiedHeadSpec(bias=True))
    taught(model, loss)
    tokens = batch(10**6)
    hidden = tokens.clone()
    hidden[:, 1] = 20
    with torch.no_grad():
        guessed = model(hidden, Step.whole(hidden))[:, 1].argmax(-1)
    assert (guessed == tokens[:, 1]).float().mean() > 0.9


def test_an_encoder_decoder_learns_to_write_a_source_backwards():
    model = build(seq2seq_spec("sinusoidal", vocabulary=12)).train()

    def loss(step):
        source = some(12, 64, 5, low=2, seed=step)
        return seq2seq(model, source, source.flip(1)) / source.numel()

    taught(model, loss, steps=400)
    source = some(12, 64, 5, low=2, seed=10**6)
    with torch.no_grad():
        memory, written = model.encode(source, Step.whole(source)), torch.zeros(64, 1, dtype=torch.long)
        for _ in range(5):
            written = torch.cat((written, model(written, Step.whole(written, memory=memory))[:, -1:].argmax(-1)), dim=1)
    assert (written[:, 1:] == source.flip(1)).float().mean() > 0.95


def test_a_classifier_and_a_span_head_learn():
    """Whether token 7 stands in the text, and from where to where tokens above 19 do."""

    def sign(step):
        tokens = some(10, 64, 6, seed=step)
        return classify(classifier, tokens, (tokens == 7).any(1).long()) / 64

    classifier = encoder(ClassifierHeadSpec(labels=("no", "yes"), pooling="mean"))
    taught(classifier, sign)
    tokens = some(10, 200, 6, seed=10**6)
    with torch.no_grad():
        right = classifier(tokens, Step.whole(tokens)).argmax(-1) == (tokens == 7).any(1)
    assert right.float().mean() > 0.95

    def text(seed):
        tokens, start, length = some(10, 64, 10, seed=seed), some(8, 64, seed=seed + 1), some(3, 64, seed=seed + 2)
        places = torch.stack((start, start + length.clamp_max(1)), dim=1)
        within = (torch.arange(10) >= places[:, :1]) & (torch.arange(10) <= places[:, 1:])
        return torch.where(within, tokens + 14, tokens), places

    def mark(step):
        tokens, places = text(3 * step)
        return span(reader, tokens, places) / 128

    reader = encoder(SpanHeadSpec())
    taught(reader, mark)
    tokens, places = text(10**6)
    with torch.no_grad():
        assert (reader(tokens, Step.whole(tokens)).argmax(1) == places).float().mean() > 0.95
