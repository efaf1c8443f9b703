"""Following a page of docs/add-a-…: its blocks of code are put where it says, into a copy of the package.

Three sentences of a page are instructions, each with the block below it:

    A new file, `path`:                  the block is the file
    In `path`, above `line`:             (or below) the block is set in there; the line is given from its start
    In `path`:                           a diff: lines with - are found together and give way to those with +
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(
    r"(?P<new>A new file, )?(?:In )?`(?P<file>[\w/.]+\.py)`(?:, (?P<where>above|below) `(?P<line>[^`]+)`)?:\n\n"
    r"```(?P<kind>python|diff)\n(?P<code>.*?)```\n",
    re.S,
)


@dataclass(frozen=True)
class Page:
    """What a page says is touched, what it says to do, and what it says to run."""

    text: str

    @staticmethod
    def of(name: str) -> "Page":
        return Page((ROOT / "docs" / name).read_text(encoding="utf-8"))

    @property
    def touched(self) -> set[str]:
        """The files of the table at its beginning."""
        return set(re.findall(r"^\| `([\w/.]+\.py)` \|", self.text, re.M))

    @property
    def tests(self) -> list[str]:
        """The arguments of its `make test` lines."""
        return re.findall(r'^ +make test ARGS="(.*)"$', self.text, re.M)

    @property
    def blocks(self) -> int:
        return len(re.findall(r"^```(?:python|diff)$", self.text, re.M))

    def follow(self, folder: Path) -> set[str]:
        """Do all that it says in a copy of the package; gives the files that it changed."""
        done = set()
        for step in STEP.finditer(self.text):
            path = folder / step["file"]
            if step["new"]:
                assert not path.exists(), f"{step['file']} is there already"
                path.write_text(step["code"], encoding="utf-8")
            else:
                old = path.read_text(encoding="utf-8")
                new = replaced(old, step["code"]) if step["where"] is None else inserted(old, step)
                path.write_text(new, encoding="utf-8")
            done.add(step["file"])
        assert len(STEP.findall(self.text)) == self.blocks, "a block of code that no sentence leads to"
        return done


def inserted(text: str, step: re.Match[str]) -> str:
    lines = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(lines) if line.startswith(step["line"])]
    assert places, f"{step['file']} has no line {step['line']!r}"
    at = places[0] + (step["where"] == "below")
    return "".join([*lines[:at], step["code"], *lines[at:]])


def replaced(text: str, diff: str) -> str:
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if not line.startswith("+"))
    new = "".join(line[1:] for line in lines if not line.startswith("-"))
    assert text.count(old) == 1, f"expected once, found {text.count(old)} times:\n{old}"
    return text.replace(old, new)


def copy_of_the_package(folder: Path) -> Path:
    """All that the tests and the docs are made of."""
    for part in ("src", "tests", "scripts", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "Makefile"):
        shutil.copy(ROOT / file, folder / file)
    return folder


def run(folder: Path, *command: str) -> str:
    """What a Python program prints in the copy, which is what it imports."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout
