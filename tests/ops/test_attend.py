"""attend and attend_fast against the formula in float64, for every sharing of heads, mask and bias."""

import math

import pytest
import torch
from torch.nn import functional

from glassformer.ops import attend as room
from glassformer.ops.attend import Scores, attend, attend_fast

B, H, T, C = 2, 4, 6, 8
SCALE = 0.3


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(kv_heads, queries=T, keys=T):
    return random(B, H, queries, C, seed=1), random(B, kv_heads, keys, C, seed=2), random(B, kv_heads, keys, C, seed=3)


def formula(q, k, v, visible, bias, scale=SCALE):
    """One query at a time, in float64; differentiable."""
    q, k, v = q.double(), k.double(), v.double()
    out = []
    for b in range(q.size(0)):
        for h in range(q.size(1)):
            keys, values = (x[b, h // (q.size(1) // k.size(1))] for x in (k, v))
            for t in range(q.size(2)):
                seen = visible[b % len(visible), 0, t]
                scores = scale * (keys[seen] @ q[b, h, t])
                if bias is not None:
                    scores = scores + bias[b % len(bias), h % bias.size(1), t][seen].double()
                weights = (scores - scores.max().detach()).exp()
                out.append(weights / weights.sum() @ values[seen])
    return torch.stack(out).reshape(*q.shape[:3], v.size(-1))


def unseen(name, value):
    return value


CAUSAL = torch.ones(1, 1, T, T, dtype=torch.bool).tril()
UNLIKE = torch.stack([CAUSAL[0], CAUSAL[0].mT.flip(-1) | torch.eye(T, dtype=torch.bool)])
MASKS = {"plain": None, "causal": CAUSAL, "everything": torch.ones_like(CAUSAL), "unlike rows": UNLIKE}
BIASES = {"none": None, "per head": random(1, H, T, T, seed=4), "per row": random(B, 1, T, T, seed=5)}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
def test_both_are_the_formula(kv_heads, mask, bias):
    q, k, v = inputs(kv_heads)
    seen = CAUSAL if MASKS[mask] is None else MASKS[mask]
    expected = formula(q, k, v, seen, BIASES[bias])
    plain = attend(q, k, v, seen, Scores(SCALE, BIASES[bias]), unseen)
    fast = attend_fast(q, k, v, MASKS[mask], Scores(SCALE, BIASES[bias]))
    torch.testing.assert_close(plain.double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(fast.double(), expected, atol=1e-6, rtol=1e-5)


def test_few_queries_read_many_keys():
    q, k, v = inputs(2, queries=2, keys=5)
    seen = torch.tensor([[[[1, 1, 1, 1, 0], [1, 0, 1, 0, 1]]]], dtype=torch.bool)
    expected = formula(q, k, v, seen, None)
    for out in (attend(q, k, v, seen, Scores(SCALE), unseen), attend_fast(q, k, v, seen, Scores(SCALE))):
        torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-5)


def test_values_may_be_of_another_width_than_keys():
    q, k, _ = inputs(2)
    v = random(B, 2, T, 3, seed=6)
    expected = formula(q, k, v, CAUSAL, None)
    for out in (attend(q, k, v, CAUSAL, Scores(SCALE), unseen), attend_fast(q, k, v, None, Scores(SCALE))):
        torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-5)


def test_what_is_seen_is_the_formula_step_by_step():
    q, k, v = inputs(2)
    seen = {}
    attend(q, k, v, CAUSAL, Scores(SCALE, BIASES["per head"]), seen.setdefault)
    raw = q @ k.repeat_interleave(2, dim=1).mT
    assert list(seen) == ["scores_raw", "scores", "mask", "pattern"]
    assert torch.equal(seen["scores_raw"], raw)
    assert torch.equal(seen["scores"], raw * SCALE + BIASES["per head"])
    assert torch.equal(seen["mask"], CAUSAL.expand(B, 1, T, T))
    torch.testing.assert_close(seen["pattern"], torch.softmax(seen["scores"].masked_fill(~CAUSAL, -math.inf), dim=-1))


def test_a_query_that_sees_nothing_reads_all_keys_evenly():
    q, k, v = inputs(H)
    nothing = torch.zeros_like(CAUSAL)
    torch.testing.assert_close(
        attend(q, k, v, nothing, Scores(SCALE), unseen), v.mean(dim=2, keepdim=True).expand(-1, -1, T, -1)
    )


def test_huge_scores_choose_one_key_without_overflow():
    q, k, v = (x * s for x, s in zip(inputs(H), (1e4, 1e4, 1), strict=True))
    best = (q @ k.mT).argmax(dim=-1)
    chosen = v.gather(2, best[..., None].expand(-1, -1, -1, C))
    everything = torch.ones_like(CAUSAL)
    torch.testing.assert_close(attend(q, k, v, everything, Scores(1.0), unseen), chosen)
    torch.testing.assert_close(attend_fast(q, k, v, everything, Scores(1.0)), chosen)


def test_scores_of_random_vectors_have_unit_deviation_after_the_scale():
    """q · k of unit normal vectors varies by C; 1/√C brings that back to 1 for any width."""
    for width in (16, 64, 256):
        q, k = random(1, 1, 200, width, seed=7), random(1, 1, 200, width, seed=8)
        seen = {}
        everything = torch.ones(1, 1, 200, 200, dtype=torch.bool)
        attend(q, k, k, everything, Scores(width**-0.5), lambda name, x, seen=seen: seen.setdefault(name, x))
        assert seen["scores_raw"].std() == pytest.approx(width**0.5, rel=0.05)
        assert seen["scores"].std() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("path", ["attend", "attend_fast"])
def test_gradients_are_those_of_the_formula(kv_heads, path):
    given = [x.requires_grad_() for x in inputs(kv_heads)]
    exact = [x.detach().double().requires_grad_() for x in given]
    g = random(B, H, T, C, seed=9)
    if path == "attend":
        attend(*given, CAUSAL, Scores(SCALE), unseen).backward(g)
    else:
        attend_fast(*given, None, Scores(SCALE)).backward(g)
    formula(*exact, CAUSAL, None).backward(g.double())
    for x, expected in zip(given, exact, strict=True):
        torch.testing.assert_close(x.grad.double(), expected.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_training_in_bfloat16_is_written_out_and_close_to_float64(kv_heads):
    given = [x.bfloat16().requires_grad_() for x in inputs(kv_heads)]
    exact = [x.detach().double().requires_grad_() for x in given]
    assert room._better_written_out(*given[:2])
    out, expected = attend_fast(*given, None, Scores(SCALE)), formula(*exact, CAUSAL, None)
    g = random(B, H, T, C, seed=9).bfloat16()
    out.backward(g)
    expected.backward(g.double())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
    for x, wanted in zip(given, exact, strict=True):
        assert x.grad.dtype == torch.bfloat16
        # 8 bits of precision, in sums of up to T · H/K terms of size 1
        torch.testing.assert_close(x.grad.double(), wanted.grad, atol=5e-2, rtol=5e-2)
    assert not given[0].grad.isnan().any()


def test_the_written_out_path_is_that_of_the_fused_kernel():
    q, k, v = (x.bfloat16() for x in inputs(2))
    written = room._causal_written_out(q, k, v, SCALE)
    fused = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE, enable_gqa=True)
    torch.testing.assert_close(written, fused, atol=2e-2, rtol=2e-2)


def test_only_training_in_bfloat16_up_to_a_length_is_written_out():
    q, k, _ = (x.bfloat16() for x in inputs(2))
    assert not room._better_written_out(q, k)
    assert not room._better_written_out(q.float().requires_grad_(), k.float())
    long = torch.empty(1, 1, room.WRITTEN_OUT + 1, 2, dtype=torch.bfloat16, requires_grad=True)
    assert not room._better_written_out(long, long)
    assert room._better_written_out(long[:, :, 1:], long[:, :, 1:])


@pytest.mark.parametrize("path", ["attend", "attend_fast"])
def test_dropout_zeroes_weights_and_keeps_their_expectation(path):
    torch.manual_seed(0)
    q, k, v = inputs(2)
    rows = [x[:1].expand(4000, -1, -1, -1) for x in (q, k, v)]
    if path == "attend":
        out = attend(*rows, CAUSAL, Scores(SCALE, dropout=0.25), unseen)
    else:
        out = attend_fast(*rows, None, Scores(SCALE, dropout=0.25))
    expected = formula(q[:1], k[:1], v[:1], CAUSAL, None)[0]
    error = out.std(dim=0) / 4000**0.5
    assert ((out.mean(dim=0) - expected).abs() < 5 * error + 1e-6).all()
    first = out[:, 0, 0] / v[0, 0, 0]  # the first query sees itself alone: its weight is 0 or 1 / 0.75
    kept = (first - 1 / 0.75).abs() < 1e-4
    assert (kept | (first == 0)).all()
    assert kept[:, 0].float().mean() == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("mask", MASKS)
def test_softcap_and_sink_are_their_formulas(mask, bias):
    """tanh squeezes what is scaled and not yet biased; a sink takes its share of the weight and gives nothing."""
    q, k, v = inputs(2)
    sink, cap = random(H, seed=7), 0.4
    seen = CAUSAL if MASKS[mask] is None else MASKS[mask]
    raw = SCALE * q.double() @ k.double().repeat_interleave(2, dim=1).mT
    found = cap * torch.tanh(raw / cap) + (0 if BIASES[bias] is None else BIASES[bias].double())
    weights = torch.where(seen, found.exp(), 0.0)
    weights = weights / (weights.sum(-1, keepdim=True) + sink.double().exp()[:, None, None])
    expected = weights @ v.double().repeat_interleave(2, dim=1)
    scores = Scores(SCALE, BIASES[bias], softcap=cap, sink=sink)
    for out in (attend(q, k, v, seen, scores, unseen), attend_fast(q, k, v, MASKS[mask], scores)):
        torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-5)
