"""Latent attention (MLA): keys and values of all heads come out of one short vector, and only that is remembered."""

from typing import Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.model.attention.mix import WRITTEN_OUT, mix
from glassformer.model.linear import Axes, Linear
from glassformer.model.mask import CausalSpec, MaskSpec
from glassformer.model.norm import NormSpec, RMSNormSpec
from glassformer.model.position import PositionSpec, RotarySpec
from glassformer.model.step import Kept, LayerStep, Remembered, ThisPass
from glassformer.ops.attend import Scores
from glassformer.spec import Spec


class LatentAttentionSpec(Spec):
    """Multi-head attention (MLA) whose keys and values are projections of one latent of width `rank`, for all heads.

    Only the latent is remembered, so the cache doesn't grow with the heads. A rotation can't be absorbed into such a
    projection. So each head has `head_width` components without position, and `turned` more that carry it, whose keys
    all heads share. With `query_rank`, queries come out of a latent, too. `scale` defaults to
    1/√(head_width + turned).

    Formula:
        c_s = norm(W_down x_s),  r_s = rotate(W_turned x_s)     what is remembered
        k_s,h = [W_key,h c_s, r_s],  v_s,h = W_value,h c_s
        q_t,h = [n_t,h, rotate(p_t,h)],  [n_t,h, p_t,h] = W_q,h x_t
        z_t,h = Σ_s softmax_s(scale · q_t,h · k_s,h) v_s,h,  y_t = W_out [z_t,0 … z_t,H-1]
        absorbed, with equal results: n · (W_key c) = (W_keyᵀ n) · c, so that no key or value is ever made

    Source: DeepSeek-V2 2024, 2.1.
    """

    kind: Literal["latent"] = "latent"
    heads: int = Field(ge=1)
    rank: int = Field(ge=1)
    query_rank: int | None = Field(default=None, ge=1)
    head_width: int = Field(ge=1)
    turned: int = Field(ge=1)
    value_width: int = Field(ge=1)
    position: PositionSpec = RotarySpec()
    mask: MaskSpec = CausalSpec()
    scale: float | None = Field(default=None, gt=0)
    norm: NormSpec = RMSNormSpec(eps=1e-6)
    bias: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.position.kind not in ("none", "rotary"):
            raise ValueError(
                f"position {self.position.kind!r} doesn't turn keys: latent attention takes rotary or none"
            )
        if self.position.kind == "rotary":
            self.position.fits(self.turned)
        return self

    def width_of_head(self, width: int) -> int:
        """C, the width of a query or key: the part without position and the part with it."""
        return self.head_width + self.turned

    def fits(self, width: int) -> None:
        """Every width of the model fits: the widths of the heads are their own."""

    def points(self) -> tuple[str, ...]:
        return (
            "latent", "q", "k", "v", "q_rotated", "k_rotated",
            "scores_raw", "scores", "mask", "pattern", "z", "attention_out",
        )  # fmt: skip

    def sizes(self, width: int) -> dict[str, int]:
        sizes = {"H": self.heads, "K": self.heads, "C": self.width_of_head(width)}
        return {**sizes, "W": self.value_width, "R": self.rank, "Q": self.query_rank or 1}

    def build(self, width: int) -> "LatentAttention":
        return LatentAttention(width, self)


