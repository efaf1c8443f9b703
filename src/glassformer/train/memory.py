"""Memory of the process: how much it has taken, and keeping what is freed for the next step, which needs as much."""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

import torch

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # glibc's names for mallopt, from malloc.h


def keep_freed_memory() -> bool:
    """Ask glibc not to give freed memory back to the system; False where the C library can't be asked.

    A step allocates and frees the same large tensors as the step before. Given back each time, every page of them has
    to be zeroed by the kernel again: thousands of page faults and some 7 % of a step at 10M parameters
    (benchmarks/train_speed.py). The peak stays the same.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))


def resident_bytes(device: torch.device) -> int | None:
    """What the process holds now; on a GPU, what its tensors hold there. None where the system doesn't tell."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _status("VmRSS")


def peak_bytes(device: torch.device) -> int | None:
    """The most it has held since `reset_peak`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status("VmHWM")


def reset_peak(device: torch.device) -> None:
    """Forget earlier peaks, where that is possible."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)
