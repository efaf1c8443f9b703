"""Block: attention and feed-forward, each adding to the residual stream, and how they are wired to it."""

from typing import Annotated, Any, Literal, cast

from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.model.attention import AttentionSpec
from glassformer.model.feedforward import FeedForwardSpec
from glassformer.model.norm import Norm, NormSpec, RMSNormSpec
from glassformer.model.step import LayerStep
from glassformer.ops.dropout import dropout
from glassformer.spec import Spec


class Wiring(Spec):
    """The base of every wiring: which norms it needs, and how what a sublayer found joins the stream.

    `scale` is a factor on what is added (residual scaling); without `residual` it takes the place of the stream,
    which shows what the skip connection is good for.
    """

    dropout: float = Field(default=0.0, ge=0, lt=1)
    scale: float = Field(default=1.0, gt=0)
    residual: bool = True

    @property
    def norms(self) -> tuple[str, ...]:
        """The norms that a block has for it, by name."""
        return ("norm1", "norm2")

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        """One block's pass over the stream x [B, T, D]."""
        raise NotImplementedError

    def join(self, x: Tensor, found: Tensor, block: "Block") -> Tensor:
        """The stream with what a sublayer found for it."""
        found = self.weigh(found, block)
        return x + found if self.residual else found

    def weigh(self, found: Tensor, block: "Block") -> Tensor:
        """What a sublayer found, thinned out in training and scaled."""
        found = dropout(found, self.dropout, block.training)
        return found if self.scale == 1.0 else found * self.scale


class PreNormSpec(Wiring):
    """x + f(norm(x)): the stream itself is never normed, so gradients pass straight through.

    Source: Xiong et al. 2020.
    """

    kind: Literal["pre"] = "pre"

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        watch = step.watch
        x = watch("resid_pre", x)
        x = watch("resid_mid", self.join(x, block.attention(watch("norm1", block.norm1(x)), step), block))
        return watch("resid_post", self.join(x, block.feedforward(watch("norm2", block.norm2(x)), step), block))


class PostNormSpec(Wiring):
    """norm(x + f(x)), as in the first Transformer. Source: Vaswani et al. 2017."""

    kind: Literal["post"] = "post"

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        watch = step.watch
        x = watch("resid_pre", x)
        x = watch("resid_mid", block.norm1(self.join(x, block.attention(watch("norm1", x), step), block)))
        return watch("resid_post", block.norm2(self.join(x, block.feedforward(watch("norm2", x), step), block)))


class OutputNormSpec(Wiring):
    """x + norm(f(x)): what is added has a known size, and the stream is read as it is. Source: OLMo 2, 2025, 3.2."""

    kind: Literal["output"] = "output"

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        watch = step.watch
        x = watch("resid_pre", x)
        x = watch("resid_mid", self.join(x, block.norm1(block.attention(watch("norm1", x), step)), block))
        return watch("resid_post", self.join(x, block.norm2(block.feedforward(watch("norm2", x), step)), block))


class SandwichNormSpec(Wiring):
    """x + norm(f(norm(x))): before and after, as in Gemma 2. Source: Ding et al. 2021, CogView, 2.4."""

    kind: Literal["sandwich"] = "sandwich"

    @property
    def norms(self) -> tuple[str, ...]:
        return ("norm1", "norm1_after", "norm2", "norm2_after")

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        watch = step.watch
        x = watch("resid_pre", x)
        found = block.norm1_after(block.attention(watch("norm1", block.norm1(x)), step))
        x = watch("resid_mid", self.join(x, found, block))
        found = block.norm2_after(block.feedforward(watch("norm2", block.norm2(x)), step))
        return watch("resid_post", self.join(x, found, block))


class ParallelSpec(Wiring):
    """x + attention(norm(x)) + feedforward(norm(x)): both read the same stream. Source: Wang & Komatsuzaki 2021, GPT-J.

    Each has a norm of its own, as in GPT-NeoX, or both share the first (`one_norm`).
    """

    kind: Literal["parallel"] = "parallel"
    one_norm: bool = False

    @property
    def norms(self) -> tuple[str, ...]:
        return ("norm1",) if self.one_norm else ("norm1", "norm2")

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        watch = step.watch
        x = watch("resid_pre", x)
        first = block.norm1(x)
        second = first if self.one_norm else block.norm2(x)
        x = watch("resid_mid", self.join(x, block.attention(watch("norm1", first), step), block))
        # What attention found stays, also where there is no stream to add it to.
        return watch("resid_post", x + self.weigh(block.feedforward(watch("norm2", second), step), block))


WiringSpec = Annotated[
    PreNormSpec | PostNormSpec | OutputNormSpec | SandwichNormSpec | ParallelSpec, Field(discriminator="kind")
]


class BlockSpec(Spec):
    """One layer of the stack."""

    attention: AttentionSpec
    feedforward: FeedForwardSpec
    norm: NormSpec = RMSNormSpec()
    wiring: WiringSpec = PreNormSpec()

    @model_validator(mode="before")
    @classmethod
    def _grouped_where_no_kind_is_given(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        tree = cast("dict[str, Any]", data)
        attention = tree.get("attention")
        if isinstance(attention, dict) and "kind" not in attention:
            return {**tree, "attention": {"kind": "grouped", **cast("dict[str, Any]", attention)}}
        return tree

    def points(self) -> tuple[str, ...]:
        """Canonical names of what can be watched in it, in the order of the pass."""
        attention, feedforward = self.attention.points(), self.feedforward.points()
        return ("resid_pre", "norm1", *attention, "resid_mid", "norm2", *feedforward, "resid_post")

    def sizes(self, width: int) -> dict[str, int]:
        """The sizes of the axes H, K, C, F and, with experts, E."""
        return {**self.attention.sizes(width), **self.feedforward.sizes()}

    def build(self, width: int) -> "Block":
        return Block(width, self)


class Block(nn.Module):
    """One layer; it has the norms that its wiring names."""

    norm1: Norm
    norm1_after: Norm
    norm2: Norm
    norm2_after: Norm

    def __init__(self, width: int, spec: BlockSpec):
        super().__init__()
        self.wiring = spec.wiring
        self.attention, self.feedforward = spec.attention.build(width), spec.feedforward.build(width)
        for name in spec.wiring.norms:
            self.add_module(name, spec.norm.build(width))

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        return self.wiring.run(self, x, step)
