"""`glassformer chat`: a conversation with a model, in the terminal or over pipes."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer.cli.complete import printable
from glassformer.cli.device import DTypeName
from glassformer.cli.load import load_with_tokenizer
from glassformer.cli.model import MODEL, Revision, find_model
from glassformer.engine import Engine, Handle, SamplingParams
from glassformer.errors import ChatError, RequestError, TokenizerError
from glassformer.spec import check
from glassformer.tokenizer import Chat, ChatOptions, Tokenizer
from glassformer.tokenizer.chat import templates_of

RESET, EXIT = "/reset", "/exit"
HELP = f"{RESET} forgets the conversation, {EXIT} or Ctrl-D leaves, Ctrl-C stops an answer."
COMMAND = re.compile(r"/\w+")
ASKING = ChatOptions(add_generation_prompt=True)


def chat(
    model: Annotated[str, typer.Argument(help=MODEL, show_default=False)],
    system: Annotated[str | None, typer.Option(help="What the model is told first.", show_default=False)] = None,
    template: Annotated[
        Path | None, typer.Option(help="A chat template (Jinja) instead of the model's.", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="The most tokens of an answer.")] = 1024,
    temperature: Annotated[float, typer.Option(help="Divides the scores; 0 always takes the best token.")] = 0.7,
    top_k: Annotated[int, typer.Option(help="Choose among the k best tokens; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Choose among the best that together have this probability.")] = 0.95,
    min_p: Annotated[float, typer.Option(help="… among those at least this times as likely as the best.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1, what the text has comes less often.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Taken off the score of what was written (-2 to 2).")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="… for each time it was written (-2 to 2).")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answers.", show_default=False)] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this string (may be given again).", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    dtype: Annotated[DTypeName, typer.Option(help="Number format of weights and cache.")] = "auto",
    revision: Revision = None,
) -> None:
    """Talk with a model. In the terminal answers appear as they are written; over a pipe each line is a message.

    Example: glassformer chat SmolLM2-135M-Instruct.gguf --system "Answer in one sentence."
    """
    settings: dict[str, Any] = {
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
    }
    params = check(SamplingParams, settings, where="sampling")
    path = find_model(model, revision)
    loaded, tokenizer = load_with_tokenizer(path, device, dtype)
    about = _chat(tokenizer, template, path, loaded.stops)
    engine = Engine(loaded.model, tokenizer, stops=loaded.stops | about.turn_ends, never=loaded.never)
    talk = Talk(engine, about, params, system)
    terminal = sys.stdin.isatty()
    if terminal:
        import readline  # noqa: F401  (gives input() its history and editing keys)

        print(HELP)
    with talk.engine:
        converse(talk, read=_ask if terminal else _line, write=_write)


def _chat(tokenizer: Tokenizer, template: Path | None, path: Path, stops: frozenset[int]) -> Chat:
    """The conversations of a model, by the template given or by its own."""
    if template is not None:
        try:
            templates = {"default": template.read_bytes().decode("utf-8")}
        except UnicodeDecodeError:
            raise ChatError("expected UTF-8 text", where=template) from None
    elif not (templates := templates_of(tokenizer.config)):
        advice = "give one with --template, or use `generate`: a model without one wasn't trained to chat"
        raise ChatError("the model has no chat template", where=path, do=advice)
    return Chat(tokenizer, templates, stops)


class Talk:
    """A conversation: what was said, and what of it the engine still remembers."""

    def __init__(self, engine: Engine, chat: Chat, params: SamplingParams, system: str | None = None):
        self.engine, self.chat, self.params = engine, chat, params
        self.before = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = list(self.before)
        self.handle: Handle | None = None

    @property
    def works(self) -> bool:
        """Whether the template can ask at all."""
        try:
            self.chat.encode([*self.before, {"role": "user", "content": "?"}], ASKING)
        except (ChatError, TokenizerError):
            return False
        return True

    def reset(self) -> None:
        """Forget all but what the model is told first."""
        self.messages = list(self.before)

    def answer(self, text: str) -> Iterator[str]:
        """The answer to a message, piece by piece; an answer that is broken off stays as far as it came.

        Raises:
            RequestError, ChatError: when it can't be asked; the message is then forgotten.
        """
        self.messages.append({"role": "user", "content": text})
        params = self.params
        if params.seed is not None:
            params = params.replace(seed=params.seed + len(self.messages))
        try:
            tokens = self.chat.encode(self.messages, ASKING)
            handle = self.handle = self.engine.add(tokens, params, after=self.handle, keep=True)
        except BaseException:  # an interrupt too: a message without an answer would be refused later
            self.messages.pop()
            raise
        parts: list[str] = []
        try:
            for event in handle:
                parts.append(event.text)
                yield event.text
        finally:
            handle.cancel()
            self.messages.append({"role": "assistant", "content": "".join(parts)})


def converse(talk: Talk, read: Callable[[], str], write: Callable[[str], None]) -> None:
    """Ask and answer until `read` ends (EOFError), /exit, or an interrupt while nothing is being written."""
    while True:
        try:
            text = read()
        except (EOFError, KeyboardInterrupt):
            return
        if text.strip() == EXIT:
            return
        if text.strip() == RESET:
            talk.reset()
        elif COMMAND.fullmatch(text.rstrip()):
            write(f"(there is no {text.rstrip()}; {HELP} A space before it makes it a message.)\n")
        elif text.strip():
            _answer(talk, text, write)


def _answer(talk: Talk, text: str, write: Callable[[str], None]) -> None:
    pieces = talk.answer(text)
    try:
        for piece in pieces:
            write(piece)
    except KeyboardInterrupt:
        pieces.close()  # pyright: ignore[reportAttributeAccessIssue]  (it is a generator)
    except (RequestError, ChatError, TokenizerError) as error:
        if not talk.messages[len(talk.before) :] and not talk.works:
            raise  # nothing can be asked with this template; else it is this message alone
        write(f"({error}; {RESET} forgets the conversation)")
    write("\n")


def _ask() -> str:
    print()
    return input("> ")


def _line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _write(text: str) -> None:
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
