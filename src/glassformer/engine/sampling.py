"""Sampling: from a score for every token to the one that is written.

Each transform is a function on logits [B, V] that reads like its source. Their order is that of `transform`:
repetition penalty, presence and frequency penalty, temperature, top-k, top-p, min-p.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, field_validator
from torch import Tensor

from glassformer.errors import RequestError
from glassformer.ops.softmax import softmax
from glassformer.spec import Spec

GREEDY_BELOW = 1e-6


class SamplingParams(Spec):
    """How the tokens of a request are chosen, and when they end. `docs/generation.md` has the formulas."""

    max_tokens: int = Field(default=128, ge=1, description="the most tokens to write")
    temperature: float = Field(default=1.0, ge=0, description="divides the scores; 0 always takes the best token")
    top_k: int = Field(default=0, ge=0, description="choose among the k best tokens; 0 is all")
    top_p: float = Field(default=1.0, gt=0, le=1, description="choose among the best that together have this much")
    min_p: float = Field(default=0.0, ge=0, le=1, description="… among those at least this times as likely as the best")
    repetition_penalty: float = Field(default=1.0, gt=0, description="makes tokens of prompt and text less likely")
    presence_penalty: float = Field(default=0.0, ge=-2, le=2, description="taken off tokens written already")
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2, description="taken off for each time one was written")
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="the same seed writes the same text")
    stop: tuple[str, ...] = Field(default=(), max_length=64, description="the text ends before any of these strings")
    ignore_eos: bool = Field(default=False, description="write on past the end of a document")
    probabilities: int = Field(default=0, ge=0, description="report so many of the most likely tokens at each place")

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("an empty stop string would end every text at once")
        return value

    @property
    def greedy(self) -> bool:
        """Temperatures below 0.000001 count as 0: such a division would overflow."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalises(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def method(self) -> tuple[float, ...]:
        """All that decides the distribution: requests of the same method are sampled side by side."""
        return (
            self.temperature, self.top_k, self.top_p, self.min_p,
            self.repetition_penalty, self.presence_penalty, self.frequency_penalty,
        )  # fmt: skip


DEFAULTS = SamplingParams()


def penalise_repetition(
    logits: Float[Tensor, "B V"], seen: Bool[Tensor, "B V"], penalty: float
) -> Float[Tensor, "B V"]:
    """Positive scores of tokens that prompt or text have are divided by the penalty, negative ones multiplied.

    Source: Keskar et al. 2019, CTRL, 4.1 (there without the case of negative scores; as in transformers).
    """
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def penalise_presence(
    logits: Float[Tensor, "B V"], counts: Float[Tensor, "B V"], penalty: float
) -> Float[Tensor, "B V"]:
    """Takes penalty · [count > 0] off each score; counts are of what was written. Source: OpenAI's API reference."""
    return logits - penalty * (counts > 0)


def penalise_frequency(
    logits: Float[Tensor, "B V"], counts: Float[Tensor, "B V"], penalty: float
) -> Float[Tensor, "B V"]:
    """Takes penalty · count off each score. Source: OpenAI's API reference."""
    return logits - penalty * counts


def divide_by_temperature(logits: Float[Tensor, "B V"], temperature: float) -> Float[Tensor, "B V"]:
    """Below 1 likely tokens become likelier, above 1 all become more alike. Source: Ackley et al. 1985."""
    return logits / temperature


