"""The page on softmax and on the ways to attend: rendered from the modules of ops that hold them."""

import ast
import inspect
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

from pages import page

from glassformer.ops import attend, blockwise, softmax

ABOUT = """Attention turns scores into weights by a softmax. It can be computed in more than one way, with the same
result: **at once**, which needs all scores of a row side by side; **online**, in one pass over them, which needs only
a running maximum and a running sum; and **in blocks**, where the online softmax lets attention over long texts run
without ever having the table of all scores. Every way below is tested equal to the first: `tests/ops/test_softmax.py`,
`tests/ops/test_attend.py`, `tests/ops/test_blockwise.py`. Which of them a pass takes is decided in
[`model/attention/mix.py`](../../src/glassformer/model/attention/mix.py). Some examples from articles, right and wrong,
are computed in `tests/model/test_articles.py` ([where they err](../articles.md)). [All mechanisms](README.md)"""

WHY = """With m = max s, softmax(s) = exp(s - m) / Σ exp(s - m): the shift cancels, and no exponent is above zero. When
a new block of scores arrives whose maximum is higher, what was summed before only has to be multiplied by exp(old m -
new m). The same factor corrects a running mixture of values, so that neither the weights nor the scores of a whole row
need ever exist: that is the idea of FlashAttention."""


def render_softmax() -> str:
    parts = [" ".join(WHY.split()) + "\n"]
    for module in (softmax, attend, blockwise):
        parts.append(f"## `{module.__name__.removeprefix('glassformer.')}`\n")
        parts.append(f"{_home(module)}\n")
        parts += [f"{_joined(paragraph)}\n" for paragraph in inspect.cleandoc(module.__doc__ or "").split("\n\n")]
        parts += [_function(name, thing) for name, thing in vars(module).items() if _shown(name, thing, module)]
    return page("Softmax, at once, online and in blocks", " ".join(ABOUT.split()), "\n".join(parts))


def _home(module: ModuleType) -> str:
    file = Path(*module.__name__.split(".")).with_suffix(".py")
    return f"In [`{file.relative_to('glassformer')}`](../../src/{file})."


def _shown(name: str, thing: Any, module: ModuleType) -> bool:
    public = inspect.isfunction(thing) and not name.startswith("_")
    return public and thing.__module__ == module.__name__ and bool(thing.__doc__)


def _function(name: str, function: Any) -> str:
    """A function as it is called, with what it says of itself; the plain formulas with their code."""
    source = dedent(inspect.getsource(function))
    [tree] = ast.parse(source).body
    assert isinstance(tree, ast.FunctionDef)
    text = [_joined(paragraph) for paragraph in inspect.cleandoc(function.__doc__ or "").split("\n\n")]
    lines = source.splitlines()
    start = tree.body[0].lineno - 1  # the docstring, which stands above
    signature, body = "\n".join(lines[:start]), lines[tree.body[0].end_lineno or start :]
    written_out = function.__module__ == softmax.__name__ or function is attend.attend
    shown = "\n".join([signature, *body]) if written_out else f"{signature} ..."
    return "\n".join([f"### {name}\n", *(f"{paragraph}\n" for paragraph in text), f"```python\n{shown}\n```\n"])


def _joined(paragraph: str) -> str:
    return " ".join(paragraph.split())
