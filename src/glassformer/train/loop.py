"""The training loop: batch, loss, gradient, step; evaluate, save, go on. READ `Trainer.step` and `Trainer.fit`."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.errors import TrainingError
from glassformer.evaluate import Score, predicted_bytes, score_windows
from glassformer.model.count import has_experts, training_flops_per_token
from glassformer.model.device import choose_device
from glassformer.train.balance import Balance
from glassformer.train.data import IGNORED, Batch, Batches, Dataset, validation_windows
from glassformer.train.history import History, Row, draw_losses
from glassformer.train.memory import Heap, resident_bytes
from glassformer.train.objective import causal
from glassformer.train.plan import Plan, make_plan, trial
from glassformer.train.precision import autocast, choose_compile, choose_dtype, measure_peak
from glassformer.train.run import RunFolder, State
from glassformer.train.spec import TrainSpec


@dataclass(frozen=True)
class Progress:
    """What a listener is told after every step, evaluation and save."""

    step: int
    state: State
    done: float
    seconds_left: float
    row: Row | None = None
    score: Score | None = None
    saved: str | None = None
    share_of_peak: float | None = None


Listener = Callable[[Progress], None]

LEAST_TOKENS = 1024
"""Of a pass in an evaluation: fewer are no cheaper."""

COMPILING: dict[str, str | int | bool | Callable[..., Any]] = {"fallback_random": True}
"""Dropout draws as in eager mode: compiled code's own generator is some ten times slower on a CPU."""


@dataclass
class Pace:
    """Tokens per second over the time spent in steps alone."""

    tokens: int = 0
    seconds: float = 0.0

    def rate(self) -> float:
        """Since the last call."""
        rate = self.tokens / self.seconds if self.seconds else 0.0
        self.tokens, self.seconds = 0, 0.0
        return rate


@dataclass
class Stop:
    """Set by Ctrl-C; the loop looks at it between micro-batches."""

    asked: bool = False


