"""Jinja for templates that come from strangers: nothing of Python is in reach, and time, steps and sizes have limits.

Jinja's own sandbox closes attributes and methods that lead outside. It doesn't bound what a template may compute, so
the tree of a template is metered before it is compiled: every loop counts its steps, every value that is put together
is measured, and everything written is added up.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from glassformer.errors import ChatError

STEPS = 1_000_000  # of all loops of one rendering together
SIZE = 8_000_000  # characters of a value, and of all that is written
ELEMENT = 8  # what an element of a list counts beside its characters
BITS = 4096  # of a whole number
SECONDS = 5.0
WIDEST = 100  # columns of padding or indentation
DROPPED = ("urlize", "xmlattr", "pprint", "random", "wordwrap")
"""Filters of Jinja that no conversation needs."""
PADDING = {"center", "ljust", "rjust", "zfill", "expandtabs", "indent"}
WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\*|\d{4})|\{[^{}]*(\{|\d{4})")


class LimitError(Exception):
    """The template takes too much of something."""


@dataclass
class Budget:
    """What one rendering has used; `marks` stand around the text of {% generation %}, where it is asked for."""

    marks: tuple[str, str] = ("", "")
    steps: int = 0
    written: int = 0
    deadline: float = field(default_factory=lambda: time.monotonic() + SECONDS)

    def tick(self, steps: int = 0, written: int = 0) -> None:
        self.steps += steps
        self.written += written
        if self.steps > STEPS:
            raise LimitError(f"its loops take more than {STEPS:,} steps")
        if self.written > SIZE:
            raise LimitError(f"it writes more than {SIZE:,} characters")
        if time.monotonic() > self.deadline:
            raise LimitError(f"it takes more than {SECONDS:g} seconds")


BUDGET: ContextVar[Budget] = ContextVar("budget")


def measured(value: Any) -> Any:
    """`value`, unless it is larger than any conversation."""
    size(value)
    return value


def size(value: Any) -> int:
    """Characters of a value, and eight for each element; those inside others count each time they occur."""
    waiting, total = [value], 0
    while waiting:
        one = waiting.pop()
        total += ELEMENT
        if isinstance(one, str | bytes):
            total += len(one)
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, int) and one.bit_length() > BITS:
            raise LimitError("it makes a number of more than a thousand digits")
        if total + ELEMENT * len(waiting) > SIZE:
            raise LimitError(f"it makes a value of more than {SIZE:,} characters or elements")
    return total


def counted(values: Iterable[Any]) -> Iterator[Any]:
    """The steps of a loop."""
    budget = BUDGET.get()
    for value in values:
        budget.tick(steps=1)
        yield value


def joined(values: list[Any]) -> str:
    """What `a ~ b` means."""
    size(values)
    return "".join(map(str, values))


def written(value: Any) -> str:
    """What `{{ value }}` writes."""
    size(value)
    text = str(value)
    BUDGET.get().tick(written=len(text))
    return text


class _Metering(NodeTransformer):
    """Puts the functions above into the tree of a template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (the visitor's names)
        self.generic_visit(node)
        node.iter = _through("_counted", node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        plain: list[Any] = [
            nodes.Const(part.data) if isinstance(part, nodes.TemplateData) else part for part in node.nodes
        ]
        node.nodes = [_through("_written", part) for part in plain]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_joined", nodes.List(node.nodes))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _through("_measured", node.expr)
        for operand in node.ops:
            operand.expr = _through("_measured", operand.expr)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_measured", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("_measured", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _through("_measured", node)


def _through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class Generation(Extension):
    """{% generation %} … {% endgeneration %}: what the assistant has written."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        before, behind = BUDGET.get().marks
        return f"{before}{caller()}{behind}"


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that templates of models are written for (trimmed blocks, break and continue)."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[LoopControlExtension, Generation]
        )
        for name in DROPPED:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters = {name: _guarded(name, function) for name, function in self.filters.items()}

    def ready(self, source: str) -> Any:
        """The compiled template of a text; raises Jinja's errors."""
        tree = _Metering().visit(self.parse(source))
        self.filters |= {"_counted": counted, "_written": written, "_joined": joined, "_measured": measured}
        tree.set_environment(self)
        code = self.compile(tree)
        return self.template_class.from_code(self, code, self.make_globals(None))

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        BUDGET.get().tick()
        owner = getattr(function, "__self__", None)
        _check_arguments(getattr(function, "__name__", ""), (owner, *args) if isinstance(owner, str) else args, kwargs)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str) and WIDE_FORMAT.search(left):
            raise LimitError("it pads text to a large width")
        if operator == "+":
            size([left, right])
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_power(left, right)
        return measured(super().call_binop(context, operator, left, right))


def _check_power(left: int, right: int) -> None:
    if right > 0 and max(left.bit_length(), 1) * right > BITS:
        raise LimitError("it makes a number of more than a thousand digits")


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int) and size(value) * times > SIZE:
            raise LimitError(f"it makes a value of more than {SIZE:,} characters or elements")


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja's own context or environment comes first

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        BUDGET.get().tick()
        _check_arguments(name, args[first:], kwargs)
        return function(*args, **kwargs)

    return guarded


def _check_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse calls whose result could be far larger than their arguments."""
    values = [*args, *kwargs.values()]
    total = sum(size(value) for value in values)
    numbers = [value for value in values if isinstance(value, int)]
    texts = [value for value in values if isinstance(value, str)]
    if total > SIZE or any(number > SIZE for number in numbers):
        raise LimitError(f"it calls {name} with a very large value")
    if name in PADDING and (any(number > WIDEST for number in numbers) or max(map(len, texts), default=0) > SIZE // 40):
        raise LimitError(f"it calls {name} for a large width")
    if name == "replace" and len(texts) > 2 and texts[0].count(texts[1]) * len(texts[2]) > SIZE:
        raise LimitError("it replaces by a very large text")
    if name == "join" and texts:
        lists = [value for value in values if isinstance(value, list | tuple)]
        if len(texts[0]) > (SIZE // max(len(lists[0]), 1) if lists else WIDEST):
            raise LimitError("it joins by a very large text")
    if name == "sum" and any(isinstance(value, list | tuple) for value in values[1:]):
        raise LimitError("it sums up lists")
    if name in ("format", "format_map") and any(WIDE_FORMAT.search(text) for text in texts):
        raise LimitError("it pads text to a large width")


def refused(message: str) -> None:
    """The `raise_exception` of templates."""
    raise ChatError(f"the chat template refuses this conversation: {' '.join(str(message).split())[:300]}")
