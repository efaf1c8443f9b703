"""Every family against transformers: the same weights give the same numbers, the same text and the same files."""

import copy
import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from their_configs import VARIANTS, families_without_a_variant, their_config
from transformers import AutoModelForCausalLM, GenerationConfig

from glassformer.checkpoint import load_model
from glassformer.checkpoint.export import export_folder
from glassformer.checkpoint.families import FAMILIES
from glassformer.checkpoint.families.base import plain
from glassformer.engine.cache import PagedCache, PagePool
from glassformer.engine.pages import Lease
from glassformer.model import Step, Trace, Transformer

every_variant = pytest.mark.parametrize("name", VARIANTS)
LENGTH = 29


@cache
def theirs(name: str) -> tuple[Any, Path]:
    """A model of theirs with every weight at random, far from where training starts, and where it is saved."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            their_config(name), attn_implementation="eager", experts_implementation="eager"
        ).eval()
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    model.generation_config.eos_token_id = None
    folder = Path(mkdtemp())
    model.save_pretrained(folder)
    return model, folder


@cache
def ours(name: str) -> Transformer:
    return load_model(theirs(name)[1]).model


def some_tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(101, (rows, length), generator=torch.Generator().manual_seed(3))


def test_every_family_has_a_variant():
    assert not families_without_a_variant(), "add one to tests/checkpoint/their_configs.py"


@every_variant
@torch.no_grad()
def test_logits_and_the_hidden_states_of_every_layer_are_theirs(name: str):
    tokens, trace = some_tokens(2, LENGTH), Trace(["*.resid_pre", "*.resid_post", "final_norm"])
    expected = theirs(name)[0](tokens, output_hidden_states=True)
    logits = ours(name)(tokens, Step.whole(tokens, watch=trace))
    torch.testing.assert_close(logits, expected.logits, atol=1e-4, rtol=0)
    layers = ours(name).spec.layers
    places = ["blocks.0.resid_pre", *(f"blocks.{i}.resid_post" for i in range(layers - 1)), "final_norm"]
    for place, hidden in zip(places, expected.hidden_states, strict=True):
        torch.testing.assert_close(trace.kept[place], hidden, atol=1e-4, rtol=0)


@every_variant
@torch.no_grad()
def test_in_float64_only_the_rounding_of_their_rotation_is_left(name: str):
    """Their frequencies are rounded to float32 on the way, and some of them compute norms in float32."""
    model, folder = theirs(name)
    tokens = some_tokens(2, LENGTH)
    wide = load_model(folder, dtype=torch.float64).model
    expected = copy.deepcopy(model).double()(tokens).logits
    torch.testing.assert_close(wide(tokens, Step.whole(tokens)), expected, atol=2e-5, rtol=0)


@every_variant
@torch.no_grad()
def test_sixty_four_greedy_tokens_are_theirs_with_and_without_a_cache(name: str):
    prompt = some_tokens(1, 9)
    greedy = GenerationConfig(max_new_tokens=64, do_sample=False, pad_token_id=0)
    expected = theirs(name)[0].generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=greedy)
    model = ours(name)
    plain = prompt
    for _ in range(64):
        plain = torch.cat((plain, model(plain, Step.whole(plain))[:, -1:].argmax(-1)), dim=1)
    assert plain.tolist() == expected.tolist()
    pool, lease, new, cached = PagePool(model), Lease(), prompt, prompt
    for _ in range(64):
        cache_ = PagedCache(pool, [lease], [new.size(1)])
        new = model(new, cache_.step())[:, -1:].argmax(-1)
        cache_.advance()
        cached = torch.cat((cached, new), dim=1)
    assert cached.tolist() == expected.tolist()


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
    back, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, experts_implementation="eager"
    )
    assert not any(report.values()), report
    tokens = some_tokens(2, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(back(tokens).logits, model(tokens).logits, atol=1e-4, rtol=0)
