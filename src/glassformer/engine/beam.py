"""Beam search: the few best beginnings are carried on side by side, and the best whole text of all that ended wins.

For texts that have one right answer (a translation, a summary); for free writing sampling is better.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from glassformer.engine.engine import Engine, Prompt
from glassformer.errors import RequestError
from glassformer.model.step import LayerCache, Memory, Remembered, Step, ThisPass
from glassformer.model.transformer import Transformer
from glassformer.spec import Spec


class BeamParams(Spec):
    """How a beam search goes on, and what it compares.

    A text of n written tokens (its end included) is worth the sum of its log-probabilities over a penalty: ((5 + n) /
    6)^a, or n^a with the formula "power". Without a penalty (a = 0) short texts win, since every token costs something.
    Sources: Wu et al. 2016, eq. 14; n^a as in transformers.
    """

    beams: int = Field(default=4, ge=1, le=1024, description="beginnings that are carried on side by side")
    length_penalty: float = Field(default=0.6, ge=-10, le=10, description="a: above 0 longer texts gain")
    formula: Literal["gnmt", "power"] = Field(default="gnmt", description="((5 + n) / 6)^a, or n^a")
    max_tokens: int = Field(default=128, ge=1, description="the most tokens to write")

    def penalty(self, length: int) -> float:
        """What the log-probability of a text of this many tokens is divided by."""
        base = (5 + length) / 6 if self.formula == "gnmt" else float(length)
        return base**self.length_penalty


@dataclass(frozen=True)
class Hypothesis:
    """A whole text: its tokens (the end, if it has one, is the last), their log-probability, and what it is worth."""

    tokens: tuple[int, ...]
    logprob: float
    score: float


def search(engine: Engine, prompt: Prompt, params: BeamParams) -> list[tuple[str, Hypothesis]]:
    """The best texts for a prompt (or for a source, where the model has an encoder), best first.

    Raises:
        RequestError: as `Engine.add`; also when the prompt leaves no room to write.
    """
    tokens = engine.tokens_of(prompt)

    def work(model: Transformer) -> list[Hypothesis]:
        start, memory = tokens, None
        if model.spec.encoder is not None:
            source = torch.tensor([tokens], device=model.embedding.weight.device)
            start, memory = list(model.spec.encoder.start), model.encode(source, Step.whole(source))
        room = params.max_tokens if engine.limit is None else engine.limit + 1 - len(start)
        if room < 1:
            raise RequestError(f"the prompt fills the model's context of {engine.limit}", do="shorten it")
        own = params.replace(max_tokens=min(room, params.max_tokens))
        return beam_search(model, [start], sorted(engine.stops), own, memory, sorted(engine.never))[0]

    with torch.inference_mode():
        found = engine.turn(work)
    return [(engine.tokenizer.decode(one.tokens, skip_special=True), one) for one in found]


class RowCache:
    """Keys and values of rows that all have the same length, and that may be taken in another order."""

    def __init__(self, model: Transformer, rows: int):
        weight, self.length = model.embedding.weight, 0
        self.stores = [
            [weight.new_empty((rows, 0, *kept.shape)) for kept in layer if kept.per == "token"]
            for layer in model.remembers
        ]
        self.states: list[tuple[Tensor, ...]] = [() for _ in model.remembers]

    def layer(self, index: int) -> LayerCache:
        return RowLayer(self, index)

    def take(self, rows: Int[Tensor, "n"]) -> None:
        """Go on with these rows."""
        for layer in self.stores:
            layer[:] = [store[rows] for store in layer]
        self.states = [tuple(state[rows] for state in layer) for layer in self.states]

    def add(self, index: int, new: Sequence[Tensor]) -> list[Tensor]:
        """Remember `new` (each [rows, T, …]) in a layer; all that it remembers."""
        end, layer = self.length + new[0].size(1), self.stores[index]
        if layer[0].size(1) < end:  # twice as much room each time, so that copying stays cheap
            room = max(end, 2 * layer[0].size(1))
            layer[:] = [
                torch.cat((store, store.new_zeros((len(store), room - store.size(1), *store.shape[2:]))), dim=1)
                for store in layer
            ]
        for store, value in zip(layer, new, strict=True):
            store[:, self.length : end] = value
        return [store[:, :end] for store in layer]


@dataclass(frozen=True)
class RowLayer:
    """One layer's part of the cache."""

    cache: RowCache
    index: int

    def extend(self, *new: Tensor) -> Remembered:
        kept = self.cache.add(self.index, new)
        return ThisPass(torch.arange(kept[0].size(1), device=kept[0].device)[None], None, tuple(kept))

    def recall(self) -> tuple[Tensor, ...] | None:
        return self.cache.states[self.index] or None

    def keep(self, *state: Tensor) -> None:
        self.cache.states[self.index] = state


