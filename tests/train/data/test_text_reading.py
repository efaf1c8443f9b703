"""Files to documents: forms, gzip, folders, and cutting without harm."""

import gzip
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from glassformer.errors import DataError
from glassformer.tokenizer import KINDS, train_tokenizer
from glassformer.train.data import read as reading_module
from glassformer.train.data.clean import Changes, clean
from glassformer.train.data.files import TextFile, find, form_of
from glassformer.train.data.read import Piece, cut, read, reading, separate

FAITHFUL = "first\r\nsecond\rthird\u2028fourth\n\n\ttabs and \x07 bells, e\u0301 👩‍👩‍👧 汉字\n"


def documents(path: Path, split_on: str | None = None, codec: str = "utf-8") -> list[str]:
    form, gzipped = form_of(path)
    return joined(read(TextFile(path, form or "text", gzipped, named=True), codec, split_on))


def joined(pieces) -> list[str]:
    found, text = [], ""
    for piece in pieces:
        text += piece.text
        if piece.ends:
            found.append(text)
            text = ""
    assert not text
    return found


def test_text_comes_as_it_is_byte_for_byte(tmp_path: Path):
    for name in ("a.txt", "a.md", "a.py", "a.unheard-of"):
        (tmp_path / name).write_bytes(FAITHFUL.encode())
        assert documents(tmp_path / name) == [FAITHFUL]


def test_json_lines_are_documents(tmp_path: Path):
    texts = [FAITHFUL, "two", "", "四"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"id": 1, "text": text}, ensure_ascii=False) for text in texts) + "\n\n")
    assert documents(path) == texts


def test_parquet_rows_are_documents(tmp_path: Path):
    texts = [FAITHFUL, None, "四"] * 200
    table = pyarrow.table({"id": range(600), "text": texts})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    assert documents(tmp_path / "a.parquet") == [text or "" for text in texts]
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert documents(tmp_path / "a.parquet.gz") == [text or "" for text in texts]


def test_gzip_is_looked_through(tmp_path: Path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(FAITHFUL.encode()))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": FAITHFUL}).encode()))
    assert documents(tmp_path / "a.txt.gz") == documents(tmp_path / "a.jsonl.gz") == [FAITHFUL]


