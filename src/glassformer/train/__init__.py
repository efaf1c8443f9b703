"""Training: from prepared data to a run folder. Read `loop.py` first."""

from glassformer.train.loop import Progress, Trainer
from glassformer.train.plan import Plan
from glassformer.train.recipes import RECIPES, recipe
from glassformer.train.spec import TrainSpec
from glassformer.train.start import resolve, resume_run, start_run

__all__ = ["RECIPES", "Plan", "Progress", "TrainSpec", "Trainer", "recipe", "resolve", "resume_run", "start_run"]
