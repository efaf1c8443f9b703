"""Which number format a run uses, and whether it is compiled: what was asked for, or what is fastest here."""

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from glassformer.errors import DeviceError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_dtype(name: str, device: torch.device, work: Callable[[torch.dtype], object]) -> torch.dtype:
    """The format called `name`; "auto" is the faster of float32 and bfloat16 at `work(dtype)`, timed here.

    Raises:
        DeviceError: the format isn't known, or the device can't compute in it.
    """
    if name == "auto":
        return _faster(work, device)
    if name not in DTYPES:
        raise DeviceError(f"unknown dtype {name!r}", do=f"use auto, {' or '.join(DTYPES)}")
    if name == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise DeviceError("this GPU doesn't compute in bfloat16", do="use --dtype float32")
    return DTYPES[name]


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """The context in which matrix products run in `dtype` while weights stay in float32."""
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def measure_peak(device: torch.device, dtype: torch.dtype, seconds: float = 0.2) -> float:
    """FLOP/s of large square matrix products here and now: what the best case looks like."""
    size = 1024 if device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        best = min(best, _timed(lambda: a @ b, device))
    return 2 * size**3 / best


def _faster(work: Callable[[torch.dtype], object], device: torch.device) -> torch.dtype:
    """The quicker of both at the best of a few tries (the best is what other processes disturbed least)."""
    formats = tuple(DTYPES.values())
    for dtype in formats:
        work(dtype)  # warms up
    times = [[_timed(lambda dtype=dtype: work(dtype), device) for dtype in formats] for _ in range(3)]
    best = [min(tries) for tries in zip(*times, strict=True)]
    return formats[best.index(min(best))]


def _timed(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def choose_compile(wanted: bool | str, device: torch.device) -> bool:
    """Whether to compile: as asked; "auto" is yes where torch.compile finds the compiler that it needs.

    Raises:
        DeviceError: compiling was asked for, and there is no C++ compiler.
    """
    if wanted is False:
        return False
    able = device.type != "cpu" or any(map(shutil.which, ("g++", "clang++")))
    if not able and wanted is True:
        raise DeviceError(
            "torch.compile needs a C++ compiler on a CPU, and there is none", do="install g++, or leave out --compile"
        )
    return able
