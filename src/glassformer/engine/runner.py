"""The runner: carries a planned pass to the model and brings back the scores for the next tokens."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.engine.cache import PagedCache, PagePool
from glassformer.engine.memories import Memories
from glassformer.engine.sequence import Chunk
from glassformer.model.transformer import Transformer
from glassformer.model.watch import OFF, Watcher


class Runner:
    """Runs a model on pages of a pool."""

    def __init__(self, model: Transformer, pool: PagePool, never: Collection[int] = ()):
        """`never` are the tokens that are never written."""
        self.model, self.pool = model, pool
        self.device = model.embedding.weight.device
        self.never = torch.tensor(sorted(never), device=self.device, dtype=torch.long)
        self.memories = Memories(model) if model.encoder is not None else None

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk], watch: Watcher = OFF) -> Float[Tensor, "B V"]:
        """One pass; row b scores what may follow the last token of `chunks[b]`, and no other token is scored."""
        counts = [chunk.count for chunk in chunks]
        cache = PagedCache(self.pool, [chunk.sequence.lease for chunk in chunks], counts)
        step = cache.step(watch)
        if self.memories is not None:
            step = replace(step, memory=self.memories.of([chunk.sequence for chunk in chunks]))
        rows = [chunk.tokens + [0] * (cache.width - chunk.count) for chunk in chunks]
        x = self.model.read(torch.tensor(rows, device=self.device), step)
        if cache.width > 1:
            ends = torch.tensor(counts, device=self.device) - 1
            x = x[torch.arange(len(counts), device=self.device), ends][:, None]
        logits = step.watch("logits", self.model.head(x, self.model.embedding))
        cache.advance()
        return logits[:, -1].index_fill(-1, self.never, -torch.inf) if len(self.never) else logits[:, -1]
