"""Keeping freed memory for the next step, which needs just as much."""

import ctypes
import sys

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
