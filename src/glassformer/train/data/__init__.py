"""From text files to training batches: prepare once, then every step's batch is a pure function of (seed, step)."""

from glassformer.train.data.batches import IGNORED, Batch, Batches, validation_windows
from glassformer.train.data.dataset import Dataset, TokenSplit
from glassformer.train.data.meta import SPLITS, CleaningReport, DataMeta, PrepareOptions, PrepareReport
from glassformer.train.data.pipeline import Progress, Report, prepare

__all__ = [
    "IGNORED",
    "SPLITS",
    "Batch",
    "Batches",
    "CleaningReport",
    "DataMeta",
    "Dataset",
    "PrepareOptions",
    "PrepareReport",
    "Progress",
    "Report",
    "TokenSplit",
    "prepare",
    "validation_windows",
]
