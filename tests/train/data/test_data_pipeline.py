"""From text files to a folder of tokens, whole or not at all."""

import hashlib
import json
import resource
from pathlib import Path

import numpy as np
import pytest

from data_sets import data_set
from glassformer.errors import DataError, TokenizerError
from glassformer.tokenizer import KINDS, Tokenizer
from glassformer.train.data import Dataset, PrepareOptions, Progress, TokenSplit, prepare

STORIES = [
    f"Story {number}. Once there were {number % 11} foxes,\nand then {number % 7}. 故事。" for number in range(300)
]


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    path = tmp_path / "stories.jsonl"
    path.write_text("".join(json.dumps({"text": story}) + "\n" for story in STORIES))
    return path


def documents(split: TokenSplit, tokenizer: Tokenizer) -> list[str]:
    """The texts of a split, read by its document starts; each has to end with the end token."""
    tokens = split.read(0, split.tokens)
    found = np.split(tokens, split.document_starts[1:])
    assert all(document[-1] == tokenizer.eos for document in found)
    return [tokenizer.decode(document[:-1].tolist()) for document in found]


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_documents_come_back_from_their_tokens_each_with_its_end(stories: Path, tmp_path: Path, kind: str):
    report = prepare([stories], kind, tmp_path / "data", PrepareOptions(shard_tokens=777))
    dataset = Dataset.open(tmp_path / "data")
    tokenizer = dataset.tokenizer()
    halves = {name: documents(dataset.split(name), tokenizer) for name in ("train", "validation")}
    assert sorted(halves["train"] + halves["validation"]) == sorted(STORIES)
    assert [story for story in STORIES if story in set(halves["train"])] == halves["train"]
    assert 0.05 < len(halves["validation"]) / len(STORIES) < 0.2
    for name, texts in halves.items():
        split = dataset.split(name)
        assert split.bytes == report.bytes[name] == len("".join(texts).encode())
        assert split.characters == report.characters[name] == len("".join(texts))
        assert split.documents == report.documents[name] == len(texts)
        assert len(split) == report.tokens[name] == sum(len(tokenizer.encode(text)) + 1 for text in texts)


def test_one_document_is_a_stream_without_end_tokens(tmp_path: Path):
    text = "".join(STORIES)
    (tmp_path / "book.txt").write_text(text)
    prepare([tmp_path / "book.txt"], "char", tmp_path / "data", PrepareOptions(validation=0.2))
    dataset = Dataset.open(tmp_path / "data")
    tokenizer, cut = dataset.tokenizer(), int(len(text) * 0.8)
    for name, expected in (("train", text[:cut]), ("validation", text[cut:])):
        tokens = dataset.split(name).read(0, dataset.split(name).tokens)
        assert tokenizer.eos not in tokens
        assert tokenizer.decode(tokens.tolist()) == expected
    assert dataset.meta.stream


def test_a_long_document_has_the_tokens_of_its_whole_text(tmp_path: Path):
    text = "".join(f"{story}\n\n" for story in STORIES) * 40  # many pieces
    (tmp_path / "book.txt").write_text(text)
    prepare([tmp_path / "book.txt"], "bpe", tmp_path / "data", PrepareOptions(validation=0.0, vocab_size=280))
    dataset = Dataset.open(tmp_path / "data")
    split = dataset.split("train")
    assert split.read(0, split.tokens).tolist() == dataset.tokenizer().encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_and_options_give_the_same_folder(stories: Path, tmp_path: Path, kind: str):
    for name in ("one", "two"):
        prepare([stories], kind, tmp_path / name)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_the_tokenizer_never_sees_what_is_held_out(tmp_path: Path):
    (tmp_path / "book.txt").write_text("abc" * 30 + "z" * 10)
    prepare([tmp_path / "book.txt"], "char", tmp_path / "data")
    dataset = Dataset.open(tmp_path / "data")
    tokenizer, held_out = dataset.tokenizer(), dataset.split("validation")
    assert tokenizer.decode(held_out.read(0, held_out.tokens).tolist()) == "z" * 10
    assert len(set(tokenizer.encode("abc"))) == 3
    (tmp_path / "seen.txt").write_text("abcz" * 30)
    prepare([tmp_path / "seen.txt"], "char", tmp_path / "seen")
    assert Dataset.open(tmp_path / "seen").vocabulary == dataset.vocabulary + 1


