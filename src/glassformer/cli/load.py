"""A model for a command, with the tokenizer that it can't do without."""

from pathlib import Path

from glassformer.checkpoint import load_model
from glassformer.checkpoint.files import Loaded
from glassformer.cli.device import DTypeName, choose_dtype
from glassformer.errors import CheckpointError
from glassformer.model.device import choose_device
from glassformer.tokenizer import Tokenizer


def load_with_tokenizer(path: Path, device: str, dtype: DTypeName) -> tuple[Loaded, Tokenizer]:
    """The model of a path that a user gave, on the device and in the number format that they asked for.

    Raises:
        CheckpointError: nothing to load there, or a model without a tokenizer.
    """
    place = choose_device(device)
    loaded = load_model(path, device=place, dtype=choose_dtype(dtype, place))
    if loaded.tokenizer is None:
        raise CheckpointError("the model has no tokenizer", where=path, do="put tokenizer.json beside its weights")
    return loaded, loaded.tokenizer
