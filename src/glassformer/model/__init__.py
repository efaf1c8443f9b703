"""The model: knows no engine, file format, optimizer or server. Read `transformer.py` first."""

from glassformer.model.step import Step
from glassformer.model.transformer import Transformer, TransformerSpec
from glassformer.model.watch import OFF, Trace

__all__ = ["OFF", "Step", "Trace", "Transformer", "TransformerSpec"]
