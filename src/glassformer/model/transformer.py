"""The Transformer: embed the tokens, let each block add to the stream, read the next token off the end."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.model.attention import AttentionSpec
from glassformer.model.block import Block, BlockSpec
from glassformer.model.embedding import EmbeddingSpec, HeadSpec, TiedHeadSpec, TokenEmbedding, TokenEmbeddingSpec
from glassformer.model.linear import ExpertLinear, Linear
from glassformer.model.norm import NormSpec, RMSNormSpec
from glassformer.model.position import NoPositionSpec, Position, PositionSpec, Shared
from glassformer.model.step import Kept, Step
from glassformer.ops.dropout import dropout
from glassformer.spec import Spec


class NormalInitSpec(Spec):
    """Every matrix from a normal distribution; those that write to the stream smaller by √(2 layers). Source: GPT-2."""

    kind: Literal["normal"] = "normal"
    std: float = Field(default=0.02, gt=0)

    def deviation(self, linear: Linear | ExpertLinear, layers: int) -> float:
        """The standard deviation of a projection's weights at the start."""
        return self.std / (2 * layers) ** 0.5 if linear.to_stream else self.std

    def of_embedding(self) -> float:
        return self.std


class QuietInitSpec(Spec):
    """Matrices at 1/√inputs; those that write to the stream start at zero, so each block starts as the identity."""

    kind: Literal["quiet"] = "quiet"
    embedding: float = Field(default=1.0, gt=0)
    gain: float = Field(default=1.0, gt=0)
    head: float = Field(default=0.0, ge=0)

    def deviation(self, linear: Linear | ExpertLinear, layers: int) -> float:
        if linear.to_stream:
            return 0.0
        return self.head if linear.axes.writes == "V" else self.gain * linear.weight.size(-1) ** -0.5

    def of_embedding(self) -> float:
        return self.embedding


InitSpec = Annotated[NormalInitSpec | QuietInitSpec, Field(discriminator="kind")]


class TransformerSpec(Spec):
    """A whole decoder. `blocks` is a pattern, repeated until there are `layers` (one block spec means all alike)."""

    vocabulary: int = Field(ge=1)
    width: int = Field(ge=1)
    context: int = Field(ge=1, description="tokens it is trained to see at once")
    layers: int = Field(ge=1)
    embedding: EmbeddingSpec = TokenEmbeddingSpec()
    position: PositionSpec = NoPositionSpec()
    blocks: tuple[BlockSpec, ...] = Field(min_length=1)
    norm: NormSpec | None = RMSNormSpec()
    head: HeadSpec = TiedHeadSpec()
    init: InitSpec = NormalInitSpec()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self._fits_position()
        limits = (self.position.limit, *(block.attention.position.limit for block in self.blocks))
        for limit in limits:
            if limit is not None and self.context > limit:
                raise ValueError(
                    f"context ({self.context}) is longer than the learned positions ({limit}); "
                    "lower context or raise position.length"
                )
        for block in self.blocks:
            block.attention.fits(self.width)
        return self

    def _fits_position(self) -> None:
        kind, sharing = (
            self.position.kind,
            [block for block in self.blocks if block.attention.position.kind == "shared"],
        )
        if kind == "shared":
            raise ValueError("position 'shared' means the model's own: it belongs to blocks.N.attention.position")
        if self.position.acts not in ((), ("embed",)) and not sharing:
            raise ValueError(
                f"position {kind!r} acts inside attention: it belongs to blocks.N.attention.position, "
                "or is shared by those whose position is 'shared'"
            )
        if sharing and self.position.acts in ((), ("embed",)):
            raise ValueError(
                f"blocks.N.attention.position is 'shared', but the model's position {kind!r} acts elsewhere"
            )
        if len({self._at(block.attention) for block in sharing}) > 1:
            raise ValueError("blocks that share a position must have heads of the same number and width")
        if sharing and self.position.kind == "rotary":
            self.position.fits(self._at(sharing[0].attention)[0])

    def _at(self, attention: AttentionSpec) -> tuple[int, int]:
        return attention.width_of_head(self.width), attention.heads

    def build_position(self) -> Position:
        """The model's position: as wide as what it acts on."""
        sharing = [block.attention for block in self.blocks if block.attention.position.kind == "shared"]
        return self.position.build(*(self._at(sharing[0]) if sharing else (self.width, 1)))

    def each_block(self) -> Iterator[BlockSpec]:
        """The spec of each layer, the pattern unrolled."""
        for index in range(self.layers):
            yield self.blocks[index % len(self.blocks)]

    def build(self) -> "Transformer":
        """A model with fresh weights drawn from torch's global generator."""
        return Transformer(self)


class Transformer(nn.Module):
    """Tokens [B, T] in, logits [B, T, V] out."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.spec = spec
        self.embedding = spec.embedding.build(spec.vocabulary, spec.width)
        self.position = spec.build_position()
        self.blocks = nn.ModuleList(block.build(spec.width) for block in spec.each_block())
        for module in self.blocks.modules():
            if isinstance(module, Shared):
                module.of(self.position)
        self.norm = spec.norm.build(spec.width) if spec.norm else nn.Identity()
        self.head = spec.head.build(spec.vocabulary, spec.width)
        self.initialise()

    def forward(self, tokens: Int[Tensor, "B T"], step: Step) -> Float[Tensor, "B T V"]:
        return step.watch("logits", self.head(self.read(tokens, step), self.embedding))

    def read(self, tokens: Int[Tensor, "B T"], step: Step) -> Float[Tensor, "B T D"]:
        """The pass up to the head: the final, normed stream."""
        watch = step.watch
        x = watch("embedding", self.embedding(tokens))
        x = watch("position", self.position.embed(x, step.positions))
        x = dropout(x, self.spec.embedding.dropout, self.training)
        for index, block in enumerate(self.blocks):
            x = block(x, step.layer(index))
        return watch("final_norm", self.norm(x))

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw fresh weights as `spec.init` says; gains are 1 and biases 0 already."""
        init = self.spec.init
        for module in self.modules():
            if isinstance(module, Linear | ExpertLinear):
                module.weight.normal_(std=init.deviation(module, self.spec.layers))
            elif isinstance(module, TokenEmbedding):
                module.weight.normal_(std=init.of_embedding())
            elif isinstance(module, Position):
                module.initialise(init.of_embedding())

    @property
    def remembers(self) -> tuple[tuple[Kept, ...], ...]:
        """What a cache keeps, layer by layer."""
        return tuple(cast("Block", block).attention.remembers for block in self.blocks)
