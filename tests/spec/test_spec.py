"""Specs as data: what is refused, in which words, and what comes back from JSON and YAML."""

import json
import math
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from glassformer.errors import SpecError
from glassformer.spec import Spec, check, describe, members, read


class ConstantSpec(Spec):
    kind: Literal["constant"] = "constant"
    value: float = 1.0


class RampSpec(Spec):
    kind: Literal["ramp"] = "ramp"
    steps: int = Field(ge=1)
    peak: float = Field(default=1.0, gt=0)


CurveSpec = Annotated[ConstantSpec | RampSpec, Field(discriminator="kind")]


class PlanSpec(Spec):
    name: str = "计划"
    curve: CurveSpec = ConstantSpec()
    parts: tuple[CurveSpec, ...] = ()
    limit: float | None = None


def refusal(tree, kind=PlanSpec, **given) -> str:
    with pytest.raises(SpecError) as error:
        check(kind, tree, **given)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_json_gives_back_an_equal_spec(tmp_path):
    spec = PlanSpec(curve=RampSpec(steps=3), parts=(ConstantSpec(value=2), RampSpec(steps=1)), limit=0.1)
    path = tmp_path / "plan.json"
    path.write_text(spec.to_json(), encoding="utf-8")
    assert read(PlanSpec, path) == spec
    assert "计划" in spec.to_json()
    assert json.loads(spec.to_json())["parts"][1] == {"kind": "ramp", "steps": 1, "peak": 1.0}


def test_a_spec_cannot_be_changed_but_replaced():
    spec = PlanSpec()
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "other"
    assert spec.replace(name="other") == PlanSpec(name="other")
    assert spec.name == "计划"
    assert hash(spec) == hash(PlanSpec())


def test_a_replacement_is_checked_as_a_whole():
    with pytest.raises(SpecError, match=r"steps: .*greater than or equal to 1, got 0"):
        RampSpec(steps=2).replace(steps=0)
    with pytest.raises(SpecError, match="did you mean 'steps'"):
        RampSpec(steps=2).replace(step=3)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"nmae": "x"}, "unknown field 'nmae'; did you mean 'name'?"),
        ({"curve": {"kind": "ramp", "stesp": 3}}, "curve: unknown field 'stesp'; did you mean 'steps'?"),
        (
            {"parts": [{"kind": "constant"}, {"kind": "ramp", "steps": 2, "peek": 3}]},
            "parts.1: unknown field 'peek'; did you mean 'peak'?",
        ),
        ({"zzz": 1}, "unknown field 'zzz'; known: name, curve, parts, limit"),
        ({"curve": {"kind": "rmap", "steps": 3}}, "curve: unknown kind 'rmap'; did you mean 'ramp'?"),
        ({"parts": [{"kind": "x"}]}, "parts.0: unknown kind 'x'; known: constant, ramp"),
    ],
)
def test_an_unknown_name_is_refused_with_its_path_and_what_was_probably_meant(tree, message):
    assert refusal(tree) == message


def test_the_path_of_a_wrong_value_is_the_one_that_a_user_writes():
    """The kind of a union's member is no part of it: `--set parts.1.steps=2` would be the remedy."""
    wrong = {"parts": [{"kind": "constant"}, {"kind": "ramp", "steps": 0}], "curve": {"kind": "ramp"}}
    assert refusal(wrong) == (
        "curve.steps: Field required; parts.1.steps: Input should be greater than or equal to 1, got 0"
    )


def test_a_missing_kind_is_said_to_be_missing():
    assert refusal({"curve": {"steps": 3}}).startswith("curve: ")
    assert "kind" in refusal({"curve": {"steps": 3}})


def test_the_place_of_the_mistake_and_no_more_than_three_are_told():
    wrong = {"parts": [{"kind": "ramp", "steps": -n} for n in range(5)]}
    message = refusal(wrong, where="plan.yaml")
    assert message.startswith("plan.yaml: parts.0.steps: ")
    assert message.endswith("; and 2 more")
    assert message.count("greater than") == 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "inf"])
def test_numbers_that_are_none_are_refused(value):
    assert refusal({"curve": {"kind": "constant", "value": value}}).startswith("curve.value: ")
    assert refusal({"limit": value}).startswith("limit: ")


def test_an_integer_is_taken_for_a_float_and_half_a_thing_for_no_integer():
    value = check(PlanSpec, {"limit": 3}).limit
    assert (value, type(value)) == (3.0, float)
    assert check(RampSpec, {"steps": 2.0}).steps == 2
    assert refusal({"steps": 2.5}, RampSpec).startswith("steps: ")


def test_something_that_is_no_mapping_is_refused():
    assert "got" in refusal(7)
    assert refusal({"curve": 7}).startswith("curve: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "expected a mapping of fields, got list"),
        ("", "expected a mapping of fields, got NoneType"),
        ("name: [1,\ncurve: 2\n", "not valid YAML"),
        ("nam: x\n", "did you mean 'name'"),
    ],
)
def test_a_bad_config_file_is_one_line_that_names_it(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as error:
        read(PlanSpec, path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_file_that_is_missing_a_folder_or_no_text_is_said_to_be(tmp_path):
    with pytest.raises(SpecError, match="no such config file"):
        read(PlanSpec, tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="can't read the config file"):
        read(PlanSpec, tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="can't read the config file"):
        read(PlanSpec, tmp_path / "binary")


def test_members_are_the_classes_of_a_union_in_order():
    assert members(CurveSpec) == (ConstantSpec, RampSpec)
    assert members(ConstantSpec | RampSpec) == (ConstantSpec, RampSpec)
    assert members(RampSpec) == (RampSpec,)


def test_a_pydantic_error_is_one_line_without_its_data_too():
    with pytest.raises(ValidationError) as error:
        RampSpec(steps=0, peak=-1)
    line = describe(error.value)
    assert (
        line == "steps: Input should be greater than or equal to 1, got 0; peak: Input should be greater than 0, got -1"
    )


def test_an_error_says_what_where_and_what_to_do():
    error = SpecError("3 heads don't divide 16", where="config.yaml", do="choose 4")
    assert str(error) == "config.yaml: 3 heads don't divide 16 (choose 4)"
    assert (error.what, error.where, error.do) == ("3 heads don't divide 16", "config.yaml", "choose 4")
    assert str(SpecError("no")) == "no"
    assert isinstance(error, ValueError)
