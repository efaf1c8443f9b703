"""attend: softmax(scale · q kᵀ + bias) v over the keys that each query may see.

`attend` is the plain formula, every step of which can be watched. `attend_fast` gives the same values through
torch's fused kernel, which never writes the scores out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.ops.dropout import dropout as drop
from glassformer.ops.softmax import softmax

See = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class Scores:
    """How scores come to be and what becomes of them.

    scale:   the factor on q kᵀ.
    bias:    added to the scaled scores, [#B, #H, T, S].
    softcap: scaled scores are squeezed into ± this value, before the bias.
    sink:    [H], for each head the score of nothing at all: it takes weight and gives no value.
    dropout: the share of weights that are dropped (in training).
    """

    scale: float
    bias: Float[Tensor, "#B #H T S"] | None = None
    softcap: float | None = None
    sink: Float[Tensor, "H"] | None = None
    dropout: float = 0.0


def attend(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B K S C"],
    v: Float[Tensor, "B K S E"],
    visible: Bool[Tensor, "#B 1 T S"],
    scores: Scores,
    see: See,
) -> Float[Tensor, "B H T E"]:
    """The plain formula; `see(name, value)` is shown scores_raw, scores, mask and pattern, and may replace them.

    Query head h reads the keys and values of kv-head h // (H/K). `scores_raw` is q kᵀ, `scores` is scaled and biased,
    before the mask; a query that sees no key at all (padding) reads all of them evenly, never 0/0.
    Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023.
    """
    shared = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    found = see("scores_raw", q @ k.transpose(-2, -1)) * scores.scale
    if scores.softcap is not None:
        found = scores.softcap * torch.tanh(found / scores.softcap)
    found = see("scores", found if scores.bias is None else found + scores.bias.to(found.dtype))
    mask = see("mask", visible.expand(q.size(0), -1, -1, -1))
    found = found.masked_fill(~mask, torch.finfo(found.dtype).min)
    if scores.sink is None:
        weights = softmax(found)
    else:
        nothing = scores.sink.to(found.dtype)[:, None, None].expand(*found.shape[:-1], 1)
        weights = softmax(torch.cat((found, nothing), dim=-1))[..., :-1]
    return drop(see("pattern", weights), scores.dropout, training=True).to(v.dtype) @ v


def attend_fast(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B K S C"],
    v: Float[Tensor, "B K S E"],
    visible: Bool[Tensor, "#B 1 T S"] | None,
    scores: Scores,
) -> Float[Tensor, "B H T E"]:
    """Equal to `attend` up to rounding, where every query sees a key.

    `visible=None` means plain causal: row t sees columns 0 … t of the same length.
    """
    if scores.softcap is not None or scores.sink is not None:  # the fused kernel has neither
        seen = _triangle(q, k) if visible is None else visible
        return attend(q, k, v, seen, scores, lambda name, value: value)
    if visible is None and scores.bias is None and not scores.dropout and _better_written_out(q, k):
        return _causal_written_out(q, k, v, scores.scale)
    mask: Tensor | None = visible
    if scores.bias is not None:
        seen = _triangle(q, k) if visible is None else visible
        mask = scores.bias.to(q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p=scores.dropout, is_causal=mask is None, scale=scores.scale,
        enable_gqa=q.size(1) != k.size(1),
    )  # fmt: skip


def _triangle(q: Tensor, k: Tensor) -> Bool[Tensor, "1 1 T S"]:
    """Row t sees columns 0 … t."""
    return torch.ones(1, 1, q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril()


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
