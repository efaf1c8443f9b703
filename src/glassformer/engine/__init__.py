"""The engine room: generation for many requests at once. Read `engine.py` first."""

from glassformer.engine.engine import Engine, EngineSpec
from glassformer.engine.handle import Completion, Event, Handle
from glassformer.engine.sampling import SamplingParams

__all__ = ["Completion", "Engine", "EngineSpec", "Event", "Handle", "SamplingParams"]
