"""`--set path.to.field=value` on the plain data of a spec."""

import pytest

from glassformer.errors import SpecError
from glassformer.model.recipes import gpt2
from glassformer.model.transformer import TransformerSpec
from glassformer.spec import check, override

TREE = gpt2(50, layers=2, width=16, heads=4, context=8).model_dump(mode="json")


def made(*settings: str) -> TransformerSpec:
    return check(TransformerSpec, override(TREE, settings))


@pytest.mark.parametrize(
    ("text", "value"), [("3e-4", 3e-4), ("3E-4", 3e-4), ("0.5", 0.5), ("1", 1.0), ("1e2", 100.0), (".25", 0.25)]
)
def test_floats_may_be_written_in_every_usual_way(text, value):
    std = made(f"init.std={text}").init.std
    assert (std, type(std)) == (value, float)


def test_integers_texts_switches_and_nothing_arrive_as_such():
    spec = made(
        "layers=3",
        "blocks.0.attention.bias=false",
        "blocks.0.feedforward.activation=silu",
        "blocks.0.attention.qk_norm={kind: rms, eps: 1e-6}",
    )
    assert (spec.layers, spec.blocks[0].attention.bias, spec.blocks[0].feedforward.activation) == (3, False, "silu")
    assert spec.blocks[0].attention.qk_norm.eps == 1e-6
    again = check(TransformerSpec, override(spec.model_dump(mode="json"), ["blocks.0.attention.qk_norm=null"]))
    assert again.blocks[0].attention.qk_norm is None


def test_later_settings_win_and_the_tree_itself_is_left_alone():
    before = gpt2(50, layers=2, width=16, heads=4, context=8).model_dump(mode="json")
    assert override(TREE, ["layers=3", "layers=4"])["layers"] == 4
    assert before == TREE


def test_a_new_kind_starts_fresh_and_the_same_kind_keeps_its_fields():
    spec = made("init.std=0.5", "init.kind=normal")
    assert spec.init.std == 0.5
    spec = made("init.std=0.5", "init.kind=quiet", "init.gain=2")
    assert spec.init.model_dump() == {"kind": "quiet", "embedding": 1.0, "gain": 2.0, "head": 0.0}
    with pytest.raises(SpecError, match=r"blocks\.0\.feedforward\.hidden: Field required"):
        made("blocks.0.feedforward.kind=gated")
    assert (
        made("blocks.0.feedforward.kind=gated", "blocks.0.feedforward.hidden=24").blocks[0].feedforward.kind == "gated"
    )


def test_a_part_that_was_nothing_is_made_on_the_way():
    assert made("embedding.norm.kind=layer", "embedding.norm.eps=0.1").embedding.norm.eps == 0.1


def test_an_equals_sign_may_stand_in_the_value():
    assert override({"name": "x"}, ["name=a=b"]) == {"name": "a=b"}


@pytest.mark.parametrize("text", ["[1,", "{a", "2024-13-45", "'"])
def test_what_is_no_yaml_is_taken_as_text(text):
    assert override({"name": "x"}, [f"name={text}"]) == {"name": text}


def test_items_of_a_list_are_named_by_number():
    tree = {"parts": [{"a": 1}, 2]}
    assert override(tree, ["parts.0.a=5", "parts.1=7"]) == {"parts": [{"a": 5}, 7]}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("layers", "--set: expected path.to.field=value, got 'layers'"),
        ("=3", "--set: expected path.to.field=value, got '=3'"),
        ("layers.x=3", "--set: layers is the value 2, it has no fields"),
        ("blocks.1.norm=3", "--set: blocks.1: expected a number from 0 to 0, got '1'"),
        ("blocks.first.norm=3", "--set: blocks.first: expected a number from 0 to 0, got 'first'"),
        ("blocks.-1.norm=3", "--set: blocks.-1: expected a number from 0 to 0, got '-1'"),
        ("blocks.²=3", "--set: blocks.²: expected a number from 0 to 0, got '²'"),
        ("layer=3", "unknown field 'layer'; did you mean 'layers'?"),
        ("optimiser.rate=3", "unknown field 'optimiser'; known: context, layers"),
        ("blocks.0.attention.head=3", "blocks.0.attention: unknown field 'head'; did you mean 'heads'?"),
        (
            "blocks.0.attention.position.kind=rotory",
            "blocks.0.attention.position: unknown kind 'rotory'; did you mean 'rotary'?",
        ),
        ("init.std=.nan", "init.std: "),
        ("init.std=.inf", "init.std: "),
        ("init.std=small", "init.std: Input should be a valid number, unable to parse string as a number, got 'small'"),
        ("layers=2.5", "layers: "),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_words_that_say_which(setting, message):
    with pytest.raises(SpecError) as refusal:
        made(setting)
    assert str(refusal.value).startswith(message)
