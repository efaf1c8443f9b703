"""Memory of the process: how much it has taken, and keeping what is freed for the next step, which needs as much."""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

import torch

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # glibc's names for mallopt, from malloc.h
HUGEPAGE, COLLAPSE = 14, 25  # Linux's names for madvise, from mman-common.h; COLLAPSE came with 6.1
HUGE = 2**21


class Heap:
    """The C library's heap, set to suit steps that each allocate and free the same large tensors.

    Freed memory is kept: given back after each step, every page of it would have to be zeroed by the kernel again,
    some 7 % of a step at 10M parameters. And it lies in huge pages, so that fewer addresses have to be translated:
    another 2 % or so (benchmarks/train_speed.py). The peak stays the same. Needs glibc on Linux; elsewhere, nothing
    happens.
    """

    def __init__(self) -> None:
        self._library, self._settled = _glibc(), 0
        if self._library is not None:
            self._library.sbrk.restype = ctypes.c_void_p
            self._library.mallopt(MMAP_MAX, 0)
            self._library.mallopt(TRIM_THRESHOLD, 2**31 - 1)

    def settle(self) -> bool:
        """Move what the heap has grown to into huge pages; False where it hasn't grown since the last call.

        The system may refuse (huge pages switched off, an older kernel): then the pages stay small.
        """
        end = 0 if self._library is None else self._library.sbrk(0)
        if not end or end == self._settled:
            return False
        start = -(-_heap_start() // HUGE) * HUGE
        length = (end - start) // HUGE * HUGE
        self._settled = end
        if self._library is None or length <= 0:
            return False
        self._library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), HUGEPAGE)
        # One that fails (a page is busy, or no huge page is free) ends the call: hence piece by piece.
        for place in range(start, start + length, HUGE):
            self._library.madvise(ctypes.c_void_p(place), ctypes.c_size_t(HUGE), COLLAPSE)
        return True


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        return library if library.mallopt and library.sbrk and library.madvise else None
    except (OSError, AttributeError):  # another C library
        return None


def _heap_start() -> int:
    """Where the heap begins, or the end of all addresses where the system doesn't tell."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return sys.maxsize
    return min((int(line.split("-")[0], 16) for line in lines if line.endswith("[heap]")), default=sys.maxsize)


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
