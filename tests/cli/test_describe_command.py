"""`glassformer describe`, run as a user does."""

import json

import pytest
import typer
from typer.testing import CliRunner

from glassformer.checkpoint import save_model
from glassformer.cli.describe import describe
from glassformer.errors import CheckpointError, SpecError
from glassformer.model import points
from glassformer.model.attention import LinearAttentionSpec
from glassformer.model.count import (
    cache_bytes_per_sequence,
    cache_bytes_per_token,
    flops_per_token,
    parameters_by_part,
)
from glassformer.model.mask import WindowSpec
from glassformer.model.recipes import gpt2, llama

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
    assert [point["name"] for point in facts["points"]] == list(points(SPEC))
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
    assert "Cache per token: 256 bytes in float32 or 128 bytes in bfloat16, and 2,304 bytes per sequence" in said(
        tmp_path / "mixed"
    )


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
