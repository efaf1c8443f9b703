"""What a request gives back: an event for each token as it is written, and the whole completion at the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from glassformer.engine.sampling import Choice, Sampler
from glassformer.engine.sequence import Sequence
from glassformer.engine.stop import StopGuard
from glassformer.errors import GlassformerError
from glassformer.tokenizer import StreamDecoder

if TYPE_CHECKING:
    from glassformer.engine.engine import Engine

FinishReason = Literal["stop", "length"]
PRIMING = 4  # prompt tokens that may hold the beginning of an unfinished character


@dataclass(frozen=True, slots=True)
class Event:
    """One new token.

    text: what can be shown now (nothing while a character is incomplete or a stop string may have begun).
    logprob, top: under the model's own distribution, softmax of its scores; `top` is as long as was asked for.
    finish_reason: set on the last event: "stop" at the end of a document or turn, or a stop string, "length" otherwise.
    """

    token: int
    text: str
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """All that a request wrote. `tokens` has every token, those of a stop string and the end of document included."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]
    finish_reason: FinishReason

    @classmethod
    def of(cls, events: list[Event]) -> "Completion":
        """All events of a request as one."""
        reason = events[-1].finish_reason if events else None
        assert reason is not None, "a request that was cancelled, or read already, has no result"
        return cls(
            text="".join(event.text for event in events),
            tokens=tuple(event.token for event in events),
            logprobs=tuple(event.logprob for event in events),
            top=tuple(event.top for event in events),
            finish_reason=reason,
        )


class Handle:
    """A request on its way. Iterate over it once for its events, or wait for its `result`."""

    def __init__(self, engine: "Engine", sequence: Sequence, sampler: Sampler):
        self.engine, self.sequence, self.sampler = engine, sequence, sampler
        self.cancelled = self.finished = self.keep = False
        self._guard = StopGuard(sampler.params.stop)
        self._ends: frozenset[int] = frozenset() if sampler.params.ignore_eos else engine.stops
        self._decoder = StreamDecoder(engine.tokenizer, skip_special=True)
        for token in sequence.tokens[-PRIMING:]:
            if token < engine.tokenizer.vocabulary:
                self._decoder.push(token)
        self._events: SimpleQueue[Event | GlassformerError] = SimpleQueue()

    def __iter__(self) -> Iterator[Event]:
        while not self.cancelled:
            while not self.engine.running and self._events.empty() and not self.finished:
                self.engine.step()
            if self.finished and self._events.empty():
                return
            event = self._events.get()
            if isinstance(event, GlassformerError):
                raise event
            yield event
            if event.finish_reason:
                return

    def result(self) -> Completion:
        """Wait until all is written."""
        return Completion.of(list(self))

    def cancel(self) -> None:
        """Nobody wants the rest. Cancelling what is finished changes nothing."""
        if not self.finished:
            self.cancelled = True
            self.engine.turn(lambda _: self.engine.drop(self))

    def take(self, choice: Choice) -> bool:
        """Called by the engine: the next token is `choice`. True when it is the last."""
        token, sequence = choice.token, self.sequence
        sequence.tokens.append(token)
        self.sampler.note(token)
        ended = token in self._ends
        text = "" if ended else self._guard.push(self._decoder.push(token))
        reason: FinishReason | None = None
        if ended or self._guard.stopped:
            reason = "stop"
        elif len(sequence.tokens) >= sequence.most:
            reason = "length"
        if reason is not None and not self._guard.stopped:
            text += self._guard.push(self._decoder.finish())
            reason = "stop" if self._guard.stopped else reason
            text += self._guard.finish()
        self.finished = reason is not None
        self._events.put(Event(token, text, choice.logprob, choice.top, reason))
        return self.finished

    def fail(self, error: GlassformerError) -> None:
        """Called by the engine: no more will come."""
        self.finished = True
        self._events.put(error)
