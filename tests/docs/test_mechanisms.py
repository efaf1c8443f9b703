"""docs/mechanisms: a section for every member of every union, with formula and source, as fresh as the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

from model_examples import UNIONS

from glassformer.model.attention.cross import CrossAttentionSpec
from glassformer.model.embedding import TransformSpec
from glassformer.spec import members

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "mechanisms").glob("*.md")}
MECHANISMS = [*(member for union in UNIONS.values() for member in members(union)), CrossAttentionSpec, TransformSpec]
every_mechanism = pytest.mark.parametrize("spec", MECHANISMS, ids=lambda spec: spec.__name__)


def section(name: str) -> str:
    """What the pages say under a heading; there is one such heading."""
    [text] = [
        found for page in PAGES.values() for found in re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    ]
    return text


@every_mechanism
def test_every_mechanism_says_its_formula_and_its_source(spec):
    own = spec.__dict__["__doc__"]
    assert re.search(r"^ *Formula:", own, re.M), "a paragraph that begins with Formula:"
    assert re.search(r"\bSources?: \w", own), "a sentence that begins with Source:"


@every_mechanism
def test_every_mechanism_has_a_section_and_a_line_in_the_index(spec):
    name = spec.__name__.removesuffix("Spec")
    text = section(name)
    for part in ("```text\n", "Source: ", "**Shapes**", "**Cost**"):
        assert part in text, part
    for field in set(spec.model_fields) - {"kind"}:
        assert f"| `{field}` |" in text
    assert re.search(rf"^\| \[{name}\]\([\w-]+\.md#{name.lower()}\) \| \w", PAGES["README.md"], re.M)


@pytest.mark.slow
def test_the_pages_are_those_that_the_code_gives():
    command = [sys.executable, "-W", "error", str(ROOT / "scripts" / "mechanisms.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr


def costs(name: str, setting: str) -> list[str]:
    """The cells of a row of costs."""
    [line] = [line for line in section(name).splitlines() if line.startswith(f"| `{setting}`")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_costs_are_those_of_the_formulas():
    D, H, C, F, V, L = 768, 12, 64, 3072, 50257, 12
    parameters = L * (4 * D * D + 2 * D * F + 2 * D) + D + V * D
    assert costs("GroupedAttention", "grouped(heads=12, kv_heads=12)")[0] == f"{parameters:,}"
    grouped = costs("GroupedAttention", "grouped(heads=12, kv_heads=4)")
    saved = 2 * L * D * (H - 4) * C
    assert grouped[0] == f"{parameters - saved:,} (−{saved:,})"
    products = 2 * (L * (4 * D * D + 2 * D * F) + V * D - saved)
    assert grouped[2].split(" (")[0] == f"{(products + L * 4 * D * 1024) / 1e6:.1f} M"
    assert grouped[4].split(" (")[0] == f"{2 * L * 2 * 4 * C // 1024} KiB"
    windowed = costs("Window", "window(size=256)")
    assert windowed[5].split(" (")[0] == windowed[6].split(" (")[0] == f"{2 * L * 2 * D * 256 // 2**20} MiB"


def test_a_mask_is_drawn_as_it_sees():
    rows = re.search(r"on twelve tokens:\n\n```text\n(.*?)```", section("Window"), re.S)[1].split("\n")
    assert rows[6].split() == ["·"] * 3 + ["■"] * 4 + ["·"] * 5
