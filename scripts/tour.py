"""Keeps the line numbers of docs/tour.md true: `model/step.py:74 Step.whole` is the line that defines it.

`--check` changes nothing and fails when a number is stale.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOUR, SOURCE = ROOT / "docs" / "tour.md", ROOT / "src" / "glassformer"
REFERENCE = re.compile(r"`(?P<file>[\w/]+\.py):(?P<line>\d+) (?P<name>[A-Za-z_][\w.]*)`")


def definitions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, int]]:
    """Every class, function, constant and field of a module with its line, by its qualified name."""
    for node in ast.iter_child_nodes(tree):
        names: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{inside}{node.name}.")
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        for name in names:
            yield inside + name, node.lineno


def renumber(text: str) -> str:
    """The text with every reference at the line where its name is defined now."""

    def place(reference: re.Match[str]) -> str:
        file, name = reference["file"], reference["name"]
        path = SOURCE / file
        if not path.is_file():
            sys.exit(f"docs/tour.md: there is no file {file}")
        lines = dict(definitions(ast.parse(path.read_text(encoding="utf-8"))))
        if name not in lines:
            sys.exit(f"docs/tour.md: {file} defines no {name}")
        return f"`{file}:{lines[name]} {name}`"

    return REFERENCE.sub(place, text)


def main() -> None:
    """Renumber the tour, or check that it needn't be."""
    old = TOUR.read_text(encoding="utf-8")
    new = renumber(old)
    if new != old and "--check" in sys.argv:
        sys.exit("stale line numbers in docs/tour.md (run: make docs)")
    TOUR.write_text(new, encoding="utf-8")
    print(f"docs/tour.md: {len(REFERENCE.findall(new))} references {'renumbered' if new != old else 'true'}")


if __name__ == "__main__":
    main()
