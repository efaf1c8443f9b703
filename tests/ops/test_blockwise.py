"""Attention in blocks against the plain formula, forward and backward, in float64."""

import pytest
import torch

from glassformer.ops.attend import Scores, attend
from glassformer.ops.blockwise import attend_in_blocks, causal, online_softmax

B, H, C = 2, 4, 8


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def masked(mask: torch.Tensor):
    """A whole mask as blocks, with the blocks that nobody sees left out."""

    def seen(queries: slice, keys: slice) -> torch.Tensor | bool:
        block = mask[..., queries, keys]
        return block if block.any() else False

    return seen


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("rest", ["plain", "bias", "softcap", "sink", "all"])
@pytest.mark.parametrize(("queries", "keys", "size"), [(13, 13, 4), (5, 29, 8), (7, 7, 64)])
def test_values_and_gradients_are_those_of_the_formula(kv_heads: int, rest: str, queries: int, keys: int, size: int):
    given = [drawn(B, H, queries, C, seed=1), drawn(B, kv_heads, keys, C, seed=2), drawn(B, kv_heads, keys, 5, seed=3)]
    extras = {
        "bias": drawn(1, H, queries, keys, seed=4) if rest in ("bias", "all") else None,
        "sink": drawn(H, seed=5) if rest in ("sink", "all") else None,
    }
    cap = 0.7 if rest in ("softcap", "all") else None
    mask = torch.rand(B, 1, queries, keys, generator=torch.Generator().manual_seed(6)) < 0.6
    mask[..., 0] = True
    mask[:, :, :, 3:4] = False
    results = []
    for blocks in (False, True):
        leaves = [x.clone().requires_grad_() for x in given]
        own = {name: None if x is None else x.clone().requires_grad_() for name, x in extras.items()}
        scores = Scores(0.3, own["bias"], cap, own["sink"])
        if blocks:
            out = attend_in_blocks(*leaves, masked(mask), scores, size)
        else:
            out = attend(*leaves, mask, scores, lambda name, value: value)
        out.backward(drawn(*out.shape, seed=7))
        results.append([out, *(x.grad for x in leaves), *(x.grad for x in own.values() if x is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("length", [1, 31, 64, 100])
def test_the_causal_triangle_is_cut_into_blocks_without_a_seam(length: int):
    q, k, v = (drawn(1, 2, length, C, seed=seed) for seed in (1, 2, 3))
    triangle = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    expected = attend(q, k, v, triangle, Scores(0.5), lambda name, value: value)
    torch.testing.assert_close(attend_in_blocks(q, k, v, causal, Scores(0.5), 32), expected, atol=1e-12, rtol=0)


def test_blocks_that_nobody_sees_are_never_made():
    asked: list[tuple[int, int]] = []

    def seen(queries: slice, keys: slice) -> torch.Tensor | bool:
        found = causal(queries, keys)
        if found is not False:
            asked.append((queries.start, keys.start))
        return found

    q = drawn(1, 1, 64, C, seed=1)
    attend_in_blocks(q, q, q, seen, Scores(1.0), 16)
    assert len(asked) == 4 * 5 // 2


def test_a_query_that_sees_nothing_gets_zeros_and_no_gradient_that_is_no_number():
    q, k, v = (drawn(1, 2, 6, C, seed=seed).requires_grad_() for seed in (1, 2, 3))
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[:, :, 2] = False
    out = attend_in_blocks(q, k, v, masked(mask), Scores(1.0), 4)
    out.sum().backward()
    assert (out[:, :, 2] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("shape", [(3,), (4, 1000), (2, 3, 129)])
def test_the_online_softmax_is_the_softmax(shape: tuple[int, ...]):
    x = 50 * drawn(*shape, seed=1)
    torch.testing.assert_close(online_softmax(x), torch.softmax(x, dim=-1), atol=1e-12, rtol=1e-10)
