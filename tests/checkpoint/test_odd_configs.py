"""Fields of a config.json with values of another type than they have: refused by name, unless nothing reads them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from their_configs import VARIANTS, their_config

from glassformer.checkpoint.families import FAMILIES
from glassformer.checkpoint.families.base import Family
from glassformer.errors import CheckpointError

OF_SCALING = ("rope_scaling", "rope_parameters")


def fields(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Every number and truth value of a config: what to call it, the table it stands in, and its name there."""
    for name, value in config.items():
        if isinstance(value, int | float):
            yield name, config, name
        if name in OF_SCALING and isinstance(value, dict):
            yield from ((f"{name}.{inner}", value, inner) for inner in value if isinstance(value[inner], int | float))


def spec_or_none(family: Family, config: dict[str, Any]) -> Any:
    try:
        return family.spec(config)
    except CheckpointError:
        return None


@pytest.mark.parametrize("name", VARIANTS)
def test_a_text_is_no_number_and_no_truth_value(name: str):
    family, config = FAMILIES[VARIANTS[name][0]], json.loads(their_config(name).to_json_string(use_diff=False))
    usual, read, taken = family.spec(config), list[str](), list[str]()
    for called, table, field in fields(config):
        value = table[field]
        table[field] = not value if isinstance(value, bool) else value * 2 + 1
        if spec_or_none(family, config) != usual:
            read.append(called)
            table[field] = "maybe" if isinstance(value, bool) else str(value)
            try:
                family.spec(config)
            except CheckpointError as error:
                if field not in error.what:
                    taken.append(f"{called}: {error.what}")
            else:
                taken.append(called)
        table[field] = value
    assert len(read) >= 8  # the test looks at the fields that a family reads
    assert not taken