def test_a_trained_tokenizer_is_used_as_it_is(stories: Path, tmp_path: Path):
    prepare([stories], "bpe", tmp_path / "one", PrepareOptions(vocab_size=280))
    (tmp_path / "other.txt").write_text("quite other text, 其他 " * 50)
    report = prepare([tmp_path / "other.txt"], tmp_path / "one", tmp_path / "two")
    one, two = Dataset.open(tmp_path / "one"), Dataset.open(tmp_path / "two")
    assert one.meta.tokenizer == two.meta.tokenizer == two.tokenizer().fingerprint
    assert report.vocabulary == 280
    with pytest.raises(DataError, match="a trained tokenizer has its vocabulary: it can't be made 300 tokens"):
        prepare([stories], str(tmp_path / "one"), tmp_path / "three", PrepareOptions(vocab_size=300))
    with pytest.raises(DataError, match="no tokenizer 'bqe': expected char, bpe, wordpiece, unigram, or the folder"):
        prepare([stories], "bqe", tmp_path / "three")
    with pytest.raises(TokenizerError):
        prepare([stories], tmp_path, tmp_path / "three")


def test_a_vocabulary_larger_than_the_text_allows_is_refused_and_leaves_nothing(stories: Path, tmp_path: Path):
    with pytest.raises(TokenizerError, match="vocabulary of 100000 is too large for this text"):
        prepare([stories], "bpe", tmp_path / "data", PrepareOptions(vocab_size=100_000))
    assert list(tmp_path.iterdir()) == [stories]


