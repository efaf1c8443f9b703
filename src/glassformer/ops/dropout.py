"""Inverted dropout, with random numbers that cost little."""

import torch
from torch import Tensor

LEVELS = 2**16


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Each component becomes 0 with probability `p` (to the nearest 1/65536), else x / (1 - p); x when not training.

    The mean stays what it was, so nothing needs scaling later. One random 64-bit word decides on four components:
    drawing a number for each would take longer than the matrix products around it, on a CPU. Draws come from torch's
    global generator. Source: Srivastava et al. 2014, in its inverted form.
    """
    if not training or p == 0.0:
        return x
    dropped = min(LEVELS - 1, max(1, round(p * LEVELS)))
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    kept = words.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
    return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))
