"""The Transformer: embed the tokens, let each block add to the stream, read the next token off the end.

What runs the blocks is `stack.py`, next door: a decoder, an encoder, or one before the other are the same stack.
"""

from dataclasses import replace
from typing import Annotated, Literal, Self, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from glassformer.errors import SpecError
from glassformer.model.block import Block
from glassformer.model.embedding import EmbeddingSpec, HeadSpec, TiedHeadSpec, TokenEmbedding, TokenEmbeddingSpec
from glassformer.model.linear import ExpertLinear, Linear
from glassformer.model.position import Position
from glassformer.model.stack import Stack, StackSpec
from glassformer.model.step import Kept, Memory, Step
from glassformer.model.watch import CATALOGUE, Point
from glassformer.spec import Spec


class NormalInitSpec(Spec):
    """Every matrix from one normal distribution; those that write to the stream smaller by √(2 layers).

    The stream is a sum of 2 · layers answers; so it starts with the same size in stacks of any depth.

    Formula:
        W ~ N(0, std²),  W_to_stream ~ N(0, std² / (2 · layers)),  embedding ~ N(0, std²)
        gains start at 1, biases at 0

    Source: Radford et al. 2019, GPT-2, 2.3.
    """

    kind: Literal["normal"] = "normal"
    std: float = Field(default=0.02, gt=0)

    def deviation(self, linear: Linear | ExpertLinear, layers: int) -> float:
        """The standard deviation of a projection's weights at the start."""
        return self.std / (2 * layers) ** 0.5 if linear.to_stream else self.std

    def of_embedding(self) -> float:
        return self.std


class QuietInitSpec(Spec):
    """Matrices at 1/√inputs; those that write to the stream start at zero, so each block starts as the identity.

    The head starts at zero, too (`head` 0): a model that knows nothing finds all tokens equally likely.

    Formula:
        W ~ N(0, gain² / inputs),  W_to_stream = 0,  embedding ~ N(0, embedding²),  head ~ N(0, head²)
        gains start at 1, biases at 0

    Source: LeCun et al. 1998 (1/√inputs); Zhang et al. 2019, Fixup (zeros).
    """

    kind: Literal["quiet"] = "quiet"
    embedding: float = Field(default=1.0, gt=0)
    gain: float = Field(default=1.0, gt=0)
    head: float = Field(default=0.0, ge=0)

    def deviation(self, linear: Linear | ExpertLinear, layers: int) -> float:
        if linear.to_stream:
            return 0.0
        return self.head if linear.axes.writes in ("V", "Y") else self.gain * linear.weight.size(-1) ** -0.5

    def of_embedding(self) -> float:
        return self.embedding


InitSpec = Annotated[NormalInitSpec | QuietInitSpec, Field(discriminator="kind")]


class EncoderSpec(StackSpec):
    """What reads the source of an encoder-decoder: a stack as wide as the decoder, whose masks see both ways.

    It reads with the model's own token vectors, or with those of its own `embedding`. `start` are the tokens that the
    decoder begins with, before the first that it writes.
    """

    embedding: EmbeddingSpec | None = None
    start: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)


class TransformerSpec(StackSpec):
    """A whole model: a decoder where its masks are causal, an encoder where they see both ways.

    With an `encoder` in front, whose states the blocks' `cross` attention reads, it is an encoder-decoder.
    """

    vocabulary: int = Field(ge=1)
    width: int = Field(ge=1)
    embedding: EmbeddingSpec = TokenEmbeddingSpec()
    head: HeadSpec = TiedHeadSpec()
    init: InitSpec = NormalInitSpec()
    encoder: EncoderSpec | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.fits(self.width)
        crossing = any(block.cross is not None for block in self.blocks)
        if self.encoder is None:
            if crossing:
                raise ValueError(
                    "blocks.N.cross reads an encoder, but the model has none; give encoder, or leave it out"
                )
            return self
        self.encoder.fits(self.width)
        if not crossing:
            raise ValueError("the model has an encoder, but no block reads it: give blocks.N.cross")
        if max(self.encoder.start) >= self.vocabulary:
            raise ValueError(f"encoder.start ({max(self.encoder.start)}) is no token of {self.vocabulary}")
        if any(block.cross is not None for block in self.encoder.blocks):
            raise ValueError(
                "encoder.blocks.N.cross has nothing to read: cross-attention belongs to the decoder's blocks"
            )
        return self

    def points(self) -> dict[str, Point]:
        """Everything that can be watched in a model of this spec, by full name, in the order of the pass.

        An encoder's points are those of its own pass over M source tokens, and come first.
        """
        found = list[Point]()
        for point in self.encoder.points_of(self.width) if self.encoder else ():
            axes = point.axes.replace("T", "M").replace("S", "M")
            found.append(replace(point, name=f"encoder.{point.name}", axes=axes))
        found += self.points_of(self.width)
        outer = {"D": self.width, "V": self.vocabulary, **self.head.sizes()}
        found.append(Point("logits", self.head.logits, outer, CATALOGUE["logits"][1]))
        return {point.name: point for point in found}

    @property
    def writes(self) -> bool:
        """Whether no token sees one that comes later: only then can tokens be written one after the other."""
        ahead = torch.tensor(1)
        return not any(bool(block.attention.mask.sees(ahead - 1, ahead)) for block in self.blocks)

    def build(self) -> "Transformer":
        """A model with fresh weights drawn from torch's global generator."""
        return Transformer(self)


