"""Operations with a backward pass of their own: values and gradients against finite differences and torch."""

import pytest
import torch
import torch.nn.functional as F

from glassformer.ops.activation import relu_squared
from glassformer.ops.norm import rms_norm
from glassformer.ops.rotate import angles, rotate_halves


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
def test_rms_norm_and_its_gradient(eps):
    x = random(3, 2, 5).requires_grad_()
    torch.testing.assert_close(rms_norm(x, eps), x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt())
    assert torch.autograd.gradcheck(lambda x: rms_norm(x, eps), x)


def test_rms_norm_of_zeros_is_zero_with_a_finite_gradient():
    x = torch.zeros(2, 4, requires_grad=True)
    y = rms_norm(x, 1e-5)
    y.sum().backward()
    assert not y.any()
    torch.testing.assert_close(x.grad, torch.full((2, 4), 1e-5**-0.5))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_rms_norm_agrees_with_float64_in_every_precision(dtype, tolerance):
    x, g = random(4, 64, dtype=dtype, seed=1), random(4, 64, dtype=dtype, seed=2)
    low, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    y, expected = rms_norm(low, 1e-5), F.rms_norm(exact, (64,), eps=1e-5)
    y.backward(g)
    expected.backward(g.double())
    assert y.dtype == low.grad.dtype == dtype
    torch.testing.assert_close(y.double(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(low.grad.double(), exact.grad, atol=2 * tolerance, rtol=tolerance)


def test_rms_norm_in_half_precision_survives_squares_beyond_its_range():
    x = torch.full((1, 64), 1000.0, dtype=torch.float16)  # 1000² is more than float16 holds
    assert torch.equal(rms_norm(x, 1e-5), torch.ones(1, 64, dtype=torch.float16))


def test_relu_squared_and_its_gradient():
    x = random(20).requires_grad_()
    assert torch.equal(relu_squared(x), F.relu(x) ** 2)
    assert torch.autograd.gradcheck(relu_squared, x)


def test_relu_squared_is_flat_at_and_below_zero():
    x = torch.tensor([-2.0, -0.0, 0.0, 3.0], requires_grad=True)
    y = relu_squared(x)
    y.sum().backward()
    assert y.tolist() == [0, 0, 0, 9]
    assert x.grad.tolist() == [0, 0, 0, 6]


@pytest.mark.parametrize("operation", [relu_squared, lambda x: rms_norm(x, 1e-5)])
def test_a_second_derivative_is_refused_rather_than_wrong(operation):
    x = random(2, 4).requires_grad_()
    (first,) = torch.autograd.grad(operation(x).pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("pairs", [4, 3, 1])
def test_rotation_is_multiplication_of_complex_numbers(pairs):
    x, frequency = random(2, 3, 5, 8), random(pairs).abs()
    positions = torch.tensor([[0, 1, 2, 3, 40], [7, 7, 1, 0, 5]])
    turned = rotate_halves(x, *angles(positions, frequency))
    z = torch.complex(x[..., :pairs], x[..., pairs : 2 * pairs])
    z = z * torch.polar(torch.ones(2, 1, 5, pairs).double(), positions[:, None, :, None] * frequency)
    expected = torch.cat((z.real, z.imag, x[..., 2 * pairs :]), dim=-1)
    torch.testing.assert_close(turned, expected)


def test_gradients_of_a_rotation_are_right():
    x, frequency = random(1, 2, 3, 6).requires_grad_(), random(2).abs()
    cos, sin = angles(torch.tensor([[0, 3, 9]]), frequency)
    assert torch.autograd.gradcheck(lambda x: rotate_halves(x, cos, sin), x)


def test_positions_shared_by_all_rows_turn_each_row_alike():
    x, frequency = random(3, 2, 4, 8), random(4).abs()
    places = torch.tensor([[0, 2, 4, 6]])
    shared = rotate_halves(x, *angles(places, frequency))
    assert torch.equal(shared, rotate_halves(x, *angles(places.expand(3, -1), frequency)))
