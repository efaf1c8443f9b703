import math
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoders import CONTEXT, build, decoder_spec, pairs
from glassformer.engine import Engine, EngineSpec, SamplingParams
from glassformer.errors import RequestError, SpecError
from glassformer.model import Step
from glassformer.model.mask import BidirectionalSpec
from glassformer.model.position import AlibiSpec, LearnedSpec, RotarySpec
from glassformer.tokenizer import train_tokenizer

TEXT = "the quick brown fox jumps over the lazy dog, 今天天气真好 👩‍👩‍👧\n"
TOKENIZER = train_tokenizer("char", [TEXT])
GREEDY = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
PROMPTS = ["the quick", "d", "over the lazy dog, the fox", "今天天气", "jumps "]


def engine(position=None, attention="grouped", model=None, **options):
    spec = decoder_spec(position or RotarySpec(), attention, vocabulary=TOKENIZER.vocabulary)
    return Engine(model or build(spec), TOKENIZER, EngineSpec(page_size=4, **options))


ENGINE = engine()


def all_pages_are_back(served):
    return served.pool.ledger.free == set(range(served.pool.ledger.pages)) and not served.scheduler.running


@torch.no_grad()
def argmax_loop(model, tokens, count):
    """Greedy decoding as plainly as can be: the whole text through the model again for each token."""
    tokens = list(tokens)
    for _ in range(count):
        row = torch.tensor([tokens])
        tokens.append(int(model(row, Step.whole(row))[0, -1].argmax()))
    return tuple(tokens[-count:])


@pytest.mark.parametrize(
    ("position", "attention"), pairs(), ids=lambda value: value if isinstance(value, str) else value.kind
)
def test_greedy_writes_what_a_loop_of_whole_passes_writes_and_a_batch_the_same_as_alone(position, attention):
    served = engine(position, attention, budget=16)
    together = served.generate(PROMPTS, GREEDY.replace(max_tokens=12))
    for prompt, completion in zip(PROMPTS, together, strict=True):
        assert completion.tokens == argmax_loop(served.model, TOKENIZER.encode(prompt), 12)
    assert all_pages_are_back(served)


@pytest.mark.parametrize("memory", [0, 60_000, 2**30], ids=["one fits", "some fit", "all fit"])
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_tokens_depend_neither_on_neighbours_nor_on_memory(memory, batch_size):
    params = SamplingParams(max_tokens=25, seed=7, top_p=0.95, frequency_penalty=0.5, ignore_eos=True)
    served = engine(memory=memory, batch_size=batch_size, budget=24)
    together = served.generate(PROMPTS, params)
    for index, prompt in enumerate(PROMPTS):
        (alone,) = ENGINE.generate([prompt], params.replace(seed=7 + index))
        assert together[index].tokens == alone.tokens
        assert together[index].text == alone.text
    assert all_pages_are_back(served)


def test_the_same_seed_writes_the_same_text_and_another_a_different_one():
    params = SamplingParams(max_tokens=30, seed=3)
    first, again = (ENGINE.generate(["the"], params)[0] for _ in range(2))
    assert first == again
    assert ENGINE.generate(["the"], params.replace(seed=4))[0].tokens != first.tokens


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram", "wordpiece"])
def test_streamed_text_is_the_text_of_prompt_and_tokens_after_the_prompt(kind):
    tokenizer = train_tokenizer(kind, [TEXT * 20])
    served = Engine(build(decoder_spec(RotarySpec(), vocabulary=tokenizer.vocabulary)), tokenizer)
    for seed in range(5):
        params = SamplingParams(max_tokens=40, seed=seed, ignore_eos=True)
        events = list(served.stream("the quick", params))
        tokens, prompt = [event.token for event in events], tokenizer.encode("the quick")
        text = "".join(event.text for event in events)
        whole = tokenizer.decode(prompt + tokens, skip_special=True)
        assert tokenizer.decode(prompt) + text == whole
        assert [event.finish_reason for event in events] == [None] * 39 + ["length"]
        (completion,) = served.generate(["the quick"], params)
        assert (completion.text, list(completion.tokens)) == (text, tokens)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=25)
