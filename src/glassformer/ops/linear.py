"""Linear attention: weights φ(q)·φ(k) instead of exp(q·k), so that the past fits into one matrix of fixed size.

    out_t = Σ_s γ^(t-s) φ(q_t)·φ(k_s) v_s  /  Σ_s γ^(t-s) φ(q_t)·φ(k_s)

Three forms with equal results: `parallel` writes every weight out, `recurrent` carries Σ γ^(t-s) φ(k_s) v_sᵀ from token
to token, `chunked` does the first within chunks and the second between them. All read features φ(q) and φ(k). The sum
of weights is found with the values, as one more of them that is always 1: a state is [C, E + 1]. Sources: Katharopoulos
et al. 2020 (parallel, recurrent); Sun et al. 2023, RetNet (decay γ, chunks).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHUNK = 64
"""Tokens in a chunk: about as many as a head is wide, so that both halves of the work are alike."""

See = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class Line:
    """Where the tokens of a pass stand.

    positions: rising within each document; -1 marks padding, which is neither read nor remembered.
    segments:  the document of each, or None where a row is one.
    log_decay: [H], log γ of each head, or None where nothing fades.
    """

    positions: Int[Tensor, "B T"]
    segments: Int[Tensor, "B T"] | None = None
    log_decay: Float[Tensor, "H"] | None = None

    @property
    def documents(self) -> Int[Tensor, "B T"]:
        return torch.zeros_like(self.positions) if self.segments is None else self.segments

    def backwards(self) -> "Line":
        """The same tokens from the last to the first."""
        real = self.positions >= 0
        positions = torch.where(real, self.positions.amax() - self.positions, -1).flip(1)
        return Line(positions, None if self.segments is None else self.segments.flip(1), self.log_decay)

    def fade(self, distance: Int[Tensor, "B *n"]) -> Float[Tensor, "B #H *n"]:
        """γ^distance for every head; 1 where nothing fades."""
        if self.log_decay is None:
            return torch.ones((), device=distance.device).expand(distance[:, None].shape)
        rate = self.log_decay.view(-1, *(1,) * (distance.ndim - 1))
        return (rate * distance[:, None].clamp_min(0)).exp()


def features(x: Float[Tensor, "*B C"]) -> Float[Tensor, "*B C"]:
    """φ(x) = elu(x) + 1, which is positive. Source: Katharopoulos et al. 2020, eq. 7."""
    return F.elu(x) + 1


def parallel(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B H T C"],
    v: Float[Tensor, "B H T E"],
    visible: Bool[Tensor, "#B 1 T T"],
    line: Line,
    see: See,
) -> Float[Tensor, "B H T E"]:
    """Every weight written out; `see(name, value)` is shown scores_raw, scores, mask, pattern, and may replace them."""
    distance = (line.positions[:, :, None] - line.positions[:, None, :]).abs()
    found = see("scores", see("scores_raw", q @ k.mT) * line.fade(distance))
    mask = see("mask", visible.expand(q.size(0), -1, -1, -1))
    found = found.masked_fill(~mask, 0.0)
    return see("pattern", _shares(found, found.sum(dim=-1, keepdim=True))) @ v


def chunked(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B H T C"],
    v: Float[Tensor, "B H T E"],
    line: Line,
    past: Float[Tensor, "B H C E1"] | None = None,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H C E1"]]:
    """Causal, in time and memory that grow with T; also the state after the last token.

    `past` is the state before the first, as it stood right before it.
    """
    sums, state = _sums(q, k, with_one(v), line, past)
    return mixed(sums), state


def chunked_both_ways(
    q: Float[Tensor, "B H T C"], k: Float[Tensor, "B H T C"], v: Float[Tensor, "B H T E"], line: Line
) -> Float[Tensor, "B H T E"]:
    """Every token reads its whole document: once what stands up to it, and from the other end what stands after it."""
    v = with_one(v)
    sums, _ = _sums(q, k, v, line, None)
    after, _ = _sums(q.flip(2), k.flip(2), v.flip(2), line.backwards(), None, itself=False)
    return mixed(sums + after.flip(2))


def recurrent(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B H T C"],
    v: Float[Tensor, "B H T E"],
    line: Line,
    past: Float[Tensor, "B H C E1"] | None = None,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H C E1"]]:
    """A token at a time: the state fades, takes the token in, and is read. A document begins with nothing."""
    v, positions, documents = with_one(v), line.positions, line.documents
    state = v.new_zeros(*k.shape[:2], k.size(-1), v.size(-1)) if past is None else past
    first = (positions >= 0).int().argmax(dim=1, keepdim=True)  # [B, 1]
    place, document = positions.gather(1, first) - 1, documents.gather(1, first)
    found: list[Tensor] = []
    for t in range(q.size(2)):
        here, its = positions[:, t : t + 1], documents[:, t : t + 1]
        real, same = (here >= 0)[:, :, None, None], (its == document)[:, :, None, None]
        old = torch.where(same, state * line.fade(here - place)[..., None], 0.0)
        new = old + k[:, :, t, :, None] * v[:, :, t, None]
        state = torch.where(real, new, state)
        place, document = (torch.where(here >= 0, now, before) for now, before in ((here, place), (its, document)))
        found.append(q[:, :, t, None] @ state)
    return mixed(torch.cat(found, dim=2)), state


def with_one(v: Float[Tensor, "*B E"]) -> Float[Tensor, "*B E1"]:
    """Values with a 1 at their end, whose mixture is the sum of the weights."""
    return F.pad(v, (0, 1), value=1.0)


def mixed(sums: Float[Tensor, "*B E1"]) -> Float[Tensor, "*B E"]:
    """Weighted sums divided by the sum of their weights."""
    return _shares(sums[..., :-1], sums[..., -1:])


def _shares(x: Tensor, total: Tensor) -> Tensor:
    """X / total; zeros where a query saw nothing (padding)."""
    return x / total.masked_fill(total == 0, 1.0)


def _sums(
    q: Tensor, k: Tensor, v: Tensor, line: Line, past: Tensor | None, *, itself: bool = True
) -> tuple[Tensor, Tensor]:
    """Σ_s γ^(t-s) φ(q_t)·φ(k_s) v_s over the tokens up to t (without t where not `itself`), and the last state."""
    T, size = q.size(2), min(CHUNK, q.size(2))
    cut = _Chunks(line, size)
    q, k, v = (_cut(x, size) for x in (q, k, v))  # [B, H, N, c, …]
    k = k * cut.real[:, None, ..., None]
    weights = (q @ k.mT) * cut.inside(itself)
    states: list[Tensor] = []
    state = v.new_zeros(*k.shape[:2], k.size(-1), v.size(-1)) if past is None else past
    gained = (k * cut.into).mT @ v  # what each chunk adds to the state, as of its end
    for n, kept in enumerate(cut.kept.unbind(dim=2)):
        states.append(state)
        state = state * kept[..., None, None] + gained[:, :, n]
    sums = weights @ v + (q * cut.out_of) @ torch.stack(states, dim=2)
    return sums.flatten(2, 3)[:, :, :T], state


def _cut(x: Tensor, size: int) -> Tensor:
    """[B, H, T, C] as [B, H, chunks, size, C], with zeros after the end."""
    x = F.pad(x, (0, 0, 0, -x.size(2) % size))
    return x.reshape(*x.shape[:2], -1, size, x.size(-1))


class _Chunks:
    """A line cut into N chunks, and by what factor tokens and states reach each other.

    A state stands at the last real token so far: it fades from there on, and belongs to that token's document.
    """

    def __init__(self, line: Line, size: int):
        positions, documents = (F.pad(x, (0, -x.size(1) % size), value=-1) for x in (line.positions, line.documents))
        real = positions >= 0
        index = torch.arange(positions.size(1), device=positions.device)
        last = torch.where(real, index, -1).cummax(dim=1).values[:, size - 1 :: size]  # [B, N], -1: none yet
        first = real.int().argmax(dim=1, keepdim=True)
        start, opening = positions.gather(1, first) - 1, documents.gather(1, first)
        place = torch.where(last < 0, start, positions.gather(1, last.clamp_min(0)))
        document = torch.where(last < 0, opening, documents.gather(1, last.clamp_min(0)))
        before = torch.cat((start, place[:, :-1]), dim=1), torch.cat((opening, document[:, :-1]), dim=1)
        self.line, self.real = line, real.reshape(len(real), -1, size)
        self.positions, self.documents = (x.reshape(len(x), -1, size) for x in (positions, documents))
        into = (self.documents == document[..., None])[:, None]
        self.into = (into * line.fade(place[..., None] - self.positions))[..., None]  # [B, #H, N, c, 1]
        out_of = (self.documents == before[1][..., None])[:, None]
        self.out_of = (out_of * line.fade(self.positions - before[0][..., None]))[..., None]
        self.kept = (document == before[1])[:, None] * line.fade(place - before[0])  # [B, #H, N]

    def inside(self, itself: bool) -> Tensor:
        """The factor between the tokens of a chunk, [B, #H, N, c, c]."""
        same = self.documents[..., :, None] == self.documents[..., None, :]
        seen = same.tril(0 if itself else -1)[:, None]
        return seen * self.line.fade(self.positions[..., :, None] - self.positions[..., None, :])
