"""A real small model for tests: stories260K, a Llama trained on TinyStories, read from its published file."""

import struct
from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models

from glassformer.model import Transformer
from glassformer.model.recipes import llama
from glassformer.tokenizer import Tokenizer

HEADER = struct.Struct("<7i")


def read_model(path: Path) -> Transformer:
    """The model; its file turns neighbouring components of a head, ours turns halves: rows of q and k change places."""
    raw = path.read_bytes()
    D, F, L, H, K, V, context = HEADER.unpack_from(raw)
    numbers = Numbers(raw)
    C = D // H
    model = llama(V, layers=L, width=D, heads=H, kv_heads=K, context=context, tied=True)
    block = model.blocks[0]
    model = model.replace(blocks=(block.replace(feedforward=block.feedforward.replace(hidden=F)),))
    state = {"embedding.weight": numbers.take(V, D)}
    for name, shape in (
        ("norm1.weight", (D,)),
        ("attention.q.weight", (H * C, D)),
        ("attention.k.weight", (K * C, D)),
        ("attention.v.weight", (K * C, D)),
        ("attention.out.weight", (D, H * C)),
        ("norm2.weight", (D,)),
        ("feedforward.gate.weight", (F, D)),
        ("feedforward.down.weight", (D, F)),
        ("feedforward.up.weight", (F, D)),
    ):
        for layer, values in enumerate(numbers.take(L, *shape)):
            if name in ("attention.q.weight", "attention.k.weight"):
                values = values.view(-1, C // 2, 2, D).transpose(1, 2).reshape(-1, D)
            state[f"blocks.{layer}.{name}"] = values
    state["norm.weight"] = numbers.take(D)
    built = model.build()
    built.load_state_dict(state)
    return built.eval()


class Numbers:
    """The numbers of the file, taken in order."""

    def __init__(self, raw: bytes):
        self.rest = torch.from_numpy(np.frombuffer(raw, dtype="<f4", offset=HEADER.size).copy())

    def take(self, *shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        values, self.rest = self.rest[:count], self.rest[count:]
        return values.view(shape)


def read_tokenizer(path: Path) -> Tokenizer:
    """Its 512 pieces, without the rules for joining them: enough to decode, and to encode byte by byte."""
    raw, vocabulary = path.read_bytes(), {}
    start = 4
    while start < len(raw):
        length = struct.unpack_from("<fi", raw, start)[1]
        piece = raw[start + 8 : start + 8 + length].decode("utf-8").strip("\n" if length > 1 else "")
        vocabulary.setdefault(piece if piece.startswith("<") else piece.replace(" ", "▁"), len(vocabulary))
        start += 8 + length
    rules = tokenizers.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    rules.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return Tokenizer(rules.to_str())
