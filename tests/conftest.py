"""Every test runs with shapes and types checked: the axes that the model floor states hold for all callers."""

import jaxtyping
import pytest
import torch

with jaxtyping.install_import_hook(["glassformer.model", "glassformer.ops"], "checked.checked"):
    import glassformer.model.watch
    from glassformer.model import TransformerSpec

# `points` names this type in quotes (importing it would be a circle); beartype looks the name up in the module.
glassformer.model.watch.TransformerSpec = TransformerSpec


@pytest.fixture(autouse=True)
def _the_same_numbers_in_any_order():
    """What a test draws doesn't depend on the tests before it."""
    torch.manual_seed(0)