@given(data=st.data(), seed=st.integers(0, 50))
def test_stop_strings_end_the_text_before_themselves(data, seed):
    params = SamplingParams(max_tokens=20, seed=seed, ignore_eos=True)
    text = ENGINE.generate(["the"], params)[0].text
    start = data.draw(st.integers(0, max(0, len(text) - 4)))
    stop = text[start : start + data.draw(st.integers(1, 4))]
    if not stop:
        return
    events = list(ENGINE.stream("the", params.replace(stop=(stop, "never there"))))
    assert "".join(event.text for event in events) == text[: text.find(stop)]
    assert events[-1].finish_reason == "stop"
    assert all_pages_are_back(ENGINE)


def test_text_ends_where_a_document_ends_unless_told_otherwise():
    served = engine()
    with torch.no_grad():
        vector = served.model.embedding.weight
        vector[TOKENIZER.eos] = (
            3 * vector[TOKENIZER.encode("q")[0]]
        )  # the head is tied: what writes q now writes the end
    prompt = next(p for p in ("t", "h", "e", "q", "u", "i", "dog", "x") if ends_soon(served, p))
    (completion,) = served.generate([prompt], GREEDY.replace(ignore_eos=False, max_tokens=40))
    assert completion.finish_reason == "stop"
    assert completion.tokens[-1] == TOKENIZER.eos
    assert completion.text == TOKENIZER.decode(completion.tokens[:-1])
    (longer,) = served.generate([prompt], GREEDY.replace(max_tokens=40))
    assert len(longer.tokens) == 40
    assert longer.tokens[: len(completion.tokens)] == completion.tokens
    assert "<|" not in longer.text


def ends_soon(served, prompt):
    return TOKENIZER.eos in served.generate([prompt], GREEDY.replace(max_tokens=40))[0].tokens


def test_an_unfinished_character_comes_at_the_end_as_a_replacement():
    served = engine()
    first_byte = next(t for t in range(TOKENIZER.vocabulary) if TOKENIZER.token_bytes(t) == b"\xe4")
    with torch.no_grad():
        served.model.embedding.weight.mul_(0.01)
        served.model.embedding.weight[first_byte] = 1
    events = list(served.stream([first_byte], GREEDY.replace(max_tokens=1)))
    assert "".join(event.text for event in events).endswith("\ufffd")


def test_probabilities_are_softmax_of_the_models_scores():
    params = SamplingParams(max_tokens=3, temperature=0.5, top_k=3, seed=1, probabilities=5, ignore_eos=True)
    events = list(ENGINE.stream("the quick", params))
    tokens = TOKENIZER.encode("the quick")
    for event in events:
        row = torch.tensor([tokens])
        with torch.no_grad():
            expected = ENGINE.model(row, Step.whole(row))[0, -1].double().softmax(-1)
        best = expected.topk(5)
        assert [token for token, _ in event.top] == best.indices.tolist()
        assert [p for _, p in event.top] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert math.exp(event.logprob) == pytest.approx(float(expected[event.token]), abs=1e-5)
        tokens.append(event.token)


def test_learned_positions_end_the_text_where_they_end():
    served = engine(LearnedSpec(length=CONTEXT))
    (completion,) = served.generate(["the"], GREEDY.replace(max_tokens=500))
    assert completion.finish_reason == "length"
    assert 3 + len(completion.tokens) == CONTEXT + 1, "the last token is never read, so it needs no position"
    (full,) = served.generate([[5] * CONTEXT], GREEDY)
    assert len(full.tokens) == 1


@pytest.mark.parametrize("position", [RotarySpec(), AlibiSpec()], ids=lambda position: position.kind)
def test_other_positions_write_on_and_see_the_last_context_of_tokens(position):
    served, small = engine(position), engine(position, memory=0)
    (completion,) = served.generate(["the"], GREEDY.replace(max_tokens=3 * CONTEXT))
    assert len(completion.tokens) == 3 * CONTEXT
    pair = small.generate(["the", "the"], GREEDY.replace(max_tokens=3 * CONTEXT))
    assert [one.tokens for one in pair] == [completion.tokens] * 2, "read again after stepping back, to the same tokens"
    assert all_pages_are_back(small)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers():
    with pytest.raises(RequestError, match=r"60 tokens, the model's context holds 48 \(leave out at least 12 tokens\)"):
        ENGINE.add("x" * 60)
    assert len(ENGINE.generate(["x" * CONTEXT], GREEDY)[0].tokens) == 20


