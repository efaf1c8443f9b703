"""Block: attention and feed-forward, each adding to the residual stream, and how they are wired to it."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, cast

from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.model.attention import AttentionSpec
from glassformer.model.attention.cross import CrossAttentionSpec
from glassformer.model.feedforward import FeedForwardSpec
from glassformer.model.norm import NormSpec, RMSNormSpec
from glassformer.model.step import Kept, LayerStep
from glassformer.ops.dropout import dropout
from glassformer.spec import Spec

Sublayer = Callable[[Tensor], Tensor]


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
        """The norms that a block has for one sublayer: what follows "norm1", "norm_cross" or "norm2" in their names."""
        return ("",)

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        """One block's pass over the stream x [B, T, D]: each sublayer reads it and adds to it."""
        watch = step.watch
        x = watch("resid_pre", x)
        x = watch("resid_mid", self.add(x, block, "norm1", lambda y: block.attention(watch("norm1", y), step)))
        if (cross := block.cross) is not None:
            inner = step.within("cross")
            found = self.add(x, block, "norm_cross", lambda y: cross(inner.watch("norm1", y), inner))
            x = watch("resid_cross", found)
        return watch("resid_post", self.add(x, block, "norm2", lambda y: block.feedforward(watch("norm2", y), step)))

    def add(self, x: Tensor, block: "Block", norm: str, sublayer: Sublayer) -> Tensor:
        """The stream with what a sublayer found for it; `norm` names its norms in the block."""
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
    """Norm before each sublayer: the stream itself is never normed, so gradients pass straight through.

    Without `attention_norm` attention reads the stream as it is: in a first layer whose embedding is normed already.

    Formula:
        x -> x + scale · attention(norm1(x))
        x -> x + scale · feedforward(norm2(x))

    Source: Xiong et al. 2020.
    """

    kind: Literal["pre"] = "pre"
    attention_norm: bool = True

    def add(self, x: Tensor, block: "Block", norm: str, sublayer: Sublayer) -> Tensor:
        read = x if norm == "norm1" and not self.attention_norm else block.norm(norm, x)
        return self.join(x, sublayer(read), block)


class PostNormSpec(Wiring):
    """Norm after each addition, as in the first Transformer: the stream keeps its size, but deep stacks need warm-up.

    Formula:
        x -> norm1(x + scale · attention(x))
        x -> norm2(x + scale · feedforward(x))

    Source: Vaswani et al. 2017, 3.1.
    """

    kind: Literal["post"] = "post"

    def add(self, x: Tensor, block: "Block", norm: str, sublayer: Sublayer) -> Tensor:
        return block.norm(norm, self.join(x, sublayer(x), block))


class OutputNormSpec(Wiring):
    """Norm of what a sublayer found: what is added has a known size, and the stream is read as it is.

    Formula:
        x -> x + scale · norm1(attention(x))
        x -> x + scale · norm2(feedforward(x))

    Source: OLMo 2, 2025, 3.2.
    """

    kind: Literal["output"] = "output"

    def add(self, x: Tensor, block: "Block", norm: str, sublayer: Sublayer) -> Tensor:
        return self.join(x, block.norm(norm, sublayer(x)), block)


class SandwichNormSpec(Wiring):
    """Norm before and after each sublayer, as in Gemma 2: neither what is read nor what is added can grow.

    Formula:
        x -> x + scale · norm1_after(attention(norm1(x)))
        x -> x + scale · norm2_after(feedforward(norm2(x)))

    Source: Ding et al. 2021, CogView, 2.4.
    """

    kind: Literal["sandwich"] = "sandwich"

    @property
    def norms(self) -> tuple[str, ...]:
        return ("", "_after")

    def add(self, x: Tensor, block: "Block", norm: str, sublayer: Sublayer) -> Tensor:
        return self.join(x, block.norm(f"{norm}_after", sublayer(block.norm(norm, x))), block)


class ParallelSpec(Wiring):
    """Attention and feed-forward side by side: both read the same stream, so neither waits for the other.

    Each has a norm of its own, as in GPT-NeoX, or both share the first (`one_norm`).

    Formula: x -> x + scale · attention(norm1(x)) + scale · feedforward(norm2(x))

    Source: Wang & Komatsuzaki 2021, GPT-J.
    """

    kind: Literal["parallel"] = "parallel"
    one_norm: bool = False

    def run(self, block: "Block", x: Tensor, step: LayerStep) -> Tensor:
        watch = step.watch
        x = watch("resid_pre", x)
        first = block.norm("norm1", x)
        second = first if self.one_norm else block.norm("norm2", x)
        x = watch("resid_mid", self.join(x, block.attention(watch("norm1", first), step), block))
        # What attention found stays, also where there is no stream to add it to.
        return watch("resid_post", x + self.weigh(block.feedforward(watch("norm2", second), step), block))


WiringSpec = Annotated[
    PreNormSpec | PostNormSpec | OutputNormSpec | SandwichNormSpec | ParallelSpec, Field(discriminator="kind")
]


class BlockSpec(Spec):
    """One layer of the stack; with `cross` it also reads what an encoder has read, between the two others."""

    attention: AttentionSpec
    feedforward: FeedForwardSpec
    norm: NormSpec = RMSNormSpec()
    wiring: WiringSpec = PreNormSpec()
    cross: CrossAttentionSpec | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.cross is not None and self.wiring.kind == "parallel":
            raise ValueError("cross-attention reads what attention wrote: wiring 'parallel' has no place for it")
        return self

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

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of all norms of the block."""
        if self.wiring.kind == "parallel" and self.wiring.one_norm:
            return ("norm1",)
        places = ("norm1", *(("norm_cross",) if self.cross else ()), "norm2")
        if self.wiring.kind == "pre" and not self.wiring.attention_norm:
            places = places[1:]
        return tuple(f"{place}{after}" for place in places for after in self.wiring.norms)

    def points(self) -> tuple[str, ...]:
        """Canonical names of what can be watched in it, in the order of the pass."""
        attention, feedforward = self.attention.points(), self.feedforward.points()
        cross: tuple[str, ...] = ()
        if self.cross is not None:
            cross = (*(f"cross.{name}" for name in ("norm1", *self.cross.points())), "resid_cross")
        return ("resid_pre", "norm1", *attention, "resid_mid", *cross, "norm2", *feedforward, "resid_post")

    def sizes(self, width: int) -> dict[str, int]:
        """The sizes of the axes H, K, C, F and, with experts, E."""
        return {**self.attention.sizes(width), **self.feedforward.sizes()}

    def fits(self, width: int) -> None:
        """Refuse sizes of heads that don't fit the width."""
        self.attention.fits(width)
        if self.cross is not None:
            self.cross.fits(width)

    def build(self, width: int) -> "Block":
        return Block(width, self)


class Block(nn.Module):
    """One layer; it has the norms that its spec names."""

    def __init__(self, width: int, spec: BlockSpec):
        super().__init__()
        self.wiring = spec.wiring
        self.attention, self.feedforward = spec.attention.build(width), spec.feedforward.build(width)
        self.cross = spec.cross.build(width) if spec.cross else None
        for name in spec.norms:
            self.add_module(name, spec.norm.build(width))

    def forward(self, x: Float[Tensor, "B T D"], step: LayerStep) -> Float[Tensor, "B T D"]:
        return self.wiring.run(self, x, step)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """The stream through one of its norms."""
        return cast("Tensor", getattr(self, name)(x))

    @property
    def remembers(self) -> tuple[Kept, ...]:
        """What a cache keeps for it."""
        return (*self.attention.remembers, *(self.cross.remembers if self.cross else ()))
