"""Where a command computes, and in which number format: the meaning of --device and --dtype."""

from typing import Literal

import torch

from glassformer.errors import DeviceError

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one.

    Raises:
        DeviceError: when this machine doesn't have it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise DeviceError(f"this machine has no device {name!r}", where="--device", do="try --device cpu") from None
    return device


def choose_dtype(name: DTypeName, device: torch.device) -> torch.dtype:
    """The number format of that name; "auto" is bfloat16 on a GPU that has it, and float32 elsewhere."""
    if name != "auto":
        return getattr(torch, name)
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if fast else torch.float32
