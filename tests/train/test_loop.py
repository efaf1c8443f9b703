"""The training loop: what a step is, what a run leaves behind, and how it stops."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from glassformer.checkpoint import load_model, load_tensors
from glassformer.checkpoint.locate import checkpoints
from glassformer.errors import CheckpointError, DataError, DeviceError, SpecError, TrainingError
from glassformer.evaluate import score_windows
from glassformer.train import Trainer, resume_run, start_run
from glassformer.train.data import Dataset, validation_windows
from glassformer.train.history import read_log
from glassformer.train.loop import Progress
from glassformer.train.prove import prove_resume
from tiny_runs import tiny_data, tiny_spec


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return tiny_data(tmp_path_factory.mktemp("data"))


def gradient(trainer: Trainer) -> dict[str, torch.Tensor]:
    """What one step would learn, before clipping and the update."""
    found: dict[str, torch.Tensor] = {}
    trainer.spec = trainer.spec.replace(clip=0)

    def take(factor: float) -> None:
        found.update({name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None})

    trainer.optimizer.step = take  # pyright: ignore[reportAttributeAccessIssue]
    trainer.step()
    return found


@pytest.mark.parametrize("boundaries", [False, True])
def test_eight_rows_give_one_gradient_however_they_are_cut(tmp_path: Path, boundaries: bool):
    data = tiny_data(tmp_path, split_on="\n")  # short documents: with boundaries, targets are ignored unevenly
    results = []
    for micro in (8, 4, 2, 1):
        spec = tiny_spec(data, batch_size=8, micro_batch_size=micro, boundaries=boundaries)
        results.append(gradient(start_run(spec, data, tmp_path / f"run{micro}")))
    for other in results[1:]:
        assert other.keys() == results[0].keys()
        for name, value in other.items():
            assert (value - results[0][name]).abs().max() < 1e-6, name


def test_the_loss_of_a_step_is_the_mean_over_its_tokens(dataset: Dataset, tmp_path: Path):
    trainer = start_run(tiny_spec(dataset), dataset, tmp_path / "run")
    batch = trainer.batches.batch(0)
    from glassformer.model import Step

    logits = trainer.model(batch.tokens, Step.whole(batch.tokens)).double().log_softmax(-1)
    wanted = -logits.gather(-1, batch.targets[..., None]).mean().item()
    result = trainer.step()
    assert result is not None
    assert result[0] == pytest.approx(wanted, abs=1e-5)


def test_training_learns(dataset: Dataset, tmp_path: Path):
    spec = tiny_spec(dataset, max_steps=150, optimizer={"kind": "muon"}, schedule={"kind": "wsd", "warmup_steps": 5})
    state = start_run(spec, dataset, tmp_path / "run").fit()
    losses = [row.loss for row in read_log(tmp_path / "run" / "log.csv") if row.loss is not None]
    assert losses[0] == pytest.approx(torch.tensor(float(dataset.vocabulary)).log().item(), abs=0.3)
    assert state.best_loss is not None
    assert state.best_loss < 2.5


def test_a_run_leaves_a_model_that_loads_with_the_loss_it_says(dataset: Dataset, tmp_path: Path):
    state = start_run(tiny_spec(dataset), dataset, tmp_path / "run").fit()
    loaded = load_model(tmp_path / "run")
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.fingerprint == dataset.meta.tokenizer
    split = dataset.split("validation")
    score = score_windows(loaded.model, validation_windows(split, 16, 7), split.bytes)
    assert score.loss == pytest.approx(state.best_loss, abs=1e-6)
    assert score.tokens == split.tokens - 1
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "run" / "best.json").read_text())["step"] == 20


RESUME_CASES = {
    "AdamW, dropout, accumulation": [
        "embedding.dropout=0.1", "blocks.0.attention.dropout=0.1", "blocks.0.wiring.dropout=0.2",
        "blocks.0.feedforward.dropout=0.1",
    ],
    "plain": [],
}  # fmt: skip


@pytest.mark.parametrize("settings", RESUME_CASES.values(), ids=RESUME_CASES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resuming_is_bit_exact_across_epochs_and_torn_steps(
    dataset: Dataset, tmp_path: Path, settings: list[str], optimizer: str, dtype: str
):
    given = [f"optimizer.kind={optimizer}", f"dtype={dtype}", "batch_size=24", *(f"model.{s}" for s in settings)]
    spec = tiny_spec(dataset, given, micro_batch_size=4)
    trainer = start_run(spec, dataset, tmp_path / "probe")
    assert trainer.batches.batch(20).epoch > 1  # the runs cross an epoch's end
    proofs = prove_resume(spec, dataset, tmp_path)
    assert [proof.stops for proof in proofs] == ["10 + 10", "5 + 5 + 10", "7 and half a step + the rest"]
    assert all(proof.holds for proof in proofs), proofs


def test_the_proof_can_fail(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("glassformer.train.loop._mix", lambda *numbers: time.perf_counter_ns())
    spec = tiny_spec(dataset, ["model.embedding.dropout=0.3"])
    assert not any(proof.holds for proof in prove_resume(spec, dataset, tmp_path))


def test_newest_checkpoints_and_the_best_are_kept(dataset: Dataset, tmp_path: Path):
    spec = tiny_spec(dataset, save_every=2, evaluate_every=4, keep=2, max_steps=20)
    trainer = start_run(spec, dataset, tmp_path / "run")
    losses = iter([3.0, 1.0, 2.0, 2.5, 2.6])  # best at step 8
    real = trainer.evaluate

    def evaluate():
        score = real()
        return type(score)(next(losses), *list(vars(score).values())[1:])

    trainer.evaluate = evaluate  # pyright: ignore[reportAttributeAccessIssue]
    trainer.fit()
    assert list(checkpoints(tmp_path / "run")) == [8, 18, 20]
    assert load_model(tmp_path / "run").folder.name == "step-00000008"
    assert load_model(tmp_path / "run", which="last").folder.name == "step-00000020"


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_batch(dataset: Dataset, tmp_path: Path):
    spec = tiny_spec(dataset, save_every=5, max_steps=20)
    trainer = start_run(spec, dataset, tmp_path / "run")

    def poison(progress: Progress) -> None:
        if progress.step == 7:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(float("nan"))

    trainer.listen = poison
    with pytest.raises(TrainingError, match=r"loss is nan.*step 7, rows 0–3: train tokens from .*--resume"):
        trainer.fit()
    assert list(checkpoints(tmp_path / "run")) == [5]
    assert resume_run(tmp_path / "run").fit().step == 20


def test_the_log_has_no_step_twice_after_a_crash(dataset: Dataset, tmp_path: Path):
    spec = tiny_spec(dataset, save_every=5)
    trainer = start_run(spec, dataset, tmp_path / "run")

    def crash(progress: Progress) -> None:
        if progress.step == 8:
            raise RuntimeError("power cut")

    trainer.listen = crash
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.fit()
    resume_run(tmp_path / "run").fit()
    steps = [row.step for row in read_log(tmp_path / "run" / "log.csv") if row.loss is not None]
    assert steps == list(range(1, 21))


def test_a_path_without_a_run_is_never_a_fresh_start(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"run\.json is missing"):
        resume_run(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_finished_run_says_that_nothing_is_left(dataset: Dataset, tmp_path: Path):
    start_run(tiny_spec(dataset, max_steps=3), dataset, tmp_path / "run").fit()
    with pytest.raises(CheckpointError, match="nothing left to do: the run is at step 3 of 3"):
        resume_run(tmp_path / "run")
    assert resume_run(tmp_path / "run", settings=("max_steps=5",)).fit().step == 5


def test_a_run_never_covers_another(dataset: Dataset, tmp_path: Path):
    start_run(tiny_spec(dataset), dataset, tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"there is a run already.*--resume"):
        start_run(tiny_spec(dataset), dataset, tmp_path / "run")


def test_a_checkpoint_of_another_spec_is_refused(dataset: Dataset, tmp_path: Path):
    start_run(tiny_spec(dataset), dataset, tmp_path / "run").fit(until=2)
    with pytest.raises(CheckpointError, match=r"another spec.*blocks\.0\.feedforward\.hidden was 64, is 32"):
        resume_run(tmp_path / "run", settings=("model.blocks.0.feedforward.hidden=32",))


def test_a_checkpoint_of_another_spec_is_refused_before_anything_is_built(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    start_run(tiny_spec(dataset), dataset, tmp_path / "run").fit(until=2)
    monkeypatch.setattr("glassformer.train.start.Trainer", lambda *parts: pytest.fail("built"))
    with pytest.raises(CheckpointError, match="another spec"):
        resume_run(tmp_path / "run", settings=("model.blocks.0.feedforward.hidden=32",))


def test_two_processes_can_not_train_one_run_and_the_refused_one_touches_nothing(dataset: Dataset, tmp_path: Path):
    start_run(tiny_spec(dataset), dataset, tmp_path / "run").fit(until=3)
    running = resume_run(tmp_path / "run")
    log = (tmp_path / "run" / "log.csv").stat()
    with pytest.raises(CheckpointError, match="another process is training this run"):
        resume_run(tmp_path / "run")
    assert (tmp_path / "run" / "log.csv").stat().st_ino == log.st_ino
    assert running.fit(until=5).step == 5
    assert [row.step for row in read_log(tmp_path / "run" / "log.csv")] == [1, 2, 3, 4, 5]
    assert resume_run(tmp_path / "run").fit(until=6).step == 6


def test_a_folder_that_can_not_be_written_is_refused_before_anything_is_built(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("glassformer.train.start.Trainer", lambda *parts: pytest.fail("built"))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match=r"can't write there"):
        start_run(tiny_spec(dataset), dataset, tmp_path / "file" / "run")


def test_a_truncated_checkpoint_is_refused(dataset: Dataset, tmp_path: Path):
    start_run(tiny_spec(dataset), dataset, tmp_path / "run").fit(until=2)
    weights = tmp_path / "run" / "checkpoints" / "step-00000002" / "optimizer.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors"):
        resume_run(tmp_path / "run")


def test_other_data_than_the_runs_are_refused(dataset: Dataset, tmp_path: Path):
    start_run(tiny_spec(dataset), dataset, tmp_path / "run").fit(until=2)
    other = tiny_data(tmp_path, text="another text altogether, 另一本书 " * 200)
    with pytest.raises(CheckpointError, match="not the data of the run"):
        resume_run(tmp_path / "run", data=other.folder)


def test_data_shorter_than_a_context_say_by_how_much(tmp_path: Path):
    data = tiny_data(tmp_path, text="short, but not empty" * 3)
    with pytest.raises(DataError, match="too few for a context of 4,000"):
        start_run(tiny_spec(data, ["model.context=4000", "model.position.length=4000"]), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optimizer.lerning_rate=1"], "optimizer.*unknown field 'lerning_rate'; did you mean 'learning_rate'"),
        (["batch_size=0"], "batch_size: Input should be greater than or equal to 1, got 0"),
        (["micro_batch_size=3"], r"micro_batch_size \(3\) must divide batch_size \(4\)"),
        (["model.blocks.0.attention.heads=3", "model.blocks.0.attention.kv_heads=3"], r"heads \(3\) must divide width"),
        (["model.blocks.0.attention.heads=3"], r"multiple of kv_heads \(2\): set both together"),
        (["seed=yes"], "seed: expected a number, got true"),
        (["model.blocks.0.attention.heads=true"], "heads: expected a number, got true"),
        (["threads=100000"], "threads: Input should be less than or equal to 1024"),
        (["model.layers=100000000"], r"model.layers \(100000000\) is more than any run has"),
        (["model.blocks=[]"], "model.blocks: expected at least 1, got 0"),
        (["model.context=99"], "longer than the learned positions"),
        (["model.vocabulary=3"], "model.vocabulary is 3, the data have"),
        (["optimizer.learning_rate=.nan"], "learning_rate"),
    ],
)
def test_a_wrong_setting_is_named(dataset: Dataset, settings: list[str], message: str):
    with pytest.raises(SpecError, match=message):
        tiny_spec(dataset, settings)


def test_whole_numbers_are_accepted_where_fractions_are_meant(dataset: Dataset):
    assert tiny_spec(dataset, ["optimizer.learning_rate=1", "clip=1"]).optimizer.learning_rate == 1.0
    assert tiny_spec(dataset, ["optimizer.learning_rate=3e-4"]).optimizer.learning_rate == 3e-4


def test_a_device_that_is_not_there_is_refused(dataset: Dataset, tmp_path: Path):
    for device in ("cuda:7", "meta", "no such"):
        with pytest.raises(DeviceError, match=f"this machine has no device '{device}'"):
            start_run(tiny_spec(dataset, device=device), dataset, tmp_path / "run")


def test_compiling_without_a_compiler_is_refused(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"needs a C\+\+ compiler"):
        start_run(tiny_spec(dataset, compile=True), dataset, tmp_path / "run")
    assert start_run(tiny_spec(dataset, compile="auto"), dataset, tmp_path / "run").spec.compile is False


def test_a_time_limit_ends_a_run_with_its_learning_rate_decayed(dataset: Dataset, tmp_path: Path):
    spec = tiny_spec(dataset, ["schedule.kind=wsd"], max_steps=10**6, max_seconds=1.0)
    spec = spec.replace(schedule={"kind": "wsd", "warmup_steps": 0, "decay": 0.5})
    begun = time.perf_counter()
    state = start_run(spec, dataset, tmp_path / "run").fit()
    assert time.perf_counter() - begun < 30
    rates = [row.learning_rate for row in read_log(tmp_path / "run" / "log.csv") if row.learning_rate is not None]
    assert state.step == len(rates) > 3
    assert rates[0] == 1e-3
    assert rates[-1] < 0.5e-3


def train_command(data: Path, out: Path, *more: str) -> list[str]:
    settings = ["max_steps=100000", "save_every=3", "log_every=1", "model.layers=1", "threads=1"]
    sets = [part for setting in settings for part in ("--set", setting)]
    base = [sys.executable, "-m", "glassformer", "train", "--recipe", "gpt2", "--dtype", "float32"]
    return [*base, "--data", str(data), "--out", str(out), *sets, *more]


def start_process(command: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(path: Path, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not list(path.glob("checkpoints/step-*")):
        assert time.monotonic() < end, "no checkpoint came"
        time.sleep(0.05)


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_a_checkpoint_that_loads(dataset: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    process = start_process(train_command(dataset.folder, run))
    wait_for(run)
    time.sleep(0.35)
    process.kill()
    process.communicate()
    step = max(checkpoints(run))
    assert load_model(run, which="last").folder.name == f"step-{step:08d}"
    trainer = resume_run(run)
    assert trainer.state.step == step
    assert trainer.fit(until=step + 2).step == step + 2


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(dataset: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    process = start_process(train_command(dataset.folder, run))
    wait_for(run)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"glassformer train --resume {run}" in printed
    last = max(checkpoints(run))
    assert read_log(run / "log.csv")[-1].step == last
    assert load_tensors(run / "checkpoints" / f"step-{last:08d}" / "optimizer.safetensors")


def test_a_full_disk_leaves_the_old_checkpoint(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spec = tiny_spec(dataset, save_every=5)
    trainer = start_run(spec, dataset, tmp_path / "run")
    trainer.fit(until=5)
    import glassformer.train.run as room

    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room, "save_tensors", full)
    with pytest.raises(CheckpointError, match="disk is full"):
        trainer.fit(until=10)
    monkeypatch.undo()
    assert list(checkpoints(tmp_path / "run")) == [5]
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000005"]
    assert resume_run(tmp_path / "run").state.step == 5
