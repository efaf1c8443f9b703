"""The command `demo`: from nothing to a model that writes, and what happens when it is stopped or fed badly."""

import ast
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glassformer.checkpoint import load_model
from glassformer.cli import installed_text
from glassformer.cli.app import build_app
from glassformer.cli.compare import Comparison
from glassformer.cli.demo import Place, demo_run
from glassformer.cli.installed_text import installed_documents, sizes
from glassformer.errors import CheckpointError, DataError
from glassformer.train.data import Dataset, PrepareOptions, prepare
from glassformer.train.history import read_log

SOURCE = Path(__file__).resolve().parents[2] / "src"
CHINESE = "".join(f"第{number}日，今天天气真好，我们去公园。\n" for number in range(400))  # about 19 kB
COMMAND = (sys.executable, "-m", "glassformer", "demo")


def run(*arguments: object):
    return CliRunner().invoke(build_app("demo", "eval"), ["demo", *map(str, arguments)], catch_exceptions=False)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "120", "TERM": "dumb"}


@pytest.fixture(scope="module")
def chinese(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("chinese") / "日记.txt"
    path.write_text(CHINESE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(chinese: Path) -> tuple[Path, str]:
    """A whole demo of a small Chinese text, and what it printed."""
    out = chinese.parent / "demo"
    result = run(chinese, "--out", out, "--minutes", 0.05)
    assert result.exit_code == 0, result.output
    return out, result.stdout


@pytest.mark.slow
def test_a_small_chinese_text_becomes_a_model_that_writes(finished: tuple[Path, str]):
    out, printed = finished
    assert str(out / "run") in printed
    for path in ("run/loss.png", "run/log.csv"):
        assert (out / path).stat().st_size > 0
        assert str(out / path) in printed
    assert re.search(r"written with +the model's own probabilities", printed)
    assert f"glassformer generate {out / 'run'}" in printed
    model = load_model(out / "run")
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer.encode(CHINESE)) == CHINESE


@pytest.mark.slow
def test_figures_of_the_model_stand_beside_those_of_three_baselines(finished: tuple[Path, str]):
    out, printed = finished
    figures = json.loads((out / "demo.json").read_text())["bits_per_byte"]
    assert list(figures) == [
        "model", "unigram frequencies", "order-5 n-gram (Kneser-Ney)", "xz -9e after the training text"
    ]  # fmt: skip
    for name, bits in figures.items():
        line = next(line for line in printed.splitlines() if name in line)
        assert f"{bits:.3f}" in line
        if name != "model":
            assert ("not beaten" in line) == (figures["model"] >= bits)


@pytest.mark.slow
def test_its_figure_is_that_of_eval_on_the_same_data(finished: tuple[Path, str]):
    out, _ = finished
    arguments = ["eval", str(out / "run"), "--data", str(out / "data"), "--json"]
    printed = json.loads(CliRunner().invoke(build_app("demo", "eval"), arguments).stdout)
    figures = json.loads((out / "demo.json").read_text())["bits_per_byte"]
    assert figures["model"] == pytest.approx(printed["bits_per_byte"])
    assert figures["unigram frequencies"] == pytest.approx(printed["unigram_bits_per_byte"])


@pytest.mark.slow
def test_at_a_terminal_a_finished_demo_is_kept_and_written_with(finished: tuple[Path, str]):
    out, _ = finished
    log = (out / "run" / "log.csv").read_bytes()
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, "--out", out], stdin=theirs, stdout=theirs, stderr=theirs, env=environment())
    os.close(theirs)
    seen = ""
    for question, answer in (("Replace it?", "n"), ("begins with", "今天"), ("> ", ""), ("> ", "q")):
        seen += read_until(ours, question)
        os.write(ours, f"{answer}\n".encode())
    seen += read_until(ours, "--show-probabilities")
    assert process.wait(60) == 0
    os.close(ours)
    assert "今天" in seen
    assert re.search(r"\d\.\d %", seen)
    assert (out / "run" / "log.csv").read_bytes() == log


@pytest.mark.slow
def test_ctrl_c_while_training_saves_and_says_how_to_go_on(chinese: Path, tmp_path: Path):
    out = tmp_path / "demo"
    command = [*COMMAND, chinese, "--out", out, "--minutes", "5"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT, env=environment()
    )
    assert process.stdout is not None
    read_until(process.stdout.fileno(), "step 1 ")
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read().decode()
    assert process.wait(120) == 130
    process.stdout.close()
    assert f"glassformer train --resume {out / 'run'}" in rest
    assert f"glassformer generate {out / 'run'}" in rest
    assert "Traceback" not in rest
    assert load_model(out / "run").tokenizer is not None
    assert json.loads((out / "demo.json").read_text()) == {"finished": False}


@pytest.mark.slow
def test_an_unfinished_demo_is_begun_anew(chinese: Path, tmp_path: Path):
    place = Place(tmp_path / "demo")
    place.note(finished=False)
    (place.run / "checkpoints" / "step-00000009").mkdir(parents=True)
    (place.run / "run.json").write_text("half")
    place.data.mkdir()
    result = run(chinese, "--out", place.folder, "--minutes", 0.02, "--yes")
    assert result.exit_code == 0, result.output
    assert f"Replacing the demo in {place.folder}" in result.stdout
    assert read_log(place.run / "log.csv")[0].step == 1
    assert place.finished


