"""attend: softmax(scale · q kᵀ + bias) v over the keys that each query may see.

`attend` is the plain formula, every step of which can be watched. `attend_fast` gives the same values through
torch's fused kernel, which never writes the scores out.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.ops.dropout import dropout as drop
from glassformer.ops.softmax import softmax

See = Callable[[str, Tensor], Tensor]


def attend(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B K S C"],
    v: Float[Tensor, "B K S E"],
    visible: Bool[Tensor, "#B 1 T S"],
    bias: Float[Tensor, "#B #H T S"] | None,
    *,
    scale: float,
    see: See,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """The plain formula; `see(name, value)` is shown scores_raw, scores, mask and pattern, and may replace them.

    Query head h reads the keys and values of kv-head h // (H/K). `scores_raw` is q kᵀ, `scores` is scaled and biased,
    before the mask; a query that sees no key at all (padding) reads all of them evenly, never 0/0.
    Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023.
    """
    shared = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    scores = see("scores_raw", q @ k.transpose(-2, -1)) * scale
    scores = see("scores", scores if bias is None else scores + bias.to(scores.dtype))
    mask = see("mask", visible.expand(q.size(0), -1, -1, -1))
    weights = see("pattern", softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min)))
    return drop(weights, dropout, training=True).to(v.dtype) @ v


def attend_fast(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B K S C"],
    v: Float[Tensor, "B K S E"],
    visible: Bool[Tensor, "#B 1 T S"] | None,
    bias: Float[Tensor, "#B #H T S"] | None,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """Equal to `attend` up to rounding, where every query sees a key.

    `visible=None` means plain causal: row t sees columns 0 … t of the same length.
    """
    if visible is None and bias is None and not dropout and _better_written_out(q, k):
        return _causal_written_out(q, k, v, scale)
    mask: Tensor | None = visible
    if bias is not None:
        mask = bias.to(q.dtype)
        if visible is not None:
            mask = mask.masked_fill(~visible, torch.finfo(q.dtype).min)
        else:
            causal = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril()
            mask = mask.masked_fill(~causal, torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p=dropout, is_causal=mask is None, scale=scale, enable_gqa=q.size(1) != k.size(1)
    )


WRITTEN_OUT = 1024
"""Tokens up to which the scores of a training pass in bfloat16 on a CPU are cheap enough to be kept."""


def _better_written_out(q: Tensor, k: Tensor) -> bool:
    """True where the fused kernel is slow: in the backward pass in bfloat16 on a CPU (2 to 4 times plain products)."""
    return (
        q.device.type == "cpu"
        and q.dtype == torch.bfloat16
        and q.requires_grad
        and q.size(-2) == k.size(-2) <= WRITTEN_OUT
    )


def _causal_written_out(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention by plain products: scores, mask and scaling are one call, the softmax sums in float32."""
    B, H, T, _ = q.shape
    shared = H // k.size(1)
    if shared > 1:
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    hidden = torch.full((T, T), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    scores = torch.baddbmm(hidden, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=scale)
    z = torch.softmax(scores, dim=-1) @ v.flatten(0, 1)
    return z.reshape(B, H, T, -1)
