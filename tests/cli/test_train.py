"""The commands `train` and `prove-resume`: what a user types and sees."""

import csv
import json
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from glassformer.cli.prove import prove
from glassformer.cli.train import train
from glassformer.errors import CheckpointError, DataError, SpecError
from glassformer.train.data import Dataset
from glassformer.train.history import NAMES
from tiny_runs import tiny_data, tiny_spec

app = typer.Typer()
app.command("train")(train)
app.command("prove-resume")(prove)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run(*arguments: object) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config(dataset: Dataset, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_spec(dataset).model_dump(mode="json")), encoding="utf-8")
    return path


def test_parameters_memory_and_time_are_said_before_the_first_step(dataset: Dataset, config: Path, tmp_path: Path):
    said = run("train", "--config", config, "--data", dataset.folder, "--out", tmp_path / "run", "--dry-run").stderr
    for words in ("embedding", "attention", "feed-forward", "parameters", "memory", "activations", "time", "a step of"):
        assert words in said
    assert not (tmp_path / "run").exists()


def test_a_mixture_of_experts_trains_from_settings_and_says_how_even_it_is(
    dataset: Dataset, config: Path, tmp_path: Path
):
    feedforward = "model.blocks.0.feedforward"
    settings = (f"{feedforward}.kind=experts", f"{feedforward}.experts=4", f"{feedforward}.chosen=2")
    settings += (f"{feedforward}.hidden=8", f"{feedforward}.balance=true", "balance.z_loss=0.001")
    named = [part for setting in settings for part in ("--set", setting)]
    out = tmp_path / "run"
    said = run("train", "--config", config, "--data", dataset.folder, "--out", out, *named).stderr
    assert "fullest expert " in said
    with (out / "log.csv").open(encoding="utf-8") as file:
        loads = [row["load"].split() for row in csv.DictReader(file) if row["load"]]
    assert len(loads) == 20
    assert all(len(load) == 2 and all(1 <= float(part) <= 2 for part in load) for load in loads)
    more = run("train", "--resume", out, "--max-steps", 25).stderr
    assert "step 25  validation loss " in more


def test_a_run_prints_its_losses_and_what_can_be_done_next(dataset: Dataset, config: Path, tmp_path: Path):
    said = run("train", "--config", config, "--data", dataset.folder, "--out", tmp_path / "run").stderr
    assert "step 20  validation loss " in said
    assert "bits per byte" in said
    assert f"glassformer generate {tmp_path / 'run'}" in said
    with (tmp_path / "run" / "log.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == NAMES
    assert [int(row["step"]) for row in rows if row["loss"]] == list(range(1, 21))
    assert float(rows[-1]["validation_loss"]) > 0


def test_flags_and_settings_reach_the_saved_spec(dataset: Dataset, config: Path, tmp_path: Path):
    flags = ["--batch-size", 2, "--learning-rate", "3e-4", "--max-steps", 2, "--seed", 7, "--device", "cpu"]
    more = ["--dtype", "bfloat16", "--no-compile", "--set", "schedule.warmup_steps=5", "--set", "clip=2"]
    run("train", "--config", config, "--data", dataset.folder, "--out", tmp_path / "run", *flags, *more)
    saved = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["train"]
    assert (saved["batch_size"], saved["max_steps"], saved["seed"], saved["clip"]) == (2, 2, 7, 2.0)
    assert (saved["optimizer"]["learning_rate"], saved["schedule"]["warmup_steps"]) == (3e-4, 5)
    assert (saved["device"], saved["dtype"], saved["compile"]) == ("cpu", "bfloat16", False)


def test_the_number_format_is_chosen_once_and_saved(dataset: Dataset, config: Path, tmp_path: Path):
    where = ["--config", config, "--data", dataset.folder, "--out", tmp_path / "run"]
    run("train", *where, "--dtype", "auto", "--max-steps", 1)
    saved = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["train"]
    assert saved["dtype"] in ("float32", "bfloat16")


def test_the_outcome_comes_as_json(dataset: Dataset, config: Path, tmp_path: Path):
    where = ["--config", config, "--data", dataset.folder, "--out", tmp_path / "run"]
    result = run("train", *where, "--json")
    outcome = json.loads(result.stdout)
    assert outcome["done"] is True
    assert outcome["step"] == outcome["best_step"] == 20
    assert outcome["run"] == str(tmp_path / "run")
    assert result.stderr == ""


def test_a_run_resumes_with_more_steps(dataset: Dataset, config: Path, tmp_path: Path):
    where = ["--config", config, "--data", dataset.folder, "--out", tmp_path / "run"]
    run("train", *where, "--max-steps", 3)
    assert isinstance(invoke("train", "--resume", tmp_path / "run").exception, CheckpointError)
    result = run("train", "--resume", tmp_path / "run", "--max-steps", 5, "--json")
    assert json.loads(result.stdout)["step"] == 5


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ([], SpecError, "missing --data (made by `glassformer prepare`)"),
        (["--data", "DATA"], SpecError, "missing --out (the run folder to make)"),
        (["--data", "DATA", "--out", "x"], SpecError, "expected one of --recipe NAME or --config FILE"),
        (["--data", "DATA", "--out", "x", "--recipe", "gtp2"], SpecError, "no recipe 'gtp2'"),
        (["--data", "DATA", "--out", "x", "--config", "nowhere.yaml"], SpecError, "nowhere.yaml: no such config file"),
        (["--data", "nowhere", "--out", "x", "--recipe", "gpt2"], DataError, "nowhere"),
        (
            ["--data", "DATA", "--out", "x", "--recipe", "gpt2", "--dtype", "float8"],
            SpecError,
            "dtype: Input should be",
        ),
        (["--data", "DATA", "--out", "x", "--recipe", "gpt2", "--set", "clip"], SpecError, "path.to.field=value"),
        (["--resume", "nowhere"], CheckpointError, "nowhere: no run to resume: run.json is missing"),
        (["--resume", "r", "--recipe", "gpt2"], SpecError, "--recipe doesn't go with --resume"),
    ],
)
def test_a_mistake_is_named(dataset: Dataset, tmp_path: Path, monkeypatch, arguments, kind, message):
    monkeypatch.chdir(tmp_path)
    arguments = [str(dataset.folder) if word == "DATA" else word for word in arguments]
    result = invoke("train", *arguments)
    assert isinstance(result.exception, kind)
    assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_typo_in_a_config_file_is_named_with_its_path(dataset: Dataset, tmp_path: Path):
    tree = tiny_spec(dataset).model_dump(mode="json")
    tree["model"]["blocks"][0]["attention"]["head"] = 4
    (tmp_path / "typo.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    result = invoke("train", "--config", tmp_path / "typo.yaml", "--data", dataset.folder, "--out", tmp_path / "run")
    assert "model.blocks.0.attention: unknown field 'head'; did you mean 'heads'?" in str(result.exception)


@pytest.mark.slow
def test_resuming_is_proved_on_a_users_config(dataset: Dataset, config: Path):
    result = run("prove-resume", "--config", config, "--data", dataset.folder, "--json")
    proofs = json.loads(result.stdout)
    assert len(proofs) == 3
    assert all(proof["holds"] for proof in proofs)
