"""docs/add-a-…: each page, followed word by word in a copy of the package, adds what it says and touches no more."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from following import ROOT, Page, copy_of_the_package, run

PAGES = sorted(page.name for page in (ROOT / "docs").glob("add-*.md"))
every_page = pytest.mark.parametrize("name", PAGES)

PROMISED = {
    "add-a-positional-encoding.md": {"model/position.py"},
    "add-an-attention.md": {"model/attention/mirror.py", "model/attention/__init__.py"},
    "add-a-family.md": {"checkpoint/families/arcee.py", "checkpoint/families/__init__.py"},
}
"""What of the package a page touches: "How a change should land", in CONTRIBUTING.md."""


@every_page
def test_a_page_has_code_and_tests_to_run(name: str):
    page = Page.of(name)
    assert page.touched
    assert page.blocks
    assert page.tests


@pytest.mark.parametrize("name", PROMISED)
def test_of_the_package_nothing_is_touched_but_what_contributing_promises(name: str):
    inside = {file.removeprefix("src/glassformer/") for file in Page.of(name).touched if file.startswith("src/")}
    assert inside == PROMISED[name]


@every_page
def test_following_a_page_touches_what_it_says_and_no_more(name: str, tmp_path: Path):
    page, folder = Page.of(name), copy_of_the_package(tmp_path / "copy")
    assert page.follow(folder) == page.touched
    for file in page.touched:
        ast.parse((folder / file).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which all pages were followed, one after the other."""
    folder = copy_of_the_package(tmp_path_factory.mktemp("add") / "copy")
    for name in PAGES:
        Page.of(name).follow(folder)
    return folder


@pytest.mark.slow
def test_what_was_added_passes_the_tests_that_the_pages_name(followed: Path):
    asked = [shlex.split(arguments) for name in PAGES for arguments in Page.of(name).tests]
    files, wanted = sorted({one[0] for one in asked}), " or ".join(one[2] for one in asked)
    report = run(followed, "-m", "pytest", "-v", "-p", "no:cacheprovider", *files, "-k", wanted)
    for file, _, expression in asked:
        for word in expression.split(" or "):
            assert re.search(rf"^{re.escape(file)}::\S*{word}.* PASSED", report, re.M), f"{file} -k {word}"


@pytest.mark.slow
def test_what_was_added_has_its_section_in_the_docs(followed: Path):
    run(followed, "scripts/mechanisms.py")
    text = (followed / "docs" / "mechanisms" / "positions.md").read_text(encoding="utf-8")
    section = text.partition("## DistanceBias\n")[2]
    assert "| `blocks.0.attention.position.table` | parameter | 12 × 128 |" in section
    assert "(+18,432)" in section, "12 layers of 12 heads and 128 distances"
