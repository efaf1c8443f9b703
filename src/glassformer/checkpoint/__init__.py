"""Models on disk: written atomically, read with suspicion, exchanged with other programs by name tables."""

from glassformer.checkpoint.atomic import write_file, write_folder
from glassformer.checkpoint.ends import stop_ids
from glassformer.checkpoint.files import Loaded, load_model, load_spec, save_model
from glassformer.checkpoint.hub import fetch
from glassformer.checkpoint.tensors import load_tensors, save_tensors
from glassformer.checkpoint.tokenizer import load_tokenizer

__all__ = [
    "Loaded",
    "fetch",
    "load_model",
    "load_spec",
    "load_tensors",
    "load_tokenizer",
    "save_model",
    "save_tensors",
    "stop_ids",
    "write_file",
    "write_folder",
]
