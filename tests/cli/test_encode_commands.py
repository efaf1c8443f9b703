"""`fill`, `embed` and `generate` with an encoder: small models of transformers, through the command line."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast, T5Config, T5ForConditionalGeneration
from typer.testing import CliRunner

from glassformer.cli.app import build_app
from glassformer.errors import GlassformerError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg今天气真好", "the", "fox"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An encoder and an encoder-decoder, each with the same tokenizer."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = BertTokenizerFast(vocab={word: index for index, word in enumerate(WORDS)})
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    bert = BertForMaskedLM(BertConfig(vocab_size=len(WORDS), max_position_embeddings=20, **sizes))
    t5 = T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(WORDS), d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0
        )
    )
    for name, model in (("bert", bert), ("t5", t5)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


def run(*arguments, given=None):
    result = CliRunner().invoke(build_app(), [str(argument) for argument in arguments], input=given)
    if isinstance(result.exception, GlassformerError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_fill_shows_candidates_and_the_whole_text(folders):
    shown = run("fill", folders / "bert", "the [MASK] 今[MASK]", "--top", 3)
    assert "gap 1" in shown
    assert "gap 2" in shown
    assert shown.count("%") == 6
    found = json.loads(run("fill", folders / "bert", "-", "--json", given="the [MASK]"))
    assert len(found["gaps"]) == 1
    best = found["gaps"][0]
    assert [one["probability"] for one in best] == sorted((one["probability"] for one in best), reverse=True)
    assert best[0]["text"] in found["text"]


def test_embed_writes_vectors_and_shows_how_alike_texts_are(folders, tmp_path):
    lines = "the fox\n\n今天\nthe fox\n"
    run("embed", folders / "bert", "--file", "-", "--out", tmp_path / "v.npy", given=lines)
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.shape == (3, 24)
    assert vectors.dtype == np.float32
    assert np.allclose(vectors[0], vectors[2], atol=1e-6)
    rows = [json.loads(line) for line in run("embed", folders / "bert", "the fox", "今天", "--json").splitlines()]
    assert [row["text"] for row in rows] == ["the fox", "今天"]
    assert np.allclose(rows[1]["vector"], vectors[1], atol=1e-5)
    shown = run("embed", folders / "bert", "the fox", "今天")
    assert "2 vectors of 24 components" in shown
    assert "1.000" in shown


def test_mistakes_are_said_in_one_line(folders, tmp_path):
    with pytest.raises(GlassformerError, match="has no gap"):
        run("fill", folders / "bert", "the fox")
    with pytest.raises(GlassformerError, match="doesn't fill gaps"):
        run("fill", folders / "t5", "the [MASK]")
    with pytest.raises(GlassformerError, match=r"ends in \.npy"):
        run("embed", folders / "bert", "the fox", "--out", tmp_path / "v.txt")
    with pytest.raises(GlassformerError, match=r"ends in \.npy"):
        run("embed", folders / "bert", "the fox", "--out", "")
    with pytest.raises(GlassformerError, match="found a device"):
        run("embed", folders / "bert", "--file", "/dev/full")
    odd = ("--stop", "a", "--num-samples", 3, "--show-probabilities", 2)
    with pytest.raises(GlassformerError, match=r"can't heed --stop, --show-probabilities, --num-samples"):
        run("generate", folders / "t5", "the fox", "--beams", 3, *odd)
    with pytest.raises(GlassformerError, match="there are no texts"):
        run("embed", folders / "bert", given="\n \n")
    with pytest.raises(GlassformerError, match="reads texts and writes none"):
        run("generate", folders / "bert", "the fox")
    (tmp_path / "text.txt").write_text("the fox")
    for kind in ("bert", "t5"):
        with pytest.raises(GlassformerError, match="only a model that continues texts"):
            run("eval", folders / kind, "--text", tmp_path / "text.txt")


def test_an_encoder_decoder_answers_a_text_and_beams_find_no_worse_answers(folders):
    greedy = ("generate", folders / "t5", "the fox", "--max-tokens", 6, "--temperature", 0)
    assert "the fox" not in run(*greedy).split("\n")[0][:7]
    plain = json.loads(run(*greedy, "--json"))
    found = json.loads(run("generate", folders / "t5", "the fox", "--max-tokens", 6, "--beams", 5, "--json"))["beams"]
    assert len(found) == 5
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    one = json.loads(run("generate", folders / "t5", "the fox", "--max-tokens", 6, "--beams", 1, "--json"))["beams"]
    assert one[0]["tokens"] == plain["tokens"]
    assert found[0]["score"] >= one[0]["score"] - 1e-9
    assert (
        run("generate", folders / "t5", "the fox", "--max-tokens", 6, "--beams", 5).strip() == found[0]["text"].strip()
    )


def test_a_text_that_is_cut_is_told(folders):
    result = CliRunner().invoke(build_app(), ["embed", str(folders / "bert"), "the fox " * 30, "the", "--json"])
    assert result.exit_code == 0
    assert "1 of 2 texts are longer than 20 tokens, the longest has 62" in result.stderr


@pytest.mark.parametrize(
    ("model", "change", "said"),
    [
        ("t5", {"decoder_start_token_id": 10**12}, "is no token of"),
        ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder = False is not supported"),
        ("bert", {"type_vocab_size": 0}, "token_type_embeddings"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(folders, tmp_path, model, change, said):
    broken = tmp_path / "m"
    shutil.copytree(folders / model, broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(GlassformerError, match=said):
        run("embed", broken, "the fox")


def test_describe_looks_at_the_weights_that_lie_beside_a_config(folders, tmp_path):
    broken = tmp_path / "m"
    shutil.copytree(folders / "bert", broken)
    (broken / "model.safetensors").write_bytes(b"")
    with pytest.raises(GlassformerError, match="safetensors"):
        run("describe", broken)
    (broken / "model.safetensors").unlink()
    assert "parameters" in run("describe", broken)
    with pytest.raises(GlassformerError, match="at contexts that can be"):
        run("describe", broken, "--context", 10**23)
