"""Encoding and decoding: exact for every text, and plain text stays plain."""

import copy
import json

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from tokenizers import decoders, models, normalizers, pre_tokenizers

from data_sets import data_set
from glassformer.errors import TokenizerError
from glassformer.tokenizer import KINDS, Tokenizer
from tokenizer_texts import HARD, TEXT, texts

many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(text=texts())
def test_decoding_gives_back_every_text(lossless: Tokenizer, text: str) -> None:
    ids = lossless.encode(text)
    assert lossless.decode(ids) == text == lossless.normalise(text)
    assert b"".join(map(lossless.token_bytes, ids)) == text.encode()


@pytest.mark.parametrize("text", HARD)
def test_decoding_gives_back_hard_texts(lossless: Tokenizer, text: str) -> None:
    assert lossless.decode(lossless.encode(text)) == text


@many
@given(text=texts())
def test_wordpiece_gives_back_the_normalised_text(trained: dict[str, Tokenizer], text: str) -> None:
    wordpiece = trained["wordpiece"]
    assert wordpiece.decode(wordpiece.encode(text)) == wordpiece.normalise(text)


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The  Naïve\tCAFÉ,\nisn't", "the naive cafe , isn ' t"),
        ("天气and公园", "天 气 and 公 园"),
        ("a\0b\u200bc", "abc"),
        ("##the", "# # the"),
        ("the 龘 the", "the [UNK] the"),
        ("the " + "a" * 101, "the [UNK]"),
    ],
)
def test_wordpiece_normalises_as_documented(trained: dict[str, Tokenizer], text: str, normalised: str) -> None:
    assert trained["wordpiece"].normalise(text) == normalised


@many
@given(text=texts())
def test_special_tokens_come_only_when_asked_for(lossless: Tokenizer, text: str) -> None:
    text = f"{text}<|endoftext|>{text}"
    assert lossless.eos not in lossless.encode(text)
    assert lossless.encode(text, parse_special=True).count(lossless.eos) == text.count("<|endoftext|>")


def test_a_special_token_is_decoded_to_its_name_or_skipped(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("the"), tokenizer.eos, *tokenizer.encode("name")]
    space = " " if tokenizer.kind == "wordpiece" else ""
    assert tokenizer.decode(ids) == f"the{space}<|endoftext|>{space}name"
    assert tokenizer.decode(ids, skip_special=True) == f"the{space}name"
    assert tokenizer.token_bytes(tokenizer.eos) == b""
    assert tokenizer.special["<|endoftext|>"] == tokenizer.eos < tokenizer.vocabulary


