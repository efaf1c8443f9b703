"""Building a model whose weights take no memory: to count it, or to fill it from a file."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Unfilled(TorchFunctionMode):
    """While it is on, `torch.empty` allocates nothing and no random numbers are drawn; all else is real.

    Tables that are computed, such as the frequencies of a rotation, are therefore right. (A whole build on torch's
    meta device would leave them without values, and costs seconds at the first use: torch then loads its compiler.)
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.empty:
            named["device"] = "meta"
        elif func is torch.Tensor.normal_:
            return args[0]
        return func(*args, **named)
