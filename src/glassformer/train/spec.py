"""TrainSpec: everything that decides a training run, saved in its folder as run.json."""

from typing import Literal, Self

from pydantic import Field, model_validator

from glassformer.model import TransformerSpec
from glassformer.spec import Spec
from glassformer.train.balance import BalanceSpec
from glassformer.train.optimizer import AdamWSpec, OptimizerSpec
from glassformer.train.schedule import CosineSpec, ScheduleSpec

MOST_LAYERS = 10_000
Precision = Literal["auto", "float32", "bfloat16"]


class TrainSpec(Spec):
    """A run. Sizes are of the *global* batch: how it is cut into micro-batches or among ranks changes no gradient.

    But for that of the balance loss of experts, which judges each micro-batch by itself.
    """

    model: TransformerSpec
    optimizer: OptimizerSpec = AdamWSpec()
    schedule: ScheduleSpec = CosineSpec()
    balance: BalanceSpec = BalanceSpec()
    batch_size: int = Field(default=12, ge=1, description="sequences of `model.context` tokens in a step")
    micro_batch_size: int | None = Field(default=None, ge=1, description="sequences in one pass; default: all")
    max_steps: int = Field(default=2000, ge=1)
    max_seconds: float | None = Field(
        default=None, gt=0, description="also ends, with its learning rate decayed, at this wall-clock"
    )
    clip: float = Field(default=1.0, ge=0, description="largest norm of the gradient; 0: not clipped")
    seed: int = Field(default=0, ge=0, lt=2**63)
    boundaries: bool = Field(default=False, description="documents in one row don't see each other")
    dtype: Precision = "auto"
    device: str = "auto"
    compile: bool | Literal["auto"] = Field(default=False, description="torch.compile; auto: where it can")
    threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads; default: all")
    log_every: int = Field(default=10, ge=1)
    evaluate_every: int = Field(default=250, ge=1)
    evaluate_batch_size: int | None = Field(default=None, ge=1)
    save_every: int = Field(default=500, ge=1)
    keep: int = Field(default=2, ge=1, description="newest checkpoints kept beside the best")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.model.layers > MOST_LAYERS:
            raise ValueError(f"model.layers ({self.model.layers}) is more than any run has (at most {MOST_LAYERS})")
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(f"micro_batch_size ({self.micro_batch_size}) must divide batch_size ({self.batch_size})")
        experts = {block.feedforward.experts for block in self.model.blocks if block.feedforward.kind == "experts"}
        if self.balance.jointly and len(experts) > 1:
            raise ValueError(f"balance.jointly needs equally many experts in all layers, got {sorted(experts)}")
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one update learns from."""
        return self.batch_size * self.model.context
