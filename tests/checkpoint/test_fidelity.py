"""Every family against transformers: the same weights give the same numbers, the same text and the same files."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from their_configs import VARIANTS, families_without_a_variant
from their_models import (
    ENCODERS,
    GENERATING,
    LENGTH,
    TOKENS,
    cached_greedy,
    kind_of,
    our_pass,
    ours,
    some_tokens,
    their_greedy,
    their_pass,
    theirs,
)

from glassformer.checkpoint import load_model
from glassformer.checkpoint.export import export_folder
from glassformer.checkpoint.families import FAMILIES
from glassformer.checkpoint.families.base import plain
from glassformer.model import Step

every_variant = pytest.mark.parametrize("name", VARIANTS)
every_generating_variant = pytest.mark.parametrize("name", GENERATING)


def test_every_family_has_a_variant():
    assert not families_without_a_variant(), "add one to tests/checkpoint/their_configs.py"


@every_variant
@torch.no_grad()
def test_logits_and_the_hidden_states_of_every_layer_are_theirs(name: str):
    tokens = some_tokens(2, LENGTH)
    (expected, states), (logits, hidden) = their_pass(theirs(name)[0], tokens), our_pass(ours(name), tokens)
    assert logits.std() > 0.05
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    for mine, state in zip(hidden, states, strict=True):
        torch.testing.assert_close(mine, state, atol=1e-4, rtol=0)


@every_variant
@torch.no_grad()
def test_in_float64_only_the_rounding_of_their_rotation_is_left(name: str):
    """Their frequencies are rounded to float32 on the way, and some of them compute norms in float32."""
    model, folder = theirs(name)
    tokens = some_tokens(2, LENGTH)
    wide = load_model(folder, dtype=torch.float64).model
    expected, _ = their_pass(copy.deepcopy(model).double(), tokens)
    exact = VARIANTS[name][0] in ("gpt2", "bert", "roberta", "distilbert", "bart")
    torch.testing.assert_close(our_pass(wide, tokens)[0], expected, atol=1e-10 if exact else 5e-5, rtol=0)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_rows_of_unlike_length_are_read_as_theirs(name: str):
    model, tokens = ours(name), some_tokens(2, LENGTH)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, 17:] = False
    step = Step.padded(tokens, real)
    (expected, _), (logits, _) = (
        their_pass(theirs(name)[0], tokens, attention_mask=real.long()),
        our_pass(model, tokens, step),
    )
    if "T" in model.spec.head.logits.split():
        expected, logits = expected[real], logits[real]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["bert", "bert untied", "roberta sentences"])
@torch.no_grad()
def test_texts_of_a_pair_are_told_apart_as_theirs(name: str):
    tokens = some_tokens(2, LENGTH)
    types = (torch.arange(LENGTH) > 12).long().expand(2, -1)
    step = replace(Step.whole(tokens), types=types)
    (expected, _), (logits, _) = (
        their_pass(theirs(name)[0], tokens, token_type_ids=types),
        our_pass(ours(name), tokens, step),
    )
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    assert (our_pass(ours(name), tokens)[0] - logits).abs().max() > 1e-3


@every_generating_variant
@torch.no_grad()
def test_sixty_four_greedy_tokens_are_theirs_with_and_without_a_cache(name: str):
    model, (prompt, expected, memory) = ours(name), their_greedy(name)
    written = prompt
    for _ in range(TOKENS):
        written = torch.cat((written, model(written, Step.whole(written, memory=memory))[:, -1:].argmax(-1)), dim=1)
    assert written.tolist() == expected.tolist()
    assert cached_greedy(model, prompt, memory).tolist() == expected.tolist()


@every_variant
def test_what_was_imported_is_exported_to_the_same_tensors_and_loads_there(name: str, tmp_path: Path):
    model, folder = theirs(name)
    kind = VARIANTS[name][0]
    export_folder(ours(name), None, tmp_path / "out", kind)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert plain(FAMILIES[kind].spec(config)) == plain(ours(name).spec)
    back, report = kind_of(name).from_pretrained(
        tmp_path / "out", output_loading_info=True, experts_implementation="eager"
    )
    assert not any(report.values()), report
    tokens = some_tokens(2, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(their_pass(back, tokens)[0], their_pass(model, tokens)[0], atol=1e-4, rtol=0)
