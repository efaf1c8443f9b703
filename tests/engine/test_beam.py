"""Beam search against an exhaustive search, and against transformers."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration

from decoders import build, decoder_spec, mixed_spec
from glassformer.checkpoint import load_model
from glassformer.engine.beam import BeamParams, beam_search
from glassformer.model import Step
from glassformer.model.position import RotarySpec
from seq2seq_models import seq2seq_spec

END = 1


@torch.no_grad()
def worth_of_all(model, start, texts, memory, params):
    """The log-probability of every text and its score, by the formula, from passes over whole texts."""
    worth = {}
    for length in {len(text) for text in texts}:
        group = [text for text in texts if len(text) == length]
        rows = torch.zeros(len(group), dtype=torch.long)
        tokens = torch.tensor([[*start, *text] for text in group])
        step = Step.whole(tokens, memory=None if memory is None else memory.take(rows))
        logits = model(tokens, step).double().log_softmax(-1)[:, len(start) - 1 :]
        base = (5 + length) / 6 if params.formula == "gnmt" else length
        for row, text in zip(logits, group, strict=True):
            logprob = math.fsum(float(row[place, token]) for place, token in enumerate(text))
            worth[text] = logprob, logprob / base**params.length_penalty
    return worth


def every_text(vocabulary, longest):
    """All texts of up to `longest` tokens: those that end early, and those that are cut off."""
    for length in range(1, longest + 1):
        for text in itertools.product(range(vocabulary), repeat=length):
            ends = [place for place, token in enumerate(text) if token == END]
            if (ends == [length - 1]) or (not ends and length == longest):
                yield text


@pytest.mark.parametrize("formula", ["gnmt", "power"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("kind", ["decoder", "relative", "sinusoidal"])
def test_with_beams_enough_the_best_of_all_texts_is_found(kind, penalty, formula):
    vocabulary, longest = 4, 4
    params = BeamParams(beams=128, length_penalty=penalty, formula=formula, max_tokens=longest)
    memory, start = None, (2, 3)
    if kind == "decoder":
        model = build(decoder_spec(RotarySpec(), vocabulary=vocabulary))
    else:
        model, start = build(seq2seq_spec(kind, vocabulary)), (0,)
        source = torch.tensor([[2, 3, 3, 2]])
        with torch.no_grad():
            memory = model.encode(source, Step.whole(source))
    found = beam_search(model, [start], [END], params, memory)[0]
    texts = worth_of_all(model, start, list(every_text(vocabulary, longest)), memory, params)
    best = sorted(texts, key=lambda text: -texts[text][1])[:20]
    assert [one.tokens for one in found[:20]] == best
    for one in found[:20]:
        assert (one.logprob, one.score) == pytest.approx(texts[one.tokens], abs=1e-4)


def their_model(kind: str, folder: Path):
    torch.manual_seed(7)
    common = {"vocab_size": 41, "d_model": 24, "pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 0}
    if kind == "t5":
        sizes = {"num_layers": 2, "num_heads": 4, "d_kv": 6, "d_ff": 40}
        model = T5ForConditionalGeneration(T5Config(**common, **sizes))
    else:
        sizes = {f"{side}_{name}": value for side in ("encoder", "decoder")
                 for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 40))}  # fmt: skip
        model = MarianMTModel(MarianConfig(**common, **sizes, forced_eos_token_id=None, max_position_embeddings=64))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(0.25 * torch.randn(parameter.shape))
        if kind == "marian":
            model.final_logits_bias[0, END] = 3.0
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("penalty", [0.0, 1.0, 1.7])
@pytest.mark.parametrize("kind", ["t5", "marian"])
@pytest.mark.parametrize("never", [(), (4, 9, 17, 23, 31)])
def test_beams_are_those_of_transformers(kind, penalty, never, tmp_path):
    theirs, ours = their_model(kind, tmp_path), load_model(tmp_path).model
    source = torch.randint(3, 41, (6, 9), generator=torch.Generator().manual_seed(2))
    config = GenerationConfig(
        num_beams=4, num_return_sequences=4, length_penalty=penalty, early_stopping="never", max_new_tokens=12,
        do_sample=False, pad_token_id=0, eos_token_id=END, decoder_start_token_id=0, output_scores=True,
        return_dict_in_generate=True, bad_words_ids=[[token] for token in never] or None,
    )  # fmt: skip
    masks = torch.ones_like(source)
    expected = theirs.generate(source, attention_mask=masks, generation_config=config)
    params = BeamParams(beams=4, length_penalty=penalty, formula="power", max_tokens=12)
    with torch.no_grad():
        memory = ours.encode(source, Step.whole(source))
    found = beam_search(ours, [[0]] * 6, [END], params, memory, never)
    texts = [[*one.tokens] for row in found for one in row]
    assert not set(never) & {token for text in texts for token in text}
    assert texts == [cut(row[1:]) for row in expected.sequences.tolist()]
    scores = torch.tensor([one.score for row in found for one in row])
    torch.testing.assert_close(scores, expected.sequences_scores, atol=1e-4, rtol=0)
    assert any(END in text for text in texts)


def cut(text):
    """Up to its end."""
    return text[: text.index(END) + 1] if END in text else text


def test_beams_of_a_model_with_states_are_those_of_whole_passes():
    """A state goes with its beam: each text found has the log-probability that a pass over the whole of it gives."""
    model, prompt = build(mixed_spec()), [3, 14, 15]
    params = BeamParams(beams=4, max_tokens=6, length_penalty=0)
    found = beam_search(model, [prompt], [], params)[0]
    assert len({one.tokens for one in found}) == 4
    for one in found:
        row = torch.tensor([[*prompt, *one.tokens]])
        with torch.no_grad():
            chances = model(row, Step.whole(row)).double().log_softmax(-1)[0, len(prompt) - 1 : -1]
        expected = chances.gather(1, torch.tensor(one.tokens)[:, None]).sum()
        assert one.logprob == pytest.approx(float(expected), abs=1e-4)


def test_one_beam_is_greedy():
    model = build(decoder_spec(RotarySpec()))
    params = BeamParams(beams=1, max_tokens=15)
    found = beam_search(model, [[5, 6], [7, 8]], [], params)
    for prompt, (best,) in zip(([5, 6], [7, 8]), found, strict=True):
        tokens = list(prompt)
        for _ in range(15):
            row = torch.tensor([tokens])
            with torch.no_grad():
                tokens.append(int(model(row, Step.whole(row))[0, -1].argmax()))
        assert best.tokens == tuple(tokens[2:])


def test_more_beams_find_no_worse_texts():
    model = build(seq2seq_spec("relative", 30))
    source = torch.randint(2, 30, (5, 8), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        memory = model.encode(source, Step.whole(source))
    best = [
        [row[0].score for row in beam_search(model, [[0]] * 5, [END], BeamParams(beams=k, max_tokens=10), memory)]
        for k in (1, 30)
    ]
    assert all(wide >= narrow - 1e-9 for narrow, wide in zip(*best, strict=True))
    assert best[0] != best[1]
