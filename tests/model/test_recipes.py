"""Recipes have the published sizes and the parts that the papers name."""

import pytest
from model_examples import with_block

from glassformer.model.count import parameters_by_part
from glassformer.model.recipes import gpt2, llama


@pytest.mark.parametrize(
    ("layers", "width", "heads", "parameters"),
    [
        (12, 768, 12, 124_439_808),
        (24, 1024, 16, 354_823_168),
        (36, 1280, 20, 774_030_080),
        (48, 1600, 25, 1_557_611_200),
    ],
)
def test_gpt2_has_its_published_sizes(layers, width, heads, parameters):
    spec = gpt2(50257, layers=layers, width=width, heads=heads, context=1024)
    assert parameters_by_part(spec)["total"] == parameters
    V, T, D = 50257, 1024, width
    assert parameters == V * D + T * D + layers * (12 * D * D + 13 * D) + 2 * D


@pytest.mark.parametrize(
    ("sizes", "hidden", "vocabulary", "parameters"),
    [
        ({"layers": 32, "width": 4096, "heads": 32, "kv_heads": 32, "context": 2048}, 11008, 32_000, 6_738_415_616),
        ({"layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "context": 4096}, 28672, 32_000, 68_976_648_192),
        ({"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "context": 8192}, 14336, 128_256, 8_030_261_248),
    ],
    ids=["Llama 7B", "Llama 2 70B", "Llama 3 8B"],
)
def test_llama_has_its_published_sizes_with_the_published_hidden_width(sizes, hidden, vocabulary, parameters):
    spec = llama(vocabulary, **sizes)
    feedforward = spec.blocks[0].feedforward.replace(hidden=hidden)
    assert parameters_by_part(with_block(spec, feedforward=feedforward))["total"] == parameters


@pytest.mark.parametrize(("width", "hidden"), [(96, 256), (64, 192), (4096, 10944), (12, 32)])
def test_the_hidden_width_of_llama_is_eight_thirds_up_to_a_multiple_of_32(width, hidden):
    spec = llama(50, layers=1, width=width, heads=2, kv_heads=1, context=8)
    assert spec.blocks[0].feedforward.hidden == hidden
    assert hidden - 32 < 8 * width / 3 <= hidden


def kinds(spec):
    block = spec.blocks[0]
    parts = (spec.position, block.attention.position, block.attention.mask, block.norm, spec.norm, spec.head)
    return [part.kind for part in (*parts, block.feedforward, block.wiring)] + [block.feedforward.activation]


def test_gpt2_and_llama_are_made_of_their_parts():
    small = gpt2(50, layers=1, width=8, heads=2, context=8, dropout=0.1)
    assert kinds(small) == ["learned", "none", "causal", "layer", "layer", "tied", "mlp", "pre", "gelu_tanh"]
    block = small.blocks[0]
    assert (small.embedding.dropout, block.attention.dropout, block.wiring.dropout) == (0.1, 0.1, 0.1)
    assert block.attention.bias
    assert block.attention.out_bias
    assert block.feedforward.bias
    larger = llama(50, layers=1, width=8, heads=2, kv_heads=1, context=8)
    assert kinds(larger) == ["none", "rotary", "causal", "rms", "rms", "untied", "gated", "pre", "silu"]
    assert llama(50, layers=1, width=8, heads=2, kv_heads=1, context=8, tied=True).head.kind == "tied"


def test_gpt2_without_bias_has_none_anywhere():
    built = gpt2(50, layers=1, width=8, heads=2, context=8, bias=False).build()
    assert not [name for name, _ in built.named_parameters() if name.endswith("bias")]
