"""`glassformer describe`, run as a user does."""

import json

import pytest
import typer
from typer.testing import CliRunner

from glassformer.checkpoint import save_model
from glassformer.cli.describe import describe
from glassformer.errors import CheckpointError, SpecError
from glassformer.model.attention import LinearAttentionSpec
from glassformer.model.count import (
    cache_bytes_per_sequence,
    cache_bytes_per_token,
    flops_per_token,
    parameters_by_part,
)
from glassformer.model.embedding import PooledHeadSpec
from glassformer.model.mask import BidirectionalSpec, WindowSpec
from glassformer.model.recipes import gpt2, llama
from seq2seq_models import seq2seq_spec

app = typer.Typer()
app.command()(describe)

SPEC = llama(97, layers=4, width=32, heads=4, kv_heads=2, context=16)


def said(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def model(tmp_path):
    save_model(tmp_path / "small", SPEC.build())
    return tmp_path / "small"


def test_the_json_holds_what_the_spec_costs(model):
    facts = json.loads(said(model, "--json", "--points"))
    assert facts["name"] == "small"
    assert facts["spec"] == json.loads(SPEC.to_json())
    assert facts["parameters"] == parameters_by_part(SPEC)
    assert facts["cache_bytes_per_token"] == {
        "float32": cache_bytes_per_token(SPEC, 4),
        "bfloat16": cache_bytes_per_token(SPEC, 2),
    }
    assert facts["flops_per_token"]["decode"] == flops_per_token(SPEC, 16).decode
    assert facts["layers"] == [{"layers": "0-3", "parameters": 12352, "feedforward_share": 9216 / 12352}]
    assert [point["name"] for point in facts["points"]] == list(SPEC.points())
    pattern = next(point for point in facts["points"] if point["name"] == "blocks.0.pattern")
    assert (pattern["axes"], pattern["sizes"]) == (["B", "H", "T", "S"], ["B", 4, "T", "S"])


def test_states_of_linear_attention_are_said_beside_what_a_token_costs(tmp_path):
    linear = SPEC.blocks[0].replace(attention=LinearAttentionSpec(heads=4))
    spec = SPEC.replace(blocks=(SPEC.blocks[0], linear))
    save_model(tmp_path / "mixed", spec.build())
    facts = json.loads(said(tmp_path / "mixed", "--json"))
    assert facts["cache_bytes_per_sequence"] == dict.fromkeys(
        ("float32", "bfloat16"), cache_bytes_per_sequence(spec, 4)
    )
    page = said(tmp_path / "mixed")
    assert "Cache per token: 256 bytes in float32 or 128 bytes in bfloat16, and 2,304 bytes per sequence" in page
    assert [row["name"] for row in facts["attention_compared"]] == ["MHA", "GQA", "MQA", "MLA"]


def test_the_page_shows_shapes_parts_and_costs(model):
    page = said(model)
    for line in (
        "small  55,648 parameters, 4 layers, context 16",
        "embedding  token  weight [97, 32]  3,104",
        "blocks 0-3  12,352 each, pre",
        "attention  grouped(heads 4, kv_heads 2, position rotary)  3,072",
        "k  D -> K·C  weight [16, 32]  512",
        "head  untied  3,104",
        "Feed-forward's share of a layer's parameters: 74.6 % (layers 0-3)",
        "Cache per token: 512 bytes in float32 or 256 bytes in bfloat16 (a full context: 8 KiB or 4 KiB)",
    ):
        assert line in page
    assert "blocks.[0-3].pattern" not in page
    assert "blocks.[0-3].pattern" in said(model, "--points")


def test_a_spec_file_is_enough_and_unlike_layers_are_told_apart(tmp_path):
    near = SPEC.blocks[0].replace(attention=SPEC.blocks[0].attention.replace(mask=WindowSpec(size=8)))
    spec = SPEC.replace(blocks=(SPEC.blocks[0], near), layers=7)
    (tmp_path / "mine-spec.json").write_text(spec.to_json())
    (tmp_path / "run.yaml").write_text(
        json.dumps({"seed": 1, "model": gpt2(9, layers=1, width=8, heads=2, context=4).model_dump(mode="json")})
    )
    page = said(tmp_path / "mine-spec.json")
    assert "blocks 0, 2, …, 6" in page
    assert "blocks 1, 3, …, 5" in page
    assert "mask window(size 8)" in page
    assert "learned(length 4)" in said(tmp_path / "run.yaml")


def test_windows_and_a_longer_context_are_counted(tmp_path):
    near = SPEC.blocks[0].replace(attention=SPEC.blocks[0].attention.replace(mask=WindowSpec(size=8)))
    spec = SPEC.replace(blocks=(SPEC.blocks[0], near))
    (tmp_path / "m.json").write_text(spec.to_json())
    facts = json.loads(said(tmp_path / "m.json", "--json", "--context", 100))
    per_layer = 2 * 2 * 8 * 4  # keys and values of two heads of 8, in float32
    assert facts["cache"]["windows"] == [{"tokens": 8, "layers": 2}]
    assert facts["cache"]["bytes"]["float32"] == 2 * per_layer * (100 + 8)
    assert facts["flops_per_token"]["decode"] == flops_per_token(spec, 100).decode
    page = said(tmp_path / "m.json", "--context", 100)
    assert "Cache per token: 512 bytes in float32 or 256 bytes in bfloat16 (100 tokens: 27 KiB or 13.5 KiB)" in page
    assert "2 layers keep 8 tokens, and forget those before" in page
    assert "Operations per token at context 100: prefill" in page


def test_the_page_compares_kinds_of_attention_and_marks_the_models_own(model):
    page = said(model)
    assert "With another attention of the same heads and head width" in page
    [own] = [line for line in page.splitlines() if "<- this model" in line]
    assert own.split()[:6] == ["GQA,", "2", "keys", "512", "bytes", "256"]
    compared = json.loads(said(model, "--json"))["attention_compared"]
    assert [row["name"] for row in compared] == ["MHA", "GQA", "MQA", "MLA"]


@pytest.mark.parametrize("kind", ["relative", "sinusoidal"])
def test_models_that_read_a_source_are_described(tmp_path, kind):
    (tmp_path / "m.json").write_text(seq2seq_spec(kind).to_json())
    page = said(tmp_path / "m.json")
    assert "cross-attention" in page
    assert "per token of the source" in page


def test_an_encoder_has_no_cache(tmp_path):
    everything = SPEC.blocks[0].attention.replace(mask=BidirectionalSpec())
    spec = SPEC.replace(blocks=(SPEC.blocks[0].replace(attention=everything),), head=PooledHeadSpec())
    (tmp_path / "m.json").write_text(spec.to_json())
    page = said(tmp_path / "m.json")
    assert "Cache: none, it reads a text as a whole" in page
    assert "decode" not in page


def test_a_context_that_the_positions_do_not_reach_is_refused(tmp_path):
    (tmp_path / "m.json").write_text(gpt2(9, layers=1, width=8, heads=2, context=4).to_json())
    with pytest.raises(SpecError, match="the model knows 4 positions"):
        said(tmp_path / "m.json", "--context", 5)


def test_a_hugging_face_folder_is_described_from_its_config_alone(tmp_path):
    config = {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert json.loads(said(tmp_path, "--json"))["parameters"]["total"] == 124_439_808


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        said(tmp_path / "none")
    (tmp_path / "spec.json").write_text('{"widht": 3}')
    with pytest.raises(SpecError, match="did you mean 'width'"):
        said(tmp_path / "spec.json")
