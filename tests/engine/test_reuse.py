"""What a request remembers may serve the one after it: the same tokens, fewer of them read."""

import pytest

from decoders import build, decoder_spec
from glassformer.engine import Engine, SamplingParams
from glassformer.engine.engine import EngineSpec
from glassformer.model.position import RotarySpec
from glassformer.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer("char", ["abcdefgh 今天\n"])
MODEL = build(decoder_spec(RotarySpec(), vocabulary=TOKENIZER.vocabulary))
SHORT = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)


def turns(engine: Engine, reuse: bool) -> tuple[list[tuple[int, ...]], list[int]]:
    """Three requests, each beginning with the one before: what they write, and how much they need not read."""
    tokens, written, reused, last = TOKENIZER.encode("abc"), list[tuple[int, ...]](), list[int](), None
    for more in ("de", "今", "fgh"):
        last = engine.add(tokens, SHORT, after=last if reuse else None, keep=reuse)
        written.append(last.result().tokens)
        reused.append(last.sequence.reused)
        tokens = [*tokens, *written[-1], *TOKENIZER.encode(more)]
    return written, reused


def test_a_request_after_another_writes_the_same_and_reads_only_what_is_new():
    fresh, none = turns(Engine(MODEL, TOKENIZER), reuse=False)
    again, reused = turns(Engine(MODEL, TOKENIZER), reuse=True)
    assert again == fresh
    assert none == [0, 0, 0]
    assert reused == [0, 7, 14]  # all but the last written token, which nothing has read


def test_only_the_common_beginning_is_reused():
    engine = Engine(MODEL, TOKENIZER)
    first = engine.add("abcdef", SHORT, keep=True)
    first.result()
    second = engine.add("abcxyz", SHORT, after=first)
    assert second.result().tokens == Engine(MODEL, TOKENIZER).generate(["abcxyz"], SHORT)[0].tokens
    assert second.sequence.reused == 3
    third = engine.add("abcdef", SHORT, after=first)  # which gave everything away
    assert third.result().tokens == first_tokens("abcdef")
    assert third.sequence.reused == 0


def first_tokens(text: str) -> tuple[int, ...]:
    return Engine(MODEL, TOKENIZER).generate([text], SHORT)[0].tokens


def test_a_cancelled_request_may_be_gone_on_from():
    engine = Engine(MODEL, TOKENIZER)
    first = engine.add("abcd", SHORT, keep=True)
    event = next(iter(first))
    first.cancel()
    tokens = [*TOKENIZER.encode("abcd"), event.token, *TOKENIZER.encode("h")]
    second = engine.add(tokens, SHORT, after=first)
    assert second.result().tokens == Engine(MODEL, TOKENIZER).generate([tokens], SHORT)[0].tokens
    assert second.sequence.reused >= 4


def test_kept_pages_go_to_those_who_need_them():
    engine = Engine(MODEL, TOKENIZER, EngineSpec(memory=0))  # room for one sequence
    kept = engine.add("abcdefgh" * 3, SHORT, keep=True)
    kept.result()
    other = "今天" * 15
    assert engine.generate([other], SHORT)[0].tokens == first_tokens(other)
    assert engine.add("abcdefgh" * 3, SHORT, after=kept).result().tokens == first_tokens("abcdefgh" * 3)


@pytest.mark.parametrize("length", [4, 30, 40])
def test_a_window_that_has_moved_on_is_read_again(length: int):
    model = build(decoder_spec(RotarySpec(), attention="window", vocabulary=TOKENIZER.vocabulary))
    engine = Engine(model, TOKENIZER, EngineSpec(budget=8))
    text = ("abcdefgh" * 6)[:length]
    first = engine.add(text, SHORT, keep=True)
    first.result()
    second = engine.add(text[:3] + "今", SHORT, after=first)
    assert second.result().tokens == Engine(model, TOKENIZER).generate([text[:3] + "今"], SHORT)[0].tokens


def test_a_text_ends_at_any_of_the_stop_tokens():
    free = Engine(MODEL, TOKENIZER).generate(["abc"], SHORT)[0]
    stops = [free.tokens[2], TOKENIZER.eos]
    params = SHORT.replace(ignore_eos=False)
    stopped = Engine(MODEL, TOKENIZER, stops=stops).generate(["abc"], params)[0]
    end = free.tokens.index(free.tokens[2]) + 1
    assert stopped.tokens == free.tokens[:end]
    assert stopped.finish_reason == "stop"
    assert stopped.text == TOKENIZER.decode(free.tokens[: end - 1])
