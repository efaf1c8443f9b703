"""Cross-attention: the decoder's tokens read what the encoder has read. The third kind, for a place of its own."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.errors import SpecError
from glassformer.model.attention.heads import HeadsSpec
from glassformer.model.attention.mix import mix
from glassformer.model.linear import Axes, Linear
from glassformer.model.mask import BidirectionalSpec
from glassformer.model.step import Kept, LayerStep
from glassformer.ops.attend import Scores


class CrossAttentionSpec(HeadsSpec):
    """Softmax attention whose queries come from the decoder, and its keys and values from the encoder's last states.

    No position: what the encoder read carries its own. Every token of the source is seen, padding excepted. Keys and
    values are computed once for a source, however many tokens are written. Fields as in grouped attention.

    Formula:
        q_h = W_q,h x,  k_g = W_k,g e,  v_g = W_v,g e     e: the encoder's states, g = ⌊h · kv_heads / heads⌋
        z_t,h = Σ_m softmax_m(scale · q_t,h · k_m,g) v_m,g,  y_t = W_out [z_t,0 … z_t,H-1]

    Source: Vaswani et al. 2017, 3.2.3.
    """

    def points(self) -> tuple[str, ...]:
        """What can be watched, within the scope `cross`."""
        return ("q", "k", "v", "scores_raw", "scores", "mask", "pattern", "z", "attention_out")

    def build(self, width: int) -> "CrossAttention":
        return CrossAttention(width, self)


class CrossAttention(nn.Module):
    def __init__(self, width: int, spec: CrossAttentionSpec):
        super().__init__()
        H, K, C = spec.heads, spec.kv_heads, spec.width_of_head(width)
        self.head_width, self.scale, self.dropout = C, spec.scale or C**-0.5, spec.dropout
        self.mask = BidirectionalSpec()
        self.remembers = (Kept("k", (K, C), per="memory"), Kept("v", (K, C), per="memory"))
        self.q = Linear(width, H * C, Axes("D", "H C"), bias=spec.bias)
        self.k = Linear(width, K * C, Axes("D", "K C"), bias=spec.bias)
        self.v = Linear(width, K * C, Axes("D", "K C"), bias=spec.bias)
        self.q_norm = spec.qk_norm.build(C) if spec.qk_norm else nn.Identity()
        self.k_norm = spec.qk_norm.build(C) if spec.qk_norm else nn.Identity()
        self.out = Linear(H * C, width, Axes("H C", "D"), bias=spec.out_bias, to_stream=True)

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        """What each token takes from the memory of this pass.

        Raises:
            SpecError: the pass has no memory.
        """
        if step.memory is None:
            raise SpecError(
                "this model reads a source, and the pass has none",
                do="encode the source and hand it over: Step(…, memory=model.encode(source, …))",
            )
        watch = step.watch
        q = watch("q", cast("Tensor", self.q_norm(self.heads(self.q(x)))).transpose(1, 2))
        memory = step.memory.recall(self.keys_and_values)
        k, v = (part.transpose(1, 2) for part in memory.gather())
        k, v = watch("k", k), watch("v", v)
        scores = Scores(scale=self.scale, dropout=self.dropout if self.training else 0.0)
        z = mix((q, k, v), scores, self.mask, memory, step)
        return watch("attention_out", self.out(watch("z", z).transpose(1, 2).flatten(-2)))

    def keys_and_values(self, states: Float[Tensor, "B M D"]) -> tuple[Tensor, Tensor]:
        """What is remembered of a source: keys and values, [B, M, K, C]."""
        return cast("Tensor", self.k_norm(self.heads(self.k(states)))), self.heads(self.v(states))

    def heads(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "B T n C"]:
        """A projection cut into heads."""
        return torch.unflatten(x, -1, (-1, self.head_width))
