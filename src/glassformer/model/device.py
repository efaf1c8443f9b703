"""Where a model computes: the meaning of a device's name on this machine."""

import torch

from glassformer.errors import DeviceError


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is the best there is.

    Raises:
        DeviceError: no such device on this machine.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones((), device=device).item()  # "meta" is a device to torch, but nothing can be read from it
    except (RuntimeError, AssertionError, NotImplementedError):
        raise DeviceError(f"this machine has no device {name!r}", do="use auto, cpu, or one that is there") from None
    return device
