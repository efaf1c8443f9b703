"""Encoder-decoders in the engine: a source is read once, and what is written depends on it alone."""

import pytest
import torch

from decoders import build
from glassformer.engine import Engine, EngineSpec, SamplingParams
from glassformer.errors import RequestError
from glassformer.model import Step
from glassformer.model.position import LearnedSpec, SinusoidalSpec
from glassformer.tokenizer import train_tokenizer
from seq2seq_models import seq2seq_spec

TEXT = "the quick brown fox jumps over the lazy dog, 今天天气真好\n"
TOKENIZER = train_tokenizer("char", [TEXT])
SOURCES = ["the quick", "d", "over the lazy dog, the fox", "今天天气", "jumps "]
GREEDY = SamplingParams(max_tokens=14, temperature=0, ignore_eos=True)
every_kind = pytest.mark.parametrize("kind", ["relative", "sinusoidal"])


def engine(kind="relative", **options):
    start = TOKENIZER.eos
    return Engine(build(seq2seq_spec(kind, TOKENIZER.vocabulary, start)), TOKENIZER, EngineSpec(page_size=4, **options))


@torch.no_grad()
def argmax_loop(model, source, count):
    """The source encoded, and the whole text through the decoder again for each token."""
    row = torch.tensor([source])
    tokens = list(model.spec.encoder.start)
    for _ in range(count):
        memory = model.encode(row, Step.whole(row))
        new = torch.tensor([tokens])
        tokens.append(int(model(new, Step.whole(new, memory=memory))[0, -1].argmax()))
    return tuple(tokens[-count:])


@every_kind
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"memory": 0}], ids=str)
def test_greedy_writes_what_a_loop_of_whole_passes_writes_in_any_company(kind, options):
    served = engine(kind, **options)
    written = [completion.tokens for completion in served.generate(SOURCES, GREEDY)]
    assert written == [argmax_loop(served.model, TOKENIZER.frame(source).tokens, 14) for source in SOURCES]
    assert len(set(written)) > 2, "what is written must depend on the source"


@every_kind
def test_sampling_is_the_same_alone_and_in_company(kind):
    params = SamplingParams(max_tokens=12, seed=5, top_p=0.9, temperature=0.8, ignore_eos=True)
    together = engine(kind).generate(SOURCES, params)
    for index, source in enumerate(SOURCES):
        alone = engine(kind).generate([source], params.replace(seed=5 + index))[0]
        assert alone.tokens == together[index].tokens


def test_the_encoder_runs_once_for_a_source_and_keys_are_made_once_whoever_comes_and_goes():
    served = engine(batch_size=3)
    rows, made = [], []
    served.model.encoder.register_forward_hook(lambda module, given, result: rows.append(len(result)))
    served.model.blocks[0].cross.k.register_forward_hook(lambda module, given, result: made.append(len(result)))
    handles = [served.add(source, GREEDY.replace(max_tokens=6 + 3 * index)) for index, source in enumerate(SOURCES)]
    for handle in handles:
        handle.result()
    assert sum(rows) == len(SOURCES)
    assert sum(made) == len(SOURCES)


def test_a_source_is_framed_as_its_tokenizer_says_and_ids_are_read_as_they_are():
    served = engine()
    ids = TOKENIZER.encode("the fox")
    text, given = served.generate(["the fox"], GREEDY)[0], served.generate([ids], GREEDY)[0]
    assert text.tokens == given.tokens


def test_a_source_longer_than_learned_positions_is_refused_and_relative_ones_have_no_end():
    spec = seq2seq_spec("sinusoidal", TOKENIZER.vocabulary, TOKENIZER.eos)
    encoder = spec.encoder.replace(position=LearnedSpec(length=9), context=9)
    short = Engine(build(spec.replace(encoder=encoder, position=SinusoidalSpec())), TOKENIZER)
    with pytest.raises(RequestError, match="has 10 tokens, the model's context holds 9"):
        short.add("0123456789")
    served = engine()
    assert served.generate(["the fox " * 20], GREEDY)[0].tokens
