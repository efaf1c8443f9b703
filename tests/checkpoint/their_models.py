"""Every variant of every family as a random model of transformers, the same loaded here, and passes of both."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from their_configs import VARIANTS, their_config
from transformers import GenerationConfig

from glassformer.checkpoint import load_model
from glassformer.checkpoint.families import FAMILIES
from glassformer.engine.cache import PagedCache, PagePool
from glassformer.engine.pages import Lease
from glassformer.model import Step, Trace, Transformer
from glassformer.model.step import Memory

GENERATING = [name for name, (kind, _) in VARIANTS.items() if not FAMILIES[kind].heads]
ENCODERS = [name for name in VARIANTS if name not in GENERATING]
LENGTH, TOKENS = 29, 64


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
    """The same model, loaded here."""
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


@torch.no_grad()
def their_greedy(name: str) -> tuple[torch.Tensor, torch.Tensor, Memory | None]:
    """What the decoder begins with [1, T], what they write after it [1, T + 64], and what ours has read for it."""
    model, (their_model, _) = ours(name), theirs(name)
    encoder, text = model.spec.encoder, source(1)
    prompt = some_tokens(1, 9) if encoder is None else torch.tensor([encoder.start])
    greedy = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    given, memory = {"inputs": prompt}, None
    if encoder is not None:
        memory = model.encode(text, Step.whole(text))
        given = {"inputs": text, "decoder_input_ids": prompt}
        greedy.decoder_start_token_id = encoder.start[0]
    masks = {"attention_mask": torch.ones_like(given["inputs"])}
    return prompt, their_model.generate(**given, **masks, generation_config=greedy), memory


@torch.no_grad()
def cached_greedy(model: Transformer, prompt: torch.Tensor, memory: Memory | None) -> torch.Tensor:
    """What ours writes after a prompt, with a cache."""
    pool, lease, new, written = PagePool(model), Lease(), prompt, prompt
    for _ in range(TOKENS):
        cache_ = PagedCache(pool, [lease], [new.size(1)])
        new = model(new, replace(cache_.step(), memory=memory))[:, -1:].argmax(-1)
        cache_.advance()
        written = torch.cat((written, new), dim=1)
    return written
