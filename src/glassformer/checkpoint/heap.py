"""Memory that is free and still held: given back to the system where the C library can."""

import ctypes
import sys


def give_back() -> None:
    """Hand back what was freed (on Linux with glibc; elsewhere nothing happens).

    Reading a vocabulary leaves tens of megabytes of small pieces behind, beside which the weights would be laid.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
