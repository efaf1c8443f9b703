"""Every test runs with shapes and types checked: the axes that the model floor states hold for all callers."""

import signal

import jaxtyping
import pytest
import torch

# Workers that run tests side by side ignore Ctrl-C, and what they start would ignore it too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

with jaxtyping.install_import_hook(["glassformer.model", "glassformer.ops"], "checked.checked"):
    import glassformer.model.watch
    from glassformer.model import TransformerSpec

# `points` names this type in quotes (importing it would be a circle); beartype looks the name up in the module.
glassformer.model.watch.TransformerSpec = TransformerSpec


@pytest.fixture(autouse=True)
def _the_same_numbers_in_any_order():
    """What a test draws doesn't depend on the tests before it."""
    torch.manual_seed(0)
