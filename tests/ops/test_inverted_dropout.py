"""Inverted dropout against its definition."""

import pytest
import torch

from glassformer.ops.dropout import dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.25, 1e-9, 1 - 1e-9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_components_are_zero_or_grown_and_the_share_of_zeros_is_p(p: float, dtype: torch.dtype):
    torch.manual_seed(0)
    x = torch.ones(401, 997, dtype=dtype)
    y = dropout(x, p, training=True)
    dropped = (y == 0).double().mean().item()
    n = x.numel()
    assert dropped == pytest.approx(p, abs=5 * (p * (1 - p) / n) ** 0.5 + 2 / 65536)
    kept = y[y != 0].double()
    quantum = min(65535, max(1, round(p * 65536))) / 65536
    assert ((kept - 1 / (1 - quantum)).abs() <= 0.005 / (1 - quantum)).all()
    if p < 0.99:
        assert y.double().mean().item() == pytest.approx(1.0, abs=6 * (p / (1 - p) / n) ** 0.5 + 0.004)


def test_neighbours_that_share_a_random_word_fall_independently():
    torch.manual_seed(0)
    zero = (dropout(torch.ones(4 * 100_000), 0.3, training=True) == 0).double().view(-1, 4)
    correlation = torch.corrcoef(zero.T) - torch.eye(4, dtype=torch.float64)
    assert correlation.abs().max() < 5 / 100_000**0.5
    assert zero.mean(dim=0).tolist() == pytest.approx([0.3] * 4, abs=5 * (0.21 / 100_000) ** 0.5)


def test_nothing_happens_outside_training_or_without_a_rate():
    x = torch.randn(3, 5)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x


def test_gradients_pass_where_values_did():
    torch.manual_seed(0)
    x = torch.ones(1000, requires_grad=True)
    y = dropout(x, 0.4, training=True)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_the_seed_decides():
    x = torch.ones(7, 11)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(dropout(x, 0.5, training=True))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
