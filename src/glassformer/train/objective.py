"""Objectives: what a model is trained to make small.

Each is a sum, not a mean: the caller divides by what the whole batch has of it, so that micro-batches weigh by their
tokens (or texts).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.model import OFF, Step, Transformer
from glassformer.model.watch import Watcher
from glassformer.train.data import IGNORED


def causal(
    model: Transformer,
    tokens: Int[Tensor, "B T"],
    targets: Int[Tensor, "B T"],
    positions: Int[Tensor, "B T"] | None = None,
    segments: Int[Tensor, "B T"] | None = None,
    watch: Watcher = OFF,
) -> Float[Tensor, ""]:
    """Summed surprise, in nats, about each token's successor: -Σ log p(target); IGNORED targets don't count."""
    step = Step.whole(tokens, watch) if positions is None else Step(positions, segments, watch=watch)
    return surprise(model(tokens, step), targets)


def masked(
    model: Transformer, tokens: Int[Tensor, "B T"], targets: Int[Tensor, "B T"], step: Step | None = None
) -> Float[Tensor, ""]:
    """Summed surprise about the tokens that were hidden: `corrupt` makes `tokens` and `targets` of a text.

    Source: Devlin et al. 2019, BERT, 3.1.
    """
    return surprise(model(tokens, step or Step.whole(tokens)), targets)


def corrupt(
    tokens: Int[Tensor, "B T"],
    keep: Int[Tensor, "n"],
    mask: int,
    vocabulary: int,
    share: float = 0.15,
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """A text with some tokens hidden, and those as targets (all others are IGNORED).

    A `share` of all tokens but those of `keep` (special ones) is chosen; of these 80 % become `mask`, 10 % a random
    token, and 10 % stay, so that the model can't tell which are right. Source: Devlin et al. 2019, 3.1 and A.1.
    """

    def draw() -> Float[Tensor, "B T"]:
        return torch.rand(tokens.shape, generator=generator, device=tokens.device)

    chosen = (draw() < share) & ~torch.isin(tokens, keep)
    fate = draw()
    other = torch.randint(vocabulary, tokens.shape, generator=generator, device=tokens.device)
    hidden = torch.where(fate < 0.8, torch.full_like(tokens, mask), torch.where(fate < 0.9, other, tokens))
    return torch.where(chosen, hidden, tokens), tokens.masked_fill(~chosen, IGNORED)


def seq2seq(
    model: Transformer, source: Int[Tensor, "B M"], targets: Int[Tensor, "B T"], reading: Step | None = None
) -> Float[Tensor, ""]:
    """Summed surprise about each token of a text, given the source and the tokens before it; IGNORED ones don't count.

    The decoder reads the targets one place later, behind the model's start. `reading` says where the tokens of the
    source stand, where rows are padded. Source: Sutskever et al. 2014; Vaswani et al. 2017.
    """
    memory = model.encode(source, reading or Step.whole(source))
    assert model.spec.encoder is not None, "encode refuses a model without an encoder"
    start = targets.new_tensor(model.spec.encoder.start).expand(len(targets), -1)
    # What isn't counted is read as the first token there is: no target after it counts either.
    read = torch.cat((start, targets[:, :-1].clamp_min(0)), dim=1)
    logits = model(read, Step.whole(read, memory=memory))
    return surprise(logits[:, start.size(1) - 1 :], targets)


def classify(
    model: Transformer, tokens: Int[Tensor, "B T"], labels: Int[Tensor, "B *T"], step: Step | None = None
) -> Float[Tensor, ""]:
    """Summed surprise about the label of each text, or of each token (where IGNORED ones don't count)."""
    return surprise(model(tokens, step or Step.whole(tokens)), labels)


def span(
    model: Transformer, tokens: Int[Tensor, "B T"], places: Int[Tensor, "B 2"], step: Step | None = None
) -> Float[Tensor, ""]:
    """Summed surprise about where each answer starts and where it ends; an IGNORED place doesn't count.

    Source: Devlin et al. 2019, 4.2.
    """
    scores = model(tokens, step or Step.whole(tokens))  # [B, T, 2]
    return surprise(scores.transpose(1, 2), places)


def surprise(logits: Float[Tensor, "*N Y"], targets: Int[Tensor, "*N"]) -> Float[Tensor, ""]:
    """-Σ log p(target) in nats, in float32; IGNORED targets don't count."""
    flat = logits.flatten(0, -2).float()
    return F.cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction="sum")
