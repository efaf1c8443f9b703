"""The command `eval`: what a user types and sees."""

import json
import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from checkpoint.small_models import random_model, small_llama
from glassformer.checkpoint import save_model
from glassformer.cli.app import build_app
from glassformer.errors import CheckpointError, DataError, DeviceError
from glassformer.evaluate import score_text
from glassformer.model import Transformer
from glassformer.tokenizer import Tokenizer, train_tokenizer
from glassformer.train import start_run
from glassformer.train.data import Dataset, PrepareOptions, prepare
from tiny_runs import tiny_data, tiny_spec

LINE = "今天天气真好, the weather is fine today.\n"
KEYS = {"loss", "bits_per_byte", "perplexity", "tokens", "bytes", "seconds", "unigram_bits_per_byte", "warning"}


def run(*arguments: object):
    result = CliRunner().invoke(build_app("eval", "tokens"), ["eval", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def figures(*arguments: object) -> dict:
    printed = json.loads(run(*arguments, "--json").stdout)
    assert printed.keys() == KEYS
    return printed


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text("".join(f"{number}: {LINE}" for number in range(300)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(book: Path) -> Path:
    prepare([book], "bpe", book.parent / "data", PrepareOptions(vocab_size=280))
    return book.parent / "data"


def saved(folder: Path, tokenizer: Tokenizer | None, vocabulary: int = 280) -> Transformer:
    model = random_model(small_llama(vocabulary=vocabulary))
    save_model(folder, model, tokenizer)
    return model


@pytest.fixture(scope="module")
def model(data: Path) -> Path:
    saved(data.parent / "model", Dataset.open(data).tokenizer())
    return data.parent / "model"


@pytest.fixture(scope="module")
def copier(data: Path) -> Path:
    """A model trained to know the book's line by heart."""
    folder, tokenizer = data.parent / "copier", Dataset.open(data).tokenizer()
    network = random_model(small_llama(vocabulary=280)).train()
    split = Dataset.open(data).split("train")
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    from glassformer.train.objective import causal

    for step in range(80):
        rows = torch.from_numpy(split.gather([(step * 8 + row) * 24 % (len(split) - 25) for row in range(8)], 25))
        optimizer.zero_grad()
        (causal(network, rows[:, :-1], rows[:, 1:]) / rows[:, 1:].numel()).backward()
        optimizer.step()
    save_model(folder, network, tokenizer)
    return folder


def test_prepared_data_are_scored_over_their_whole_validation_split(model: Path, data: Path):
    printed, split = figures(model, "--data", data), Dataset.open(data).split("validation")
    assert printed["tokens"] == split.tokens - 1
    first = Dataset.open(data).tokenizer().token_bytes(int(split.read(0, 1)[0]))
    assert printed["bytes"] == split.bytes - len(first)
    assert printed["perplexity"] == pytest.approx(math.exp(printed["loss"]))
    expected = printed["loss"] * printed["tokens"] / printed["bytes"] / math.log(2)
    assert printed["bits_per_byte"] == pytest.approx(expected)


def test_a_text_file_gets_the_score_of_its_text(model: Path, book: Path):
    printed, tokenizer = figures(model, "--text", book), Tokenizer.load(model)
    score = score_text(random_model(small_llama(vocabulary=280)), tokenizer, book.read_text(encoding="utf-8"))
    assert printed["loss"] == pytest.approx(score.loss, rel=1e-6)
    assert (printed["tokens"], printed["bytes"]) == (score.tokens, score.bytes)


def test_a_stride_gives_the_score_of_overlapping_windows(model: Path, book: Path):
    text, tokenizer = book.read_text(encoding="utf-8"), Tokenizer.load(model)
    printed = figures(model, "--text", book, "--stride", 6)
    score = score_text(random_model(small_llama(vocabulary=280)), tokenizer, text, stride=6)
    assert printed["loss"] == pytest.approx(score.loss, rel=1e-6)
    assert printed["tokens"] == score.tokens


def test_an_untrained_model_is_said_to_be_no_better_than_frequencies(model: Path, data: Path, book: Path):
    for source in (("--data", data), ("--text", book)):
        printed = figures(model, *source)
        assert printed["bits_per_byte"] > printed["unigram_bits_per_byte"]
        assert "no better than unigram frequencies" in printed["warning"]
        assert "warning: no better than unigram frequencies" in run(model, *source).stderr


def test_a_trained_model_is_not(copier: Path, data: Path, book: Path):
    for source in (("--data", data), ("--text", book)):
        printed = figures(copier, *source)
        assert printed["bits_per_byte"] < printed["unigram_bits_per_byte"] / 2
        assert printed["warning"] is None
        assert "warning" not in run(copier, *source).output


def test_a_short_text_is_no_reason_to_warn_of_a_good_model(copier: Path, tmp_path: Path):
    (tmp_path / "line.txt").write_text(f"7: {LINE}", encoding="utf-8")
    assert figures(copier, "--text", tmp_path / "line.txt")["warning"] is None


def test_a_table_tells_the_same_figures(model: Path, data: Path):
    printed, table = figures(model, "--data", data), run(model, "--data", data).stdout
    for figure in (f"{printed['loss']:.4f}", f"{printed['bits_per_byte']:.4f}", f"{printed['tokens']:,}"):
        assert figure in table


def test_the_batch_size_changes_no_figure(model: Path, data: Path):
    losses = [figures(model, "--data", data, "--batch-size", size)["loss"] for size in (1, 7)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_other_encodings_and_folders_are_read_as_prepare_reads_them(model: Path, tmp_path: Path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_bytes((LINE * 20).encode("gb18030"))
    (tmp_path / "texts" / "two.jsonl").write_text(json.dumps({"text": LINE * 2}) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.load(model)
    tokens = [*tokenizer.encode(LINE * 20), tokenizer.eos, *tokenizer.encode(LINE * 2), tokenizer.eos]
    printed = figures(model, "--text", tmp_path / "texts")
    assert printed["tokens"] == len(tokens) - 1
    assert printed["bytes"] == len((LINE * 22).encode()) - len(tokenizer.token_bytes(tokens[0]))


def test_data_of_another_tokenizer_are_refused(data: Path, tmp_path: Path):
    saved(tmp_path / "other", train_tokenizer("bpe", [LINE * 9], 270))
    with pytest.raises(DataError, match="of another tokenizer than the model's"):
        run(tmp_path / "other", "--data", data)


def test_a_model_without_tokenizer_is_refused(data: Path, tmp_path: Path):
    saved(tmp_path / "bare", None)
    with pytest.raises(CheckpointError, match="no tokenizer"):
        run(tmp_path / "bare", "--data", data)


def test_data_without_a_validation_split_are_refused(model: Path, book: Path, tmp_path: Path):
    prepare([book], model, tmp_path / "data", PrepareOptions(validation=0.0))
    with pytest.raises(DataError, match="validation split has 0 tokens"):
        run(model, "--data", tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "empty"), (b"\0\1\2" * 50, "binary"), (b"a", "none to predict from another")]
)
def test_a_file_without_enough_text_is_refused(model: Path, tmp_path: Path, content: bytes, message: str):
    (tmp_path / "file.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        run(model, "--text", tmp_path / "file.txt")


def test_what_does_not_go_together_is_refused(model: Path, data: Path, book: Path):
    with pytest.raises(DataError, match="one of the two"):
        run(model)
    with pytest.raises(DataError, match="one of the two"):
        run(model, "--data", data, "--text", book)
    with pytest.raises(DataError, match="stride goes with --text"):
        run(model, "--data", data, "--stride", 3)
    with pytest.raises(DataError, match="skips tokens"):
        run(model, "--text", book, "--stride", 25)
    with pytest.raises(DeviceError, match="no device"):
        run(model, "--text", book, "--device", "warp")


def test_the_help_has_an_example():
    assert "glassformer eval runs/first --data data/first" in run("--help").stdout


def test_a_run_is_measured_as_it_learnt_with_documents_apart_or_not(tmp_path: Path):
    dataset = tiny_data(tmp_path, split_on="\n")
    for boundaries in (False, True):
        run_folder = tmp_path / f"run-{boundaries}"
        trainer = start_run(tiny_spec(dataset, max_steps=2, boundaries=boundaries), dataset, run_folder)
        trainer.fit()
        assert figures(run_folder, "--data", dataset.folder)["loss"] == pytest.approx(trainer.state.best_loss, abs=1e-6)
        assert trainer.evaluate().tokens == figures(run_folder, "--data", dataset.folder)["tokens"]
