"""Attention: tokens read from the tokens they may see."""

from typing import Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.model.linear import Axes, Linear
from glassformer.model.mask import CausalSpec, MaskSpec, visible
from glassformer.model.norm import NormSpec
from glassformer.model.position import NoPositionSpec, PositionSpec
from glassformer.model.step import Kept, LayerStep, Remembered
from glassformer.ops.attend import attend, attend_fast
from glassformer.spec import Spec


class GroupedAttentionSpec(Spec):
    """Softmax attention with `heads` queries that share `kv_heads` keys and values.

    kv_heads = heads is multi-head, 1 is multi-query, between lies grouped-query. `head_width` defaults to
    width / heads, `scale` to 1/√head_width. Sources: Vaswani et al. 2017; Shazeer 2019; Ainslie et al. 2023;
    q/k norm: Henry et al. 2020.
    """

    kind: Literal["grouped"] = "grouped"
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_width: int | None = Field(default=None, ge=1)
    position: PositionSpec = NoPositionSpec()
    mask: MaskSpec = CausalSpec()
    scale: float | None = Field(default=None, gt=0)
    qk_norm: NormSpec | None = None
    bias: bool = False
    out_bias: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}): set both together "
                "(equal numbers are plain multi-head attention)"
            )
        if "embed" in self.position.acts:
            raise ValueError(
                f"position {self.position.kind!r} adds to the token vectors: it belongs to the model's position, "
                "not to an attention's"
            )
        return self

    def width_of_head(self, width: int) -> int:
        """C for a model of this width."""
        return self.head_width or width // self.heads

    def fits(self, width: int) -> None:
        """Refuse a width that can't be divided among the heads or, with rotary positions, into pairs."""
        if self.head_width is None and width % self.heads:
            raise ValueError(
                f"heads ({self.heads}) must divide width ({width}); choose another number of heads or give head_width"
            )
        if self.position.kind == "rotary":
            C, fraction = self.width_of_head(width), self.position.fraction
            if C % 2:
                raise ValueError(f"rotary positions turn pairs: head_width ({C}) must be even")
            if not self.position.rotated(C):
                raise ValueError(f"position.fraction ({fraction}) of head_width ({C}) is not a single pair to turn")

    def points(self) -> tuple[str, ...]:
        return (
            "q", "k", "v", "q_rotated", "k_rotated",
            "scores_raw", "scores", "mask", "pattern", "z", "attention_out",
        )  # fmt: skip

    def sizes(self, width: int) -> dict[str, int]:
        return {"H": self.heads, "K": self.kv_heads, "C": self.width_of_head(width)}

    def build(self, width: int) -> "GroupedAttention":
        return GroupedAttention(width, self)


class GroupedAttention(nn.Module):
    def __init__(self, width: int, spec: GroupedAttentionSpec):
        super().__init__()
        H, K, C = spec.heads, spec.kv_heads, spec.width_of_head(width)
        self.mask, self.dropout = spec.mask, spec.dropout
        self.head_width, self.scale = C, spec.scale or C**-0.5
        limit = spec.mask.reach
        self.remembers = (Kept("k", (K, C), limit=limit), Kept("v", (K, C), limit=limit))
        self.position = spec.position.build(C, H)
        self.q = Linear(width, H * C, Axes("D", "H C"), bias=spec.bias)
        self.k = Linear(width, K * C, Axes("D", "K C"), bias=spec.bias)
        self.v = Linear(width, K * C, Axes("D", "K C"), bias=spec.bias)
        self.q_norm = spec.qk_norm.build(C) if spec.qk_norm else nn.Identity()
        self.k_norm = spec.qk_norm.build(C) if spec.qk_norm else nn.Identity()
        self.out = Linear(H * C, width, Axes("H C", "D"), bias=spec.out_bias, to_stream=True)

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        watch, C = step.watch, self.head_width
        q, k, v = (project(x).unflatten(-1, (-1, C)) for project in (self.q, self.k, self.v))  # [B, T, H, C]
        q = watch("q", self.q_norm(q).transpose(1, 2))
        k = watch("k", self.k_norm(k).transpose(1, 2))
        v = watch("v", v.transpose(1, 2))
        q = watch("q_rotated", self.position.rotate(q, step.positions))
        k = watch("k_rotated", self.position.rotate(k, step.positions))
        z = watch("z", self.read(q, step.remember(k.transpose(1, 2), v.transpose(1, 2)), step))
        return watch("attention_out", self.out(z.transpose(1, 2).flatten(-2)))

    def read(self, q: Float[Tensor, "B H T C"], memory: Remembered, step: LayerStep) -> Float[Tensor, "B H T C"]:
        """What each query mixes from all that is remembered; the fused kernel where nobody looks at the weights."""
        k, v = (kept.transpose(1, 2) for kept in memory.gather())  # [B, K, S, C]
        bias = self.position.bias(step.positions, memory.positions)
        dropout = self.dropout if self.training else 0.0
        watched = step.watch.wants("scores_raw", "scores", "mask", "pattern")
        if step.plain and self.mask.kind == "causal" and not watched:
            return attend_fast(q, k, v, None, bias, scale=self.scale, dropout=dropout)
        seen = visible(self.mask, step.positions, memory.positions, step.segments, memory.segments)
        if watched:
            return attend(q, k, v, seen, bias, scale=self.scale, see=step.watch, dropout=dropout)
        # A query that sees nothing is padding: let it see anything rather than divide 0 by 0.
        seen = seen | ~seen.any(dim=-1, keepdim=True)
        return attend_fast(q, k, v, seen, bias, scale=self.scale, dropout=dropout)


AttentionSpec = GroupedAttentionSpec
Attention = GroupedAttention


def cache_bytes_per_token(remembers: tuple[Kept, ...], element_bytes: int) -> int:
    """What one token costs in the cache of one layer."""
    return sum(element_bytes * torch.Size(kept.shape).numel() for kept in remembers if kept.per == "token")