def test_a_folder_of_many_kinds_is_read_and_what_is_no_text_is_counted(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.py").write_text("print('hello')\n")
    (source / "b.md").write_bytes("今天天气真好，我们去公园散步。".encode("gb18030"))
    (source / "c.txt").write_bytes("今天天氣真好，我們去公園散步。".encode("big5"))
    (source / "d.txt").write_bytes("naïve café\n".encode("latin-1"))
    (source / "e.txt").write_bytes(b"\0\1\2")
    (source / "f.txt").write_bytes(b"")
    (source / "g.bin").write_bytes(b"\0")
    (source / "h.jsonl").write_text('{"text": ""}\n{"text": "eins"}\n')
    report = prepare([source], "char", tmp_path / "data", PrepareOptions(validation=0.0))
    assert report.files == 4
    assert report.encodings == {"UTF-8": 2, "GB18030": 1, "Big5": 1}
    assert report.skipped == {"of another kind": 1, "of unknown encoding": 1, "binary": 1, "empty": 1}
    assert report.skipped_examples == [f"{source}/d.txt (of unknown encoding)", f"{source}/e.txt (binary)"]
    assert report.empty_documents == 1
    dataset = Dataset.open(tmp_path / "data")
    assert documents(dataset.split("train"), dataset.tokenizer()) == [
        *("print('hello')\n", "今天天气真好，我们去公园散步。", "今天天氣真好，我們去公園散步。", "eins")
    ]
    assert dataset.meta.report == report
    report = prepare([source], "char", tmp_path / "data", PrepareOptions(validation=0.0, encoding="latin-1"))
    assert report.encodings == {"latin-1 (as asked)": 5}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", r"empty\.txt: the file is empty"),
        ("picture.txt", b"\x89PNG\0", r"picture\.txt: a binary file, not text"),
        ("latin.txt", "é à è".encode("latin-1"), r"latin\.txt: neither UTF-8"),
        ("lines.jsonl", b'{"text": "a"}\n{"body": "b"}\n', r"lines\.jsonl, line 2: no field"),
        ("void.jsonl", b'{"text": ""}\n', "no text: every document is empty"),
    ],
)
def test_named_files_that_hold_no_text_are_refused(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare([tmp_path / name], "char", tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_whose_files_are_all_unfit_holds_no_text(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"\0")
    with pytest.raises(DataError, match="no text in here: found 1 binary"):
        prepare([tmp_path], "char", tmp_path / "data")


def test_cleaning_is_reported_and_without_it_text_is_kept(tmp_path: Path):
    texts = ["cafe\u0301 \x07bell", "plain", "plain", "café bell"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    report = prepare([path], "char", tmp_path / "data", PrepareOptions(validation=0.0))
    assert report.cleaning is None
    dataset = Dataset.open(tmp_path / "data")
    assert documents(dataset.split("train"), dataset.tokenizer()) == texts
    report = prepare([path], "char", tmp_path / "data", PrepareOptions(validation=0.0, clean=True))
    assert report.cleaning is not None
    assert report.cleaning.model_dump() == {"normalised": 1, "control_characters": 1, "repeated": 2}
    dataset = Dataset.open(tmp_path / "data")
    assert documents(dataset.split("train"), dataset.tokenizer()) == ["café bell", "plain"]


def test_progress_goes_through_all_stages_to_their_end(stories: Path, tmp_path: Path):
    seen: list[Progress] = []
    prepare([stories], "char", tmp_path / "data", progress=seen.append)
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages == ["looking", "reading", "sampling", "training the tokenizer", "writing tokens"]
    for stage in stages:
        done = [progress.done for progress in seen if progress.stage == stage]
        assert done == sorted(done)
    assert seen[-1].done == seen[-1].total == len("".join(STORIES))


@pytest.mark.parametrize("stage", ["looking", "reading", "sampling", "training the tokenizer", "writing tokens"])
def test_an_interrupt_at_any_stage_leaves_nothing_behind(stories: Path, tmp_path: Path, stage: str):
    def interrupt(progress: Progress) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([stories], "char", tmp_path / "data", progress=interrupt)
    assert list(tmp_path.iterdir()) == [stories]
    prepare([stories], "char", tmp_path / "data")
    before = content(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt):
        prepare([stories], "bpe", tmp_path / "data", progress=interrupt)
    assert content(tmp_path / "data") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "stories.jsonl"]


def test_text_that_changes_meanwhile_leaves_nothing_behind(stories: Path, tmp_path: Path):
    def append(progress: Progress) -> None:
        if progress.stage == "training the tokenizer":
            with stories.open("a") as file:
                file.write('{"text": "late"}\n')

    with pytest.raises(DataError, match="the text changed while it was being read"):
        prepare([stories], "char", tmp_path / "data", progress=append)
    assert list(tmp_path.iterdir()) == [stories]


def test_data_is_replaced_but_other_folders_are_not(stories: Path, tmp_path: Path):
    prepare([stories], "char", tmp_path / "data")
    report = prepare([stories], "bpe", tmp_path / "data")
    assert Dataset.open(tmp_path / "data").meta.report == report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "stories.jsonl"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match=r"mine: the output folder holds other things.*choose a new --out"):
        prepare([stories], "char", tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()
    with pytest.raises(DataError, match="should be a folder, and a file is there"):
        prepare([stories], "char", stories)
    with pytest.raises(DataError, match="the output folder is read from as well"):
        prepare([tmp_path / "data"], "char", tmp_path / "data")
    (tmp_path / "deep" / "empty").mkdir(parents=True)
    prepare([stories], "char", tmp_path / "deep" / "empty")
    prepare([stories], "char", tmp_path / "new" / "folder")


def test_a_place_that_cannot_be_written_is_refused(stories: Path, tmp_path: Path):
    with pytest.raises(DataError, match=r"data: can't be written: .* \(nothing was changed\)"):
        prepare([stories], "char", stories / "data")


def test_a_full_disk_leaves_the_old_data(stories: Path, tmp_path: Path):
    prepare([stories], "char", tmp_path / "data", PrepareOptions(shard_tokens=1000))
    before = content(tmp_path / "data")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # a file of 20 kB fills this disk
    try:
        with pytest.raises(DataError, match=r"data: can't be written: File too large \(nothing was changed\)"):
            prepare([stories], "char", tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert content(tmp_path / "data") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "stories.jsonl"]


@pytest.mark.real
def test_the_validation_split_of_tiny_shakespeare_is_the_one_everybody_uses(tmp_path: Path):
    path = data_set("tinyshakespeare") / "input.txt"
    report = prepare([path], "char", tmp_path / "data")
    text = path.read_text()
    dataset = Dataset.open(tmp_path / "data")
    held_out = dataset.split("validation")
    assert (report.tokens["train"], report.tokens["validation"]) == (1_003_854, 111_540)
    assert dataset.tokenizer().decode(held_out.read(0, held_out.tokens).tolist()) == text[-111_540:]


@pytest.mark.real
def test_real_stories_and_books_are_prepared_whole(tmp_path: Path):
    stories = data_set("tinystories-sample") / "train.txt"
    options = PrepareOptions(split_on="<|endoftext|>")
    report = prepare([stories], "char", tmp_path / "stories", options)
    assert report.documents["train"] + report.documents["validation"] == 2201
    assert 0.08 < report.characters["validation"] / sum(report.characters.values()) < 0.12
    books = sorted(data_set("zh-classics").glob("*.txt"))
    report = prepare([data_set("zh-classics")], "char", tmp_path / "books")
    assert report.files == len(books)
    assert sum(report.bytes.values()) == sum(book.stat().st_size for book in books)
