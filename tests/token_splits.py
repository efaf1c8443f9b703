"""A split made of given tokens, for tests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from glassformer.train.data import TokenSplit
from glassformer.train.data.meta import SplitMeta
from glassformer.train.data.shards import ShardWriter, token_type


def write_split(
    folder: Path, tokens: Sequence[int], starts: Sequence[int] = (0,), shard_tokens: int = 1000, dtype: str = "uint16"
) -> TokenSplit:
    writer = ShardWriter(folder, "train", dtype, shard_tokens)
    stops = [*starts[1:], len(tokens)]
    for start, stop in zip(starts, stops, strict=True):
        writer.begin_documents(np.zeros(1, np.int64))
        writer.write(np.array(tokens[start:stop], np.int64))
    index, shards = writer.close()
    sizes = {"tokens": len(tokens), "documents": len(starts), "bytes": len(tokens), "characters": len(tokens)}
    return TokenSplit(folder, "train", SplitMeta(**sizes, starts=index, shards=shards), token_type(dtype))