def read_until(descriptor: int, text: str, seconds: float = 120) -> str:
    """What a program printed up to `text`."""
    seen, end = b"", time.monotonic() + seconds
    while text.encode() not in seen:
        assert select.select([descriptor], [], [], max(0, end - time.monotonic()))[0], seen.decode()
        part = os.read(descriptor, 1 if text == "> " else 4096)
        assert part, seen.decode()
        seen += part
    return seen.decode(errors="replace")


def test_ctrl_c_before_training_leaves_nothing_to_go_on_from(chinese: Path, tmp_path: Path, monkeypatch):
    def interrupt(*_: object, **__: object):
        raise KeyboardInterrupt

    monkeypatch.setattr("glassformer.cli.demo.prepare", interrupt)
    result = run(chinese, "--out", tmp_path / "demo")
    assert result.exit_code == 130
    assert "nothing is trained yet" in result.stdout


def test_too_little_text_is_refused_with_what_is_missing(chinese: Path, tmp_path: Path):
    (tmp_path / "short.txt").write_text("短" * 1000, encoding="utf-8")
    place = Place(tmp_path / "demo")
    place.note(finished=True)
    with pytest.raises(DataError, match="3,000 bytes of text are 7,000 too few to learn from"):
        run(tmp_path / "short.txt", "--out", place.folder)
    assert place.finished  # the earlier demo is untouched


@pytest.mark.parametrize(("name", "content"), [("empty.txt", b""), ("noise.txt", bytes(range(256)) * 50)])
def test_a_file_without_text_is_refused(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError):
        run(tmp_path / name, "--out", tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_a_folder_that_is_no_demo_is_never_replaced(chinese: Path, tmp_path: Path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="something else already"):
        run(chinese, "--out", tmp_path, "--yes")
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_a_short_text_is_read_only_so_often(chinese: Path, tmp_path: Path):
    prepare([chinese], "char", tmp_path / "data", PrepareOptions())
    dataset = Dataset.open(tmp_path / "data")
    spec = demo_run(dataset, minutes=3)
    assert spec.max_steps * spec.tokens_per_step <= max(40 * len(dataset.split("train")), 100 * spec.tokens_per_step)
    assert spec.max_seconds == 180


@pytest.mark.slow
def test_every_installation_brings_megabytes_of_documentation_without_copies():
    documents = list(installed_documents())
    size = sizes(documents)
    assert size["language reference"] > 200_000
    assert size["standard library"] > 1_000_000
    assert "Heap queue algorithm" in dict(documents)["heapq"]
    known: set[str] = set()
    for _, text in documents:
        for paragraph in text.split("\n\n"):
            content = " ".join(paragraph.split())
            assert len(content) < 40 or content not in known
            known.add(content)


@pytest.fixture
def library(tmp_path: Path, monkeypatch) -> Path:
    """An installation with three modules and no language reference."""
    words = "documentation that is long enough to be kept, of the module called"
    for name in ("b", "a", "package/c", "test/d", "site-packages/e"):
        path = tmp_path / "library" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""{words} {name}"""\nimport os\n')
    (tmp_path / "library" / "broken.py").write_text('"""An unfinished string')
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    monkeypatch.setattr(installed_text.sysconfig, "get_path", lambda _: str(tmp_path / "library"))
    return tmp_path / "library"


def test_without_the_language_reference_the_library_is_read_alone(library: Path):
    documents = list(installed_documents())
    assert [name for name, _ in documents] == ["a", "b", "package.c"]
    assert sizes(documents)["language reference"] == 0
    assert "import" not in "".join(text for _, text in documents)


def test_an_installation_without_any_text_is_told_what_to_do(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    monkeypatch.setattr(installed_text.sysconfig, "get_path", lambda _: str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"none found.*10,000 too few.*glassformer demo FILE"):
        run("--out", tmp_path / "demo")


def test_documentation_is_what_pydoc_would_print():
    code = '''
"""About shapes."""
import math
class Square(Shape, Base):
    """Four sides.

    All alike.
    """
    def area(self, scale: float = 1.0) -> float:
        """Its size."""
        return 1
    def plain(self): pass
'''
    assert list(installed_text._documented(ast.parse(code), "shapes.py")) == [
        "shapes.py\n\nAbout shapes.",
        "class Square(Shape, Base)\n    Four sides.\n\n    All alike.",
        "area(self, scale: float=1.0)\n    Its size.",
    ]


def test_a_comparison_says_by_how_much_each_baseline_is_beaten():
    table = Comparison(model=1.5, unigram=3.0, ngram=1.5, xz=1.2).table()
    assert [*table.columns[2].cells] == [
        "",
        "[green]beaten: 50.0% fewer[/]",
        "[red]not beaten: 0.0% more[/]",
        "[red]not beaten: 25.0% more[/]",
    ]


def test_all_predictors_are_measured_on_one_text(chinese: Path, tmp_path: Path):
    prepare([chinese], "bpe", tmp_path / "data", PrepareOptions(validation=0.2))
    dataset = Dataset.open(tmp_path / "data")
    comparison = Comparison.on(dataset, dataset.tokenizer(), model=1.0, unigram=2.0)
    from glassformer.evaluate import ngram_bits_per_byte, xz_bits_per_byte

    cut = len(CHINESE) * 8 // 10
    assert comparison.ngram == pytest.approx(ngram_bits_per_byte(CHINESE[:cut], CHINESE[cut:]))
    assert comparison.xz == xz_bits_per_byte(CHINESE[:cut], CHINESE[cut:])
