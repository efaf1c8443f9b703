"""Glassformer: the whole Transformer in one codebase. Train it, run it, look inside it, from one model definition."""

__version__ = "0.1.0"