def test_a_byte_order_mark_is_no_text(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("\ufeff汉字".encode("utf-16-le"))
    assert documents(tmp_path / "a.txt", codec="utf-16") == ["汉字"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"content": "x", "id": 3}', r"a\.jsonl, line 3: no field \"text\": got fields 'content', 'id'"),
        ('["text"]', r"line 3: no field \"text\": got list"),
        ('{"text": ["x"]}', r"line 3: \"text\" should be a string, got list"),
        ('{"text": "x"', r"line 3: not valid JSON"),
        (r'{"text": "\ud83d"}', r"line 3: \"text\" holds half of a surrogate pair"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n\n' + line + '\n{"text": "good"}\n')
    with pytest.raises(DataError, match=message):
        documents(tmp_path / "a.jsonl")


def test_bad_bytes_are_placed(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"x" * 500_000 + b"\xff")
    with pytest.raises(DataError, match=r"a\.txt: not utf-8 text at byte 500000 \(0xFF\)"):
        documents(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"x" * 262_143 + "汉".encode() + b"\xe6")
    with pytest.raises(DataError, match=r"not utf-8 text at byte 262146 \(0xE6\)"):
        documents(tmp_path / "a.txt")


def test_damaged_gzip_is_refused(tmp_path: Path):
    whole = gzip.compress(os.urandom(5000).hex().encode())
    (tmp_path / "a.txt.gz").write_bytes(whole[:-2000])
    with pytest.raises(DataError, match=r"a\.txt\.gz: the gzip file ends too early \(it is truncated"):
        documents(tmp_path / "a.txt.gz")
    (tmp_path / "a.txt.gz").write_bytes(b"just text")
    with pytest.raises(DataError, match="not a sound gzip file"):
        documents(tmp_path / "a.txt.gz")
    (tmp_path / "a.txt.gz").write_bytes(whole[:1000] + bytes(100) + whole[1100:])
    with pytest.raises(DataError, match="not a sound gzip file"):
        documents(tmp_path / "a.txt.gz")


def test_parquet_must_be_whole_and_have_a_column_of_strings(tmp_path: Path):
    parquet.write_table(pyarrow.table({"content": ["x"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r'a\.parquet: no column "text": there are content, id'):
        documents(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match='column "text" should hold strings, not int'):
        documents(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(DataError, match=r"a\.parquet: not a sound parquet file"):
        documents(tmp_path / "a.parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parquet.write_table(pyarrow.table({"text": ["x"]}), tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r'needs pyarrow \(pip install "glassformer\[parquet\]"\)'):
        documents(tmp_path / "a.parquet")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_file_without_permission_is_refused():
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "secret.txt").write_text("x")
    (folder / "secret.txt").chmod(0o600)
    (folder / "closed").mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(DataError, match=r"secret\.txt: can't be read: permission denied"):
            documents(folder / "secret.txt")
        with pytest.raises(DataError, match="closed: can't be read: Permission denied"):
            find([folder], folder / "out")
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def test_what_the_system_says_becomes_one_line():
    for error, message in [
        (PermissionError(13, "Permission denied"), "book: can't be read: permission denied"),
        (FileNotFoundError(2, "No such file"), "book: no such file"),
        (OSError(5, "Input/output error"), "book: can't be read: Input/output error"),
    ]:
        with pytest.raises(DataError, match=message), reading(Path("book")):
            raise error


def test_a_folder_gives_its_text_files_in_order_and_counts_the_rest(tmp_path: Path):
    for name in (
        *("b.txt", "a.py", "z/deep/er.md", "c.jsonl.gz", "Makefile", "d.parquet"),
        *("picture.png", "data.json", ".hidden.txt", "LICENSE", "x.tar.gz"),
        *(".git/config.txt", "node_modules/m/index.js", "z/__pycache__/a.py", "out/old.txt"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    files, skipped = find([tmp_path / "b.txt", tmp_path], leave_out=tmp_path / "out")
    found = [str(file.path.relative_to(tmp_path)) for file in files]
    assert found == ["b.txt", "Makefile", "a.py", "c.jsonl.gz", "d.parquet", "z/deep/er.md"]
    assert [file.form for file in files] == ["text", "text", "text", "jsonl", "parquet", "text"]
    assert [file.named for file in files] == [True, False, False, False, False, False]
    assert skipped == Counter({"of another kind": 4, "hidden": 1, "hidden or ignored folder": 3})


def test_paths_without_text_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        find([tmp_path / "nowhere"], tmp_path / "out")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(DataError, match=r"no text in here: found 1 of another kind \(name a file"):
        find([tmp_path], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="found nothing at all"):
        find([tmp_path / "empty"], tmp_path / "out")


TEXTS = st.text(st.sampled_from("ab。，汉字 \t\n\r#e\u0301"), max_size=200)


def blocks_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@settings(deadline=None)
@given(text=TEXTS, size=st.integers(1, 50))
def test_pieces_join_to_the_text(text: str, size: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading_module, "PIECE", 8)
        pieces = list(cut(blocks_of(text, size)))
    assert joined(pieces) == [text]
    assert all(piece.text for piece in pieces[:-1])
    assert max(len(piece.text) for piece in pieces) <= 32 + size


@settings(deadline=None, max_examples=300)
@given(texts=st.lists(TEXTS, max_size=6), size=st.integers(1, 50), separator=st.sampled_from(["##", "\n##\n", "#"]))
def test_separators_are_found_wherever_blocks_end(texts: list[str], size: int, separator: str):
    whole = separator.join(text.replace("#", "") for text in texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading_module, "PIECE", 8)
        found = joined(separate(blocks_of(whole, size), separator))
    assert [text.strip("\r\n") for text in found] == [text.strip("\r\n") for text in whole.split(separator)]
    if not set(whole) & set("\r\n"):
        assert found == whole.split(separator)


def test_line_breaks_beside_a_separator_go_and_others_stay(tmp_path: Path):
    whole = "\none\ntwo\n\n<|endoftext|>\r\n three \n<|endoftext|>\n"
    (tmp_path / "a.txt").write_bytes(whole.encode())
    assert documents(tmp_path / "a.txt", "<|endoftext|>") == ["one\ntwo", " three ", ""]
    assert documents(tmp_path / "a.txt") == [whole]


PROSE = (
    "Once upon a time, there was a model.\n\nIt didn't know much: 3.14, perhaps?\n  - an indented line\n\n\n"
    "def f(x):\n    return x + 1  # 注释\n今天天气真好，我们去公园。他说：“好的！”\n\t学而时习之。\n…and so on.\n"
)
LONG_LINE = PROSE.replace("\n", " ")
CHINESE_LINE = "今天天气真好，我们去公园。他说：“好的！”学而时习之，不亦说乎？有朋自远方来，不亦乐乎？" * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [PROSE, PROSE.replace("\n", "\r\n"), LONG_LINE, CHINESE_LINE])
def test_pieces_have_the_ids_of_the_whole(kind: str, text: str, monkeypatch: pytest.MonkeyPatch):
    tokenizer = train_tokenizer(kind, [PROSE, CHINESE_LINE], None)
    monkeypatch.setattr(reading_module, "PIECE", 48)
    pieces = [piece.text for piece in cut(blocks_of(text * 8, 10))]
    assert len(pieces) > 3
    assert [token for ids in tokenizer.encode_batch(pieces) for token in ids] == tokenizer.encode(text * 8)


def test_cleaning_composes_removes_control_characters_and_counts():
    pieces = [Piece("cafe\u0301\n", False), Piece("be\x07ll\x85\x00\r\n\t", True), Piece("plain\n", True)]
    changes = Changes()
    assert list(clean(pieces, changes)) == [Piece("café\n", False), Piece("bell\r\n\t", True), Piece("plain\n", True)]
    assert changes == Changes(normalised=1, control_characters=3)
