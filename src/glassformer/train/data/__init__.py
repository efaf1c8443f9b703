"""From text files to training batches: prepare once, then every step's batch is a pure function of (seed, step)."""

from glassformer.train.data.batches import IGNORED, Batch, Batches, validation_windows
from glassformer.train.data.dataset import Dataset, TokenSplit
from glassformer.train.data.meta import DataMeta, PrepareOptions, PrepareReport
from glassformer.train.data.prepare import Progress, prepare

__all__ = [
    "IGNORED",
    "Batch",
    "Batches",
    "DataMeta",
    "Dataset",
    "PrepareOptions",
    "PrepareReport",
    "Progress",
    "TokenSplit",
    "prepare",
    "validation_windows",
]
