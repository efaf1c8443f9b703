"""Softmax against its formula in float64, and where a careless one breaks."""

import math

import pytest
import torch

from glassformer.ops.softmax import online_softmax, softmax


def test_softmax_is_the_formula():
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = [[math.exp(v) / sum(map(math.exp, row)) for v in row] for row in x.tolist()]
    torch.testing.assert_close(softmax(x), torch.tensor(expected, dtype=torch.float64), atol=1e-15, rtol=1e-14)
    torch.testing.assert_close(softmax(x.float()).double(), softmax(x), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 128])
@pytest.mark.parametrize("shape", [(3,), (4, 300), (2, 3, 129)])
def test_the_online_softmax_is_the_formula_in_one_pass(shape, size):
    x = 50 * torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[..., 0] = -math.inf
    rows = x.flatten(0, -2).tolist() if x.ndim > 1 else [x.tolist()]
    expected = [[math.exp(v - max(row)) / math.fsum(math.exp(w - max(row)) for w in row) for v in row] for row in rows]
    found = online_softmax(x, size)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=x.dtype).view(shape), atol=1e-15, rtol=1e-12)
    torch.testing.assert_close(online_softmax(x.float(), size).double(), found, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shift", [1000.0, -1000.0, 3e38])
def test_large_scores_neither_overflow_nor_vanish(shift):
    weights = softmax(torch.tensor([shift, shift, shift - 1 if abs(shift) < 1e4 else -shift]))
    assert weights.isfinite().all()
    last = math.exp(-1) / (2 + math.exp(-1)) if abs(shift) < 1e4 else 0.0
    assert weights.tolist() == pytest.approx([(1 - last) / 2, (1 - last) / 2, last], rel=1e-5)


def test_a_score_of_minus_infinity_gets_exactly_nothing():
    weights = softmax(torch.tensor([0.0, -math.inf, 0.0]))
    assert weights.tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_is_summed_in_float32(dtype):
    x = torch.zeros(1, 5000, dtype=dtype)
    weights = softmax(x)
    assert weights.dtype == dtype
    assert float(weights[0, 0]) == pytest.approx(
        1 / 5000, rel=4e-3
    )  # a sum in the type itself would stop far below 5000
    y = torch.randn(3, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(softmax(y), softmax(y.float()).to(dtype))


def test_gradients_of_softmax_are_right():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softmax, x)
    assert torch.autograd.gradcheck(lambda x: online_softmax(x, 2), x)
