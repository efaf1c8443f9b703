"""Vectors of texts and words for gaps, beside transformers and sentence-transformers on the same small models."""

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizerFast, pipeline

from decoders import build, decoder_spec
from glassformer.checkpoint import load_model
from glassformer.engine.encode import embed, fill
from glassformer.errors import RequestError
from glassformer.model import Step
from glassformer.model.position import RotarySpec
from glassformer.tokenizer import train_tokenizer
from seq2seq_models import seq2seq_spec

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz",
    *"今天气真好，。",
    "the",
    "##s",
    "fox",
]
TEXTS = ["the fox", "a b c the foxs today", "今天天气真好，", "z", "fox the fox the fox a b c d e f g h"]


def save(kind, folder, **config):
    """A small model of theirs with its tokenizer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    model = kind(BertConfig(vocab_size=len(WORDS), max_position_embeddings=20, **sizes, **config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    tokenizer = BertTokenizerFast(vocab={word: index for index, word in enumerate(WORDS)}, do_lower_case=True)
    model.save_pretrained(folder / "m")
    tokenizer.save_pretrained(folder / "m")
    return model, tokenizer, load_model(folder / "m")


@pytest.mark.parametrize("text", ["the [MASK] today", "[MASK]天[MASK]气真好，", "a [MASK] c"])
def test_gaps_are_filled_as_their_pipeline_fills_them(text, tmp_path):
    theirs, tokenizer, ours = save(BertForMaskedLM, tmp_path)
    expected = pipeline("fill-mask", model=theirs, tokenizer=tokenizer, top_k=4)(text)
    expected = expected if isinstance(expected[0], list) else [expected]
    tokens, gaps = fill(ours.model, ours.tokenizer, text, top=4)
    assert tokens == tokenizer(text)["input_ids"]
    assert [[token for token, _ in gap.candidates] for gap in gaps] == [
        [one["token"] for one in row] for row in expected
    ]
    for gap, row in zip(gaps, expected, strict=True):
        assert [p for _, p in gap.candidates] == pytest.approx([one["score"] for one in row], abs=1e-5)


def test_a_text_without_a_gap_and_a_model_that_fills_none_are_refused(tmp_path):
    _, _, ours = save(BertForMaskedLM, tmp_path)
    with pytest.raises(RequestError, match=r"has no gap: expected \[MASK\]"):
        fill(ours.model, ours.tokenizer, "the fox")
    with pytest.raises(RequestError, match=r"has 42 tokens.*holds 20.*leave out at least 22"):
        fill(ours.model, ours.tokenizer, "[MASK] " * 40)
    with pytest.raises(RequestError, match="doesn't fill gaps"):
        fill(build(decoder_spec(RotarySpec())), ours.tokenizer, "[MASK]")
    with pytest.raises(RequestError, match="has no token for a gap"):
        fill(ours.model, train_tokenizer("char", ["abc"]), "[MASK]")


@pytest.mark.parametrize("batch_size", [1, 2, 32])
@pytest.mark.parametrize("pooling", [None, "mean", "max"])
def test_vectors_of_a_plain_encoder_are_means_whatever_stands_beside_a_text(pooling, batch_size, tmp_path):
    theirs, tokenizer, ours = save(BertModel, tmp_path)
    vectors = embed(ours.model, ours.tokenizer, TEXTS, pooling, batch_size=batch_size)
    with torch.no_grad():
        last = [theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    expected = torch.stack([states.amax(0) if pooling == "max" else states.mean(0) for states in last])
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)


def test_the_head_of_a_plain_encoder_is_their_pooler(tmp_path):
    theirs, _, ours = save(BertModel, tmp_path)
    tokens = torch.tensor([[2, 5, 9, 3]])
    with torch.no_grad():
        expected = theirs(tokens).pooler_output
        torch.testing.assert_close(ours.model(tokens, Step.whole(tokens)), expected, atol=1e-5, rtol=0)


def test_an_encoder_without_a_pooler_is_one_too(tmp_path):
    _, tokenizer, _ = save(BertModel, tmp_path / "with")
    theirs = BertModel.from_pretrained(tmp_path / "with" / "m", add_pooling_layer=False).eval()
    theirs.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    ours = load_model(tmp_path / "m")
    with torch.no_grad():
        expected = theirs(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state.mean(1)
    torch.testing.assert_close(embed(ours.model, ours.tokenizer, TEXTS[:1]), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalise", [False, True])
def test_vectors_are_those_of_sentence_transformers_and_come_back_after_an_export(pooling, normalise, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    from glassformer.checkpoint.export import export_folder

    save(BertModel, tmp_path)
    encoder = Transformer(str(tmp_path / "m"), max_seq_length=9)
    steps = [encoder, Pooling(24, pooling_mode=pooling), *([Normalize()] if normalise else [])]
    theirs = SentenceTransformer(modules=steps, device="cpu")
    theirs.save(str(tmp_path / "st"))
    ours = load_model(tmp_path / "st")
    assert ours.spec.context == 9
    vectors = embed(ours.model, ours.tokenizer, TEXTS)
    torch.testing.assert_close(vectors, torch.tensor(theirs.encode(TEXTS)), atol=1e-5, rtol=0)
    export_folder(ours.model, ours.tokenizer, tmp_path / "back")
    back = SentenceTransformer(str(tmp_path / "back"), device="cpu")
    torch.testing.assert_close(vectors, torch.tensor(back.encode(TEXTS)), atol=1e-5, rtol=0)
    longest = embed(ours.model, ours.tokenizer, TEXTS, "max")
    assert not torch.equal(longest, vectors) or pooling == "max"
    assert torch.allclose(longest.norm(dim=1), torch.ones(len(TEXTS))) == normalise


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_any_model_gives_vectors_and_padding_is_not_in_them(kind):
    tokenizer = train_tokenizer("char", TEXTS)
    spec = decoder_spec(RotarySpec(), vocabulary=tokenizer.vocabulary)
    model = build(spec if kind == "decoder" else seq2seq_spec("relative", tokenizer.vocabulary))
    together = embed(model, tokenizer, TEXTS)
    alone = torch.cat([embed(model, tokenizer, [text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    assert (embed(model, tokenizer, TEXTS, "last") - together).abs().max() > 0.01
    with pytest.raises(RequestError, match="without a single token"):
        embed(model, tokenizer, ["a", ""])
