"""`glassformer generate`: a model continues a text."""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from glassformer.cli.complete import choice_table, printable, shown
from glassformer.cli.device import DTypeName
from glassformer.cli.given import read_text
from glassformer.cli.load import load_with_tokenizer
from glassformer.cli.model import MODEL, Revision, find_model
from glassformer.engine import Completion, Engine, Event, Handle, SamplingParams
from glassformer.engine.beam import BeamParams, search
from glassformer.errors import RequestError
from glassformer.spec import check
from glassformer.tokenizer import Tokenizer


def generate(
    model: Annotated[str, typer.Argument(help=MODEL, show_default=False)],
    prompt: Annotated[
        str | None, typer.Argument(help="The beginning; - reads it from standard input.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Take the beginning from a UTF-8 file.", show_default=False)] = None,
    max_tokens: Annotated[int, typer.Option(help="The most tokens to write.")] = 256,
    temperature: Annotated[float, typer.Option(help="Divides the scores; 0 always takes the best token.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Choose among the k best tokens; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Choose among the best that together have this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="… among those at least this times as likely as the best.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1, what the text has comes less often.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Taken off the score of what was written (-2 to 2).")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="… for each time it was written (-2 to 2).")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.", show_default=False)] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this string (may be given again).", show_default=False)
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Write on past the end of a document.")] = False,
    show_probabilities: Annotated[
        int, typer.Option(help="List so many alternatives for each token, with the model's own probabilities.")
    ] = 0,
    beams: Annotated[int, typer.Option(help="Search with so many beams for the best text; 0 samples.", min=0)] = 0,
    length_penalty: Annotated[float, typer.Option(help="Of a beam search: above 0 longer texts gain.")] = 0.6,
    num_samples: Annotated[int, typer.Option(help="Texts to write, side by side.", min=1)] = 1,
    echo: Annotated[bool, typer.Option(help="Print the beginning before what follows it.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    dtype: Annotated[DTypeName, typer.Option(help="Number format of weights and cache.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    revision: Revision = None,
) -> None:
    """Continue a text, and show it as it is written; an encoder-decoder answers it (translates, sums up).

    Example: glassformer generate runs/first "To be, or not" --temperature 0.8 --show-probabilities 5
    """
    settings = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "seed": seed,
        "stop": stop or (),
        "ignore_eos": ignore_eos,
        "probabilities": show_probabilities,
    }
    params = check(SamplingParams, settings, where="sampling")
    if beams:
        _refuse_with_beams(
            {**params.replace(max_tokens=SamplingParams().max_tokens).model_dump(), "num_samples": num_samples}
        )
    text = read_text(prompt, file, "PROMPT")
    loaded, tokenizer = load_with_tokenizer(find_model(model, revision), device, dtype)
    engine = Engine(loaded.model, tokenizer, stops=loaded.stops, never=loaded.never)
    if loaded.unheeded:
        sys.stderr.write(f"its generation_config.json asks for {', '.join(loaded.unheeded)}: not done here\n")
    echo = echo and loaded.spec.encoder is None  # what an encoder reads isn't continued
    if beams:
        wanted = {"beams": beams, "length_penalty": length_penalty, "max_tokens": max_tokens}
        _search(engine, text, check(BeamParams, wanted, where="beam search"), as_json, text if echo else "")
    elif as_json:
        completions = engine.generate([text] * num_samples, params)
        objects = [_object(engine.tokenizer, one, params) for one in completions]
        print(json.dumps(objects[0] if num_samples == 1 else {"samples": objects}, ensure_ascii=False))
    else:
        _show(engine, text, params, num_samples, echo)


def _object(tokenizer: Tokenizer, completion: Completion, params: SamplingParams) -> dict[str, Any]:
    """A completion as plain data."""
    plain: dict[str, Any] = {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "finish_reason": completion.finish_reason,
    }
    if params.probabilities:
        plain["probabilities"] = [
            [{"token": token, "text": shown(tokenizer, token), "probability": p} for token, p in top]
            for top in completion.top
        ]
    return plain


def _refuse_with_beams(given: Mapping[str, Any]) -> None:
    """A beam search takes the best of all texts: options of drawing and of stopping say nothing to it."""
    plain = {**SamplingParams().model_dump(), "num_samples": 1}
    # A temperature of 0 asks for the best token, which is what a search does anyway.
    odd = [name for name, value in given.items() if value != plain[name] and (name, value) != ("temperature", 0)]
    if odd:
        named = ", ".join(f"--{'show-' * (name == 'probabilities')}{name.replace('_', '-')}" for name in odd)
        raise RequestError(f"a beam search can't heed {named}", do="leave it out, or leave out --beams")


def _search(engine: Engine, text: str, params: BeamParams, as_json: bool, before: str) -> None:
    """Print the best text that a beam search finds; as JSON all of them, with what they are worth."""
    found = search(engine, text, params)
    if as_json:
        objects = [
            {"text": written, "tokens": list(one.tokens), "logprob": one.logprob, "score": one.score}
            for written, one in found
        ]
        print(json.dumps({"beams": objects}, ensure_ascii=False))
    else:
        whole = before + found[0][0]
        print(printable(whole) if sys.stdout.isatty() else whole)


def _show(engine: Engine, text: str, params: SamplingParams, samples: int, echo: bool) -> None:
    """Print texts one after the other, each as it is written; all are written side by side."""
    console = Console(highlight=False)
    handles: list[Handle] = []
    for index in range(samples):
        own = params if params.seed is None else params.replace(seed=params.seed + index)
        handles.append(engine.add(text, own))
    for index, handle in enumerate(handles):
        if samples > 1:
            console.rule(f"{index + 1} of {samples}")
        events = _print_events(handle, text if echo else "")
        if params.probabilities:
            console.print(choice_table(engine.tokenizer, events))


def _print_events(events: Iterable[Event], before: str) -> list[Event]:
    """Write the text of events to standard output as they come."""
    terminal = sys.stdout.isatty()
    sys.stdout.write(printable(before) if terminal else before)
    seen: list[Event] = []
    for event in events:
        seen.append(event)
        sys.stdout.write(printable(event.text) if terminal else event.text)
        if terminal:
            sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    return seen
