"""Numbers stored in blocks of few bits (the formats of GGML): bytes in, float32 out.

A block holds a scale, sometimes an offset, and the numbers as small integers; K-formats have blocks of 256 with scales
of their own for every 16 or 32. Source: the format as documented by the GGML project.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

Blocks = UInt8[Tensor, "N bytes"]
Numbers = Float[Tensor, "N size"]


@dataclass(frozen=True)
class Format:
    """How many numbers a block holds, in how many bytes, and how they are read."""

    numbers: int
    bytes: int
    read: Callable[[Tensor], Tensor]


def dequantise(raw: UInt8[Tensor, "bytes"], name: str) -> Float[Tensor, "n"]:
    """The numbers of a run of blocks in the format `name` of FORMATS."""
    kind = FORMATS[name]
    return kind.read(raw.view(-1, kind.bytes)).flatten()


def _half(blocks: Tensor, at: int) -> Float[Tensor, "N 1"]:
    """The float16 at a byte of every block."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(q: Tensor) -> Tensor:
    """The low halves of all bytes, then the high ones."""
    return torch.cat((q & 15, q >> 4), dim=-1)


def _bits(q: Tensor, count: int) -> Tensor:
    """The single bits of little-endian bytes, lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((q[..., None] >> shifts) & 1).flatten(-2)[..., :count]


def _f32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16).float()


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16).float()


def _q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).float()


def _q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    high = _bits(blocks[:, 2:6], 32)
    return _half(blocks, 0) * ((_nibbles(blocks[:, 6:]) | (high << 4)).float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    high = _bits(blocks[:, 4:8], 32)
    return _half(blocks, 0) * (_nibbles(blocks[:, 8:]) | (high << 4)).float() + _half(blocks, 2)


def _quarters(q: Tensor) -> Tensor:
    """[N, 64] bytes as [N, 256] numbers of two bits: of each 32 bytes the lowest pair of bits first."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    return ((q.view(-1, 2, 1, 32) >> shifts) & 3).reshape(len(q), 256)


def _q2_k(blocks: Tensor) -> Tensor:
    scales, q = blocks[:, :16], blocks[:, 16:80]
    d, least = _half(blocks, 80), _half(blocks, 82)
    scale, offset = d * (scales & 15).float(), least * (scales >> 4).float()  # [N, 16], one for 16 numbers
    return (scale[..., None] * _quarters(q).view(-1, 16, 16).float() - offset[..., None]).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    mask, q, packed = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    low = _nibbles(packed[:, :8])  # [N, 16]
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = ((packed[:, None, 8:] >> shifts) & 3).flatten(1)  # [N, 16]
    scale = _half(blocks, 108) * ((low | (high << 4)).float() - 32)
    # Bit i of the mask belongs to the i-th run of 32 numbers; where it is clear, 4 is taken off.
    runs = torch.arange(8, dtype=torch.uint8)[:, None]
    lacks = 1 - ((mask[:, None, :] >> runs) & 1).flatten(1).float()
    return (scale[..., None] * (_quarters(q).float() - 4 * lacks).view(-1, 16, 16)).flatten(1)


def _scales_and_offsets(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Twelve bytes as eight scales and eight offsets of six bits."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (rest & 15) | ((first >> 6) << 4)), dim=-1)
    offsets = torch.cat((second & 63, (rest >> 4) | ((second >> 6) << 4)), dim=-1)
    return scales.float(), offsets.float()


def _by_run(q: Tensor) -> Tensor:
    """[N, 128] bytes as [N, 8, 32] numbers of four bits: of each 32 bytes the low halves, then the high ones."""
    runs = q.view(-1, 4, 32)
    return torch.stack((runs & 15, runs >> 4), dim=2).view(-1, 8, 32)


def _q4_k(blocks: Tensor) -> Tensor:
    scales, offsets = _scales_and_offsets(blocks[:, 4:16])
    scale, offset = _half(blocks, 0) * scales, _half(blocks, 2) * offsets
    return (scale[..., None] * _by_run(blocks[:, 16:]).float() - offset[..., None]).flatten(1)


def _q5_k(blocks: Tensor) -> Tensor:
    scales, offsets = _scales_and_offsets(blocks[:, 4:16])
    scale, offset = _half(blocks, 0) * scales, _half(blocks, 2) * offsets
    runs = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (blocks[:, None, 16:48] >> runs) & 1  # [N, 8, 32]
    return (scale[..., None] * (_by_run(blocks[:, 48:]) | (high << 4)).float() - offset[..., None]).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    low, high = blocks[:, :128].view(-1, 2, 64), blocks[:, 128:192].view(-1, 2, 1, 32)
    scale = _half(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).float()  # one for 16 numbers
    four = torch.stack((low & 15, low >> 4), dim=2).view(-1, 2, 4, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    q = (four | (((high >> shifts) & 3) << 4)).reshape(-1, 16, 16)
    return (scale[..., None] * (q.float() - 32)).flatten(1)


FORMATS: Mapping[str, Format] = {
    "F32": Format(1, 4, _f32),
    "F16": Format(1, 2, _f16),
    "BF16": Format(1, 2, _bf16),
    "Q8_0": Format(32, 34, _q8_0),
    "Q4_0": Format(32, 18, _q4_0),
    "Q4_1": Format(32, 20, _q4_1),
    "Q5_0": Format(32, 22, _q5_0),
    "Q5_1": Format(32, 24, _q5_1),
    "Q2_K": Format(256, 84, _q2_k),
    "Q3_K": Format(256, 110, _q3_k),
    "Q4_K": Format(256, 144, _q4_k),
    "Q5_K": Format(256, 176, _q5_k),
    "Q6_K": Format(256, 210, _q6_k),
}
"""The formats that can be read."""