class Encoder(Stack):
    """Source tokens [B, M] in, states [B, M, D] out."""

    def __init__(self, spec: EncoderSpec, whole: TransformerSpec):
        own = spec.embedding.build(whole.vocabulary, whole.width) if spec.embedding else None
        super().__init__(spec, whole.width, spec.embedding or whole.embedding, own)

    def forward(self, source: Int[Tensor, "B M"], shared: TokenEmbedding, step: Step) -> Float[Tensor, "B M D"]:
        """`shared` are the model's token vectors, for an encoder that has none of its own."""
        return self.run((self.embedding or shared)(source, step.types), step)


class Transformer(Stack):
    """Tokens [B, T] in, logits [B, T, V] out (or what else its head gives)."""

    embedding: TokenEmbedding

    def __init__(self, spec: TransformerSpec):
        super().__init__(spec, spec.width, spec.embedding, spec.embedding.build(spec.vocabulary, spec.width))
        self.spec = spec
        self.head = spec.head.build(spec.vocabulary, spec.width)
        self.encoder = Encoder(spec.encoder, spec) if spec.encoder else None
        self.initialise()

    def forward(self, tokens: Int[Tensor, "B T"], step: Step) -> Float[Tensor, "B *logits"]:
        return step.watch("logits", self.head(self.read(tokens, step), self.embedding, step.positions))

    def read(self, tokens: Int[Tensor, "B T"], step: Step) -> Float[Tensor, "B T D"]:
        """The pass up to the head: the final, normed stream."""
        step.watch.expect(self.spec)
        return self.run(self.embedding(tokens, step.types), step)

    def encode(self, source: Int[Tensor, "B M"], step: Step) -> Memory:
        """What the encoder reads in a source, for passes of the decoder: `Step(…, memory=…)`.

        Raises:
            SpecError: the model has no encoder.
        """
        if self.encoder is None:
            raise SpecError("this model has no encoder: it continues a text, and reads no source")
        step.watch.expect(self.spec)
        return Memory(self.encoder(source, self.embedding, step.within("encoder")), step.positions)

    def prepare(self, memory: Memory) -> None:
        """Make what every layer makes of a memory (its keys and values) now, and not at the first pass."""
        for index, block in enumerate(self.blocks):
            if (cross := cast("Block", block).cross) is not None:
                memory.layer(index).recall(cross.keys_and_values)

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw fresh weights as `spec.init` says; gains are 1 and biases 0 already."""
        init, encoder = self.spec.init, set(self.encoder.modules()) if self.encoder else set[nn.Module]()
        for module in self.modules():
            if isinstance(module, Linear | ExpertLinear):
                layers = self.encoder.layers if self.encoder and module in encoder else self.layers
                module.weight.normal_(std=init.deviation(module, layers))
            elif isinstance(module, TokenEmbedding):
                for vectors in module.parameters(recurse=False):
                    vectors.normal_(std=init.of_embedding())
            elif isinstance(module, Position):
                module.initialise(init.of_embedding())

    @property
    def remembers(self) -> tuple[tuple[Kept, ...], ...]:
        """What a cache keeps, layer by layer."""
        return tuple(cast("Block", block).remembers for block in self.blocks)
