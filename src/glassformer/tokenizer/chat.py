"""Chat templates: a conversation as the text, and the tokens, that a model was trained on.

A template is a program in Jinja that comes with a model. What it may use is what Hugging Face's templates expect:
`messages`, `tools`, `documents`, `add_generation_prompt`, the names of special tokens, `raise_exception`,
`strftime_now`, `tojson`, `break` and `continue`, `{% generation %}`. It runs in `sandbox.Sandbox`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from secrets import token_hex
from typing import Any

from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError, UndefinedError

from glassformer.errors import ChatError
from glassformer.tokenizer.base import Span, Tokenizer
from glassformer.tokenizer.bert import name_of
from glassformer.tokenizer.sandbox import BUDGET, Budget, LimitError, Sandbox, refused
from glassformer.tokenizer.tree import ROLES
from glassformer.tokenizer.turns import Marked, assistant_spans, ending_of, marked_contents

Message = Mapping[str, Any]
LARGEST_TEMPLATE = 1_000_000  # characters
DATE = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*")
NO_TEMPLATE = (
    "put its chat_template.jinja beside the tokenizer, or use `generate`: a model without one wasn't trained to chat"
)


@dataclass(frozen=True)
class ChatOptions:
    """How a conversation is written out.

    tools, documents: what the template tells the model about, as JSON-like mappings.
    add_generation_prompt: end with the beginning of an answer.
    continue_final_message: end in the middle of the last message, for the model to write on.
    template: the name of one of several templates; None: "tool_use" where there are tools and it exists, or "default".
    variables: more that a template reads (`enable_thinking` …).
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])


PLAIN, ASKING = ChatOptions(), ChatOptions(add_generation_prompt=True)


class ChatTemplate:
    """One template, ready to be filled in."""

    def __init__(self, source: str):
        """Raises ChatError on a template that isn't Jinja, or far too long."""
        if len(source) > LARGEST_TEMPLATE:
            raise ChatError(f"a chat template of {len(source):,} characters", do="no real one is that long")
        self.source = source
        sandbox = Sandbox()
        sandbox.filters["tojson"] = _to_json
        sandbox.globals |= {"raise_exception": refused, "strftime_now": _now}
        try:
            self._ready = sandbox.ready(source)
        except TemplateSyntaxError as error:
            raise ChatError(f"the chat template is no Jinja: line {error.lineno}: {error.message}") from None
        except Exception as error:  # nested too deeply for the parser or for Python
            raise ChatError(f"the chat template can't be compiled: {_line(error)}") from None

    def render(self, variables: Mapping[str, Any], marks: tuple[str, str] = ("", "")) -> str:
        """The text; `marks` are put around what {% generation %} encloses.

        Raises:
            ChatError: the template refuses the conversation, fails on it, or does what no template may.
        """
        token = BUDGET.set(Budget(marks))
        try:
            return self._ready.render(variables)
        except ChatError:
            raise
        except LimitError as error:
            raise ChatError(f"the chat template was stopped: {error}", do="use another template") from None
        except SecurityError as error:
            raise ChatError(f"the chat template reaches for what it may not use: {_line(error)}") from None
        except UndefinedError as error:
            raise ChatError(f"the chat template misses something in this conversation: {_line(error)}") from None
        except Exception as error:  # whatever the template's own arithmetic runs into
            raise ChatError(f"the chat template fails: {type(error).__name__}: {_line(error)}") from None
        finally:
            BUDGET.reset(token)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **kwargs: Any) -> str:
    known = {name: kwargs[name] for name in ("separators", "sort_keys") if name in kwargs}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=None if indent is None else min(indent, 16), **known)


_to_json.__name__ = "tojson"


def _now(layout: str) -> str:
    if not isinstance(layout, str) or len(layout) > 200 or not DATE.fullmatch(layout):
        raise ChatError("the chat template asks for the date in a layout that can't be")
    return datetime.now().strftime(layout)


