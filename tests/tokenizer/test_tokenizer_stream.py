"""Decoding as a stream: the same text as at once, and never a broken character on the way."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.tokenizer import StreamDecoder, Tokenizer
from tokenizer_texts import HARD, texts

many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(data=st.data(), skip=st.booleans())
def test_any_ids_give_the_text_of_decoding_at_once(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary - 1), max_size=30))
    stream = StreamDecoder(tokenizer, skip_special=skip)
    assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids, skip_special=skip)


@many
@given(text=texts())
def test_no_character_is_ever_broken(tokenizer: Tokenizer, text: str) -> None:
    text = tokenizer.normalise(text.replace("\ufffd", ""))
    stream, seen = StreamDecoder(tokenizer), ""
    for token in tokenizer.encode(text):
        seen += stream.push(token)
        assert "\ufffd" not in seen
        assert tokenizer.normalise(text).startswith(seen)
    assert stream.finish() == ""
    assert seen == tokenizer.normalise(text)


def test_a_character_comes_out_with_its_last_byte(trained: dict[str, Tokenizer]) -> None:
    stream = StreamDecoder(trained["char"])
    ids = trained["char"].encode("龘a")
    assert [stream.push(token) for token in ids] == ["", "", "龘", "a"]


def test_an_unfinished_character_becomes_a_replacement_at_the_end(lossless: Tokenizer) -> None:
    byte = {lossless.token_bytes(token): token for token in range(lossless.vocabulary)}
    stream = StreamDecoder(lossless)
    assert stream.push(byte[b"\xe4"]) == ""
    assert stream.push(byte[b"\xbd"]) == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
    assert "".join(map(stream.push, lossless.encode("again"))) == "again"


@pytest.mark.parametrize("text", HARD)
def test_hard_texts_stream(tokenizer: Tokenizer, text: str) -> None:
    stream = StreamDecoder(tokenizer)
    assert "".join([*map(stream.push, tokenizer.encode(text)), stream.finish()]) == tokenizer.normalise(text)
