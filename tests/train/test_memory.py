"""The heap that a run trains on."""

import ctypes
import sys

import pytest
import torch

from glassformer.train.memory import Heap


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc on Linux can be asked")
def test_settling_the_heap_leaves_every_value_in_place():
    heap = Heap()
    kept = [torch.full((1000, 1000), float(i)) for i in range(8)]  # 32 MB: the heap has to grow for them
    end = ctypes.CDLL(None).sbrk
    end.restype = ctypes.c_void_p
    before = end(0)
    settled = heap.settle()
    assert settled
    assert all(tensor.eq(i).all() for i, tensor in enumerate(kept))
    assert not heap.settle() or end(0) != before  # nothing to do until it grows again


def test_without_a_c_library_that_can_be_asked_nothing_happens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not Heap().settle()
