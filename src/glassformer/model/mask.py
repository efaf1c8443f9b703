"""Which keys a query may see. Every kind of mask resolves to one predicate on positions and segments."""

from typing import Annotated, Literal

from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from glassformer.spec import Spec


class CausalSpec(Spec):
    """A token sees itself and those before it."""

    kind: Literal["causal"] = "causal"

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """The predicate, on positions that broadcast."""
        return key <= query

    @property
    def reach(self) -> int | None:
        """How many tokens back (itself included) the mask can see; None is without limit."""
        return None


class WindowSpec(Spec):
    """A token sees itself and the `size - 1` before it."""

    kind: Literal["window"] = "window"
    size: int = Field(ge=1)

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query - key < self.size)

    @property
    def reach(self) -> int | None:
        return self.size


class BidirectionalSpec(Spec):
    """A token sees all tokens of its sequence."""

    kind: Literal["bidirectional"] = "bidirectional"

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (key >= 0) & (query >= -1)

    @property
    def reach(self) -> int | None:
        return None


MaskSpec = Annotated[CausalSpec | WindowSpec | BidirectionalSpec, Field(discriminator="kind")]


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
