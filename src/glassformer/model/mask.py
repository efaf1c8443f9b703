"""Which keys a query may see. Every kind of mask resolves to one predicate on positions and segments.

Beside it stands `reaches`, the same question about ranges of positions: whether a query at `query[0]` to `query[1]` can
see any key at `key[0]` to `key[1]`. In doubt the answer is yes; where it is no, a block of scores need not be made.
"""

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from glassformer.spec import Spec

Range = tuple[Tensor, Tensor]
"""The lowest and the highest position of a block; both broadcast."""


class CausalSpec(Spec):
    """A token sees itself and those before it, so that each place may be trained to tell what comes next.

    Formula: t sees s  ⇔  s ≤ t

    Source: Vaswani et al. 2017, 3.2.3.
    """

    kind: Literal["causal"] = "causal"

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """The predicate, on positions that broadcast."""
        return key <= query

    def reaches(self, query: Range, key: Range) -> Tensor:
        return key[0] <= query[1]

    @property
    def reach(self) -> int | None:
        """How many tokens back (itself included) the mask can see; None is without limit."""
        return None


class WindowSpec(Spec):
    """A token sees itself and the `size - 1` before it: what a token costs stops growing there.

    Stacked layers still hand on what lies further back, a window a layer.

    Formula: t sees s  ⇔  s ≤ t and t - s < size

    Source: Beltagy et al. 2020, Longformer; Jiang et al. 2023, Mistral.
    """

    kind: Literal["window"] = "window"
    size: int = Field(ge=1)

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query - key < self.size)

    def reaches(self, query: Range, key: Range) -> Tensor:
        return (key[0] <= query[1]) & (query[0] - key[1] < self.size)

    @property
    def reach(self) -> int | None:
        return self.size


class SinksSpec(Spec):
    """A window, and the `first` tokens of all, which models lean on however far back they lie.

    Formula: t sees s  ⇔  s ≤ t and (t - s < size or s < first)

    Source: Xiao et al. 2024, StreamingLLM.
    """

    kind: Literal["sinks"] = "sinks"
    size: int = Field(ge=1)
    first: int = Field(default=4, ge=1)

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & ((query - key < self.size) | (key < self.first))

    def reaches(self, query: Range, key: Range) -> Tensor:
        return (key[0] <= query[1]) & ((query[0] - key[1] < self.size) | (key[0] < self.first))

    @property
    def reach(self) -> int | None:
        return None


class BlocksSpec(Spec):
    """Block-sparse: positions are cut into blocks of `size`, and a block sees some blocks whole.

    These are itself and the `local - 1` before it, the `first` blocks, and every `stride`-th one before it (0: none);
    within its own block a token sees what stands before it. Only pairs of blocks that are kept cost anything.

    Formula:
        t sees s  ⇔  s ≤ t and (b - c < local or c < first or (b - c) mod stride = 0)
        b = ⌊t / size⌋, c = ⌊s / size⌋

    Source: Child et al. 2019; Zaheer et al. 2020.
    """

    kind: Literal["blocks"] = "blocks"
    size: int = Field(default=64, ge=1)
    local: int = Field(default=2, ge=1)
    first: int = Field(default=1, ge=0)
    stride: int = Field(default=0, ge=0)

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & self.keeps(query // self.size, key // self.size)

    def keeps(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether a block of queries sees a block of keys, by their numbers."""
        kept = (query - key < self.local) | (key < self.first)
        if self.stride:
            kept = kept | ((query - key) % self.stride == 0)
        return kept & (key <= query)

    def reaches(self, query: Range, key: Range) -> Tensor:
        least, most = query[0] // self.size - key[1] // self.size, query[1] // self.size - key[0] // self.size
        kept = (least < self.local) | (key[0] // self.size < self.first)
        if self.stride:  # is there a multiple of it among the distances?
            kept = kept | (most // self.stride * self.stride >= least)
        return kept & (key[0] <= query[1])

    @property
    def reach(self) -> int | None:
        return None if self.first or self.stride else self.local * self.size


class BidirectionalSpec(Spec):
    """A token sees all tokens of its sequence, or those at most `window` away, before and after it.

    For texts that are there as a whole: encoders, and what is to be labelled or searched.

    Formula: t sees s  ⇔  |t - s| ≤ window, or always

    Source: Devlin et al. 2019, BERT; windows: Warner et al. 2024, ModernBERT.
    """

    kind: Literal["bidirectional"] = "bidirectional"
    window: int | None = Field(default=None, ge=0)

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        seen = (key >= 0) & (query >= -1)
        return seen if self.window is None else seen & ((query - key).abs() <= self.window)

    def reaches(self, query: Range, key: Range) -> Tensor:
        if self.window is None:
            return torch.ones_like(query[0] + key[0], dtype=torch.bool)
        return (query[0] - key[1] <= self.window) & (key[0] - query[1] <= self.window)

    @property
    def reach(self) -> int | None:
        return None


MaskSpec = Annotated[CausalSpec | WindowSpec | SinksSpec | BlocksSpec | BidirectionalSpec, Field(discriminator="kind")]


def visible(
    mask: MaskSpec,
    query: Int[Tensor, "#B T"],
    key: Int[Tensor, "#B S"],
    query_segments: Int[Tensor, "B T"] | None = None,
    key_segments: Int[Tensor, "B S"] | None = None,
) -> Bool[Tensor, "#B 1 T S"]:
    """True where the query at a position sees the key: the mask's rule, the same segment, and a slot that isn't empty.

    This is the one formula for training, packing, cached decoding, ragged batches and windows.
    """
    q, k = query[:, None, :, None], key[:, None, None, :]
    seen = mask.sees(q, k) & (k >= 0)
    if query_segments is not None and key_segments is not None:
        seen = seen & (query_segments[:, None, :, None] == key_segments[:, None, None, :])
    return seen
