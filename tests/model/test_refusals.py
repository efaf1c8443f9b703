"""Parts that don't fit together are refused when the spec is made, in words that name the fields."""

import pytest
from model_examples import base

from glassformer.errors import SpecError
from glassformer.model import TransformerSpec
from glassformer.spec import check, override


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["blocks.0.attention.heads=3", "blocks.0.attention.kv_heads=3"],
            ["heads (3)", "divide", "width (16)", "head_width"],
        ),
        (["blocks.0.attention.kv_heads=3"], ["blocks.0.attention", "heads (4)", "multiple of kv_heads (3)"]),
        (
            ["blocks.0.attention.head_width=5", "blocks.0.attention.position.kind=rotary"],
            ["rotary", "head_width (5)", "even"],
        ),
        (
            ["blocks.0.attention.position={kind: rotary, fraction: 0.2}"],
            ["position.fraction (0.2)", "head_width (4)", "not a single pair"],
        ),
        (["position={kind: learned, length: 10}"], ["context (12)", "learned positions (10)", "position.length"]),
        (["position.kind=rotary"], ["'rotary'", "acts inside attention", "blocks.N.attention.position"]),
        (["position.kind=alibi"], ["'alibi'", "acts inside attention", "blocks.N.attention.position"]),
        (
            ["blocks.0.attention.position={kind: learned, length: 10}"],
            ["blocks.0.attention", "'learned'", "adds to the token vectors", "model's position"],
        ),
        (["blocks.0.attention.position.kind=sinusoidal"], ["blocks.0.attention", "'sinusoidal'", "model's position"]),
        (["blocks=[]"], ["blocks", "at least 1"]),
        (["layers=0"], ["layers", "greater than or equal to 1", "got 0"]),
        (["blocks.0.attention.dropout=1"], ["blocks.0.attention.dropout", "less than 1", "got 1"]),
        (["blocks.0.attention.scale=0"], ["blocks.0.attention.scale", "greater than 0", "got 0"]),
        (["blocks.0.attention.mask={kind: window, size: 0}"], ["blocks.0.attention.mask.size", "got 0"]),
        (["blocks.0.feedforward.activation=gleu"], ["blocks.0.feedforward.activation", "'gelu'", "got 'gleu'"]),
    ],
)
def test_a_model_that_cannot_be_is_refused_with_its_fields_named(settings, words):
    with pytest.raises(SpecError) as refusal:
        check(TransformerSpec, override(base().model_dump(mode="json"), settings))
    message = str(refusal.value)
    assert "\n" not in message
    assert not [word for word in words if word not in message], message


def test_a_context_as_long_as_the_learned_positions_is_accepted():
    settings = ["position={kind: learned, length: 12}"]
    assert check(TransformerSpec, override(base().model_dump(mode="json"), settings)).position.limit == 12


def test_a_head_width_of_its_own_frees_the_heads_from_the_width():
    settings = ["blocks.0.attention.heads=3", "blocks.0.attention.kv_heads=1", "blocks.0.attention.head_width=10"]
    built = check(TransformerSpec, override(base().model_dump(mode="json"), settings)).build()
    attention = built.blocks[0].attention
    assert [tuple(part.weight.shape) for part in (attention.q, attention.k, attention.out)] == [
        (30, 16),
        (10, 16),
        (16, 30),
    ]
    assert str(attention.q.axes) == "D -> H·C"