def test_an_empty_prompt_begins_a_document():
    assert ENGINE.generate([""], GREEDY) == ENGINE.generate([[TOKENIZER.eos]], GREEDY)


def test_a_token_the_model_does_not_have_is_refused():
    with pytest.raises(RequestError, match="token 9999 is not in the model's vocabulary"):
        ENGINE.add([1, 9999])


def test_a_vocabulary_padded_beyond_the_tokenizer_never_writes_what_can_not_be_read():
    spec = decoder_spec(RotarySpec(), vocabulary=TOKENIZER.vocabulary + 200)
    served = Engine(build(spec), TOKENIZER)
    (completion,) = served.generate(["the"], SamplingParams(max_tokens=45, temperature=20, seed=1, ignore_eos=True))
    assert max(completion.tokens) < TOKENIZER.vocabulary


def test_a_model_that_sees_the_future_is_refused():
    spec = decoder_spec(RotarySpec(), vocabulary=TOKENIZER.vocabulary)
    block = spec.blocks[0]
    block = block.replace(attention=block.attention.replace(mask=BidirectionalSpec()))
    with pytest.raises(SpecError, match="reads texts and writes none"):
        Engine(build(spec.replace(blocks=(block,))), TOKENIZER)


def test_a_context_beyond_learned_positions_is_refused_and_beyond_others_allowed():
    with pytest.raises(SpecError, match=r"context \(100\) is longer than the 48 positions"):
        engine(LearnedSpec(length=CONTEXT), context=100)
    longer = engine(context=100)
    (completion,) = longer.generate(["x" * 60], GREEDY)
    assert completion.tokens == argmax_loop(longer.model, TOKENIZER.encode("x" * 60), 20)


def test_a_stream_that_is_closed_frees_its_pages():
    stream = ENGINE.stream("the quick", GREEDY)
    next(stream)
    assert not all_pages_are_back(ENGINE)
    stream.close()
    assert all_pages_are_back(ENGINE)


def test_scores_that_are_no_numbers_end_one_request_and_no_other():
    served = engine()
    with torch.no_grad():
        served.model.embedding.weight[TOKENIZER.encode("x")[0]] = math.nan
        served.model.head.own = torch.nn.Linear(32, TOKENIZER.vocabulary)
        served.model.head.own.requires_grad_(False)
    broken, healthy = served.add("fox", GREEDY), served.add("the quick", GREEDY)
    with pytest.raises(RequestError, match="scores are not numbers"):
        broken.result()
    tokens = healthy.result().tokens
    assert tokens == served.generate(["the quick"], GREEDY)[0].tokens
    assert all_pages_are_back(served)


def test_in_a_thread_of_its_own_it_serves_many_threads_and_gives_turns():
    expected = {prompt: ENGINE.generate([prompt], GREEDY)[0].text for prompt in PROMPTS}
    served, results = engine(), {}

    def ask(prompt):
        results[prompt] = "".join(event.text for event in served.stream(prompt, GREEDY))

    with served:
        threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS]
        for thread in threads:
            thread.start()
        turns = [served.turn(lambda model: (model.spec.width, threading.current_thread().name)) for _ in range(5)]
        with pytest.raises(ZeroDivisionError):
            served.turn(lambda model: 1 // 0)
        for thread in threads:
            thread.join()
    assert results == expected
    assert turns == [(32, "engine")] * 5
    assert all_pages_are_back(served)
    assert served.turn(lambda model: threading.current_thread()) is threading.current_thread()


def test_closing_ends_requests_with_an_error():
    served = engine()
    served.start()
    handle = served.add("the", GREEDY.replace(max_tokens=10**6))
    next(iter(handle))
    served.close()
    with pytest.raises(RequestError, match="closed"):
        list(handle)
    assert all_pages_are_back(served)
