"""Linear attention: what a layer remembers is one matrix for each head, however long the text."""

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from glassformer.errors import RequestError
from glassformer.model.attention.mix import WRITTEN_OUT
from glassformer.model.linear import Axes, Linear
from glassformer.model.mask import BidirectionalSpec, CausalSpec, visible
from glassformer.model.position import NoPositionSpec
from glassformer.model.step import Kept, LayerStep
from glassformer.ops.linear import Line, chunked, chunked_both_ways, features, parallel, recurrent
from glassformer.spec import Spec


class LinearAttentionSpec(Spec):
    """Attention with weights φ(q)·φ(k), φ(x) = elu(x) + 1, in place of exp(q·k): linear in the length of a text.

    The past is a state of `head_width` × `value_width` for each head (both default to width / heads), so that a token
    costs the same wherever it stands. With `decay` it fades by γ = 1 - 2^(-5-h) a token in head h, which also tells
    where tokens stand; else their order is in the model's position alone.

    Formula:
        z_t = Σ_s γ^(t-s) φ(q_t)·φ(k_s) v_s / Σ_s γ^(t-s) φ(q_t)·φ(k_s)     in each head; γ = 1 without decay
        as a state:  S_t = γ S_{t-1} + φ(k_t) v_tᵀ,  n_t = γ n_{t-1} + φ(k_t),  z_t = S_tᵀ φ(q_t) / n_t·φ(q_t)
        y_t = W_out [z_t,0 … z_t,H-1]

    Sources: Katharopoulos et al. 2020; decay: Sun et al. 2023, RetNet, eq. 8.
    """

    kind: Literal["linear"] = "linear"
    heads: int = Field(ge=1)
    head_width: int | None = Field(default=None, ge=1)
    value_width: int | None = Field(default=None, ge=1)
    position: NoPositionSpec = NoPositionSpec()
    mask: Annotated[CausalSpec | BidirectionalSpec, Field(discriminator="kind")] = CausalSpec()
    decay: bool = False
    bias: bool = False
    out_bias: bool = False

    def width_of_head(self, width: int) -> int:
        """C for a model of this width."""
        return self.head_width or width // self.heads

    def fits(self, width: int) -> None:
        """Refuse a width that can't be divided among the heads."""
        if (self.head_width is None or self.value_width is None) and width % self.heads:
            raise ValueError(
                f"heads ({self.heads}) must divide width ({width}); choose another number of heads, "
                "or give head_width and value_width"
            )

    def points(self) -> tuple[str, ...]:
        return (
            "q", "k", "v", "q_features", "k_features",
            "scores_raw", "scores", "mask", "pattern", "z", "attention_out",
        )  # fmt: skip

    def sizes(self, width: int) -> dict[str, int]:
        C = self.width_of_head(width)
        return {"H": self.heads, "K": self.heads, "C": C, "W": self.value_width or width // self.heads}

    def build(self, width: int) -> "LinearAttention":
        return LinearAttention(width, self)


class LinearAttention(nn.Module):
    def __init__(self, width: int, spec: LinearAttentionSpec):
        super().__init__()
        sizes = spec.sizes(width)
        self.spec, self.mask, self.heads = spec, spec.mask, spec.heads
        H, C, W = sizes["H"], sizes["C"], sizes["W"]
        self.remembers = (Kept("state", (H, C, W), per="sequence"), Kept("normaliser", (H, C), per="sequence"))
        self.position = spec.position.build(C, H)
        self.q = Linear(width, H * C, Axes("D", "H C"), bias=spec.bias)
        self.k = Linear(width, H * C, Axes("D", "H C"), bias=spec.bias)
        self.v = Linear(width, H * W, Axes("D", "H W"), bias=spec.bias)
        self.out = Linear(H * W, width, Axes("H W", "D"), bias=spec.out_bias, to_stream=True)

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        watch = step.watch
        q, k, v = (
            watch(name, part(x).reshape(*x.shape[:-1], self.heads, -1).transpose(1, 2))  # [B, H, T, C]
            for name, part in (("q", self.q), ("k", self.k), ("v", self.v))
        )
        q, k = watch("q_features", features(q)), watch("k_features", features(k))
        z = self.read(q, k, v, step).to(x.dtype)
        return watch("attention_out", self.out(watch("z", z).transpose(1, 2).flatten(-2)))

    def read(
        self, q: Float[Tensor, "B H T C"], k: Float[Tensor, "B H T C"], v: Float[Tensor, "B H T W"], step: LayerStep
    ) -> Float[Tensor, "B H T W"]:
        """What each query mixes of all before it, those of earlier passes out of the state. Sums run in float32."""
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = q.to(wide), k.to(wide), v.to(wide)
            line = Line(step.positions.expand(q.size(0), -1), step.segments, self.log_decay(q))
            past = step.recall()
            if step.watch.wants(*WRITTEN_OUT):
                return self.shown(q, k, v, line, step)
            if self.mask.kind == "bidirectional":
                return chunked_both_ways(q, k, v, line)
            state = None if past is None else torch.cat((past[0], past[1][..., None]), dim=-1)
            form = recurrent if q.size(2) == 1 else chunked
            z, state = form(q, k, v, line, state)
            step.keep(state[..., :-1], state[..., -1])
            return z

    def shown(self, q: Tensor, k: Tensor, v: Tensor, line: Line, step: LayerStep) -> Tensor:
        """Every weight written out, for who watches them.

        Raises:
            RequestError: earlier tokens are a state by now, which has no weights.
        """
        if step.recall() is not None:
            raise RequestError(
                f"linear attention keeps no tokens: {', '.join(WRITTEN_OUT)} exist only in a pass over a whole text",
                do="watch a pass that reads it from its start",
            )
        if step.cache is not None:
            _, state = chunked(q, k, v, line)
            step.keep(state[..., :-1], state[..., -1])
        seen = visible(self.mask, step.positions, step.positions, step.segments, step.segments)
        return parallel(q, k, v, seen, line, step.watch)

    def log_decay(self, like: Tensor) -> Float[Tensor, "H"] | None:
        """Log γ of each head; made anew each time, since it would lose its precision in a model that is cast."""
        if not self.spec.decay:
            return None
        head = torch.arange(self.heads, dtype=torch.float64, device=like.device)
        return torch.log1p(-(2.0 ** (-5.0 - head))).to(like.dtype)
