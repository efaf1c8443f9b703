"""The engine: one loop that owns the model and serves many requests, a pass at a time. READ SECOND, after the model.

    add -> scheduler.plan -> runner.run -> sampling.choose -> events, and again

Whoever wants text adds a request and reads its events. Whoever wants the model between two passes asks for a `turn`.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Self, TypeVar

from pydantic import Field

from glassformer.engine.cache import PagePool, bytes_per_sequence, bytes_per_token, window_of
from glassformer.engine.handle import Completion, Event, Handle
from glassformer.engine.pages import Span
from glassformer.engine.runner import Runner
from glassformer.engine.sampling import DEFAULTS, Choice, Sampler, SamplingParams, choose
from glassformer.engine.scheduler import Scheduler
from glassformer.engine.sequence import Sequence
from glassformer.errors import GlassformerError, RequestError, SpecError, TokenizerError
from glassformer.model.transformer import Transformer
from glassformer.spec import Spec
from glassformer.tokenizer import Tokenizer

R = TypeVar("R")
Prompt = str | Iterable[int]
"""Text, or token ids."""


class EngineSpec(Spec):
    """How much the engine does at once."""

    batch_size: int = Field(default=16, ge=1, description="the most sequences that run at once")
    page_size: int = Field(default=16, ge=1, description="tokens in a page of the cache")
    memory: int = Field(default=2**30, ge=0, description="bytes that the cache may take (one sequence always fits)")
    budget: int = Field(default=2048, ge=1, description="tokens in one pass, padding counted")
    context: int | None = Field(default=None, ge=1, description="how far back a token sees; None: the model's context")


DEFAULT_SPEC = EngineSpec()


class Engine:
    """Serves a model to many requests.

    Alone, it runs in the caller's thread whenever someone reads events. Inside `with engine:` (or between `start` and
    `close`) it runs in a thread of its own, and any thread may add requests and ask for turns. No locks: only the loop
    touches the model.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        spec: EngineSpec = DEFAULT_SPEC,
        stops: Iterable[int] | None = None,
        never: Iterable[int] = (),
    ):
        """`stops` are the tokens at which a text ends; None: the tokenizer's end of a document.

        `never` are tokens that are never written, which some models name (Marian's padding).
        """
        self.model, self.tokenizer = model.eval(), tokenizer
        self.context, self.limit = _length(model, spec.context)
        self.vocabulary = min(tokenizer.vocabulary, model.spec.vocabulary)
        self.eos = _end_of(tokenizer)
        self.stops = frozenset([] if self.eos is None else [self.eos]) if stops is None else frozenset(stops)
        span = _span(model, self.context, spec)
        pages, seats = _room(model, span, spec)
        self.pool = PagePool(model, pages, span=span, seats=seats)
        self.scheduler = Scheduler(self.pool.ledger, spec.batch_size, spec.budget)
        self.never = frozenset(token for token in never if token < model.spec.vocabulary)
        self.runner = Runner(model, self.pool, self.never)
        self._handles: dict[Sequence, Handle] = {}
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False

    def add(
        self, prompt: Prompt, params: SamplingParams = DEFAULTS, *, after: Handle | None = None, keep: bool = False
    ) -> Handle:
        """Begin a request; iterate over what comes back for its events.

        A decoder continues the prompt; an encoder-decoder reads it, and writes from its own start.

        With `keep` its keys and values stay when it is over, until their pages are needed. A request `after` it reads
        only what follows the beginning that the two share.

        Raises:
            RequestError: when the prompt is longer than the context or holds tokens that the model doesn't have.
        """
        tokens, source = self.tokens_of(prompt), ()
        if self.model.spec.encoder is not None:  # what is given is read, and what is written begins anew
            tokens, source = list(self.model.spec.encoder.start), tuple(tokens)
        most = len(tokens) + params.max_tokens
        if self.limit is not None:
            most = min(most, self.limit + 1)  # the last token is written, never read, so it needs no position
        sampler = Sampler(params, tokens, self.vocabulary)
        handle = Handle(self, Sequence(tokens, most, source), sampler)
        handle.keep = keep
        self._inbox.put(lambda: self._accept(handle, after))
        return handle

    def tokens_of(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt; an empty one begins, like every document, after the token that ends documents."""
        encoder = self.model.spec.encoder
        limit = self.context if encoder is None else encoder.position.limit
        if not isinstance(prompt, str):
            tokens = list(prompt)
        else:  # a source is read as its tokenizer frames it: with the token that ends it
            tokens = self.tokenizer.encode(prompt) if encoder is None else self.tokenizer.frame(prompt).tokens
        if not tokens:
            if self.eos is None:
                raise RequestError("the prompt is empty and the tokenizer has no token to begin with", do="give one")
            tokens = [self.eos]
        if limit is not None and len(tokens) > limit:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens, the model's context holds {limit}",
                do=f"leave out at least {len(tokens) - limit} tokens",
            )
        strange = next((token for token in tokens if not 0 <= token < self.model.spec.vocabulary), None)
        if strange is not None:
            raise RequestError(
                f"token {strange} is not in the model's vocabulary of {self.model.spec.vocabulary}",
                do="use the tokenizer that the model was trained with",
            )
        return tokens

    def generate(self, prompts: Iterable[Prompt], params: SamplingParams = DEFAULTS) -> list[Completion]:
        """Complete all prompts, as many at once as fit. With a seed, prompt i draws with seed + i."""
        handles: list[Handle] = []
        try:
            for index, prompt in enumerate(prompts):
                own = params if params.seed is None else params.replace(seed=params.seed + index)
                handles.append(self.add(prompt, own))
            return [handle.result() for handle in handles]
        finally:
            for handle in handles:
                handle.cancel()

    def stream(self, prompt: Prompt, params: SamplingParams = DEFAULTS) -> Iterator[Event]:
        """The events of one request as they come. Closing the iterator ends the request."""
        handle = self.add(prompt, params)
        try:
            yield from handle
        finally:
            handle.cancel()

    def turn(self, work: Callable[[Transformer], R]) -> R:
        """What `work(model)` returns, done between two passes: nothing else touches the model meanwhile."""
        if self._thread is None or threading.current_thread() is self._thread:
            return work(self.model)
        done: Future[R] = Future()

        def do() -> None:
            try:
                done.set_result(work(self.model))
            except BaseException as error:
                done.set_exception(error)

        self._inbox.put(do)
        return done.result()

    def step(self) -> bool:
        """One pass, for those whose turn it is. False when nobody wants anything."""
        while not self._inbox.empty():
            self._inbox.get()()
        chunks = self.scheduler.plan()
        if not chunks:
            return False
        logits = self.runner.run(chunks)
        ready = [row for row, chunk in enumerate(chunks) if chunk.last]
        if ready:
            handles = [self._handles[chunks[row].sequence] for row in ready]
            logits = logits if len(ready) == len(chunks) else logits[ready]
            choices = choose(logits[:, : self.vocabulary], [handle.sampler for handle in handles])
            for handle, choice in zip(handles, choices, strict=True):
                self._deliver(handle, choice)
        return True

    @property
    def running(self) -> bool:
        """True while the loop has a thread of its own."""
        return self._thread is not None

    def start(self) -> None:
        """Run in a thread of its own from now on."""
        assert self._thread is None, "it runs already"
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; requests that are still on their way end with an error."""
        if self._thread is not None:
            self._inbox.put(self._say_closing)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def drop(self, handle: Handle) -> None:
        """The request is over; its pages are free again, or rest. Only between two passes (`Handle.cancel` asks)."""
        self._handles.pop(handle.sequence, None)
        if handle.keep:
            self.scheduler.rest(handle.sequence)
        else:
            self.scheduler.remove(handle.sequence)

    def _accept(self, handle: Handle, after: Handle | None) -> None:
        if not handle.cancelled:
            if after is not None:
                self.scheduler.hand_over(after.sequence, handle.sequence)
            self._handles[handle.sequence] = handle
            self.scheduler.add(handle.sequence)

    def _deliver(self, handle: Handle, choice: Choice | RequestError) -> None:
        if isinstance(choice, RequestError):
            self.pool.wipe(handle.sequence.lease)
            handle.keep = False
            handle.fail(choice)
        elif not handle.take(choice):
            return
        self.drop(handle)

    def _run(self) -> None:
        while not self._closing:
            try:
                if not self.step() and not self._closing:
                    self._inbox.get()()  # nothing to do: sleep until someone asks for something
            except Exception as error:
                self._fail_all(RequestError(f"the engine failed: {error}"), cause=error)
        self._fail_all(RequestError("the engine was closed"))

    def _say_closing(self) -> None:
        self._closing = True

    def _fail_all(self, error: GlassformerError, cause: Exception | None = None) -> None:
        error.__cause__ = cause
        for handle in list(self._handles.values()):
            handle.fail(error)
            self.drop(handle)


def _end_of(tokenizer: Tokenizer) -> int | None:
    try:
        return tokenizer.eos
    except TokenizerError:
        return None


def _length(model: Transformer, wanted: int | None) -> tuple[int, int | None]:
    """How far back a token may see, and the position at which every sequence has to end, if there is one."""
    spec = model.spec
    places = [spec.position, *(block.attention.position for block in spec.blocks)]
    limits = [place.limit for place in places if place.limit is not None]
    limit = min(limits, default=None)
    context = wanted or spec.context
    if limit is not None and context > limit:
        raise SpecError(f"context ({context}) is longer than the {limit} positions that the model has learned")
    return context, None if limit is None else context


def _room(model: Transformer, span: Span, spec: EngineSpec) -> tuple[int, int]:
    """Pages, and sequences that may hold them, for the memory that the spec grants; one whole sequence always fits."""
    page, state = bytes_per_token(model) * spec.page_size, bytes_per_sequence(model)
    seats = min(spec.batch_size, max(1, spec.memory // (page + state))) if state else spec.batch_size
    most = seats * span.pages
    fitting = (spec.memory - seats * state) // page if page else most
    return max(span.pages, min(most, fitting)), seats


def _span(model: Transformer, context: int, spec: EngineSpec) -> Span:
    if not model.spec.writes:
        raise SpecError(
            "this model reads texts and writes none: its tokens see those that come later",
            do="fill gaps with it (`fill`), or turn texts into vectors (`embed`)",
        )
    window = window_of(model)
    if window is None or window >= context:
        return Span(context, context, spec.page_size)
    return Span(min(context, window - 1 + spec.budget), window, spec.page_size)
