"""The three forms of linear attention against its formula and each other, forward and backward, in float64."""

import pytest
import torch

from glassformer.ops.linear import Line, chunked, chunked_both_ways, features, parallel, recurrent

B, H, C, E = 2, 3, 4, 5


def drawn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def line_of(length, kind, decay):
    """Tokens of one document, of several, or with padding at the left, in the middle and at the right."""
    positions, segments = torch.arange(length).repeat(B, 1), None
    if kind == "documents":
        cuts = [(length // 3, 1, length - length // 3 - 1), (length // 2, length - length // 2)]
        positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in cuts])
        segments = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in cuts])
    if kind == "padded":
        positions[0, length // 2 :] = -1
        gap = length // 4
        positions[1] = torch.cat((torch.full((gap,), -1), torch.arange(length - gap)))
    log_decay = torch.tensor([0.9, 0.5, 1.0], dtype=torch.float64).log() if decay else None
    return Line(positions, segments, log_decay)


def visible(line, both_ways):
    positions, documents = line.positions, line.documents
    seen = (positions[:, None, :] >= 0) & (documents[:, :, None] == documents[:, None, :])
    return (seen if both_ways else seen & (positions[:, None, :] <= positions[:, :, None]))[:, None]


def formula(q, k, v, line, both_ways):
    """One query at a time."""
    seen, out = visible(line, both_ways), torch.zeros(*q.shape[:3], v.size(-1), dtype=q.dtype)
    for b in range(q.size(0)):
        for h in range(q.size(1)):
            for t in range(q.size(2)):
                keys = seen[b, 0, t].nonzero()[:, 0]
                distance = (line.positions[b, t] - line.positions[b, keys]).abs()
                fade = 1.0 if line.log_decay is None else line.log_decay[h].exp() ** distance
                weights = fade * (k[b, h, keys] @ q[b, h, t])
                if line.positions[b, t] >= 0:
                    out[b, h, t] = weights / weights.sum() @ v[b, h, keys]
    return out


def unseen(name, value):
    return value


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("kind", ["one document", "documents", "padded"])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("length", "chunk"), [(1, 64), (13, 4), (12, 4), (30, 7), (40, 32)])
def test_all_forms_are_the_formula_with_its_gradients(monkeypatch, decay, kind, both_ways, length, chunk):
    monkeypatch.setattr("glassformer.ops.linear.CHUNK", chunk)
    line = line_of(length, kind, decay)
    real = (line.positions >= 0)[:, None, :, None]
    forms = {
        "formula": lambda q, k, v: formula(q, k, v, line, both_ways),
        "parallel": lambda q, k, v: parallel(q, k, v, visible(line, both_ways), line, unseen),
    }
    if both_ways:
        forms["chunked"] = lambda q, k, v: chunked_both_ways(q, k, v, line)
    else:
        forms["chunked"] = lambda q, k, v: chunked(q, k, v, line)[0]
        forms["recurrent"] = lambda q, k, v: recurrent(q, k, v, line)[0]
    found = {}
    for name, form in forms.items():
        leaves = [drawn(B, H, length, width, seed=seed).requires_grad_() for seed, width in ((1, C), (2, C), (3, E))]
        out = torch.where(real, form(features(leaves[0]), features(leaves[1]), leaves[2]), 0.0)
        out.backward(drawn(*out.shape, seed=4))
        found[name] = [out.detach(), *(leaf.grad for leaf in leaves)]
    for name, values in found.items():
        for one, other in zip(values, found["formula"], strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10, msg=name)


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("form", [chunked, recurrent])
def test_a_text_in_pieces_is_the_whole_text(monkeypatch, decay, form):
    monkeypatch.setattr("glassformer.ops.linear.CHUNK", 4)
    length = 23
    line = line_of(length, "one document", decay)
    q, k = features(drawn(B, H, length, C, seed=1)), features(drawn(B, H, length, C, seed=2))
    v = drawn(B, H, length, E, seed=3)
    whole, last = chunked(q, k, v, line)
    parts, state, start = [], None, 0
    for size in (5, 1, 9, 8):
        part = slice(start, start + size)
        inside = Line(line.positions[:, part], None, line.log_decay)
        out, state = form(q[:, :, part], k[:, :, part], v[:, :, part], inside, state)
        parts.append(out)
        start += size
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(state, last, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("form", [chunked, recurrent])
def test_padding_leaves_the_state_as_it_was_and_what_stands_there_is_never_read(form):
    line = Line(torch.tensor([[5, 6, -1, -1], [-1, -1, -1, -1]]), None, torch.tensor([0.5, 0.9, 1.0]).double().log())
    q, k, v = (drawn(2, H, 4, width, seed=seed) for seed, width in ((1, C), (2, C), (3, E)))
    past = drawn(2, H, C, E + 1, seed=4).abs()
    out, state = form(features(q), features(k), v, line, past)
    torch.testing.assert_close(state[1], past[1], atol=0, rtol=0)
    short = Line(line.positions[:1, :2], None, line.log_decay)
    alone, after = form(features(q)[:1, :, :2], features(k)[:1, :, :2], v[:1, :, :2], short, past[:1])
    torch.testing.assert_close(out[:1, :, :2], alone, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(state[:1], after, atol=1e-12, rtol=1e-12)
    assert out.isfinite().all()


def test_a_fast_decay_over_a_long_text_stays_finite():
    """Powers of γ are taken of distances alone, never of positions, which would underflow."""
    length, log_decay = 3000, torch.tensor([0.01, 0.5, 0.999]).double().log()
    line = Line(torch.arange(length)[None], None, log_decay)
    q, k, v = (drawn(1, H, length, width, seed=seed) for seed, width in ((1, C), (2, C), (3, E)))
    out = chunked(features(q).float(), features(k).float(), v.float(), Line(line.positions, None, log_decay.float()))[0]
    exact = chunked(features(q), features(k), v, line)[0]
    torch.testing.assert_close(out.double(), exact, atol=1e-4, rtol=1e-4)


def test_memory_of_a_training_pass_grows_with_the_text_and_not_with_its_square():
    def saved(length):
        q, k, v = (drawn(1, H, length, width, seed=1).requires_grad_() for width in (C, C, E))
        total, seen = 0, set()

        def count(x):
            nonlocal total
            if x.untyped_storage().data_ptr() not in seen:
                seen.add(x.untyped_storage().data_ptr())
                total += x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            chunked(features(q), features(k), v, Line(torch.arange(length)[None]))
        return total

    assert saved(4096) < 2.2 * saved(2048)