def beam_search(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    ends: Iterable[int],
    params: BeamParams,
    memory: Memory | None = None,
    never: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """The best texts for every prompt, best first, at most `beams` of each.

    `prompts` are of one length (an encoder-decoder's are its start, and row b of `memory` is what prompt b reads);
    `ends` are the tokens that end a text, `never` those that no text has.
    """
    assert len({len(prompt) for prompt in prompts}) == 1, "prompts of unlike length go one after the other"
    search = Search(model, prompts, frozenset(ends), params, memory, never)
    with torch.inference_mode():
        while not search.done:
            search.advance()
    return [sorted(found, key=lambda one: -one.score)[: params.beams] for found in search.found]


class Search:
    """A search on its way: N prompts with K beams each, as N · K rows."""

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        ends: frozenset[int],
        params: BeamParams,
        memory: Memory | None,
        never: Sequence[int] = (),
    ):
        self.model, self.ends, self.params = model, ends, params
        N, K, device = len(prompts), params.beams, model.embedding.weight.device
        self.never = torch.tensor(never, device=device, dtype=torch.long)
        self.cache, self.written = RowCache(model, N * K), 0
        rows = torch.arange(N, device=device).repeat_interleave(K)
        self.memory = None if memory is None else memory.take(rows)
        self.new = torch.tensor([list(prompt) for prompt in prompts], device=device)[rows]
        # All beams of a prompt are alike at first: only one of them may go on.
        self.logprob = torch.full((N, K), -torch.inf, device=device, dtype=torch.float64)
        self.logprob[:, 0] = 0.0
        self.texts: list[list[tuple[int, ...]]] = [[()] * K for _ in prompts]
        self.found: list[list[Hypothesis]] = [[] for _ in prompts]
        self.over = [False] * N

    @property
    def done(self) -> bool:
        return all(self.over)

    def advance(self) -> None:
        """One pass: score what may follow every beam, set those apart that end, go on with the best of the others."""
        N, K = self.logprob.shape
        scores = self._follow().view(N, K, -1) + self.logprob[:, :, None]
        best = scores.flatten(1).topk(min(2 * K, scores[0].numel()), dim=1)
        V = scores.size(-1)
        self.written += 1
        worths = cast("list[list[float]]", best.values.tolist())  # pyright: ignore[reportUnknownMemberType]
        ranks = cast("list[list[int]]", best.indices.tolist())  # pyright: ignore[reportUnknownMemberType]
        chosen = [
            self._sort_out(index, worth, [(place // V, place % V) for place in places])
            for index, (worth, places) in enumerate(zip(worths, ranks, strict=True))
        ]
        device = self.logprob.device
        self.logprob = torch.tensor([[worth for worth, _, _ in row] for row in chosen], device=device).double()
        rows = torch.tensor([n * K + beam for n, row in enumerate(chosen) for _, beam, _ in row], device=device)
        self.new = torch.tensor([[token] for row in chosen for _, _, token in row], device=device)
        self.texts = [[(*self.texts[n][beam], token) for _, beam, token in row] for n, row in enumerate(chosen)]
        self.cache.take(rows)  # a memory stays: the beams of a prompt read the same

    def _follow(self) -> Float[Tensor, "R V"]:
        """The log-probability of every token after every row."""
        start = self.cache.length
        positions = torch.arange(start, start + self.new.size(1), device=self.new.device)[None]
        x = self.model.read(self.new, Step(positions, cache=self.cache, memory=self.memory))
        self.cache.length += self.new.size(1)
        logits = self.model.head(x[:, -1:], self.model.embedding)[:, -1]
        return logits.double().log_softmax(dim=-1).index_fill(-1, self.never, -torch.inf)

    def _sort_out(self, index: int, worth: list[float], places: list[tuple[int, int]]) -> list[tuple[float, int, int]]:
        """The beams that a prompt goes on with: (log-probability, beam it continues, token); what ends is set apart."""
        K, going, last = self.params.beams, list[tuple[float, int, int]](), self.written == self.params.max_tokens
        for rank, (logprob, (beam, token)) in enumerate(zip(worth, places, strict=True)):
            ended = token in self.ends
            if ended and rank >= K:
                continue  # the end of a text that is no longer among the best
            if ended or (last and len(going) < K):
                self._keep(index, (*self.texts[index][beam], token), logprob)
            if not ended:
                going.append((logprob, beam, token))
        going = going[:K] + [(-torch.inf, 0, 0)] * (K - len(going))
        self.over[index] = self.over[index] or last or self._settled(index, going[0][0])
        return going

    def _keep(self, index: int, tokens: tuple[int, ...], logprob: float) -> None:
        if not self.over[index] and logprob > -torch.inf:
            score = logprob / self.params.penalty(len(tokens))
            self.found[index].append(Hypothesis(tokens, logprob, score))
            self.found[index].sort(key=lambda one: -one.score)
            del self.found[index][self.params.beams :]

    def _settled(self, index: int, best: float) -> bool:
        """Whether nothing that is still on its way can become better than what was found: a text only loses."""
        found = self.found[index]
        if len(found) < self.params.beams:
            return best == -torch.inf
        lengths = (self.written + 1, self.params.max_tokens)
        return max(best / self.params.penalty(length) for length in lengths) <= found[-1].score
