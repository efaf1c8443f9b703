"""Every family against transformers: the same weights give the same numbers, the same text and the same files."""

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from their_configs import VARIANTS, families_without_a_variant, their_config
from transformers import GenerationConfig

from glassformer.checkpoint import load_model
from glassformer.checkpoint.export import export_folder
from glassformer.checkpoint.families import FAMILIES
from glassformer.checkpoint.families.base import plain
from glassformer.engine.cache import PagedCache, PagePool
from glassformer.engine.pages import Lease
from glassformer.model import Step, Trace, Transformer

every_variant = pytest.mark.parametrize("name", VARIANTS)
GENERATING = [name for name, (kind, _) in VARIANTS.items() if not FAMILIES[kind].heads]
every_generating_variant = pytest.mark.parametrize("name", GENERATING)
ENCODERS = [name for name in VARIANTS if name not in GENERATING]
LENGTH = 29


def kind_of(name: str) -> Any:
    """Their class for a variant."""
    named = VARIANTS[name][1].get("architectures", [FAMILIES[VARIANTS[name][0]].architecture])
    return getattr(transformers, named[0])


@cache
def theirs(name: str) -> tuple[Any, Path]:
    """A model of theirs with every weight at random, far from where training starts, and where it is saved."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = (
            kind_of(name)
            ._from_config(their_config(name), attn_implementation="eager", experts_implementation="eager")
            .eval()
        )
        if "head of its own" in name:
            model.config.tie_word_embeddings = False
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        computed = "embed_positions" if VARIANTS[name][0] == "marian" else "nothing"
        for parameter in (p for place, p in model.named_parameters() if computed not in place):
            parameter.add_(0.2 * torch.randn(parameter.shape))
        if "untied" in name and hasattr(model, "cls"):
            model.cls.predictions.bias.zero_()  # it is in the file, and nothing reads it
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape))
    if model.can_generate():
        model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    folder = Path(mkdtemp())
    model.save_pretrained(folder)
    return model, folder


@cache
def ours(name: str) -> Transformer:
    return load_model(theirs(name)[1]).model


def some_tokens(rows: int, length: int, seed: int = 3) -> torch.Tensor:
    """Without the first three, which mean padding, and an end, to some."""
    return torch.randint(3, 101, (rows, length), generator=torch.Generator().manual_seed(seed))


def source(rows: int = 2) -> torch.Tensor:
    return some_tokens(rows, 11, seed=4)


def their_pass(model: Any, tokens: torch.Tensor, **given: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Their logits (or what else the head gives), and the hidden states of every layer."""
    if model.config.is_encoder_decoder:
        given |= {"input_ids": source(len(tokens)), "decoder_input_ids": tokens}
        out = model(**given, output_hidden_states=True)
        return out.logits, (*out.encoder_hidden_states, *out.decoder_hidden_states)
    out = model(tokens, output_hidden_states=True, **given)
    if "start_logits" in out:
        return torch.stack((out.start_logits, out.end_logits), dim=-1), out.hidden_states
    return out["pooler_output" if "pooler_output" in out else "logits"], out.hidden_states


def our_pass(
    model: Transformer, tokens: torch.Tensor, step: Step | None = None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    trace = Trace(["*resid_pre", "*resid_post", "*final_norm"])
    stacks, memory = [("", model.spec)], None
    if model.spec.encoder is not None:
        text = source(len(tokens))
        memory = model.encode(text, Step.whole(text, watch=trace))
        stacks.insert(0, ("encoder.", model.spec.encoder))
    step = Step.whole(tokens, watch=trace, memory=memory) if step is None else replace(step, watch=trace)
    logits = model(tokens, step)
    places: list[str] = []
    for scope, stack in stacks:
        inner = [f"{scope}blocks.{index}.resid_post" for index in range(stack.layers - 1)]
        places += [f"{scope}blocks.0.resid_pre", *inner, f"{scope}final_norm"]
    return logits, [trace.kept[place] for place in places]


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
    model, (their_model, _) = ours(name), theirs(name)
    encoder = model.spec.encoder
    prompt = some_tokens(1, 9) if encoder is None else torch.tensor([encoder.start])
    greedy = GenerationConfig(max_new_tokens=64, do_sample=False, pad_token_id=0)
    given, memory = {"inputs": prompt}, None
    if encoder is not None:
        memory = model.encode(source(1), Step.whole(source(1)))
        given = {"inputs": source(1), "decoder_input_ids": prompt}
        greedy.decoder_start_token_id = encoder.start[0]
    masks = {"attention_mask": torch.ones_like(given["inputs"])}
    expected = their_model.generate(**given, **masks, generation_config=greedy)
    plain = prompt
    for _ in range(64):
        plain = torch.cat((plain, model(plain, Step.whole(plain, memory=memory))[:, -1:].argmax(-1)), dim=1)
    assert plain.tolist() == expected.tolist()
    pool, lease, new, cached = PagePool(model), Lease(), prompt, prompt
    for _ in range(64):
        cache_ = PagedCache(pool, [lease], [new.size(1)])
        new = model(new, replace(cache_.step(), memory=memory))[:, -1:].argmax(-1)
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
    back, report = kind_of(name).from_pretrained(
        tmp_path / "out", output_loading_info=True, experts_implementation="eager"
    )
    assert not any(report.values()), report
    tokens = some_tokens(2, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(their_pass(back, tokens)[0], their_pass(model, tokens)[0], atol=1e-4, rtol=0)
