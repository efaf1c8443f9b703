"""Attention in blocks against the plain formula, forward and backward, in float64."""

import pytest
import torch

from glassformer.ops.attend import Scores, attend
from glassformer.ops.blockwise import Sight, attend_in_blocks

B, H, C = 2, 4, 8


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sight_of(mask: torch.Tensor, size: int, bias: torch.Tensor | None = None) -> Sight:
    """A whole mask [B, 1, T, S] (and a bias [1, H, T, S]) as a `Sight`; what nobody sees is left out."""
    T, S = mask.shape[-2:]
    whole = torch.nn.functional.pad(mask[:, 0], (0, -S % size, 0, -T % size))
    kept = whole.unflatten(2, (-1, size)).unflatten(1, (-1, size)).any(4).any(2)

    def seen(batch, queries, keys):
        return whole[batch[:, None, None], queries[:, :, None], keys[:, None]][:, None]

    def added(batch, queries, keys):
        whole = torch.nn.functional.pad(bias, (0, -S % size, 0, -T % size))
        return whole[0][:, queries[:, :, None], keys[:, None]].transpose(0, 1)

    return Sight(size, kept, seen) if bias is None else Sight(size, kept, seen, added, (bias,))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("rest", ["plain", "bias", "softcap", "sink", "all"])
@pytest.mark.parametrize(("queries", "keys", "size"), [(13, 13, 4), (5, 29, 8), (7, 7, 64)])
@pytest.mark.parametrize("room", [1, 2**20])
def test_values_and_gradients_are_those_of_the_formula(monkeypatch, kv_heads, rest, queries, keys, size, room):
    monkeypatch.setattr("glassformer.ops.blockwise.ROOM", room)  # 1: a block at a time
    given = [drawn(B, H, queries, C, seed=1), drawn(B, kv_heads, keys, C, seed=2), drawn(B, kv_heads, keys, 5, seed=3)]
    extras = {
        "bias": drawn(1, H, queries, keys, seed=4) if rest in ("bias", "all") else None,
        "sink": drawn(H, seed=5) if rest in ("sink", "all") else None,
    }
    cap = 0.7 if rest in ("softcap", "all") else None
    mask = torch.rand(B, 1, queries, keys, generator=torch.Generator().manual_seed(6)) < 0.6
    mask[..., 0] = True
    mask[0, :, :, 3:] = False
    results = []
    for blocks in (False, True):
        leaves = [x.clone().requires_grad_() for x in given]
        own = {name: None if x is None else x.clone().requires_grad_() for name, x in extras.items()}
        if blocks:
            scores = Scores(0.3, softcap=cap, sink=own["sink"])
            out = attend_in_blocks(*leaves, sight_of(mask, size, own["bias"]), scores)
        else:
            out = attend(*leaves, mask, Scores(0.3, own["bias"], cap, own["sink"]), lambda name, value: value)
        out.backward(drawn(*out.shape, seed=7))
        results.append([out, *(x.grad for x in leaves), *(x.grad for x in own.values() if x is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("length", [1, 31, 64, 100])
def test_the_causal_triangle_is_cut_into_blocks_without_a_seam(length: int):
    q, k, v = (drawn(1, 2, length, C, seed=seed) for seed in (1, 2, 3))
    triangle = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    expected = attend(q, k, v, triangle, Scores(0.5), lambda name, value: value)
    found = attend_in_blocks(q, k, v, sight_of(triangle, 32), Scores(0.5))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_blocks_that_nobody_sees_are_never_made():
    plain = sight_of(torch.ones(1, 1, 64, 64, dtype=torch.bool).tril(), 16)
    asked: list[int] = []

    def seen(batch, queries, keys):
        asked.append(len(batch) * keys.size(1) // 16)
        return plain.seen(batch, queries, keys)

    q = drawn(1, 1, 64, C, seed=1)
    attend_in_blocks(q, q, q, Sight(16, plain.kept, seen), Scores(1.0))
    assert sum(asked) == 4 * 5 // 2


def test_blocks_of_queries_that_see_equally_many_are_made_in_one_product():
    window = torch.ones(1, 1, 640, 640, dtype=torch.bool).tril().triu(-15)
    plain, asked = sight_of(window, 16), []

    def seen(batch, queries, keys):
        asked.append(len(batch))
        return plain.seen(batch, queries, keys)

    q = drawn(1, 1, 640, C, seed=1)
    attend_in_blocks(q, q, q, Sight(16, plain.kept, seen), Scores(1.0))
    assert asked == [1, 39], "the first block sees itself, the others themselves and the one before"


def test_a_query_that_sees_nothing_gets_zeros_and_no_gradient_that_is_no_number():
    q, k, v = (drawn(1, 2, 6, C, seed=seed).requires_grad_() for seed in (1, 2, 3))
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[:, :, 2] = False
    mask[:, :, 4:] = False
    out = attend_in_blocks(q, k, v, sight_of(mask, 2), Scores(1.0))
    out.sum().backward()
    assert (out[:, :, [2, 4, 5]] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_sums_in_float32(dtype):
    exact = [drawn(1, 2, 600, 16, seed=seed).requires_grad_() for seed in (1, 2, 3)]
    given = [x.detach().to(dtype).requires_grad_() for x in exact]
    mask = torch.ones(1, 1, 600, 600, dtype=torch.bool).tril()
    out = attend_in_blocks(*given, sight_of(mask, 64), Scores(0.25))
    expected = attend(*exact, mask, Scores(0.25), lambda name, value: value)
    out.sum().backward()
    expected.sum().backward()
    bound = 1e-5 if dtype == torch.float32 else 3e-2
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=bound, rtol=bound)
    for x, wanted in zip(given, exact, strict=True):
        assert x.grad.dtype == dtype
        torch.testing.assert_close(x.grad.double(), wanted.grad, atol=10 * bound, rtol=bound)
