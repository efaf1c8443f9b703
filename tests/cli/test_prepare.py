"""The command `prepare`: what a user types and sees."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from glassformer.cli.prepare import prepare
from glassformer.errors import DataError, SpecError
from glassformer.train.data import Dataset

app = typer.Typer()
app.command()(prepare)


def run(*arguments: object) -> str:
    """What the command prints."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("".join(f"chapter {number}: 今天天气真好。\n" for number in range(500)), encoding="utf-8")
    return path


def test_a_table_tells_what_was_read_and_written(book: Path, tmp_path: Path):
    printed = run(book, "--tokenizer", "char", "--out", tmp_path / "data")
    split = Dataset.open(tmp_path / "data").split("train")
    rows = [line.split() for line in printed.splitlines()]
    ratio = f"{split.bytes / split.tokens:.2f}"
    assert ["train", "1", *(f"{size:,}" for size in (split.characters, split.bytes, split.tokens)), ratio] in rows
    assert "1 file: 1 UTF-8" in printed
    assert "of the document" in printed
    assert f"written to {tmp_path / 'data'}" in printed


def test_the_report_comes_as_json(book: Path, tmp_path: Path):
    printed = run(book, "--tokenizer", "char", "--out", tmp_path / "data", "--json")
    assert json.loads(printed) == Dataset.open(tmp_path / "data").meta.report.model_dump()


def test_every_option_reaches_the_data(book: Path, tmp_path: Path):
    arguments = ["--vocab-size", 270, "--validation", 0.25, "--seed", 3, "--split-on", "\n", "--encoding", "utf8"]
    printed = run(book, tmp_path, "--tokenizer", "bpe", "--out", tmp_path / "data", "--clean", *arguments)
    assert "cleaned: 0 documents put into NFC, 0 control characters and 0 repeated documents removed" in printed
    assert "left out: 1 empty document" in printed
    meta = Dataset.open(tmp_path / "data").meta
    assert meta.vocabulary == 270
    assert meta.options.model_dump(exclude={"shard_tokens"}) == {
        **{"vocab_size": 270, "validation": 0.25, "clean": True, "seed": 3},
        **{"encoding": "utf8", "split_on": "\n"},
    }


def test_what_was_left_out_is_listed(book: Path, tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    book.rename(source / "book.txt")
    (source / "bytes.txt").write_bytes(b"\0")
    (source / "picture.png").write_bytes(b"\0")
    printed = run(source, "--tokenizer", "char", "--out", tmp_path / "data").replace("\n", "")
    assert "left out: 1 of another kind, 1 binary; such as" in printed
    assert "bytes.txt (binary)" in printed


def test_help_shows_an_example():
    printed = run("--help")
    assert "glassformer prepare books/" in " ".join(printed.split())


def test_mistakes_are_errors_of_one_line(book: Path, tmp_path: Path):
    for arguments, kind, message in [
        ([tmp_path / "nowhere"], DataError, "nowhere: no such file or folder"),
        ([book, "--encoding", "klingon"], DataError, "--encoding: unknown encoding 'klingon'"),
        ([book, "--validation", "1.5"], SpecError, "prepare: validation: Input should be less than 1, got 1.5"),
    ]:
        with pytest.raises(kind, match=message) as error:
            run(*arguments, "--tokenizer", "char", "--out", tmp_path / "data")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "data").exists()
