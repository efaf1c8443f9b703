"""An encoder in front of a decoder: what crosses over, what is remembered, what padding does."""

from itertools import pairwise

import pytest
import torch
from model_examples import B, T, base, randomised, some_tokens, with_attention, with_block
from pydantic import ValidationError

from glassformer.errors import SpecError
from glassformer.model import Step, Trace, TransformerSpec
from glassformer.model.attention.cross import CrossAttentionSpec
from glassformer.model.block import OutputNormSpec, PostNormSpec, PreNormSpec, SandwichNormSpec
from glassformer.model.embedding import TokenEmbeddingSpec
from glassformer.model.mask import BidirectionalSpec
from glassformer.model.norm import RMSNormSpec
from glassformer.model.position import RelativeSpec, RotarySpec, SharedSpec, SinusoidalSpec
from glassformer.model.stack import StackSpec
from glassformer.model.transformer import EncoderSpec

M = 5


def pair(cross: CrossAttentionSpec | None = None, **changes) -> TransformerSpec:
    """A small encoder-decoder; `changes` are of the block, on both sides."""
    reading = with_block(with_attention(base(), mask=BidirectionalSpec()), **changes)
    encoder = EncoderSpec(context=12, layers=2, blocks=reading.blocks, position=SinusoidalSpec())
    crossing = cross or CrossAttentionSpec(heads=4, kv_heads=2)
    block = base().blocks[0].replace(cross=crossing, **changes)
    return base().replace(blocks=(block,), encoder=encoder, position=SinusoidalSpec())


def shared_bias() -> TransformerSpec:
    spec = pair()
    own = [
        stack.blocks[0].replace(attention=stack.blocks[0].attention.replace(position=SharedSpec()))
        for stack in (spec.encoder, spec)
    ]
    encoder = spec.encoder.replace(blocks=(own[0],), position=RelativeSpec(bidirectional=True))
    return spec.replace(blocks=(own[1],), position=RelativeSpec(), encoder=encoder)


def own_embedding() -> TransformerSpec:
    spec = pair()
    own = TokenEmbeddingSpec(types=2, norm=RMSNormSpec())
    return spec.replace(encoder=spec.encoder.replace(embedding=own, layers=3))


PAIRS = {
    "pre": pair(),
    "post": pair(wiring=PostNormSpec()),
    "output": pair(wiring=OutputNormSpec()),
    "sandwich": pair(wiring=SandwichNormSpec()),
    "scaled": pair(wiring=PreNormSpec(scale=0.5)),
    "biases and norms": pair(
        CrossAttentionSpec(heads=2, kv_heads=2, bias=True, out_bias=True, qk_norm=RMSNormSpec(), scale=0.3)
    ),
    "shared bias": shared_bias(),
    "own embedding": own_embedding(),
}
every_pair = pytest.mark.parametrize("name", PAIRS)


def source(rows: int = B, length: int = M) -> torch.Tensor:
    return some_tokens(rows, length, seed=7)


def read(model, tokens, text, step=None, watch=None):
    """The logits for tokens after a text, both whole."""
    given = {} if watch is None else {"watch": watch}
    memory = model.encode(text, step or Step.whole(text, **given))
    return model(tokens, Step.whole(tokens, memory=memory, **given))


