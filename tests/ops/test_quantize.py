"""Block formats against the library of the GGML project, on every byte pattern."""

import gguf
import numpy as np
import pytest
import torch

from glassformer.ops.quantize import FORMATS, dequantise

SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2),
          "Q5_1": (0, 2), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}  # fmt: skip


def some_blocks(name: str, count: int = 50) -> np.ndarray:
    """Random bytes, with scales that are numbers."""
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, size=(count, FORMATS[name].bytes), dtype=np.uint8)
    for at in SCALES[name]:
        blocks[:, at : at + 2] = generator.standard_normal(count).astype(np.float16).view(np.uint8).reshape(count, 2)
    return blocks


@pytest.mark.parametrize("name", SCALES)
def test_blocks_are_read_as_the_project_that_made_the_format_reads_them(name: str):
    blocks = some_blocks(name)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]).flatten()
    got = dequantise(torch.from_numpy(blocks.flatten()), name)
    assert got.dtype == torch.float32
    assert np.array_equal(got.numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_numbers_pass_unchanged(dtype: torch.dtype):
    numbers = torch.randn(100).to(dtype)
    name = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]
    assert torch.equal(dequantise(numbers.view(torch.uint8), name), numbers.float())


def test_every_format_is_tested():
    assert set(SCALES) | {"F32", "F16", "BF16"} == set(FORMATS)
