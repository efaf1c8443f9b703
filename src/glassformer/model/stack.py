"""A stack of blocks: position is added, each block adds to the stream, a norm ends it. Encoder and decoder are both."""

from collections.abc import Iterator
from typing import cast

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from glassformer.model.attention import AttentionSpec
from glassformer.model.block import Block, BlockSpec
from glassformer.model.embedding import EmbeddingSpec, TokenEmbedding
from glassformer.model.norm import NormSpec, RMSNormSpec
from glassformer.model.position import NoPositionSpec, Position, PositionSpec, Shared
from glassformer.model.step import Step
from glassformer.model.watch import CATALOGUE, Point
from glassformer.ops.dropout import dropout
from glassformer.spec import Spec


class StackSpec(Spec):
    """`blocks` is a pattern, repeated until there are `layers` (one block spec means all alike)."""

    context: int = Field(ge=1, description="tokens it is trained to see at once")
    layers: int = Field(ge=1)
    position: PositionSpec = NoPositionSpec()
    blocks: tuple[BlockSpec, ...] = Field(min_length=1)
    norm: NormSpec | None = RMSNormSpec()

    def fits(self, width: int) -> None:
        """Refuse parts that don't fit each other, or a stream of this width."""
        self._fits_position(width)
        limits = (self.position.limit, *(block.attention.position.limit for block in self.blocks))
        for limit in limits:
            if limit is not None and self.context > limit:
                raise ValueError(
                    f"context ({self.context}) is longer than the learned positions ({limit}); "
                    "lower context or raise position.length"
                )
        for block in self.blocks:
            block.fits(width)

    def _fits_position(self, width: int) -> None:
        kind, sharing = self.position.kind, self._sharing()
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
        if len({(attention.width_of_head(width), attention.heads) for attention in sharing}) > 1:
            raise ValueError("blocks that share a position must have heads of the same number and width")
        if sharing and self.position.kind == "rotary":
            self.position.fits(sharing[0].width_of_head(width))

    def _sharing(self) -> list[AttentionSpec]:
        return [block.attention for block in self.blocks if block.attention.position.kind == "shared"]

    def build_position(self, width: int) -> Position:
        """The stack's position: as wide as what it acts on."""
        sharing = self._sharing()
        return self.position.build(*((sharing[0].width_of_head(width), sharing[0].heads) if sharing else (width, 1)))

    def each_block(self) -> Iterator[BlockSpec]:
        """The spec of each layer, the pattern unrolled."""
        for index in range(self.layers):
            yield self.blocks[index % len(self.blocks)]

    def points_of(self, width: int) -> Iterator[Point]:
        """What can be watched in this stack, from the embedding to its last norm."""
        outer = {"D": width}
        for name in ("embedding", "position"):
            yield Point(name, CATALOGUE[name][0], outer, CATALOGUE[name][1])
        for index, block in enumerate(self.each_block()):
            sizes = {**outer, **block.sizes(width)}
            crossing = sizes if block.cross is None else {**outer, **block.cross.sizes(width)}
            for inner in block.points():
                axes, meaning = CATALOGUE[inner.removeprefix("cross.")]
                if inner.startswith("cross."):  # its keys are the source's
                    axes = axes.replace("T", "M") if inner in ("cross.k", "cross.v") else axes.replace("S", "M")
                yield Point(f"blocks.{index}.{inner}", axes, crossing if inner.startswith("cross.") else sizes, meaning)
        yield Point("final_norm", CATALOGUE["final_norm"][0], outer, CATALOGUE["final_norm"][1])


class Stack(nn.Module):
    """Token vectors [B, T, D] in, the final, normed stream [B, T, D] out.

    `own` are the token vectors that belong to the stack, if they do; `embedding` says what is done with them.
    """

    def __init__(self, spec: StackSpec, width: int, embedding: EmbeddingSpec, own: TokenEmbedding | None):
        super().__init__()
        self.layers, self.dropout = spec.layers, embedding.dropout
        self.embedding = own
        self.position = spec.build_position(width)
        self.embedding_norm = embedding.norm.build(width) if embedding.norm else None
        self.blocks = nn.ModuleList(block.build(width) for block in spec.each_block())
        for module in self.blocks.modules():
            if isinstance(module, Shared):
                module.of(self.position)
        self.norm = spec.norm.build(width) if spec.norm else nn.Identity()

    def run(self, x: Float[Tensor, "B T D"], step: Step) -> Float[Tensor, "B T D"]:
        """The pass from embedded tokens to what a head reads."""
        watch = step.watch
        x = watch("position", self.position.embed(watch("embedding", x), step.positions))
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        x = dropout(x, self.dropout, self.training)
        for index, block in enumerate(self.blocks):
            x = cast("Block", block)(x, step.layer(index))
        return watch("final_norm", self.norm(x))
