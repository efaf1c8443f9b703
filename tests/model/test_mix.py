"""Long texts are read in blocks: the same numbers as the plain formula, and no table of all pairs."""

from itertools import pairwise

import pytest
import torch
from model_examples import MODELS, B, T, examples, logits_of, random_model, randomised, some_tokens, with_attention
from model_examples import base as small
from plain_formula import formula_logits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glassformer.model import Step, Trace
from glassformer.model.attention import mix as room
from glassformer.model.attention.mix import mix, sight
from glassformer.model.mask import BlocksSpec, CausalSpec, WindowSpec, visible
from glassformer.model.position import AlibiSpec, Position, RelativeSpec
from glassformer.model.step import ThisPass
from glassformer.model.watch import OFF
from glassformer.ops.attend import Scores, attend

H, C = 4, 6
LENGTHS = (150, 97)
MASKS = [*examples("mask"), BlocksSpec(size=8, local=1, first=1, stride=3), WindowSpec(size=40)]


@pytest.fixture
def _always_in_blocks(monkeypatch):
    monkeypatch.setattr(room, "LONG", dict.fromkeys(room.LONG, 1))
    monkeypatch.setattr(room, "BLOCK", 16)


def drawn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def places(segmented):
    """Two rows, the second shorter, with padding at its end, and (if segmented) documents that end anywhere."""
    positions, segments = torch.full((2, LENGTHS[0]), -1), torch.full((2, LENGTHS[0]), -1)
    for row, length in enumerate(LENGTHS):
        cuts = (0, 40 + 7 * row, 90, length) if segmented else (0, length)
        for number, (start, stop) in enumerate(pairwise(cuts)):
            positions[row, start:stop] = torch.arange(stop - start)
            segments[row, start:stop] = number
    return positions, segments if segmented else None


def positions_of(kind):
    with torch.random.fork_rng(), torch.no_grad():
        if kind == "none":
            return Position()
        position = {"alibi": AlibiSpec(), "relative": RelativeSpec(buckets=8, furthest=60)}[kind].build(C, H).double()
        position.initialise(1.0)
        return position


@pytest.mark.usefixtures("_always_in_blocks")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("bias", ["none", "alibi", "relative"])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("sinking", [False, True])
def test_values_and_gradients_are_those_of_the_plain_formula(mask, kv_heads, segmented, bias, softcap, sinking):
    where, segments = places(segmented)
    given = [drawn(2, H, 150, C, seed=1), drawn(2, kv_heads, 150, C, seed=2), drawn(2, kv_heads, 150, 5, seed=3)]
    real = (where >= 0)[:, None, :, None]
    found = []
    for blocks in (True, False):
        torch.manual_seed(0)
        position = positions_of(bias)
        leaves = [x.clone().requires_grad_() for x in given]
        sink = drawn(H, seed=5).requires_grad_() if sinking else None
        step = Step(where, segments).layer(0)
        if blocks:
            scores = Scores(0.3, softcap=softcap, sink=sink)
            out = mix(tuple(leaves), scores, mask, ThisPass(where, segments, ()), step, position)
        else:
            scores = Scores(0.3, position.bias(where, where), softcap, sink)
            out = attend(*leaves, visible(mask, where, where, segments, segments), scores, OFF)
        out = torch.where(real, out, 0.0)
        out.backward(drawn(*out.shape, seed=7))
        learnt = [x.grad for x in position.parameters()]
        found.append([out.detach(), *(x.grad for x in leaves), *learnt, *([sink.grad] if sinking else [])])
    for one, other in zip(*found, strict=True):
        assert one.abs().max() > 1e-3
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-9)


@pytest.mark.usefixtures("_always_in_blocks")
@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_the_logits_of_the_formula_in_blocks(name, monkeypatch):
    monkeypatch.setattr(room, "BLOCK", 2)
    model, tokens = random_model(name), some_tokens()
    places = torch.arange(T).expand(B, T)
    torch.testing.assert_close(
        logits_of(model, tokens).double(), formula_logits(model, tokens, places), atol=2e-5, rtol=1e-5
    )


@pytest.mark.usefixtures("_always_in_blocks")
@pytest.mark.parametrize("mask", MASKS)
def test_a_block_is_left_out_only_where_nobody_sees_anything(mask):
    where, segments = places(True)
    step = Step(where, segments).layer(0)
    seeing = sight(mask, ThisPass(where, segments, ()), step, Position(), 2)
    kept, size = seeing.kept, seeing.size
    table = visible(mask, where, where, segments, segments)[:, 0]
    for row in range(2):
        for query in range(kept.size(1)):
            for key in range(kept.size(2)):
                seen = table[row, query * size : (query + 1) * size, key * size : (key + 1) * size].any()
                assert kept[row, query, key] or not seen


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.numbers = max(self.numbers, leaf.untyped_storage().nbytes() // max(1, leaf.element_size()))
        return out


@pytest.mark.parametrize(
    "part",
    [
        {"mask": BlocksSpec(size=64)},
        {"mask": WindowSpec(size=100)},
        {"softcap": 5.0},
        {"sink": True},
        {"position": AlibiSpec()},
        {"position": RelativeSpec()},
    ],
    ids=str,
)
def test_a_long_pass_makes_no_table_of_all_pairs_and_is_equal_to_the_written_out_one(part):
    model = randomised(with_attention(small().replace(layers=1, context=2200), **part))
    tokens = some_tokens(rows=1, length=2100)
    gradients = []
    for watch in (OFF, Trace("*.pattern")):
        model.zero_grad()
        with Largest() as largest:
            out = model(tokens, Step.whole(tokens, watch=watch))
            (out * drawn(*out.shape, seed=9).float()).sum().backward()
        gradients.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
        most = H * 2100 * 2100
        assert (largest.numbers < most / 3) == (watch is OFF)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-3, rtol=2e-3)


def test_work_grows_with_the_blocks_that_are_kept_and_not_with_all_pairs():
    def made(mask, length):
        where = torch.arange(length)[None]
        seeing = sight(mask, ThisPass(where, None, ()), Step(where).layer(0), Position(), 1)
        return int(seeing.kept.sum())

    assert made(WindowSpec(size=128), 16_384) == 2 * made(WindowSpec(size=128), 8192) + 1 == 255
    assert made(BlocksSpec(size=128, local=2, first=1), 16_384) == 128 + 127 + 126
    assert made(CausalSpec(), 16_384) == 128 * 129 // 2


def test_short_texts_and_plain_causal_ones_keep_the_fused_kernel(monkeypatch):
    def refused(*_):
        raise AssertionError("in blocks")

    monkeypatch.setattr(room, "attend_in_blocks", refused)
    for part, length in (({"mask": WindowSpec(size=9)}, 600), ({}, 2100), ({"softcap": 5.0}, 300)):
        model, tokens = randomised(with_attention(small(), **part)), some_tokens(rows=1, length=length)
        logits_of(model, tokens)
    with pytest.raises(AssertionError, match="in blocks"):
        logits_of(randomised(with_attention(small(), mask=WindowSpec(size=9))), some_tokens(rows=1, length=2100))
