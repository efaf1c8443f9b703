"""Attention: tokens read from the tokens they may see. One file each; this union is the list of them."""

from typing import Annotated

import torch
from pydantic import Field

from glassformer.model.attention.grouped import GroupedAttention, GroupedAttentionSpec
from glassformer.model.attention.latent import LatentAttention, LatentAttentionSpec
from glassformer.model.attention.linear import LinearAttention, LinearAttentionSpec
from glassformer.model.step import Kept

AttentionSpec = Annotated[GroupedAttentionSpec | LatentAttentionSpec | LinearAttentionSpec, Field(discriminator="kind")]
Attention = GroupedAttention | LatentAttention | LinearAttention

__all__ = [
    "Attention",
    "AttentionSpec",
    "GroupedAttention",
    "GroupedAttentionSpec",
    "LatentAttention",
    "LatentAttentionSpec",
    "LinearAttention",
    "LinearAttentionSpec",
    "cache_bytes_per_sequence",
    "cache_bytes_per_token",
]


def cache_bytes_per_sequence(remembers: tuple[Kept, ...], element_bytes: int) -> int:
    """What one sequence costs in the cache of one layer, however long it is; states are kept in at least float32."""
    return sum(max(4, element_bytes) * torch.Size(kept.shape).numel() for kept in remembers if kept.per == "sequence")


def cache_bytes_per_token(remembers: tuple[Kept, ...], element_bytes: int) -> int:
    """What one token costs in the cache of one layer."""
    return sum(element_bytes * torch.Size(kept.shape).numel() for kept in remembers if kept.per == "token")