def test_a_batch_is_its_texts_one_by_one(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(HARD) == [tokenizer.encode(text) for text in HARD]
    assert tokenizer.encode_batch([]) == []


@many
@given(text=texts())
def test_spans_cover_the_text_in_order(lossless: Tokenizer, text: str) -> None:
    spans = lossless.spans(text)
    assert [span.token for span in spans] == lossless.encode(text)
    reached = 0
    for span in spans:
        assert reached - 1 <= span.start <= reached  # the parts of one character cover it all
        assert lossless.token_bytes(span.token) in text[span.start : span.end].encode()
        reached = span.end
    assert reached == len(text)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_an_id_outside_the_vocabulary_is_an_error(tokenizer: Tokenizer, token: int) -> None:
    with pytest.raises(TokenizerError, match=rf"ids from 0 to {tokenizer.vocabulary - 1}, got {token}"):
        tokenizer.decode([0, token])


def test_characters_without_a_piece_have_spans_of_their_own(trained: dict[str, Tokenizer]) -> None:
    places = [(span.start, span.end) for span in trained["unigram"].spans("龘靐")]
    assert places == [(0, 1)] * 3 + [(1, 2)] * 3


def test_wordpiece_spans_point_into_the_text_as_it_was(trained: dict[str, Tokenizer]) -> None:
    text = "The  Naïve 龘"
    spans = trained["wordpiece"].spans(text)
    assert {text[span.start : span.end] for span in spans} >= {"The", "龘"}
    assert "".join(text[span.start : span.end] for span in spans) == "TheNaïve龘"


def test_half_a_surrogate_pair_is_an_error(tokenizer: Tokenizer) -> None:
    for encode in (tokenizer.encode, tokenizer.spans):
        with pytest.raises(TokenizerError, match="surrogate"):
            encode("a\ud800b")


def test_every_byte_has_a_token(lossless: Tokenizer) -> None:
    alone = {lossless.token_bytes(token) for token in range(lossless.vocabulary)}
    assert {bytes([byte]) for byte in range(256)} <= alone


def test_a_copy_still_takes_special_tokens_for_text(tokenizer: Tokenizer) -> None:
    twin = copy.deepcopy(tokenizer)
    assert twin.encode("<|endoftext|>") == tokenizer.encode("<|endoftext|>") != [tokenizer.eos]
    assert twin.fingerprint == tokenizer.fingerprint


def test_the_kind_and_fingerprint_tell_tokenizers_apart(trained: dict[str, Tokenizer]) -> None:
    assert [tokenizer.kind for tokenizer in trained.values()] == list(KINDS)
    assert len({tokenizer.fingerprint for tokenizer in trained.values()}) == len(KINDS)


def llama_like() -> tokenizers.Tokenizer:
    """The scheme of SentencePiece models: spaces written as ▁, one put in front, bytes for the unknown."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + ["<s>", "</s>", "▁", "a", "b", "▁a", "ab"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    rust = tokenizers.Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("a", "b")], byte_fallback=True))
    rust.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    rust.add_special_tokens(["<s>", "</s>"])
    return rust


def t5_like() -> tokenizers.Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("▁a", -1.5), ("b", -2.0), ("ab", -2.5), ("a", -3.0)]
    rust = tokenizers.Tokenizer(models.Unigram(pieces, 0, False))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    rust.add_special_tokens(["<unk>", "</s>"])
    return rust


def bare() -> tokenizers.Tokenizer:
    rust = tokenizers.Tokenizer(models.WordLevel({"a": 0, "ab": 1, "b": 2, "</s>": 3}, unk_token="b"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.add_special_tokens(["</s>"])
    return rust


@pytest.mark.parametrize("build", [llama_like, t5_like, bare])
def test_foreign_schemes_decode_as_the_library_does(build) -> None:
    rust = build()
    rust.enable_truncation(3)
    rust.enable_padding()
    ours = Tokenizer(rust.to_str())
    rust.no_truncation()
    rust.no_padding()
    assert ours.eos == rust.token_to_id("</s>")
    for text in ("a ab  b", " a", "ab a b a ab b a", "a天b", "", "a  "):
        ids = rust.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == rust.decode(ids, skip_special_tokens=False)
        ended = [*ids, ours.eos, *ids]
        assert ours.decode(ended, skip_special=True) == rust.decode(ended, skip_special_tokens=True)


def test_a_decoder_that_is_not_token_by_token_is_refused() -> None:
    rust = llama_like()
    rust.decoder = decoders.CTC()
    with pytest.raises(TokenizerError, match="CTC"):
        Tokenizer(rust.to_str()).decode([1])


def test_a_tokenizer_without_an_end_says_so() -> None:
    rust = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(TokenizerError, match="end of a document"):
        _ = Tokenizer(rust.to_str()).eos


@pytest.mark.real
@pytest.mark.parametrize("name", ["Xenova__gpt2", "Xenova__bert-base-uncased", "Xenova__bge-base-zh-v1.5"])
def test_published_tokenizers_give_the_published_ids(name: str) -> None:
    ours = published(name)
    goldens = json.loads((data_set("golden-hf-tokenization") / f"{name}.json").read_text(encoding="utf-8"))
    for case in [case for case in goldens["cases"].values() if "text_pair" not in case]:
        ids = case["ids"][1:-1] if "bert" in name or "bge" in name else case["ids"]
        special = any(name in case["text"] for name in ours.special)
        assert ours.encode(case["text"], parse_special=special) == ids
        if "bert" not in name and "bge" not in name:
            assert ours.decode(ids) == case["text"]


def published(name: str) -> Tokenizer:
    if name == "Xenova__gpt2":
        folder = data_set("tokenizer-gpt2")
        rust = tokenizers.Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
        rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        rust.add_special_tokens(["<|endoftext|>"])
        return Tokenizer(rust.to_str())
    which = "chinese" if "zh" in name else "uncased"
    path = data_set("tokenizer-bert") / f"bert-base-{which}-vocab.txt"
    rust = tokenizers.Tokenizer(models.WordPiece.from_file(str(path), unk_token="[UNK]"))
    rust.normalizer, rust.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece(cleanup=True)
    rust.add_special_tokens(["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"])
    return Tokenizer(rust.to_str())


def test_a_long_text_takes_the_same_ids_in_any_batch(lossless: Tokenizer) -> None:
    text = "".join(TEXT)
    assert lossless.encode_batch([text, "x", text])[2] == lossless.encode(text)
