"""Block: attention and feed-forward, each adding to the residual stream, and how they are wired to it."""

from typing import Annotated, Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from glassformer.model.attention import AttentionSpec
from glassformer.model.feedforward import FeedForwardSpec
from glassformer.model.norm import NormSpec, RMSNormSpec
from glassformer.model.step import LayerStep
from glassformer.ops.dropout import dropout
from glassformer.spec import Spec


class PreNormSpec(Spec):
    """x + f(norm(x)): the stream itself is never normed, so gradients pass straight through.

    Source: Xiong et al. 2020.
    """

    kind: Literal["pre"] = "pre"
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        """One block's pass over the stream x [B, T, D]."""
        watch = step.watch
        x = watch("resid_pre", x)
        added = block.attention(watch("norm1", block.norm1(x)), step)
        x = watch("resid_mid", x + dropout(added, self.dropout, block.training))
        added = block.feedforward(watch("norm2", block.norm2(x)), step)
        return watch("resid_post", x + dropout(added, self.dropout, block.training))


class PostNormSpec(Spec):
    """norm(x + f(x)), as in the first Transformer. Source: Vaswani et al. 2017."""

    kind: Literal["post"] = "post"
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        watch = step.watch
        x = watch("norm1", watch("resid_pre", x))
        added = block.attention(x, step)
        x = watch("resid_mid", block.norm1(x + dropout(added, self.dropout, block.training)))
        added = block.feedforward(watch("norm2", x), step)
        return watch("resid_post", block.norm2(x + dropout(added, self.dropout, block.training)))


WiringSpec = Annotated[PreNormSpec | PostNormSpec, Field(discriminator="kind")]


class BlockSpec(Spec):
    """One layer of the stack."""

    attention: AttentionSpec
    feedforward: FeedForwardSpec
    norm: NormSpec = RMSNormSpec()
    wiring: WiringSpec = PreNormSpec()

    def points(self) -> tuple[str, ...]:
        """Canonical names of what can be watched in it, in the order of the pass."""
        attention, feedforward = self.attention.points(), self.feedforward.points()
        return ("resid_pre", "norm1", *attention, "resid_mid", "norm2", *feedforward, "resid_post")

    def sizes(self, width: int) -> dict[str, int]:
        """The sizes of the axes H, K, C and F."""
        return {**self.attention.sizes(width), "F": self.feedforward.hidden}

    def build(self, width: int) -> "Block":
        return Block(width, self)


class Block(nn.Module):
    def __init__(self, width: int, spec: BlockSpec):
        super().__init__()
        self.wiring = spec.wiring
        self.norm1, self.attention = spec.norm.build(width), spec.attention.build(width)
        self.norm2, self.feedforward = spec.norm.build(width), spec.feedforward.build(width)

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        return self.wiring.run(self, x, step)
