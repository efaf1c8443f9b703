"""Any model against any family: it is expressed whole, or refused in words."""

import sys
from pathlib import Path

import pytest

from glassformer.checkpoint.families import FAMILIES
from glassformer.checkpoint.families.base import MisfitError, plain

sys.path.insert(0, str(Path(__file__).parent.parent / "model"))

from model_examples import MODELS
from test_encoder_decoder import PAIRS

ALL = {**MODELS, **{f"pair-{name}": spec for name, spec in PAIRS.items()}}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_model_is_expressed_whole_or_refused_by_the_names_of_its_fields(family):
    expressed, refusals = 0, dict[str, MisfitError]()
    for name, spec in ALL.items():
        try:
            config = FAMILIES[family].config(spec)
        except MisfitError as error:
            refusals[name] = error
            continue
        expressed += 1
        widened = FAMILIES[family].widen(spec)
        assert plain(FAMILIES[family].spec(config)) == plain(widened), name
    for name, refusal in refusals.items():
        assert refusal.fields > 0
        assert f"is no {FAMILIES[family].architecture_of(ALL[name])}: " in refusal.what, name
    assert expressed < len(ALL)