class Trainer:
    """A run in memory: model, optimizer, data and where it stands.

    Everything random is drawn from (seed, step, micro-batch), so a step gives the same bits whether it follows
    another or a restart.
    """

    def __init__(self, spec: TrainSpec, dataset: Dataset, run: RunFolder, listen: Listener = lambda progress: None):
        self._heap = Heap()
        if spec.threads:
            torch.set_num_threads(spec.threads)
        self.run, self.listen = run, listen
        self.device = choose_device(spec.device)
        self._held = resident_bytes(self.device)
        torch.manual_seed(spec.seed)
        self.model = spec.model.build().to(self.device)
        context = spec.model.context
        self.batches = Batches(dataset.split("train"), context, spec.batch_size, spec.seed, spec.boundaries)
        self.validation = dataset.split("validation")
        unpredicted = self.validation.read(0, min(1, self.validation.tokens)).tolist()
        self.validation_bytes = predicted_bytes(dataset.tokenizer(), unpredicted, self.validation.bytes)
        self.micro = spec.micro_batch_size or spec.batch_size
        work = trial(self.model, self.batches.batch(0), self.micro, self.device)
        self.dtype = choose_dtype(spec.dtype, self.device, work)
        eager = spec.compile == "auto" and has_experts(spec.model)  # a loop over used experts can't be traced
        compiled = not eager and choose_compile(spec.compile, self.device)
        # What was chosen is part of what makes a run repeatable: from here on the spec says it.
        self.spec = spec.replace(dtype=str(self.dtype).removeprefix("torch."), compile=compiled)
        self.optimizer = spec.optimizer.build(self.model, self.dtype)
        self.state = run.load(self.model, self.optimizer)
        self.loss: Callable[..., Tensor] = torch.compile(causal, options=COMPILING) if compiled else causal
        self.balance = Balance.of(self.model, spec.balance)
        self.stop, self.pace, self._saved = Stop(), Pace(), self.state if self.state.step else None
        self.peak = measure_peak(self.device, self.dtype)
        self.flops_per_token = training_flops_per_token(spec.model, spec.model.context)

    def plan(self) -> Plan:
        """What the run costs; say it before the first step."""
        return make_plan(self.spec, self.model, self.batches.batch(0), self.dtype, self.peak, self._held)

    @property
    def done(self) -> float:
        """The share of the run that lies behind: of its steps or of its time, whichever is further."""
        by_steps = self.state.step / self.spec.max_steps
        by_time = self.state.seconds / self.spec.max_seconds if self.spec.max_seconds else 0.0
        return min(1.0, max(by_steps, by_time))

    def fit(self, until: int | None = None) -> State:
        """Train to the end of the run (or to step `until`), saving on the way; Ctrl-C saves and returns early.

        Raises:
            TrainingError: the loss or the gradient is not a number; the last good checkpoint stays.
        """
        self.run.take()
        history = History(self.run.log, self.state.step, self.run.path / "tensorboard")
        self.model.train()
        try:
            with self._interruptible():
                while self.done < 1 and self.state.step < (until or self.spec.max_steps) and not self.stop.asked:
                    self._advance(history)
                self._finish(history)
        finally:
            history.close()
            draw_losses(history.rows, self.run.picture)
            self.run.leave()
        return self.state

    def step(self) -> tuple[float, float] | None:
        """One update on the global batch of this step: its loss (nats per token) and the norm of its gradient.

        None when Ctrl-C came between micro-batches: the half-made gradient is dropped and the step is still to do.
        """
        batch = self.batches.batch(self.state.step)
        count = int((batch.targets != IGNORED).sum())
        total = torch.zeros((), dtype=torch.float64)
        self.balance.begin()
        for index, start in enumerate(range(0, self.spec.batch_size, self.micro)):
            if self.stop.asked:
                self.model.zero_grad(set_to_none=True)
                return None
            torch.manual_seed(_mix(self.spec.seed, self.state.step, index))  # dropout's own draw
            rows, watcher = batch.rows(slice(start, start + self.micro), self.device), self.balance.watcher()
            with autocast(self.device, self.dtype):
                loss = self.loss(self.model, *rows, watch=watcher)
            extra = self.balance.loss(watcher, rows[2])
            share = loss / count
            (share if extra is None else share + extra * (self.micro / self.spec.batch_size)).backward()
            total += loss.detach().double().cpu()
        mean = float(total) / count
        norm = float(_clip(self.model, self.spec.clip))
        if not (math.isfinite(mean) and math.isfinite(norm)):
            raise self._not_a_number(mean, norm, batch)
        self.optimizer.step(self.spec.schedule.factor(self.state.step, self.done))
        self.balance.move()
        self._heap.settle()
        return mean, norm

    def evaluate(self) -> Score:
        """Loss and bits per byte over the whole validation split."""
        # No more rows than a training pass has: an evaluation then fits into the memory that training has taken.
        size = self.spec.evaluate_batch_size or max(self.micro, LEAST_TOKENS // self.spec.model.context)
        windows = validation_windows(self.validation, self.spec.model.context, size, self.spec.boundaries)
        return score_windows(self.model, windows, self.validation_bytes, device=self.device, dtype=self.dtype)

    def save(self) -> str:
        """A checkpoint of where the run stands."""
        return str(self.run.save(self.model, self.optimizer, self.state, self.spec.keep))

    def _advance(self, history: History) -> None:
        start = time.perf_counter()
        if (result := self.step()) is None:
            return
        seconds = time.perf_counter() - start
        rate = self.optimizer.learning_rate
        self.state = self.state.replace(step=self.state.step + 1, seconds=self.state.seconds + seconds)
        self.pace.tokens, self.pace.seconds = self.pace.tokens + self.spec.tokens_per_step, self.pace.seconds + seconds
        step, row = self.state.step, None
        if step % self.spec.log_every == 0 or step == 1:
            speed = self.pace.rate()
            tokens = step * self.spec.tokens_per_step
            row = Row(step, tokens, result[0], result[1], rate, speed, self.state.seconds, load=self.balance.load)
            history.add(row)
        self.listen(self._progress(row=row))
        if self.done < 1:
            if step % self.spec.evaluate_every == 0:
                self._judge(history)
            if step % self.spec.save_every == 0:
                self._keep()

    def _judge(self, history: History) -> None:
        start = time.perf_counter()
        score = self.evaluate()
        spent = time.perf_counter() - start
        state = self.state.replace(seconds=self.state.seconds + spent)
        better = state.best_loss is None or score.loss < state.best_loss
        self.state = state.replace(best_step=state.step, best_loss=score.loss) if better else state
        tokens = state.step * self.spec.tokens_per_step
        measured = Row(state.step, tokens, seconds=state.seconds, validation_loss=score.loss)
        history.add(replace(measured, bits_per_byte=score.bits_per_byte))
        self.listen(self._progress(score=score))
        if better:
            self._keep()

    def _keep(self) -> None:
        if self._saved != self.state:
            self.listen(self._progress(saved=self.save()))
            self._saved = self.state

    def _finish(self, history: History) -> None:
        """The last evaluation and checkpoint of a run that is over; a checkpoint of one that was interrupted."""
        if self.done >= 1 and (not history.rows or history.rows[-1].validation_loss is None):
            self._judge(history)
        self._keep()

    def _progress(self, **what: Any) -> Progress:
        done = self.done
        left = self.state.seconds * (1 - done) / done if done else 0.0
        row: Row | None = what.get("row")
        share = None
        if row is not None and row.tokens_per_second:
            share = row.tokens_per_second * self.flops_per_token / self.peak
        return Progress(self.state.step, self.state, done, left, share_of_peak=share, **what)

    def _not_a_number(self, loss: float, norm: float, batch: Batch) -> TrainingError:
        self.model.zero_grad(set_to_none=True)
        saved = self._saved is not None
        again = f"go on from the last checkpoint with --resume {self.run.path}" if saved else "begin again elsewhere"
        return TrainingError(
            f"the loss is {loss}, the gradient's norm {norm} at {batch.identity}",
            where=self.run.path,
            do=f"lower the learning rate and {again}",
        )

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C asks the loop to stop; a second one stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self.stop.asked:
                raise KeyboardInterrupt
            self.stop.asked = True

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _clip(model: nn.Module, limit: float) -> Tensor:
    """Scale the gradient down to norm `limit` where it is longer; returns the norm it had."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit and norm > limit:
        torch._foreach_mul_(gradients, limit / (norm + 1e-6))
    return norm


def _mix(*numbers: int) -> int:
    """One well-spread 63-bit seed from several numbers (splitmix64 finaliser). Source: Steele et al. 2014."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & (2**64 - 1)
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        state ^= state >> 31
    return state >> 1
