"""`glassformer tokens`: every token of a text, and what the tokenizer makes of Chinese and of the rest."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from glassformer.cli.tokens import tokens
from glassformer.errors import DataError, TokenizerError
from glassformer.tokenizer import train_tokenizer

app = typer.Typer()
app.command()(tokens)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_tokenizer("bpe", ["今天天气真好，天气好。" * 5 + "the weather is good today, the weather " * 5]).save(folder)
    return folder


def run(*arguments: object, given: bytes | None = None) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), input=given, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_json_lists_every_token_and_adds_up(folder: Path) -> None:
    text = "今天 the weather 龘!"
    data = json.loads(run(text, "--tokenizer", folder, "--json"))
    assert b"".join(bytes.fromhex(token["bytes"]) for token in data["tokens"]) == text.encode()
    assert [token["id"] for token in data["tokens"] if token["text"] == " weather"]
    assert data["count"] == len(data["tokens"])
    assert data["bytes"] == len(text.encode())
    assert data["bytes_per_token"] == data["bytes"] / data["count"]
    assert data["tokens_per_character"] == data["count"] / len(text)
    han, other = data["scripts"]["han"], data["scripts"]["other"]
    assert (han["characters"], han["bytes"]) == (3, 9)
    assert han["count"] + other["count"] == data["count"]
    assert [token["characters"] for token in data["tokens"] if token["text"] == "\ufffd"] == ["龘"] * 3


def test_the_table_shows_ids_bytes_and_characters(folder: Path) -> None:
    text = "天气真好 龘\n"
    listed = json.loads(run(text, "--tokenizer", folder, "--json"))["tokens"]
    page = run(text, "--tokenizer", folder)
    first = listed[0]
    row = [str(first["id"]), first["text"], *bytes.fromhex(first["bytes"]).hex(" ").split(), first["characters"]]
    assert row in [line.split() for line in page.splitlines()]
    assert r"\xe9" in page
    assert "⏎" in page
    assert "Chinese (Han)" in page
    assert "tokens per" in page


def test_one_script_alone_gets_one_line_of_figures(folder: Path) -> None:
    assert "Chinese" not in run("the weather", "--tokenizer", folder)


def test_each_token_has_a_colour_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    line = run("the weather", "--tokenizer", folder).splitlines()[0]
    assert line.count("\x1b[48;5;") == 2


def test_text_that_looks_like_markup_is_shown_as_it_is(folder: Path) -> None:
    page = run("[bold]the[/bold]", "--tokenizer", folder)
    assert "[bold]the[/bold]" in page.replace("\n", "")


def test_special_tokens_are_text_unless_asked_for(folder: Path) -> None:
    plain = json.loads(run("<|endoftext|>", "--tokenizer", folder, "--json"))
    assert plain["count"] > 1
    special = json.loads(run("<|endoftext|>", "--tokenizer", folder, "--json", "--special"))
    assert [(token["text"], token["bytes"]) for token in special["tokens"]] == [("<|endoftext|>", "")]


def test_text_comes_from_a_file_or_standard_input(folder: Path, tmp_path: Path) -> None:
    text = "the weather\r\n天气\n"
    (tmp_path / "text.txt").write_bytes(text.encode())
    from_file = run("--file", tmp_path / "text.txt", "--tokenizer", folder, "--json")
    assert from_file == run("-", "--tokenizer", folder, "--json", given=text.encode())
    assert json.loads(from_file)["bytes"] == len(text.encode())


def test_long_texts_are_listed_in_part_and_counted_in_full(folder: Path) -> None:
    page = run("a" * 300, "--tokenizer", folder, "--rows", 10)
    assert "… and 290 more tokens" in page
    assert "300" in page


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["x"], TokenizerError, "no such file or folder"),
        ([], DataError, "expected TEXT or --file"),
        (["x", "--file", "y"], DataError, "expected TEXT or --file"),
        ([""], DataError, "the text has no characters"),
        (["--file", "nowhere.txt"], DataError, "nowhere.txt: can't read it: No such file"),
        (["--file", "binary"], DataError, "binary: expected UTF-8 text; byte 1 is no part of it"),
    ],
)
def test_mistakes_are_errors_of_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: type, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(b"a\xff\xfe")
    place = tmp_path / "nothing" if error is TokenizerError else folder
    with pytest.raises(error, match=message):
        run(*arguments, "--tokenizer", place)
