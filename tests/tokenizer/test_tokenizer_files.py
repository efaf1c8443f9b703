"""Tokenizers on disk: read back equal, by us and by transformers; damaged files are errors of one line."""

import json
from pathlib import Path

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.errors import TokenizerError
from glassformer.tokenizer import KINDS, Tokenizer
from tokenizer_texts import HARD, texts

many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def folders(trained: dict[str, Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in folders.items():
        trained[kind].save(folder)
    return folders


def test_a_saved_tokenizer_is_read_back_equal(tokenizer: Tokenizer, folders: dict[str, Path]) -> None:
    folder = folders[tokenizer.kind]
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    for place in (folder, folder / "tokenizer.json", str(folder)):
        again = Tokenizer.load(place)
        assert (again.kind, again.vocabulary, again.eos) == (tokenizer.kind, tokenizer.vocabulary, tokenizer.eos)
        assert again.special == tokenizer.special
        assert again.fingerprint == tokenizer.fingerprint
        assert again.encode_batch(HARD) == tokenizer.encode_batch(HARD)


def test_saving_again_writes_the_same_bytes(tokenizer: Tokenizer, folders: dict[str, Path], tmp_path: Path) -> None:
    Tokenizer.load(folders[tokenizer.kind]).save(tmp_path / "deep" / "copy")
    for path in folders[tokenizer.kind].iterdir():
        assert (tmp_path / "deep" / "copy" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
@many
@given(text=st.one_of(st.sampled_from(HARD), texts()))
def test_transformers_gives_the_same_ids_and_text(
    kind: str, trained: dict[str, Tokenizer], folders: dict[str, Path], text: str
) -> None:
    ours, theirs = trained[kind], reference(folders[kind])
    ids = ours.encode(text)
    assert theirs(text, split_special_tokens=True)["input_ids"] == ids
    assert theirs.decode(ids) == ours.decode(ids)
    parsed = ours.encode(text, parse_special=True)
    assert theirs(text)["input_ids"] == parsed
    assert theirs.decode(parsed) == ours.decode(parsed)


def reference(folder: Path, known: dict[Path, transformers.PreTrainedTokenizerFast] = {}):  # noqa: B006 (a cache)
    if folder not in known:
        known[folder] = transformers.AutoTokenizer.from_pretrained(folder)
    return known[folder]


def test_transformers_knows_the_special_tokens(tokenizer: Tokenizer, folders: dict[str, Path]) -> None:
    theirs = reference(folders[tokenizer.kind])
    assert isinstance(theirs, transformers.PreTrainedTokenizerFast)
    assert theirs.eos_token_id == tokenizer.eos
    assert len(theirs) == tokenizer.vocabulary
    assert set(theirs.all_special_tokens) == set(tokenizer.special)
    assert theirs.clean_up_tokenization_spaces is False


@many
@given(data=st.data())
def test_byte_level_bpe_decodes_any_ids_as_transformers_does(
    trained: dict[str, Tokenizer], folders: dict[str, Path], data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, trained["bpe"].vocabulary - 1), max_size=30))
    assert reference(folders["bpe"]).decode(ids) == trained["bpe"].decode(ids)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON"),
        (b"{", "expected JSON"),
        (b"\x80\x04garbage", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"[]", "expected a JSON mapping, got list"),
        (b"{}", "not the rules of a tokenizer"),
        (b'{"version": "1.0", "model": {"type": "Nonsense"}}', "not the rules of a tokenizer"),
    ],
)
def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_cut_short_is_an_error(folders: dict[str, Path], tmp_path: Path) -> None:
    whole = (folders["bpe"] / "tokenizer.json").read_bytes()
    for size in (1, len(whole) // 2, len(whole) - 3):
        (tmp_path / "tokenizer.json").write_bytes(whole[:size])
        with pytest.raises(TokenizerError, match="expected JSON"):
            Tokenizer.load(tmp_path)


def test_a_missing_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json in this folder"):
        Tokenizer.load(tmp_path)
    with pytest.raises(TokenizerError, match="no such file or folder"):
        Tokenizer.load(tmp_path / "nowhere")


def test_a_place_that_cannot_be_written_is_an_error_and_nothing_is_left(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    with pytest.raises(TokenizerError, match="can't write the tokenizer"):
        tokenizer.save(tmp_path / "file")
    (tmp_path / "folder" / "tokenizer.json").mkdir(parents=True)
    with pytest.raises(TokenizerError, match="can't write the tokenizer"):
        tokenizer.save(tmp_path / "folder")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["tokenizer.json"]


def test_a_foreign_config_names_the_end_and_is_kept(folders: dict[str, Path], tmp_path: Path) -> None:
    rules = json.loads((folders["bpe"] / "tokenizer.json").read_text(encoding="utf-8"))
    rules["added_tokens"][0]["content"] = "<|done|>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules), encoding="utf-8")
    config = {"eos_token": {"content": "<|done|>"}, "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos == tokenizer.special["<|done|>"]
    tokenizer.save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "tokenizer_config.json").read_text()).items() >= config.items()


@pytest.mark.parametrize(("sums", "kind"), [("float16", "unigram"), ("float32", "char")])
def test_sums_that_cannot_be_are_refused(trained: dict[str, Tokenizer], tmp_path: Path, sums: str, kind: str):
    trained[kind].save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"unigram_sums": sums}))
    with pytest.raises(TokenizerError, match="unigram_sums"):
        Tokenizer.load(tmp_path)
