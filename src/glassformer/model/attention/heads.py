"""Heads that share keys and values: what attention of tokens to each other and to a source have in common."""

from typing import Self

from pydantic import Field, model_validator

from glassformer.model.norm import NormSpec
from glassformer.spec import Spec


class HeadsSpec(Spec):
    """`heads` queries that share `kv_heads` keys and values, each of `head_width` numbers."""

    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_width: int | None = Field(default=None, ge=1)
    scale: float | None = Field(default=None, gt=0)
    qk_norm: NormSpec | None = None
    bias: bool = False
    out_bias: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _heads_share(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads}): set both together "
                "(equal numbers are plain multi-head attention)"
            )
        return self

    def width_of_head(self, width: int) -> int:
        """C for a model of this width."""
        return self.head_width or width // self.heads

    def fits(self, width: int) -> None:
        """Refuse heads that don't divide the width evenly, unless their width is given."""
        if self.head_width is None and width % self.heads:
            raise ValueError(
                f"heads ({self.heads}) must divide width ({width}); choose another number of heads or give head_width"
            )

    def sizes(self, width: int) -> dict[str, int]:
        """The sizes of the axes of its quantities."""
        C = self.width_of_head(width)
        return {"H": self.heads, "K": self.kv_heads, "C": C, "W": C}