def keep_top_k(logits: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B V"]:
    """All but the k best become impossible; those as good as the k-th stay. Source: Fan et al. 2018."""
    kth = logits.topk(min(k, logits.size(-1)), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def keep_top_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """The nucleus: the fewest best tokens that together have probability p. Source: Holtzman et al. 2019, 3.1.

    Counted from the worst: a token goes while it and all worse ones have at most 1 - p together.
    """
    ascending, order = logits.sort(dim=-1)
    drop = softmax(ascending).cumsum(dim=-1) <= 1 - p
    drop[..., -1] = False
    return logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)


def keep_min_p(logits: Float[Tensor, "B V"], p: float) -> Float[Tensor, "B V"]:
    """Tokens less likely than p times the best become impossible. Source: Nguyen et al. 2024."""
    probabilities = softmax(logits)
    return logits.masked_fill(probabilities < p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)


def draw(probabilities: Float[Tensor, "B V"], uniform: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """The token on which a number from [0, 1) falls when all lie side by side, each as wide as it is likely.

    In float64, u · total is below the total for every u < 1, so no impossible token is ever hit.
    """
    edges = probabilities.double().cumsum(dim=-1)
    return torch.searchsorted(edges, (uniform * edges[:, -1])[:, None], right=True)[:, 0]


class Sampler:
    """What sampling remembers of one request: its own random numbers, and what was written for the penalties.

    A request's tokens thus never depend on its neighbours in the batch.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocabulary: int):
        self.params = params
        self.random = torch.Generator()
        if params.seed is None:
            self.random.seed()
        else:
            self.random.manual_seed(params.seed)
        self.counts: Tensor | None = None
        self.seen: Tensor | None = None
        if params.penalises:
            self.counts, self.seen = torch.zeros(vocabulary), torch.zeros(vocabulary, dtype=torch.bool)
            self.seen[[token for token in prompt if token < vocabulary]] = True

    def note(self, token: int) -> None:
        """`token` has been written."""
        if self.counts is not None and self.seen is not None:
            self.counts[token] += 1
            self.seen[token] = True

    def uniform(self) -> Tensor:
        """The request's next random number from [0, 1)."""
        return torch.rand((), generator=self.random, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token, the log of its probability, and the likeliest tokens with theirs, best first.

    Probabilities are the model's own: softmax of its scores, before any penalty, temperature or cut.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def transform(logits: Float[Tensor, "B V"], samplers: Sequence[Sampler]) -> Float[Tensor, "B V"]:
    """The scores from which tokens are drawn; all samplers share one method."""
    params = samplers[0].params
    if params.penalises:
        counts = torch.stack([sampler.counts for sampler in samplers if sampler.counts is not None]).to(logits.device)
        seen = torch.stack([sampler.seen for sampler in samplers if sampler.seen is not None]).to(logits.device)
        logits = penalise_repetition(logits, seen, params.repetition_penalty)
        logits = penalise_presence(logits, counts, params.presence_penalty)
        logits = penalise_frequency(logits, counts, params.frequency_penalty)
    if params.greedy:
        return logits
    logits = divide_by_temperature(logits, params.temperature)
    if params.top_k:
        logits = keep_top_k(logits, params.top_k)
    if params.top_p < 1:
        logits = keep_top_p(logits, params.top_p)
    return keep_min_p(logits, params.min_p) if params.min_p else logits


def choose(logits: Float[Tensor, "B V"], samplers: Sequence[Sampler]) -> list[Choice | RequestError]:
    """The next token of each row; an error for a row whose scores are no numbers, which touches no other row."""
    logits = logits.float()
    tokens = _choose_tokens(logits, samplers)
    logprobs = logits.log_softmax(dim=-1)
    chosen = _numbers(logprobs.gather(-1, tokens[:, None])[:, 0])
    tops = _tops(logprobs, samplers)
    return [
        Choice(token, logprob, top) if logprob > -torch.inf else RequestError("the model's scores are not numbers")
        for token, logprob, top in zip(_numbers(tokens), chosen, tops, strict=True)
    ]


def _choose_tokens(logits: Float[Tensor, "B V"], samplers: Sequence[Sampler]) -> Int[Tensor, "B"]:
    methods = [sampler.params.method for sampler in samplers]
    if all(method == methods[0] for method in methods):
        return _choose_alike(logits, samplers)
    tokens = torch.empty(len(samplers), dtype=torch.long, device=logits.device)
    for method in dict.fromkeys(methods):
        rows = [row for row, other in enumerate(methods) if other == method]
        tokens[rows] = _choose_alike(logits[rows], [samplers[row] for row in rows])
    return tokens


def _choose_alike(logits: Float[Tensor, "B V"], samplers: Sequence[Sampler]) -> Int[Tensor, "B"]:
    """One token for each row; all samplers share one method."""
    scores = transform(logits, samplers)
    if samplers[0].params.greedy:
        return scores.argmax(dim=-1)
    probabilities = softmax(scores).cpu()
    drawn = draw(probabilities, torch.stack([sampler.uniform() for sampler in samplers]))
    return drawn.clamp_max(logits.size(-1) - 1).to(logits.device)  # NaN falls past the end; `choose` finds it out


def _tops(logprobs: Float[Tensor, "B V"], samplers: Sequence[Sampler]) -> list[tuple[tuple[int, float], ...]]:
    most = max(sampler.params.probabilities for sampler in samplers)
    if not most:
        return [()] * len(samplers)
    best = logprobs.topk(min(most, logprobs.size(-1)), dim=-1)
    values, ids = _numbers(best.values.exp()), _numbers(best.indices)
    return [
        tuple(zip(ids[row], values[row], strict=True))[: sampler.params.probabilities]
        for row, sampler in enumerate(samplers)
    ]


def _numbers(tensor: Tensor) -> list[Any]:
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
