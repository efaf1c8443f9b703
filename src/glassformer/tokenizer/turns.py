"""Where in the text of a conversation the assistant speaks, found by rendering it with marks in its messages.

Most templates don't say which of their text the assistant writes. Looking for a message's content in the text
isn't enough: it may occur twice, or be part of what the template writes. So every content is rendered once more
between two marks of characters that occur nowhere else; if the text without marks is the same, the marks are right.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from secrets import token_hex
from typing import Any

from glassformer.errors import ChatError

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]
Ask = Callable[[Sequence[Message], bool], str]
TRIMS: tuple[Callable[[str], str], ...] = (str, str.strip, str.rstrip, str.lstrip)


@dataclass(frozen=True)
class Marked:
    """Where the content of a message is in the text; None for an end that the template has dropped or never had."""

    role: str
    start: int | None
    end: int | None


def marked_contents(render: Render, messages: Sequence[Message], text: str) -> list[Marked]:
    """The place of every content in `text`, which is `render(messages)`.

    Templates that strip contents are met by stripping them before marking; those that rewrite them lose marks.

    Raises:
        ChatError: when no way of marking gives the same text.
    """
    for assistant, others in sorted(product(TRIMS, TRIMS), key=lambda pair: pair[0] is not pair[1]):
        secret = token_hex(8)
        opens = [f"\ue000{secret}{number}\ue001" for number in range(len(messages))]
        closes = [f"\ue000{secret}{number}\ue002" for number in range(len(messages))]
        marked = [
            _between(message, opens[number], closes[number], assistant if _speaks(message) else others)
            for number, message in enumerate(messages)
        ]
        try:
            rendered = render(marked)
        except ChatError:  # the template looks into contents
            continue
        bare, places = _without(rendered, {*opens, *closes})
        if bare == text:
            return [
                Marked(message["role"], places.get(opens[number]), places.get(closes[number]))
                for number, message in enumerate(messages)
            ]
    raise ChatError(
        "can't tell where the messages are in the text: the chat template rewrites them",
        do="use a template with {% generation %} tags",
    )


def _speaks(message: Message) -> bool:
    return message["role"] == "assistant"


def _between(message: Message, before: str, behind: str, trim: Callable[[str], str]) -> Message:
    content = message.get("content")
    return {**message, "content": before + trim(content) + behind} if isinstance(content, str) and content else message


def _without(text: str, marks: set[str]) -> tuple[str, dict[str, int]]:
    """The text without marks, and where each stood (the last time, if several times)."""
    parts, places, length = list[str](), dict[str, int](), 0
    while text:
        plain, found, rest = text.partition("\ue000")
        parts.append(plain)
        length += len(plain)
        ends = [index for index in (rest.find("\ue001"), rest.find("\ue002")) if index >= 0]
        mark = found + rest[: min(ends) + 1] if ends else found
        if mark in marks:
            places[mark] = length
            text = rest[len(mark) - 1 :]
        else:
            parts.append(found)
            length += len(found)
            text = rest
    return "".join(parts), places


def assistant_spans(
    ask: Ask, messages: Sequence[Message], contents: Sequence[Marked], text: str, turn_ends: Sequence[str]
) -> list[tuple[int, int]]:
    """From where to where the assistant speaks: behind the generation prompt, up to what ends its turn.

    `ask(messages, add_generation_prompt)` renders; `turn_ends` are names of tokens at which the model stops.
    """
    prompt, ending = _prompt(ask, messages), ending_of(ask)
    spans: list[tuple[int, int]] = []
    place = 0
    for index, content in enumerate(contents):
        if content.role != "assistant":
            place = place if content.end is None else content.end
            continue
        limit = next((later.start for later in contents[index + 1 :] if later.start is not None), len(text))
        start = _start(text, prompt, (place, limit), content)
        place = _end(text, start if content.end is None else content.end, limit, (ending, turn_ends))
        spans.append((start, place))
    return spans


def _start(text: str, prompt: str, bounds: tuple[int, int], content: Marked) -> int:
    low, high = bounds
    if content.start is not None:
        found = text.rfind(prompt, low, content.start) if prompt else -1
        return content.start if found < 0 else found + len(prompt)
    found = text.find(prompt, low, high if content.end is None else content.end) if prompt else -1
    if found < 0:
        raise ChatError(
            "can't tell where the assistant begins to speak: the chat template rewrites its messages",
            do="use a template with {% generation %} tags",
        )
    return found + len(prompt)


def _end(text: str, close: int, limit: int, ends: tuple[str, Sequence[str]]) -> int:
    ending, names = ends
    if ending and (found := text.find(ending, close, limit)) >= 0:
        return found + len(ending)
    blank = close
    while blank < limit and text[blank].isspace():
        blank += 1
    return next((blank + len(name) for name in names if text.startswith(name, blank)), close)


def _prompt(ask: Ask, messages: Sequence[Message]) -> str:
    """What a template writes where the assistant is to begin."""
    first = next((index for index, message in enumerate(messages) if message["role"] == "assistant"), 0)
    before = messages[:first] or [{"role": "user", "content": "x"}]
    try:
        without, with_prompt = ask(before, False), ask(before, True)
    except ChatError:
        return ""
    return with_prompt.removeprefix(without) if with_prompt.startswith(without) else ""


def ending_of(ask: Ask) -> str:
    """What a template writes behind what the assistant says, whether or not somebody speaks after it."""
    mark = f"\ue000{token_hex(8)}\ue001"
    turn: list[Message] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": f"x{mark}"}]
    more: Message = {"role": "user", "content": f"x{mark}"}
    try:
        last, asked = (ask(turn, prompt).partition(mark)[2] for prompt in (False, True))
        between = ask([*turn, more], False).partition(mark)[2].partition(mark)[0].removesuffix("x")
    except ChatError:
        return ""
    # Some templates end the last turn only where an answer is asked for.
    tail = last or asked.removesuffix(_prompt(ask, ()))
    same = 0
    while same < min(len(tail), len(between)) and tail[same] == between[same]:
        same += 1
    return tail[:same].rstrip()
