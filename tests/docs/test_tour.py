"""docs/tour.md: its references name what stands at their line, and the command it follows passes its stops."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import pytest

from glassformer.checkpoint import save_model
from glassformer.cli.app import main
from glassformer.tokenizer import train_tokenizer
from glassformer.train.recipes import modern

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "glassformer"
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
REFERENCES = re.findall(r"`([\w/]+\.py):(\d+) ([A-Za-z_][\w.]*)`", TOUR)
PROMPT = "今天天气真"
NOT_PASSED = {
    "ops/attend.py attend": "the written-out twin of attend_fast, for those who look",
    "model/mask.py visible": "a first pass from position 0 needs no mask but the triangle",
    "model/feedforward.py Gated.forward": "the model of this test has the other feed-forward",
    "model/transformer.py TransformerSpec.points": "describes; takes no part in a pass",
}


def test_the_tour_has_references():
    assert len(REFERENCES) > 50


@pytest.mark.parametrize(("file", "line", "name"), sorted(set(REFERENCES)))
def test_each_reference_names_what_its_line_defines(file: str, line: str, name: str):
    text = (SOURCE / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    own = name.rpartition(".")[2]
    assert re.match(rf"\s*(def {own}\(|class {own}[(:]|{own}(: [^=]+)? = )", text), f"{file}:{line} is {text!r}"


def test_every_file_that_the_tour_links_exists():
    for link in re.findall(r"\]\(([^)#]+)", TOUR):
        assert (ROOT / "docs" / link).exists(), link


def test_generating_passes_every_stop_of_the_first_six_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tokenizer = train_tokenizer("char", [f"{PROMPT}好。{PROMPT}不错。"])
    save_model(tmp_path, modern(tokenizer.vocabulary, layers=1, width=16, heads=2, context=16).build())
    tokenizer.save(tmp_path)
    command = ["generate", str(tmp_path), PROMPT, "--max-tokens", "1", "--show-probabilities", "5"]
    monkeypatch.setattr(sys, "argv", ["glassformer", *command])
    with called() as passed, pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert PROMPT in capsys.readouterr().out
    walk = TOUR.partition("## 1.")[2].partition("## 7.")[0]
    for file, line, name in re.findall(r"`([\w/]+\.py):(\d+) ([A-Za-z_][\w.]*)`", walk):
        defined = (SOURCE / file).read_text(encoding="utf-8").splitlines()[int(line) - 1].lstrip()
        if defined.startswith("def ") and f"{file} {name}" not in NOT_PASSED:
            assert f"{file} {name}" in passed, f"{file}:{line} {name} was never called"


@contextmanager
def called() -> Iterator[set[str]]:
    """The functions of the package that are called meanwhile, as `file name`."""
    codes: set[CodeType] = set()
    names: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(None)
        for code in codes:
            if code.co_filename.startswith(f"{SOURCE}/"):
                names.add(f"{Path(code.co_filename).relative_to(SOURCE)} {code.co_qualname}")
