"""Attention: tokens read from the tokens they may see. One file each; this union is the list of them."""

from typing import Annotated

import torch
from pydantic import Field

from glassformer.model.attention.grouped import GroupedAttention, GroupedAttentionSpec
from glassformer.model.attention.latent import LatentAttention, LatentAttentionSpec
from glassformer.model.step import Kept

AttentionSpec = Annotated[GroupedAttentionSpec | LatentAttentionSpec, Field(discriminator="kind")]
Attention = GroupedAttention | LatentAttention

__all__ = [
    "Attention",
    "AttentionSpec",
    "GroupedAttention",
    "GroupedAttentionSpec",
    "LatentAttention",
    "LatentAttentionSpec",
    "cache_bytes_per_token",
]


def cache_bytes_per_token(remembers: tuple[Kept, ...], element_bytes: int) -> int:
    """What one token costs in the cache of one layer."""
    return sum(element_bytes * torch.Size(kept.shape).numel() for kept in remembers if kept.per == "token")
