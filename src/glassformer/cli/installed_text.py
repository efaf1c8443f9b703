"""Text that comes with Python itself: the language reference, and the documentation inside the standard library."""

import ast
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

LEFT_OUT = frozenset(
    {"test", "tests", "idle_test", "lib2to3", "encodings", "pydoc_data", "site-packages", "dist-packages"}
)
"""Folders that some installations have and others don't, or whose text isn't documentation."""
COPY = 40
"""Characters from which a paragraph that has come before is left out."""


def installed_documents() -> Iterator[tuple[str, str]]:
    """Names and texts, in a fixed order: each topic of the language reference, each module of the standard library.

    Of a module, what `pydoc` would print: signatures and docstrings. Each paragraph comes once only: the reference
    repeats whole sections, and a held-out text whose copy was learnt measures nothing.
    """
    known: set[str] = set()
    for name, text in (*_topics(), *_modules(Path(sysconfig.get_path("stdlib")))):
        if fresh := _without_copies(text, known):
            yield name, fresh


def _topics() -> Iterator[tuple[str, str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions package it apart
        return
    for name in sorted(topics):
        yield f"topic {name}", topics[name]


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).parts):
        parts = path.relative_to(folder).parts
        if LEFT_OUT.isdisjoint(parts) and not parts[0].startswith(("_sysconfigdata", "config-")):
            try:
                with warnings.catch_warnings(action="ignore"):  # of old spellings, which are no business of ours
                    tree = ast.parse(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, SyntaxError):
                continue
            yield ".".join(parts).removesuffix(".py"), "\n\n".join(_documented(tree, "/".join(parts)))


def _documented(module: ast.Module, name: str) -> Iterator[str]:
    """Signature and docstring of everything in a module that has one, in the order of the file."""
    if text := ast.get_docstring(module):
        yield f"{name}\n\n{text}"
    stack: list[ast.AST] = [*reversed(module.body)]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield f"{_signature(node)}\n{_indented(text)}"
            stack += reversed(node.body)


def _signature(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
    return f"{node.name}({ast.unparse(node.args)})"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def _without_copies(text: str, known: set[str]) -> str:
    paragraphs: list[str] = []
    for paragraph in text.split("\n\n"):
        content = " ".join(paragraph.split())
        if len(content) < COPY or content not in known:
            paragraphs.append(paragraph)
        known.add(content)
    return "\n\n".join(paragraphs) if any(len(paragraph) >= COPY for paragraph in paragraphs) else ""


def sizes(documents: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Bytes from the language reference and from the standard library."""
    total = {"language reference": 0, "standard library": 0}
    for name, text in documents:
        total["language reference" if name.startswith("topic ") else "standard library"] += len(text.encode())
    return total
