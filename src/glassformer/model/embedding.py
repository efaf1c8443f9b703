"""The two ends of the stack: tokens become vectors, vectors become scores over the vocabulary."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from glassformer.model.linear import Axes, Linear
from glassformer.model.norm import NormSpec
from glassformer.spec import Spec


class TokenEmbeddingSpec(Spec):
    """A trained vector for each token, times `scale`, then an optional norm."""

    kind: Literal["token"] = "token"
    scale: float = Field(default=1.0, gt=0)
    norm: NormSpec | None = None
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def build(self, vocabulary: int, width: int) -> "TokenEmbedding":
        return TokenEmbedding(vocabulary, width, self)


class TokenEmbedding(nn.Module):
    def __init__(self, vocabulary: int, width: int, spec: TokenEmbeddingSpec):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.scale, self.norm = spec.scale, spec.norm.build(width) if spec.norm else None

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        x = F.embedding(tokens, self.weight)
        x = x if self.scale == 1.0 else x * self.scale
        return x if self.norm is None else self.norm(x)


EmbeddingSpec = TokenEmbeddingSpec


class TiedHeadSpec(Spec):
    """Scores are dot products with the token vectors themselves. Source: Press & Wolf 2017."""

    kind: Literal["tied"] = "tied"
    softcap: float | None = Field(default=None, gt=0)

    def build(self, vocabulary: int, width: int) -> "Head":
        return Head(None, self.softcap)


class UntiedHeadSpec(Spec):
    """Scores are dot products with a matrix of the head's own."""

    kind: Literal["untied"] = "untied"
    softcap: float | None = Field(default=None, gt=0)

    def build(self, vocabulary: int, width: int) -> "Head":
        return Head(Linear(width, vocabulary, Axes("D", "V")), self.softcap)


HeadSpec = Annotated[TiedHeadSpec | UntiedHeadSpec, Field(discriminator="kind")]


class Head(nn.Module):
    """logits = x Wᵀ, optionally squeezed into ±softcap by softcap · tanh(logits / softcap)."""

    def __init__(self, own: Linear | None, softcap: float | None):
        super().__init__()
        self.own, self.softcap = own, softcap

    def forward(self, x: Float[Tensor, "B T D"], embedding: TokenEmbedding) -> Float[Tensor, "B T V"]:
        logits = F.linear(x, embedding.weight) if self.own is None else self.own(x)
        if self.softcap is None:
            return logits
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return self.softcap * torch.tanh(wide / self.softcap)
