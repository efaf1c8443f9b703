"""In which number format a command computes: the meaning of --dtype."""

from typing import Literal

import torch

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]


def choose_dtype(name: DTypeName, device: torch.device) -> torch.dtype:
    """The number format of that name; "auto" is bfloat16 on a GPU that has it, and float32 elsewhere."""
    if name != "auto":
        return getattr(torch, name)
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if fast else torch.float32
