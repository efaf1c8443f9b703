"""The machine that a benchmark ran on: what it is, what it can do at best, and how much of it others took meanwhile."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

CONTENDED_ABOVE = 0.05


@dataclass
class Contention:
    """`share` is the part of all cores' time that other processes took (None where the system doesn't tell)."""

    share: float | None = None

    @property
    def contended(self) -> bool:
        """True when others took so much that figures can't be trusted."""
        return self.share is not None and self.share > CONTENDED_ABOVE

    def __str__(self) -> str:
        if self.share is None:
            return "CPU taken by other processes: unknown on this system"
        return f"CPU taken by other processes: {self.share:.1%}" + (" - CONTENDED" if self.contended else "")

    def to_dict(self) -> dict[str, Any]:
        return {"others_share": self.share, "contended": self.contended}


@contextmanager
def contention() -> Iterator[Contention]:
    """Measures, over the block, the CPU time that neither this process nor the idle task took.

    The result is filled in when the block ends. Children count as own once they have been waited for.
    """
    result = Contention()
    before = _busy_seconds()
    own_before, wall_before = _own_seconds(), time.perf_counter()
    yield result
    after = _busy_seconds()
    own, wall = _own_seconds() - own_before, time.perf_counter() - wall_before
    if before is not None and after is not None and wall > 0:
        result.share = max(0.0, after - before - own) / (wall * (os.cpu_count() or 1))


@dataclass(frozen=True)
class Machine:
    """cores: logical CPUs; threads: those torch uses; gflops: measured peak of a matrix product, by number format."""

    cpu: str
    cores: int
    threads: int
    torch: str
    gflops: dict[str, float]

    def __str__(self) -> str:
        peaks = ", ".join(f"{name} {value:.0f}" for name, value in self.gflops.items())
        return f"{self.cpu}, {self.cores} cores, torch {self.torch} with {self.threads} threads; GFLOP/s: {peaks}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def machine() -> Machine:
    """Describe this machine; takes about a second, for the matrix products."""
    peaks = {str(dtype).removeprefix("torch."): _gemm_peak(dtype) for dtype in (torch.float32, torch.bfloat16)}
    return Machine(_cpu_name(), os.cpu_count() or 1, torch.get_num_threads(), torch.__version__, peaks)


def _gemm_peak(dtype: torch.dtype, size: int = 1024, rounds: int = 8) -> float:
    """The best rate of a square matrix product, in GFLOP/s."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9


def _busy_seconds() -> float | None:
    """CPU time of all processes on all cores since the machine started."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
