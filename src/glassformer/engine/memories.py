"""What an encoder has read for each sequence, side by side for a pass; read once, whatever company a sequence is in."""

from collections.abc import Sequence as Several
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from glassformer.engine.sequence import Sequence
from glassformer.model.step import Memory, Step
from glassformer.model.transformer import Transformer


class Memories:
    """The memories of the sequences that run. While the same ones run side by side, nothing is moved."""

    def __init__(self, model: Transformer):
        self.model = model
        self._own: WeakKeyDictionary[Sequence, Memory] = WeakKeyDictionary()
        self._together: tuple[tuple[Sequence, ...], Memory] | None = None

    def of(self, sequences: Several[Sequence]) -> Memory:
        """The memory for a pass of these sequences; sources that are new are read first."""
        running = tuple(sequences)
        if self._together is not None and self._together[0] == running:
            return self._together[1]
        self._read([sequence for sequence in running if sequence not in self._own])
        memories = [self._own[sequence] for sequence in running]
        together = memories[0] if len(memories) == 1 else side_by_side(memories)
        self._together = running, together
        return together

    def _read(self, new: Several[Sequence]) -> None:
        if not new:
            return
        size = max(len(sequence.source) for sequence in new)
        rows = [[*sequence.source, *[0] * (size - len(sequence.source))] for sequence in new]
        device = self.model.embedding.weight.device
        lengths = torch.tensor([[len(sequence.source)] for sequence in new], device=device)
        real = torch.arange(size, device=device) < lengths
        tokens = torch.tensor(rows, device=device)
        whole = self.model.encode(tokens, Step.whole(tokens) if real.all() else Step.padded(tokens, real))
        self.model.prepare(whole)
        for index, sequence in enumerate(new):
            own = slice(index, index + 1), slice(0, len(sequence.source))
            made = {layer: tuple(part[own].clone() for part in parts) for layer, parts in whole.made.items()}
            positions = torch.arange(len(sequence.source), device=device)[None]
            self._own[sequence] = Memory(whole.states[own].clone(), positions, made)


def side_by_side(memories: Several[Memory]) -> Memory:
    """Memories of one row each as one, padded to the longest."""
    size = max(memory.states.size(1) for memory in memories)

    def together(parts: Several[Tensor], fill: int = 0) -> Tensor:
        first = parts[0]
        whole = first.new_full((len(parts), size, *first.shape[2:]), fill)
        for row, part in zip(whole, parts, strict=True):
            row[: part.size(1)] = part[0]
        return whole

    made = {
        layer: tuple(together(parts) for parts in zip(*(memory.made[layer] for memory in memories), strict=True))
        for layer in memories[0].made
    }
    states = together([memory.states for memory in memories])
    return Memory(states, together([memory.positions for memory in memories], fill=-1), made)