class LatentAttention(nn.Module):
    """Both forms of it, with equal results: expanded, where keys and values are made for every token, and absorbed.

    In the absorbed form a query is carried over to the latents instead, and reads them as one shared key and value:
    cheaper for few queries over many remembered tokens.
    """

    def __init__(self, width: int, spec: LatentAttentionSpec):
        super().__init__()
        self.spec, self.mask = spec, spec.mask
        H, C, R = spec.heads, spec.head_width + spec.turned, spec.rank
        self.scale = spec.scale or C**-0.5
        limit = spec.mask.reach
        self.remembers = (Kept("latent", (R,), limit=limit), Kept("k_turned", (spec.turned,), limit=limit))
        self.position = spec.position.build(spec.turned, 1)
        if spec.query_rank is None:
            self.q = Linear(width, H * C, Axes("D", "H C"))
        else:
            self.q_down = Linear(width, spec.query_rank, Axes("D", "Q"), bias=spec.bias)
            self.q_norm = spec.norm.build(spec.query_rank)
            self.q = Linear(spec.query_rank, H * C, Axes("Q", "H C"))
        self.kv_down = Linear(width, R + spec.turned, Axes("D", "R"), bias=spec.bias)
        self.kv_norm = spec.norm.build(R)
        self.kv_up = Linear(R, H * (spec.head_width + spec.value_width), Axes("R", "H C"))
        self.out = Linear(H * spec.value_width, width, Axes("H W", "D"), bias=spec.bias, to_stream=True)

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        spec, watch = self.spec, step.watch
        latent, turned = _cut(self.kv_down(x), spec.rank)
        latent = watch("latent", self.kv_norm(latent))
        q = self.q(x if spec.query_rank is None else self.q_norm(self.q_down(x)))
        q = watch("q", q.view(*q.shape[:-1], spec.heads, -1).transpose(1, 2))  # [B, H, T, C]
        plain, q_turned = _cut(q, spec.head_width)
        q_turned = self.position.rotate(q_turned, step.positions)
        k_turned = self.position.rotate(turned[:, None], step.positions)[:, 0]  # [B, T, turned]
        memory = step.remember(latent, k_turned)
        q_rotated = torch.cat((plain, q_turned), dim=-1)
        if self.absorbs(x.size(1), memory, step):
            z = self.absorbed(watch("q_rotated", q_rotated), memory, step)
        else:
            z = self.expanded(q_rotated, turned, memory, step)
        return watch("attention_out", self.out(watch("z", z).transpose(1, 2).flatten(-2)))

    def absorbs(self, queries: int, memory: Remembered, step: LayerStep) -> bool:
        """Whether the absorbed form needs fewer operations; a watcher of keys, values or scores has them made."""
        if step.watch.wants("k", "v", "k_rotated", *WRITTEN_OUT) or step.plain:
            return False
        spec, keys = self.spec, memory.positions.size(-1)
        opened = spec.rank * (
            spec.head_width + spec.value_width
        )  # to make keys and values of a latent, or a query of it
        absorbed = queries * opened + queries * keys * (2 * spec.rank + spec.turned)
        return absorbed < keys * opened + queries * keys * (spec.head_width + spec.turned + spec.value_width)

    def absorbed(self, q: Float[Tensor, "B H T C"], memory: Remembered, step: LayerStep) -> Float[Tensor, "B H T W"]:
        """Queries carried over to the latents, which all heads read as one."""
        spec = self.spec
        latent, k_turned = memory.gather()  # [B, S, R], [B, S, turned]
        opening = self.kv_up.weight.view(spec.heads, -1, spec.rank)
        to_key, to_value = opening[:, : spec.head_width], opening[:, spec.head_width :]  # [H, C, R], [H, W, R]
        plain, q_turned = _cut(q, spec.head_width)
        q = torch.cat((torch.einsum("bhtc,hcr->bhtr", plain, to_key), q_turned), dim=-1)
        k = torch.cat((latent, k_turned), dim=-1)[:, None]  # one head for all
        z = self.read(q, k, latent[:, None], memory, step)
        return torch.einsum("bhtr,hwr->bhtw", z, to_value)

    def expanded(
        self, q: Float[Tensor, "B H T C"], turned: Float[Tensor, "B T P"], memory: Remembered, step: LayerStep
    ) -> Float[Tensor, "B H T W"]:
        """Keys and values made of every latent that is remembered; `turned` is the shared part before its rotation."""
        latent, k_turned = memory.gather()
        k, v = self.open(latent)
        k = torch.cat((k, self._for_all(k_turned)), dim=-1)
        if step.watch.wants("k", "v", "k_rotated"):
            q, k, v = self.shown(q, k, v, turned, memory, step)
        else:
            q = step.watch("q_rotated", q)
        return self.read(q, k, v, memory, step)

    def open(self, latent: Float[Tensor, "B S R"]) -> tuple[Float[Tensor, "B H S C"], Float[Tensor, "B H S W"]]:
        """The keys (without their turned part) and values of latents."""
        spec = self.spec
        both = self.kv_up(latent)
        return _cut(both.view(*both.shape[:-1], spec.heads, -1).transpose(1, 2), spec.head_width)

    def shown(
        self, q: Tensor, k: Tensor, v: Tensor, turned: Tensor, memory: Remembered, step: LayerStep
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Let a watcher see, and change, the keys and values of the tokens of this pass among all remembered ones."""
        watch, C = step.watch, self.spec.head_width
        where = self._slots(memory, step)
        new = watch("k", torch.cat((_take(k, where)[..., :C], self._for_all(turned)), dim=-1))
        v = _put(v, where, watch("v", _take(v, where)))
        q = watch("q_rotated", q)
        rotated = torch.cat((new[..., :C], self.position.rotate(new[..., C:], step.positions)), dim=-1)
        return q, _put(k, where, watch("k_rotated", rotated)), v

    def _for_all(self, x: Float[Tensor, "B S P"]) -> Float[Tensor, "B H S P"]:
        return x[:, None].expand(-1, self.spec.heads, -1, -1)

    def read(self, q: Tensor, k: Tensor, v: Tensor, memory: Remembered, step: LayerStep) -> Tensor:
        """What each query mixes of the values."""
        scores = Scores(self.scale, dropout=self.spec.dropout if self.training else 0.0)
        return mix((q, k, v), scores, self.mask, memory, step)

    def _slots(self, memory: Remembered, step: LayerStep) -> Tensor:
        """Where among what is remembered each token of this pass is, [#B, T]."""
        if isinstance(memory, ThisPass):
            return torch.arange(step.positions.size(-1), device=step.positions.device)[None]
        return (memory.positions[:, None, :] == step.positions[:, :, None]).int().argmax(dim=-1)


def _cut(x: Float[Tensor, "*B C"], at: int) -> tuple[Tensor, Tensor]:
    """The components before `at`, and those from it on."""
    return x[..., :at], x[..., at:]


def _take(x: Float[Tensor, "B H S C"], where: Tensor) -> Float[Tensor, "B H T C"]:
    index = where[:, None, :, None].expand(x.size(0), x.size(1), -1, x.size(3))
    return x.gather(2, index)


def _put(x: Float[Tensor, "B H S C"], where: Tensor, new: Float[Tensor, "B H T C"]) -> Float[Tensor, "B H S C"]:
    index = where[:, None, :, None].expand(x.size(0), x.size(1), -1, x.size(3))
    return x.scatter(2, index, new)