@every_pair
def test_every_token_reads_the_source_and_every_part_learns(name):
    model, tokens, text = randomised(PAIRS[name]), some_tokens(), source()
    logits = read(model, tokens, text)
    (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    if name != "own embedding":  # of two types of tokens one is there
        assert all(p.grad.abs().max() > 1e-4 for p in model.parameters())
    for place in range(M):
        other = text.clone()
        other[:, place] = (text[:, place] + 1) % model.spec.vocabulary
        assert ((read(model, tokens, other) - logits).abs().amax(-1) > 1e-4).all()


@every_pair
@torch.no_grad()
def test_watching_shows_exactly_the_points_and_editing_any_of_them_acts(name):
    model, tokens, text = randomised(PAIRS[name]), some_tokens(), source()
    plain, trace = read(model, tokens, text), Trace()
    torch.testing.assert_close(read(model, tokens, text, watch=trace), plain, atol=1e-5, rtol=1e-5)
    stated = {name: point.shape(B=B, T=T, S=T, M=M) for name, point in model.spec.points().items()}
    assert {name: tuple(value.shape) for name, value in trace.kept.items()} == stated
    assert list(trace.kept) == list(stated)
    cross = trace.kept["blocks.1.cross.pattern"]
    torch.testing.assert_close(cross.sum(-1), torch.ones(cross.shape[:-1]))
    for point in stated:
        if "pattern" in point or "mask" in point:
            continue
        edit = Trace(keep=(), edits={point: lambda value: value + torch.randn_like(value)})
        assert (read(model, tokens, text, watch=edit) - plain).abs().max() > 1e-4, f"editing {point} does nothing"


@every_pair
@torch.no_grad()
def test_padding_of_a_source_is_never_read(name):
    model, tokens, text = randomised(PAIRS[name]), some_tokens(), source()
    real = torch.tensor([[True] * M, [True, True, False, False, False]])
    memory = model.encode(text, Step.padded(text, real))
    logits = model(tokens, Step.whole(tokens, memory=memory))
    assert logits.isfinite().all()
    for row in range(B):
        alone = read(model, tokens[row : row + 1], text[row : row + 1, real[row]])[0]
        torch.testing.assert_close(logits[row], alone, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_keys_and_values_of_a_source_are_made_once_however_many_passes_read_them():
    model, text = randomised(PAIRS["pre"]), source()
    made = [0] * model.spec.layers
    for index, block in enumerate(model.blocks):

        def count(module, given, result, index=index):
            made[index] += 1

        block.cross.k.register_forward_hook(count)
    memory = model.encode(text, Step.whole(text))
    first = [model(some_tokens(seed=seed), Step.whole(some_tokens(seed=seed), memory=memory)) for seed in range(4)]
    assert made == [1, 1]
    assert len({float(logits.sum()) for logits in first}) == 4
    assert [tuple(part.shape) for part in memory.made[0]] == [(B, M, 2, 4)] * 2


@torch.no_grad()
def test_rows_of_a_memory_can_be_taken_in_another_order():
    model, text, tokens = randomised(PAIRS["pre"]), source(), some_tokens(rows=1)
    memory = model.encode(text, Step.whole(text))
    both = tokens.expand(B, -1)
    logits = model(both, Step.whole(both, memory=memory))
    turned = memory.take(torch.tensor([1, 0, 1]))
    three = tokens.expand(3, -1)
    again = model(three, Step.whole(three, memory=turned))
    torch.testing.assert_close(again, logits[[1, 0, 1]], atol=1e-6, rtol=1e-6)


def test_a_pass_without_a_source_is_refused():
    model, tokens = randomised(PAIRS["pre"]), some_tokens()
    with pytest.raises(SpecError, match="reads a source, and the pass has none"):
        model(tokens, Step.whole(tokens))
    with pytest.raises(SpecError, match="has no encoder"):
        randomised(base()).encode(tokens, Step.whole(tokens))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (lambda: pair().replace(encoder=None), "the model has none"),
        (lambda: base().replace(encoder=PAIRS["pre"].encoder), "no block reads it"),
        (lambda: pair(CrossAttentionSpec(heads=3, kv_heads=3)), "must divide width"),
        (lambda: CrossAttentionSpec(heads=3, kv_heads=2), "must be a multiple of kv_heads"),
        (lambda: pair().replace(encoder=pair().encoder.replace(blocks=pair().blocks)), "belongs to the decoder"),
        (lambda: pair().replace(encoder=pair().encoder.replace(position=RotarySpec())), "acts inside attention"),
    ],
)
def test_parts_that_do_not_fit_are_refused(spec, message):
    with pytest.raises((SpecError, ValidationError), match=message):
        spec()


def test_an_encoder_and_a_decoder_are_the_same_stack():
    assert issubclass(EncoderSpec, StackSpec)
    assert issubclass(TransformerSpec, StackSpec)
    model = PAIRS["own embedding"].build()
    layers = [type(block) for block in (*model.blocks, *model.encoder.blocks)]
    assert len(layers) == 5
    assert all(one is other for one, other in pairwise(layers))
