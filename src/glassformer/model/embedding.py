"""The two ends of the stack: tokens become vectors, vectors become scores: of the vocabulary, of labels, of texts."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from glassformer.model.feedforward import ACTIVATIONS, Activation
from glassformer.model.linear import Axes, Linear
from glassformer.model.norm import NormSpec
from glassformer.ops.dropout import dropout
from glassformer.spec import Spec


class TokenEmbeddingSpec(Spec):
    """A trained vector for each token, times `scale`, and where there are `types` one for each type of token.

    Ids are only names; their vectors can be near or far from each other. Types tell the texts of a pair apart (BERT
    calls them segments). A `norm` follows once position is added; each stack of an encoder-decoder has its own.

    Formula: x_t = scale · E[token_t] + types[type_t]

    Source: Bengio et al. 2003; scale: Vaswani et al. 2017, 3.4; types: Devlin et al. 2019, BERT.
    """

    kind: Literal["token"] = "token"
    scale: float = Field(default=1.0, gt=0)
    types: int = Field(default=0, ge=0)
    norm: NormSpec | None = None
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def build(self, vocabulary: int, width: int) -> "TokenEmbedding":
        return TokenEmbedding(vocabulary, width, self)


class TokenEmbedding(nn.Module):
    def __init__(self, vocabulary: int, width: int, spec: TokenEmbeddingSpec):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.types = nn.Parameter(torch.empty(spec.types, width)) if spec.types else None
        self.scale = spec.scale

    def forward(self, tokens: Int[Tensor, "B T"], types: Int[Tensor, "B T"] | None = None) -> Float[Tensor, "B T D"]:
        """Without `types` all tokens are of the first."""
        x = F.embedding(tokens, self.weight)
        x = x if self.scale == 1.0 else x * self.scale
        if self.types is None:
            return x
        return x + (self.types[0] if types is None else self.types[types])


EmbeddingSpec = TokenEmbeddingSpec


class TransformSpec(Spec):
    """A layer before the scores, each part of it but the matrix optional: the stream is turned into what a head asks.

    Formula: y = norm(activation(W x + b))

    Source: Devlin et al. 2019, BERT.
    """

    activation: Activation | None = "gelu"
    bias: bool = True
    norm: NormSpec | None = None

    def build(self, width: int) -> "Transform":
        return Transform(width, self)


class Transform(nn.Module):
    def __init__(self, width: int, spec: TransformSpec):
        super().__init__()
        self.dense = Linear(width, width, Axes("D", "D"), bias=spec.bias)
        self.activation: Activation | None = spec.activation
        self.norm = spec.norm.build(width) if spec.norm else nn.Identity()

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        y = self.dense(x)
        return cast("Tensor", self.norm(ACTIVATIONS[self.activation](y) if self.activation else y))


class VocabularyHeadSpec(Spec):
    """The base of heads that score the vocabulary: squeezed into ±`softcap`, or of a stream that is first scaled.

    With a `transform` and a `bias` it is the head of masked language models.
    """

    softcap: float | None = Field(default=None, gt=0)
    scale: float = Field(default=1.0, gt=0)
    bias: bool = False
    transform: TransformSpec | None = None
    logits: ClassVar[str] = "B T V"

    def sizes(self) -> Mapping[str, int]:
        """The sizes of the axes of its logits that are its own."""
        return {}


class TiedHeadSpec(VocabularyHeadSpec):
    """Scores are dot products with the token vectors themselves: what a token means is said once.

    Formula:
        logits = E (scale · transform(x)) + b
        with softcap: logits -> softcap · tanh(logits / softcap)

    Source: Press & Wolf 2017; soft-cap: Gemma 2, 2024.
    """

    kind: Literal["tied"] = "tied"

    def build(self, vocabulary: int, width: int) -> "Head":
        return Head(None, vocabulary, width, self)


class UntiedHeadSpec(VocabularyHeadSpec):
    """Scores are dot products with a matrix of the head's own, free to differ from the token vectors.

    Formula:
        logits = W (scale · transform(x)) + b
        with softcap: logits -> softcap · tanh(logits / softcap)

    Source: Bengio et al. 2003; Touvron et al. 2023, Llama.
    """

    kind: Literal["untied"] = "untied"

    def build(self, vocabulary: int, width: int) -> "Head":
        return Head(Linear(width, vocabulary, Axes("D", "V")), vocabulary, width, self)


class Head(nn.Module):
    """logits = x Wᵀ + b, optionally squeezed into ±softcap by softcap · tanh(logits / softcap)."""

    def __init__(self, own: Linear | None, vocabulary: int, width: int, spec: VocabularyHeadSpec):
        super().__init__()
        self.own, self.softcap, self.scale = own, spec.softcap, spec.scale
        self.transform = spec.transform.build(width) if spec.transform else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if spec.bias else None

    def forward(
        self, x: Float[Tensor, "B T D"], embedding: TokenEmbedding, positions: Int[Tensor, "#B T"] | None = None
    ) -> Float[Tensor, "B T V"]:
        x = x if self.transform is None else self.transform(x)
        x = x if self.scale == 1.0 else x * self.scale
        logits = F.linear(x, embedding.weight, self.bias) if self.own is None else self.own(x)
        if self.own is not None and self.bias is not None:
            logits = logits + self.bias
        if self.softcap is None:
            return logits
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return self.softcap * torch.tanh(wide / self.softcap)


Pooling = Literal["first", "last", "mean", "max"]


def pool(x: Float[Tensor, "B T D"], positions: Int[Tensor, "#B T"] | None, pooling: Pooling) -> Float[Tensor, "B D"]:
    """One vector for each row: of its first or last token, or the mean or maximum of all; padding (at -1) is left out.

    A row of nothing but padding gives zeros.
    """
    real = torch.ones_like(x[..., 0], dtype=torch.bool) if positions is None else (positions >= 0).expand(x.shape[:2])
    if pooling == "mean":
        return (x * real[..., None]).sum(1) / real.sum(1).clamp_min(1)[:, None]
    if pooling == "max":
        best = x.masked_fill(~real[..., None], torch.finfo(x.dtype).min).amax(1)
        return best * real.any(1)[:, None]
    order = torch.arange(x.size(1), device=x.device)
    place = (order * real).amax(1) if pooling == "last" else order.masked_fill(~real, x.size(1)).amin(1) % x.size(1)
    return x[torch.arange(x.size(0), device=x.device), place] * real.any(1)[:, None]


class PooledHeadSpec(Spec):
    """One vector for a text: pooled over its tokens, perhaps transformed, perhaps brought to length 1.

    Texts with near vectors can then be found by a product.

    Formula:
        y = transform(pool_t(x_t)), pool: the first, the last, Σ_t x_t / T, or max_t x_t
        with normalise: y -> y / √(Σ y²)

    Sources: BERT's pooler (`first`, a tanh): Devlin et al. 2019; the mean: Reimers & Gurevych 2019, Sentence-BERT.
    """

    kind: Literal["pooled"] = "pooled"
    pooling: Pooling = "mean"
    transform: TransformSpec | None = None
    normalise: bool = False
    logits: ClassVar[str] = "B D"

    def sizes(self) -> Mapping[str, int]:
        return {}

    def build(self, vocabulary: int, width: int) -> "PooledHead":
        return PooledHead(width, self)


class PooledHead(nn.Module):
    def __init__(self, width: int, spec: PooledHeadSpec):
        super().__init__()
        self.pooling: Pooling = spec.pooling
        self.transform = spec.transform.build(width) if spec.transform else None
        self.normalise = spec.normalise

    def forward(
        self, x: Float[Tensor, "B T D"], embedding: TokenEmbedding, positions: Int[Tensor, "#B T"] | None = None
    ) -> Float[Tensor, "B D"]:
        y = pool(x, positions, self.pooling)
        y = y if self.transform is None else self.transform(y)
        return F.normalize(y, dim=-1) if self.normalise else y


class LabelHeadSpec(Spec):
    """The base of heads that score labels, which have names."""

    labels: tuple[str, ...] = Field(min_length=1)
    transform: TransformSpec | None = None
    bias: bool = True
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def sizes(self) -> Mapping[str, int]:
        return {"Y": len(self.labels)}


class ClassifierHeadSpec(LabelHeadSpec):
    """A score for every label of a text: pooled, perhaps transformed, then a projection.

    Formula: y = W transform(pool_t(x_t)) + b; p(label) = softmax(y)

    Source: Devlin et al. 2019, BERT, 4.1.
    """

    kind: Literal["classifier"] = "classifier"
    pooling: Pooling = "first"
    logits: ClassVar[str] = "B Y"

    def build(self, vocabulary: int, width: int) -> "LabelHead":
        return LabelHead(width, self, self.pooling)


class TokenClassifierHeadSpec(LabelHeadSpec):
    """A score for every label of each token, for tagging: names, parts of speech.

    Formula: y_t = W transform(x_t) + b; p(label of t) = softmax(y_t)

    Source: Devlin et al. 2019, BERT, 5.3.
    """

    kind: Literal["tokens"] = "tokens"
    logits: ClassVar[str] = "B T Y"

    def build(self, vocabulary: int, width: int) -> "LabelHead":
        return LabelHead(width, self, None)


class SpanHeadSpec(LabelHeadSpec):
    """Two scores for each token: that the answer starts there, and that it ends there.

    Formula: (start_t, end_t) = W transform(x_t) + b; p(start at t) = softmax_t(start), p(end at t) = softmax_t(end)

    Source: Devlin et al. 2019, BERT, 4.2.
    """

    kind: Literal["span"] = "span"
    labels: tuple[str, ...] = Field(default=("start", "end"), min_length=2, max_length=2)
    logits: ClassVar[str] = "B T Y"

    def build(self, vocabulary: int, width: int) -> "LabelHead":
        return LabelHead(width, self, None)


class LabelHead(nn.Module):
    def __init__(self, width: int, spec: LabelHeadSpec, pooling: Pooling | None):
        super().__init__()
        self.pooling: Pooling | None = pooling
        self.dropout = spec.dropout
        self.transform = spec.transform.build(width) if spec.transform else None
        self.labels = Linear(width, len(spec.labels), Axes("D", "Y"), bias=spec.bias)

    def forward(
        self, x: Float[Tensor, "B T D"], embedding: TokenEmbedding, positions: Int[Tensor, "#B T"] | None = None
    ) -> Float[Tensor, "B *T Y"]:
        y = x if self.pooling is None else pool(x, positions, self.pooling)
        y = y if self.transform is None else self.transform(y)
        return self.labels(dropout(y, self.dropout, self.training))


HeadSpec = Annotated[
    TiedHeadSpec | UntiedHeadSpec | PooledHeadSpec | ClassifierHeadSpec | TokenClassifierHeadSpec | SpanHeadSpec,
    Field(discriminator="kind"),
]
