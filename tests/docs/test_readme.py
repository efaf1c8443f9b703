"""Both READMEs and the guides: their command lines parse, their Python runs, their links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from glassformer.checkpoint import save_model
from glassformer.cli.app import COMMANDS, build_app
from glassformer.tokenizer import train_tokenizer
from glassformer.train.recipes import modern

ROOT = Path(__file__).resolve().parents[2]
READMES = ("README.md", "README.zh.md")
PAGES = sorted(str(page.relative_to(ROOT)) for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def command_lines(text: str) -> list[str]:
    """What stands as `glassformer …` in tables and text, or on a line of its own in an indented block."""
    inline = re.findall(r"`(glassformer [^`]*)`", text)
    blocks = re.findall(r"^ {4,}(glassformer .*?)(?: +#.*)?$", text, re.MULTILINE)
    return [line for line in (*inline, *blocks) if line.split()[1] in COMMANDS and len(line.split()) > 2]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_in_the_docs_parses(page: str):
    group: Any = typer.main.get_command(build_app())
    for line in command_lines(read(page)):
        _, name, *arguments = shlex.split(line)
        if any(part.isupper() or "…" in part for part in arguments):
            continue  # a pattern, such as `glassformer demo FILE`, not an example
        group.commands[name].make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_in_the_docs_leads_to_a_file(page: str):
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", read(page)):
        if "://" not in link:
            assert ((ROOT / page).parent / link).exists(), link


@pytest.mark.parametrize("page", READMES)
def test_the_readme_shows_an_example_of_every_command(page: str):
    assert {line.split()[1] for line in command_lines(read(page))} == set(COMMANDS)


@pytest.mark.parametrize("page", READMES)
def test_the_python_of_the_readme_runs(page: str, tmp_path: Path):
    tokenizer = train_tokenizer("char", ["Return a list of all names, or a list of their values."])
    model = modern(tokenizer.vocabulary, layers=2, width=16, heads=2, context=32)
    save_model(tmp_path / "runs" / "demo" / "run", model.build(), tokenizer)
    [program] = re.findall(r"```python\n(.*?)```", read(page), re.DOTALL)
    command = [sys.executable, "-W", "error", "-c", program]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r"^ *\d+\.\d% .", result.stdout, re.MULTILINE)) == 5
    assert "blocks.1.pattern (1, 2, 13, 13)" in result.stdout


def test_both_readmes_say_the_same():
    one, other = (read(page) for page in READMES)
    for pattern in (r"^#+ ", r"^\| ", r"^- ", r"\]\(", r"```", r"<!-- figures -->"):
        counts = [len(re.findall(pattern, text, re.MULTILINE)) for text in (one, other)]
        assert counts[0] == counts[1], pattern
