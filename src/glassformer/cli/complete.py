"""Completion a token at a time, each shown with its probability table: for a terminal, and for a single page."""

import math
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassformer.engine import Completion, Engine, Event, SamplingParams
from glassformer.engine.sampling import DEFAULTS
from glassformer.tokenizer import Tokenizer

MARKS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"}
CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}
BAR = 24  # columns of a probability of 1


def shown(tokenizer: Tokenizer, token: int) -> str:
    """A token to look at: white space as marks, bytes that are no character in hex, special tokens by their name."""
    own = tokenizer.token_bytes(token)
    if not own:
        return tokenizer.decode([token])
    try:
        text = own.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in own)
    return printable("".join(MARKS.get(character, character) for character in text))


def printable(text: str) -> str:
    """Text that a terminal shows and never obeys: control characters become their codes."""
    return text.translate(CONTROLS)


def choice_table(tokenizer: Tokenizer, events: Iterable[Event]) -> Table:
    """One row for each written token: its probability, and the likeliest tokens in its place, in percent."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("token")
    table.add_column("written with", justify="right")
    table.add_column("the model's own probabilities", overflow="fold")
    for event in events:
        listed = Text("  ").join(
            Text(f"{shown(tokenizer, token)} {_percent(p)}", style="green" if token == event.token else "")
            for token, p in event.top
        )
        table.add_row(Text(shown(tokenizer, event.token)), _percent(_probability(event)), listed)
    return table


def candidate_table(tokenizer: Tokenizer, event: Event) -> Table:
    """What may come next: a numbered row for each candidate, with its probability as a number and as a bar."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for number, (token, p) in enumerate(event.top, start=1):
        bar = "█" * round(p * BAR) or "▏"
        style = "green" if token == event.token else ""
        table.add_row(str(number), Text(shown(tokenizer, token), style=style), _percent(p), Text(bar, style=style))
    if event.token not in (token for token, _ in event.top):
        table.add_row("…", Text(shown(tokenizer, event.token), style="green"), _percent(_probability(event)), "")
    return table


def one_completion(
    engine: Engine, prompt: str, params: SamplingParams = DEFAULTS, candidates: int = 5, console: Console | None = None
) -> Completion:
    """Print one completion and its table, and return it."""
    console = console or Console(highlight=False)
    handle = engine.add(prompt, params.replace(probabilities=candidates))
    events = list(handle)
    completion = Completion.of(events)
    console.print(Text.assemble((printable(prompt), "dim"), printable(completion.text)))
    console.print()
    console.print(choice_table(engine.tokenizer, events))
    return completion


def interactive(
    engine: Engine,
    prompt: str | None = None,
    params: SamplingParams = DEFAULTS,
    candidates: int = 5,
    console: Console | None = None,
    read: Callable[[str], str] = input,
) -> str:
    """Write a text together with the model: it proposes, you accept, pick or type. Returns the text.

    Enter writes the proposed token (drawn as `params` say, green in the table), a number picks one of the candidates,
    anything else is added as it stands, q ends. `read(question)` must return a line or raise EOFError.
    """
    console = console or Console(highlight=False)
    console.print("Enter writes the green token, a number picks one, other text is added as it stands, q ends.")
    tokens: list[int] = []
    try:
        tokens += engine.tokenizer.encode(prompt if prompt is not None else read("The text begins with: "))
        while True:
            event = _propose(engine, tokens, params, candidates)
            console.print(Text(printable(engine.tokenizer.decode(tokens, skip_special=True)), style="bold"))
            console.print(candidate_table(engine.tokenizer, event))
            answer = read("> ")
            if answer == "q":
                break
            tokens += _chosen(engine.tokenizer, event, answer)
    except (EOFError, KeyboardInterrupt):
        console.print()
    return engine.tokenizer.decode(tokens, skip_special=True)


def _propose(engine: Engine, tokens: Sequence[int], params: SamplingParams, candidates: int) -> Event:
    """The next token and its rivals. A text longer than the context is read from its last part."""
    seed = None if params.seed is None else params.seed + len(tokens)
    single = params.replace(max_tokens=1, probabilities=candidates, seed=seed, stop=())
    return next(iter(engine.stream(list(tokens[-engine.context :]), single)))


def _chosen(tokenizer: Tokenizer, event: Event, answer: str) -> list[int]:
    """The tokens that an answer adds."""
    if not answer:
        return [event.token]
    if answer.isdecimal() and 1 <= int(answer) <= len(event.top):
        return [event.top[int(answer) - 1][0]]
    return tokenizer.encode(answer)


def _probability(event: Event) -> float:
    return math.exp(event.logprob)


def _percent(p: float) -> str:
    return f"{100 * p:.1f} %" if p >= 0.001 else "< 0.1 %"