class Chat:
    """Conversations for one tokenizer: as text, as tokens, and with a mask over what the assistant says."""

    def __init__(self, tokenizer: Tokenizer, templates: Mapping[str, str], stops: Iterable[int] = ()):
        """`templates` by name ("default", "tool_use" …); `stops` are the ids at which the model ends a turn."""
        self.tokenizer, self.templates, self.stops = tokenizer, dict(templates), frozenset(stops)
        self._ready: dict[str, ChatTemplate] = {}

    @classmethod
    def of(cls, tokenizer: Tokenizer, stops: Iterable[int] = ()) -> "Chat":
        """The chat that a tokenizer's own templates describe.

        Raises:
            ChatError: when it has none.
        """
        templates = templates_of(tokenizer.config)
        if not templates:
            raise ChatError("the model has no chat template", do=NO_TEMPLATE)
        return cls(tokenizer, templates, stops)

    def render(self, messages: Sequence[Message], options: ChatOptions = PLAIN) -> str:
        """The conversation as text."""
        return self._render(self._checked(messages, options), options)

    def encode(self, messages: Sequence[Message], options: ChatOptions = PLAIN) -> list[int]:
        """The conversation as tokens. None is added to what the template writes (no second beginning).

        Special tokens are those of the template: what looks like one inside a message is plain text.
        """
        text, contents = self._with_contents(self._checked(messages, options), options)
        return [span.token for span in self._spans(text, contents)]

    def encode_with_mask(
        self, messages: Sequence[Message], options: ChatOptions = PLAIN
    ) -> tuple[list[int], list[bool]]:
        """The tokens, and for each whether the assistant writes it: its content and the token that ends its turn.

        Where the template marks it with {% generation %}, that is what counts.

        Raises:
            ChatError: when it can't be told, because the template rewrites what the assistant says.
        """
        messages = self._checked(messages, options)
        text, contents = self._with_contents(messages, options)
        said = self._generated(messages, options)
        if said is None:
            said = assistant_spans(
                lambda some, ask: self._render(some, ChatOptions(**{**vars(options), "add_generation_prompt": ask})),
                messages,
                contents or marked_contents(lambda some: self._render(some, options), messages, text),
                text,
                [name for name, token in self.tokenizer.special.items() if token in self.stops],
            )
        spans = self._spans(text, contents)
        return [span.token for span in spans], _covered(spans, said)

    @cached_property
    def turn_ends(self) -> frozenset[int]:
        """The special tokens that the template writes behind what the assistant says: where a model should stop."""
        ending = ending_of(lambda some, ask: self._render(some, ASKING if ask else PLAIN))
        names = self._special_names
        return frozenset(self.tokenizer.special[name] for name in names.findall(ending)) if names else frozenset()

    def _render(self, messages: Sequence[Message], options: ChatOptions) -> str:
        if options.continue_final_message:
            return self._unfinished(messages, options)
        return self._template(options).render(self._variables(messages, options))

    def _template(self, options: ChatOptions) -> ChatTemplate:
        name = options.template
        if name is None:
            name = "tool_use" if options.tools and "tool_use" in self.templates else "default"
            name = next(iter(self.templates)) if len(self.templates) == 1 else name
        if name not in self.templates:
            raise ChatError(f"no chat template named {name!r}", do=f"there are {', '.join(sorted(self.templates))}")
        if name not in self._ready:
            self._ready[name] = ChatTemplate(self.templates[name])
        return self._ready[name]

    def _variables(self, messages: Sequence[Message], options: ChatOptions) -> dict[str, Any]:
        config = self.tokenizer.config
        return {
            **{role: name for role in ROLES if (name := name_of(config.get(role)))},
            "messages": [dict(message) for message in messages],
            "tools": list(options.tools) if options.tools else None,
            "documents": list(options.documents) if options.documents else None,
            "add_generation_prompt": options.add_generation_prompt,
            **options.variables,
        }

    def _unfinished(self, messages: Sequence[Message], options: ChatOptions) -> str:
        """The text up to the end of the last message's content, which a mark finds wherever it comes to stand."""
        if options.add_generation_prompt:
            raise ChatError("a text can't go on in the last message and with a new one", do="choose one of the two")
        last = messages[-1]
        if not isinstance(last.get("content"), str):
            raise ChatError("the last message has no text to go on with")
        mark = f"\ue000{token_hex(8)}\ue001"
        marked = [*messages[:-1], {**last, "content": last["content"] + mark}]
        before, found, _ = self._template(options).render(self._variables(marked, options)).rpartition(mark)
        if not found:
            raise ChatError("the chat template leaves the last message out, so there is nothing to go on with")
        return before

    def _checked(self, messages: Sequence[Message], options: ChatOptions) -> list[Message]:
        if not messages:
            raise ChatError("a conversation without messages")
        for number, message in enumerate(messages, start=1):
            good = isinstance(message, Mapping) and isinstance(message.get("role"), str)
            if not good or not isinstance(message.get("content"), str | list | None):
                raise ChatError(f"message {number}: expected a role and a content, got {str(message)[:80]}")
        return list(messages)

    def _with_contents(self, messages: list[Message], options: ChatOptions) -> tuple[str, list[Marked] | None]:
        """The text, and where the contents are in it where that matters: where one looks like a special token."""
        text = self._render(messages, options)
        names = self._special_names
        if names is None or not any(names.search(str(message.get("content") or "")) for message in messages):
            return text, None
        contents = marked_contents(lambda some: self._render(some, options), messages, text)
        if any(place.start is None or place.end is None for place in contents):
            raise ChatError(
                "a message contains the text of a special token, and the template rewrites messages",
                do="take it out of the message",
            )
        return text, contents

    @cached_property
    def _special_names(self) -> re.Pattern[str] | None:
        names = sorted(self.tokenizer.special, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names))) if names else None

    def _spans(self, text: str, contents: list[Marked] | None) -> list[Span]:
        plain = [(place.start or 0, place.end or 0) for place in contents or ()]
        return self.tokenizer.spans(text, parse_special=True, plain=plain)

    def _generated(self, messages: list[Message], options: ChatOptions) -> list[tuple[int, int]] | None:
        """What {% generation %} encloses; None where the template has no such tag."""
        template = self._template(options)
        if not re.search(r"\{%-?\+?\s*generation\b", template.source):
            return None
        marks = (f"\ue000{token_hex(8)}\ue001", f"\ue000{token_hex(8)}\ue002")
        parts = re.split(f"({marks[0]}|{marks[1]})", template.render(self._variables(messages, options), marks))
        place, begin, found = 0, 0, list[tuple[int, int]]()
        for part in parts:
            if part == marks[0]:
                begin = place
            elif part == marks[1]:
                found.append((begin, place))
            else:
                place += len(part)
        return found


def templates_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The templates of a tokenizer_config.json: one, or a list of named ones."""
    written = config.get("chat_template")
    if isinstance(written, str):
        return {"default": written}
    entries = written if isinstance(written, list) else []
    return {
        entry["name"]: entry["template"]
        for entry in entries
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
    }


def _covered(spans: Sequence[Span], places: Sequence[tuple[int, int]]) -> list[bool]:
    """For each token whether it shares a character with one of the places; both are in order."""
    covered, waiting = list[bool](), iter(places)
    place = next(waiting, None)
    for span in spans:
        while place is not None and place[1] <= span.start:
            place = next(waiting, None)
        covered.append(place is not None and max(span.end, span.start + 1) > place[0])
    return covered
