"""What a run will cost, said before its first step: parameters, memory and time, from short trials on this machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.model import Transformer
from glassformer.model.count import parameters_by_part, training_flops_per_token
from glassformer.train.data import Batch
from glassformer.train.memory import peak_bytes, reset_peak
from glassformer.train.objective import causal
from glassformer.train.precision import autocast
from glassformer.train.spec import TrainSpec

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Plan:
    """Parameters by part; bytes at the peak; FLOPs of a step; seconds of a step, forward and backward.

    `activation_bytes` is what a forward pass keeps for its backward pass, `work_bytes` what a trial held beyond all
    that could be counted: temporaries, the libraries' work space, and what the allocator keeps for itself.
    """

    parameters: dict[str, int]
    weights_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    work_bytes: int
    flops_per_step: float
    peak_flops: float
    seconds_per_step: float

    @property
    def memory_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes + self.work_bytes


def trial(model: Transformer, batch: Batch, rows: int, device: torch.device) -> Callable[[torch.dtype], None]:
    """Work to be timed: the first `rows` of a batch forward and backward in a format; gradients are dropped."""

    def work(dtype: torch.dtype) -> None:
        with autocast(device, dtype):
            loss = causal(model, *batch.rows(slice(0, rows), device))
        loss.backward()
        model.zero_grad(set_to_none=True)

    return work


def saved_bytes(model: Transformer, batch: Batch, rows: int, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes that a forward pass over the first `rows` keeps for the backward pass, weights not counted."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that its own node saves would keep itself alive for ever

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast(device, dtype):
        loss = causal(model, *batch.rows(slice(0, rows), device))
    del loss
    return sum(found.values())


def make_plan(
    spec: TrainSpec, model: Transformer, batch: Batch, dtype: torch.dtype, peak: float, held: int | None
) -> Plan:
    """The cost of a run, from trials on one and two rows and on a whole micro-batch.

    `held`: what the process held before the model was built; with it, the trial's own peak says what can't be counted.
    """
    device = next(model.parameters()).device
    parameters = parameters_by_part(spec.model)
    weights = FLOAT * parameters["total"]
    states = 2 * weights if spec.optimizer.kind == "adamw" else weights + FLOAT * _not_hidden(model)
    micro = spec.micro_batch_size or spec.batch_size
    one, two = (saved_bytes(model, batch, rows, dtype, device) for rows in (1, min(2, micro)))
    activations = one + (two - one) * (micro - 1)
    work = trial(model, batch, micro, device)
    reset_peak(device)
    work(dtype)
    start = time.perf_counter()
    work(dtype)
    seconds = (time.perf_counter() - start) * (spec.batch_size // micro)
    most = peak_bytes(device)
    rest = max(0, most - held - 2 * weights - activations) if most is not None and held is not None else 0
    flops = training_flops_per_token(spec.model, spec.model.context) * spec.tokens_per_step
    return Plan(parameters, weights, weights, states, activations, rest, flops, peak, seconds)


def _not_hidden(model: Transformer) -> int:
    """Parameters outside the blocks' matrices: those for which Muon's companion AdamW keeps a second moment."""
    return sum(p.numel() for name, p in model.named_parameters() if p.ndim < 2 or not name.startswith("blocks."))
