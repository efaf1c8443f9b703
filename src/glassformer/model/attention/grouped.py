"""Grouped attention: every query head reads the keys and values of the head that its group shares."""

from typing import Literal, Self, cast

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.model.attention.heads import HeadsSpec
from glassformer.model.attention.mix import mix
from glassformer.model.linear import Axes, Linear
from glassformer.model.mask import CausalSpec, MaskSpec
from glassformer.model.position import NoPositionSpec, PositionSpec
from glassformer.model.step import Kept, LayerStep, Remembered
from glassformer.ops.attend import Scores


class GroupedAttentionSpec(HeadsSpec):
    """Softmax attention with `heads` queries that share `kv_heads` keys and values.

    kv_heads = heads is multi-head, 1 is multi-query, between lies grouped-query: fewer keys and values are a smaller
    cache, for little loss. `head_width` defaults to width / heads, `scale` to 1/√head_width, which keeps scores at
    one size in heads of any width.

    Queries and keys may be normed, each head by itself or all heads together (`qk_norm_over`); `softcap` squeezes
    scores into ± that value; with `sink` every head has one more score to lose weight to, of nothing; with `gate` what
    the heads mixed is weighed by a sigmoid of the token before it is put out.

    Formula:
        q_h = rotate(W_q,h x),  k_g = rotate(W_k,g x),  v_g = W_v,g x     g = ⌊h · kv_heads / heads⌋
        z_t,h = Σ_s softmax_s(scale · q_t,h · k_s,g + bias[h, t, s]) v_s,g     over the s that t may see
        y_t = W_out [z_t,0 … z_t,H-1]
        with softcap: scale · q · k -> softcap · tanh(scale · q · k / softcap)
        with sink: a score sink_h without a value;  with gate: z_t -> z_t ⊙ σ(W_gate x_t)

    Sources: Vaswani et al. 2017; Shazeer 2019; Ainslie et al. 2023; q/k norm: Henry et al. 2020; soft-cap: Gemma 2,
    2024; sinks: OpenAI 2025, gpt-oss; gate: Qiu et al. 2025.
    """

    kind: Literal["grouped"] = "grouped"
    position: PositionSpec = NoPositionSpec()
    mask: MaskSpec = CausalSpec()
    qk_norm_over: Literal["head", "all"] = "head"
    softcap: float | None = Field(default=None, gt=0)
    sink: bool = False
    gate: bool = False

    @model_validator(mode="after")
    def _place_acts(self) -> Self:
        if "embed" in self.position.acts:
            raise ValueError(
                f"position {self.position.kind!r} adds to the token vectors: it belongs to the model's position, "
                "not to an attention's"
            )
        return self

    def fits(self, width: int) -> None:
        """Refuse a width that can't be divided among the heads or, with rotary positions, into pairs."""
        super().fits(width)
        if self.position.kind == "rotary":
            self.position.fits(self.width_of_head(width))

    def points(self) -> tuple[str, ...]:
        return (
            "q", "k", "v", "q_rotated", "k_rotated",
            "scores_raw", "scores", "mask", "pattern", "z", "attention_out",
        )  # fmt: skip

    def build(self, width: int) -> "GroupedAttention":
        return GroupedAttention(width, self)


class GroupedAttention(nn.Module):
    def __init__(self, width: int, spec: GroupedAttentionSpec):
        super().__init__()
        H, K, C = spec.heads, spec.kv_heads, spec.width_of_head(width)
        self.mask, self.dropout, self.softcap = spec.mask, spec.dropout, spec.softcap
        self.head_width, self.scale = C, spec.scale or C**-0.5
        limit = spec.mask.reach
        self.remembers = (Kept("k", (K, C), limit=limit), Kept("v", (K, C), limit=limit))
        self.position = spec.position.build(C, H)
        self.q = Linear(width, H * C, Axes("D", "H C"), bias=spec.bias)
        self.k = Linear(width, K * C, Axes("D", "K C"), bias=spec.bias)
        self.v = Linear(width, K * C, Axes("D", "K C"), bias=spec.bias)
        self.over_all = spec.qk_norm_over == "all"
        self.q_norm = spec.qk_norm.build(H * C if self.over_all else C) if spec.qk_norm else nn.Identity()
        self.k_norm = spec.qk_norm.build(K * C if self.over_all else C) if spec.qk_norm else nn.Identity()
        self.sink = nn.Parameter(torch.zeros(H)) if spec.sink else None
        self.gate = Linear(width, H * C, Axes("D", "H C")) if spec.gate else None
        self.out = Linear(H * C, width, Axes("H C", "D"), bias=spec.out_bias, to_stream=True)

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        watch = step.watch
        q = watch("q", self.heads(self.q(x), self.q_norm))
        k = watch("k", self.heads(self.k(x), self.k_norm))
        v = watch("v", self.heads(self.v(x)))
        q = watch("q_rotated", self.position.rotate(q, step.positions))
        k = watch("k_rotated", self.position.rotate(k, step.positions))
        z = self.read(q, step.remember(k.transpose(1, 2), v.transpose(1, 2)), step)
        if self.gate is not None:
            z = z * torch.sigmoid(self.heads(self.gate(x)))
        return watch("attention_out", self.out(watch("z", z).transpose(1, 2).flatten(-2)))

    def heads(self, x: Float[Tensor, "B T W"], norm: nn.Module | None = None) -> Float[Tensor, "B n T C"]:
        """A projection cut into heads, and normed: each head by itself, or all of them before they are cut."""
        if norm is not None and self.over_all:
            x = cast("Tensor", norm(x))
        heads = x.reshape(*x.shape[:-1], -1, self.head_width)  # [B, T, n, C]
        if norm is not None and not self.over_all:
            heads = cast("Tensor", norm(heads))
        return heads.transpose(1, 2)

    def read(self, q: Float[Tensor, "B H T C"], memory: Remembered, step: LayerStep) -> Float[Tensor, "B H T C"]:
        """What each query mixes from all that is remembered."""
        k, v = (kept.transpose(1, 2) for kept in memory.gather())  # [B, K, S, C]
        scores = Scores(
            scale=self.scale,
            softcap=self.softcap,
            sink=self.sink,
            dropout=self.dropout if self.training else 0.0,
        )
        return mix((q, k, v), scores, self.mask, memory, step, self.position)
