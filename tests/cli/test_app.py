"""The command line as a whole: every command helps with an example, a user's mistake is one line and exit code 2."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import glassformer
from glassformer.cli.app import COMMANDS, build_app, main
from glassformer.cli.name import command
from glassformer.train.data import PrepareOptions, prepare

GROUP: Any = typer.main.get_command(build_app())


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process (a new one needs seconds to import torch); a traceback would fail the test."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        capsys.readouterr()
        code: int | str | None = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return Outcome(int(code or 0), *capsys.readouterr())

    return run


def refused(outcome: Outcome) -> str:
    """The one line of a refusal."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("glassformer: ")
    assert outcome.err.count("\n") == 1, outcome.err
    return outcome.err


def examples(name: str) -> list[str]:
    return re.findall(r"Example: (.*)", GROUP.commands[name].help or "")


def test_the_app_has_every_command():
    assert list(GROUP.commands) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_with_an_example(name: str, run: Run):
    result = run(name, "--help")
    assert result.code == 0
    assert result.err == ""
    assert f"Example: glassformer {name}" in " ".join(result.out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_a_command_line_that_parses(name: str):
    assert examples(name)
    for example in examples(name):
        program, command, *arguments = shlex.split(example)
        assert (program, command) == ("glassformer", name)
        GROUP.commands[name].make_context(name, arguments)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str):
    for parameter in GROUP.commands[name].params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_without_a_command_the_commands_are_listed(run: Run):
    result = run()
    shown = result.out + result.err
    for name in COMMANDS:
        assert re.search(rf"^\W*{name}\s", shown, re.MULTILINE), name


def test_the_version_is_printed(run: Run):
    assert run("--version").out == f"{glassformer.__version__}\n"


def test_an_unknown_command_is_refused(run: Run):
    assert "No such command 'trian'" in refused(run("trian"))


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_refused(name: str, run: Run):
    answer = refused(run(name, "--no-such-option"))
    assert "No such option: --no-such-option" in answer
    assert f"(see {command()} {name} --help)" in answer


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate",), "Missing argument 'model'"),
        (("embed", "m", "--pooling", "foo"), "'--pooling': 'foo' is not one of"),
        (("describe", "m", "--context", "many"), "should be a valid integer"),
    ],
)
def test_a_wrong_value_of_an_option_is_one_line(arguments, said, run: Run):
    assert said in refused(run(*arguments))


def test_help_is_no_mistake(run: Run):
    assert run("generate", "--help").code == run().code == 0


def mistakes(folder: Path) -> dict[str, tuple[tuple[object, ...], str]]:
    """For every command what a user may get wrong, and words that must be in the answer."""
    (folder / "empty").mkdir()
    missing, empty = folder / "missing", folder / "empty"
    return {
        "prepare": ((missing, "--tokenizer", "char", "--out", folder / "out"), str(missing)),
        "train": (("--recipe", "gtp2", "--data", missing, "--out", folder / "out"), str(missing)),
        "prove-resume": (("--recipe", "gpt2", "--data", empty), str(empty)),
        "generate": ((empty, "Once"), str(empty)),
        "chat": ((missing,), str(missing)),
        "fill": ((empty, "a [MASK]"), str(empty)),
        "embed": ((missing, "a text", "--out", folder / "out.npy"), str(missing)),
        "eval": ((missing, "--text", missing), str(missing)),
        "tokens": (("text", "--tokenizer", empty), str(empty)),
        "describe": ((missing,), str(missing)),
        "export": ((empty, folder / "out"), str(empty)),
        "pull": (("gpt-9",), "gpt-9"),
        "demo": ((missing, "--out", folder / "out"), str(missing)),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_is_one_line_and_writes_nothing(name: str, tmp_path: Path, run: Run):
    arguments, said = mistakes(tmp_path)[name]
    assert said in refused(run(name, *arguments))
    assert not (tmp_path / "out").exists()


def test_nan_as_a_temperature_is_refused_before_anything_is_loaded(tmp_path: Path, run: Run):
    assert "temperature" in refused(run("generate", tmp_path / "missing", "Once", "--temperature", "nan"))


def test_a_process_of_its_own_answers_the_same(tmp_path: Path):
    command = [sys.executable, "-m", "glassformer", "describe", str(tmp_path / "missing")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert str(tmp_path / "missing") in refused(Outcome(result.returncode, result.stdout, result.stderr))


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m glassformer train --help | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["prepare", "en.txt", "--tokenizer", "char", "--out", "data", "--encoding", "utf-16"],
        ["prepare", "en.txt", "--tokenizer", "char", "--out", "data", "--encoding", "undefined"],
        ["prepare", "digits.jsonl", "--tokenizer", "char", "--out", "data"],
        ["prepare", "deep.jsonl", "--tokenizer", "char", "--out", "data"],
        ["prepare", "en.txt", "--tokenizer", "char", "--out", "L" * 300],
        ["tokens", "a", "--tokenizer", "L" * 300],
        ["train", "--recipe", "gpt2", "--data", "L" * 300, "--out", "run"],
        ["train", "--resume", "L" * 300],
        ["train", "--config", "itself.yaml", "--data", "en.txt", "--out", "run"],
        ["train", "--config", "deep.yaml", "--data", "en.txt", "--out", "run"],
        ["prepare", "en.txt", "--tokenizer", "char", "--out", "data", "--encoding", ""],
        ["train", "--recipe", "gpt2", "--data", "data", "--out", "run", "--device", "meta"],
        ["train", "--recipe", "gpt2", "--data", "data", "--out", "/proc/none/run"],
        ["train", "--recipe", "gpt2", "--data", "data", "--out", "run", "--set", "model.blocks=[]"],
    ],
    ids=lambda arguments: " ".join(arguments)[:50],
)
def test_what_a_newcomer_broke_is_now_one_line(tmp_path: Path, run: Run, monkeypatch, arguments: list[str]):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en.txt").write_text("plain text\n" * 50, encoding="utf-8")
    (tmp_path / "digits.jsonl").write_text(f'{{"text": {"1" * 5000}}}\n', encoding="utf-8")
    (tmp_path / "deep.jsonl").write_text("[" * 200_000 + "\n", encoding="utf-8")
    (tmp_path / "itself.yaml").write_text("a: &a [*a]\n", encoding="utf-8")
    (tmp_path / "deep.yaml").write_text("seed: " + "[" * 3000, encoding="utf-8")
    if "data" in arguments and arguments[0] == "train":
        prepare([tmp_path / "en.txt"], "char", tmp_path / "data", PrepareOptions())
    outcome = run(*arguments)
    assert outcome.code == 2
    assert len(outcome.err.strip().splitlines()) == 1


def test_an_interrupt_while_the_libraries_load_is_no_traceback(monkeypatch, capsys):
    def interrupted(*_: str):
        raise KeyboardInterrupt

    monkeypatch.setattr("glassformer.cli.app.build_app", interrupted)
    monkeypatch.setattr("sys.argv", ["glassformer", "chat"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "glassformer: interrupted\n"


def test_hints_name_the_command_that_the_user_can_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / ".venv" / "bin" / "glassformer"
    monkeypatch.setattr(sys, "executable", str(script.with_name("python3")))
    assert command() == "python3 -m glassformer"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert command() == ".venv/bin/glassformer"
    monkeypatch.setenv("PATH", str(script.parent))
    assert command() == "glassformer"
