"""A training run as its user sees it: the plan, a line for each logged step, a live bar, and how it ended."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from glassformer.cli.name import command
from glassformer.train import Plan, Trainer
from glassformer.train import Progress as Step
from glassformer.train.run import State


def print_plan(plan: Plan, trainer: Trainer, quiet: bool = False) -> None:
    """Parameters by part, memory and time: what a user should know before the first step."""
    if quiet:
        return
    console = Console(stderr=True)
    spec, total = trainer.spec, plan.parameters["total"]
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for part, count in plan.parameters.items():
        if count and part != "total":
            table.add_row(part, f"{count:,}", f"{count / total:.1%}")
    table.add_row("parameters", f"{total:,}", "", style="bold")
    console.print(table)
    parts = {
        "weights": plan.weights_bytes, "gradients": plan.gradient_bytes, "optimizer": plan.optimizer_bytes,
        "activations": plan.activation_bytes, "work space": plan.work_bytes,
    }  # fmt: skip
    listed = ", ".join(f"{name} {_size(size)}" for name, size in parts.items())
    console.print(f"memory   about {_size(plan.memory_bytes)}: {listed}", highlight=False)
    seconds = plan.seconds_per_step * (spec.max_steps - trainer.state.step)
    left = min(seconds, spec.max_seconds - trainer.state.seconds) if spec.max_seconds else seconds
    console.print(
        f"time     about {_clock(left)}: {plan.seconds_per_step * 1e3:.0f} ms a step of {spec.tokens_per_step:,} "
        f"tokens, {trainer.device.type} {spec.dtype}, peak here {plan.peak_flops / 1e9:.0f} GFLOP/s",
        highlight=False,
    )
    if spec.schedule.warmup_steps >= spec.max_steps:
        warm = f"{spec.schedule.warmup_steps:,} steps of warm-up in a run of {spec.max_steps:,}"
        console.print(f"warning  {warm}: the learning rate stays low throughout", highlight=False)
    if trainer.state.step:
        console.print(f"resumed  at step {trainer.state.step:,}", highlight=False)


class TrainingConsole:
    """A listener: prints what happens; a live bar where stderr is a terminal, plain lines elsewhere."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(BarColumn(bar_width=30), TextColumn("{task.description}"), console=self.console)
        self.task = self.bar.add_task("", total=1.0)
        self.lines = sys.stderr.isatty()
        self.smooth: float | None = None
        self._last_line = -1.0

    @contextmanager
    def live(self) -> Iterator[None]:
        """While this is entered, the bar is shown."""
        if self.quiet or not self.lines:
            yield
            return
        with Live(self.bar, console=self.console, refresh_per_second=4):
            yield

    def __call__(self, step: Step) -> None:
        if self.quiet:
            return
        if step.row is not None and step.row.loss is not None:
            loss = step.row.loss
            self.smooth = loss if self.smooth is None else 0.9 * self.smooth + 0.1 * loss
            share = f"  {step.share_of_peak:.0%} of peak" if step.share_of_peak else ""
            share += f"  fullest expert {max(step.row.load):.1f}x its share" if step.row.load else ""
            text = (
                f"step {step.step:,}  loss {self.smooth:.3f}  {step.row.tokens_per_second or 0:,.0f} tokens/s{share}"
                f"  {_clock(step.state.seconds)}, {_clock(step.seconds_left)} left"
            )
            self.bar.update(self.task, completed=step.done, description=text)
            # Without a bar, about fifty lines tell the story of a run.
            if not self.lines and (step.done - self._last_line > 0.02 or step.done >= 1):
                self._last_line = step.done
                self.console.print(text)
        if step.score is not None:
            self.console.print(
                f"step {step.step:,}  validation loss {step.score.loss:.4f}, "
                f"{step.score.bits_per_byte:.4f} bits per byte"
            )

    def finish(self, trainer: Trainer, state: State, as_json: bool) -> None:
        """What came of it, and what can be done with it."""
        run: Path = trainer.run.path
        if as_json:
            print(json.dumps({"run": str(run), "done": trainer.done >= 1, **state.model_dump()}))
            return
        if trainer.done < 1:
            self.console.print(f"stopped and saved at step {state.step:,}")
            self.console.print(f"go on with: {command()} train --resume {run}", soft_wrap=True)
            return
        self.console.print(
            f"done in {_clock(state.seconds)}: best validation loss {state.best_loss:.4f} at step {state.best_step:,}\n"
            f"curves in {trainer.run.picture}, numbers in {trainer.run.log}\n"
            f"next: {command()} generate {run} 'Once upon a time'",
            soft_wrap=True,
        )


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
