"""`glassformer export`, run as a user does."""

import pytest
import torch
import typer
from typer.testing import CliRunner

from glassformer.checkpoint import load_model, save_model
from glassformer.cli.export import export
from glassformer.errors import CheckpointError
from glassformer.model.recipes import gpt2

app = typer.Typer()
app.command()(export)


def run(*arguments: object):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False, env={"COLUMNS": "200"})


@pytest.fixture
def trained(tmp_path):
    """A run with two checkpoints, the earlier one being the best."""
    for step in (1, 2):
        model = gpt2(97, layers=1, width=16, heads=2, context=8).build()
        save_model(tmp_path / "run" / "checkpoints" / f"step-{step:08}", model)
    (tmp_path / "run" / "best.json").write_text('{"step": 1}')
    return tmp_path / "run"


def test_the_checkpoint_asked_for_is_exported_in_the_format_asked_for(trained, tmp_path):
    for which in ("best", "last"):
        result = run(trained, tmp_path / which, "--which", which, "--dtype", "bfloat16")
        assert result.exit_code == 0
        assert "is now GPT2LMHeadModel in" in result.output
        exported, ours = load_model(tmp_path / which).model, load_model(trained, which=which).model
        assert torch.equal(exported.embedding.weight, ours.embedding.weight.bfloat16().float())


def test_a_family_that_does_not_fit_is_refused_and_nothing_is_written(trained, tmp_path):
    with pytest.raises(CheckpointError, match=r"position\.kind = learned: LlamaForCausalLM has none"):
        run(trained, tmp_path / "out", "--family", "llama")
    assert not (tmp_path / "out").exists()


def test_a_model_is_not_exported_onto_itself(trained, tmp_path):
    run(trained, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(CheckpointError, match="would take the place of the model itself"):
        run(tmp_path / "out", tmp_path / "out", "--dtype", "bfloat16")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_the_help_has_an_example_and_names_the_families():
    text = run("--help").output
    assert "glassformer export runs/first" in text
    assert "gpt2, llama" in text
