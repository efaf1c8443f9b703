"""Opening prepared data, whole or damaged."""

import json
from pathlib import Path

import numpy as np
import pytest

from glassformer.errors import DataError
from glassformer.tokenizer import train_tokenizer
from glassformer.train.data import Dataset, PrepareOptions, prepare
from glassformer.train.data import dataset as dataset_module

TEXT = "".join(f"line {number}: the quick brown fox\n" for number in range(200))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_text(TEXT)
    prepare([tmp_path / "book.txt"], "char", tmp_path / "data", PrepareOptions(shard_tokens=1000))
    return tmp_path / "data"


def test_a_folder_opens_to_its_tokenizer_and_splits(folder: Path):
    dataset = Dataset.open(folder, verify=True)
    train, validation = dataset.split("train"), dataset.split("validation")
    tokenizer = dataset.tokenizer()
    assert dataset.vocabulary == tokenizer.vocabulary
    assert tokenizer.decode([*train.read(0, train.tokens), *validation.read(0, validation.tokens)]) == TEXT
    assert train.bytes == train.characters == len(train) == int(len(TEXT) * 0.9)
    assert len(list(folder.glob("train-*.bin"))) == -(-len(train) // 1000)
    assert train.document_starts.tolist() == [0]


def test_a_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path):
    characters = "".join(chr(code) for code in range(0x4E00, 0x1F000) if not 0xD800 <= code < 0xE000)
    (tmp_path / "book.txt").write_text(characters, encoding="utf-8")
    prepare([tmp_path / "book.txt"], "char", tmp_path / "data", PrepareOptions(validation=0.0))
    dataset = Dataset.open(tmp_path / "data")
    assert dataset.vocabulary > 1 << 16
    assert dataset.meta.dtype == "uint32"
    split = dataset.split("train")
    assert split.read(0, split.tokens).max() > 1 << 16
    assert dataset.tokenizer().decode(split.read(0, split.tokens).tolist()) == characters


def test_nothing_held_out_is_an_empty_split(tmp_path: Path):
    (tmp_path / "book.txt").write_text(TEXT)
    prepare([tmp_path / "book.txt"], "char", tmp_path / "data", PrepareOptions(validation=0.0))
    held_out = Dataset.open(tmp_path / "data").split("validation")
    assert len(held_out) == held_out.bytes == held_out.documents == len(held_out.document_starts) == 0


def test_missing_and_truncated_and_damaged_shards_are_named(folder: Path):
    shard = folder / "train-00002.bin"
    whole = shard.read_bytes()
    cases = [
        (
            whole[:-100],
            r"train-00002\.bin: the file is truncated: expected 2,000 bytes, got 1,900 \(make the data again",
        ),
        (whole + b"xx", r"train-00002\.bin: the file is too long: expected 2,000 bytes, got 2,002"),
        (whole[:-1] + b"\x07", r"train-00002\.bin: the file is damaged: expected SHA-256 [0-9a-f]{12}…, got"),
    ]
    for content, message in cases:
        shard.write_bytes(content)
        with pytest.raises(DataError, match=message):
            Dataset.open(folder)
    shard.unlink()
    with pytest.raises(DataError, match=r"train-00002\.bin: the file is missing"):
        Dataset.open(folder)


def test_damaged_document_starts_are_noticed(folder: Path):
    (folder / "validation.idx").write_bytes(np.array([5], "<i8").tobytes())
    with pytest.raises(DataError, match=r"validation\.idx: the file is damaged"):
        Dataset.open(folder)


def test_large_data_is_checked_byte_by_byte_only_when_asked(folder: Path, monkeypatch: pytest.MonkeyPatch):
    shard = folder / "train-00000.bin"
    shard.write_bytes(bytes(len(shard.read_bytes())))
    monkeypatch.setattr(dataset_module, "ALWAYS_VERIFIED", 1000)
    assert Dataset.open(folder).vocabulary > 0
    with pytest.raises(DataError, match="is damaged"):
        Dataset.open(folder, verify=True)


def test_folders_that_hold_no_prepared_data_are_refused(folder: Path, tmp_path: Path):
    with pytest.raises(DataError, match=r"nowhere: no such data folder \(make the data with"):
        Dataset.open(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"it has no meta\.json"):
        Dataset.open(tmp_path)
    meta = json.loads((folder / "meta.json").read_text())
    for change, message in [
        ({"version": 2}, "version: Input should be 1, got 2"),
        ({"vocabulary": "many"}, "vocabulary: Input should be a valid integer"),
        ({"splits": {"train": meta["splits"]["train"]}}, "no validation split"),
        (
            {
                "splits": {
                    **meta["splits"],
                    "train": {
                        **meta["splits"]["train"],
                        "shards": [{**meta["splits"]["train"]["shards"][0], "file": "../../etc/passwd"}],
                    },
                }
            },
            "should match pattern",
        ),
    ]:
        (folder / "meta.json").write_text(json.dumps(meta | change))
        with pytest.raises(DataError, match=message):
            Dataset.open(folder)


def test_another_tokenizer_in_the_folder_is_noticed(folder: Path):
    train_tokenizer("char", ["other"], None).save(folder)
    with pytest.raises(DataError, match="the tokenizer is not the one that made these tokens"):
        Dataset.open(folder).tokenizer()
