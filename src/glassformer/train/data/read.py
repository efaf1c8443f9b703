"""Files as a stream of documents in bounded memory: text, JSON lines and parquet, each plain or gzipped."""

import codecs
import gzip
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from glassformer.errors import DataError
from glassformer.train.data.files import TextFile

BLOCK = 1 << 18
"""Bytes read at once."""
PIECE = 1 << 14
"""Characters of a piece: a longer document comes in several."""

LINE_END = re.compile(r"\n(?=\S)(?:(?<=\S\n)|(?<=\S\r\n))")
"""A line break between two characters that aren't white space: no tokenizer here joins anything across its end."""
WORD_END = re.compile(r"[。！？，、；：](?=[一-鿿])|\w(?= \w)")
"""Where lines are too long for that: after a Chinese mark before a Han character, or before a space between words."""


class Piece(NamedTuple):
    """A stretch of a document's text, and whether the document ends with it."""

    text: str
    ends: bool


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what the system says about a file that can't be read into one line for the user."""
    try:
        yield
    except FileNotFoundError:
        raise DataError("no such file", where=path, do="check the path") from None
    except PermissionError:
        raise DataError("can't be read: permission denied", where=path, do="check its permissions") from None
    except EOFError:
        raise DataError("the gzip file ends too early", where=path, do="it is truncated: fetch it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"not a sound gzip file: {error}", where=path, do="fetch it again, or drop the .gz") from None
    except OSError as error:
        raise DataError(f"can't be read: {error.strerror or error}", where=path) from None


@contextmanager
def open_bytes(file: TextFile) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked."""
    with reading(file.path), file.path.open("rb") as raw:
        if not file.gzipped:
            yield raw
        else:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield cast(BinaryIO, unpacked)


def read(file: TextFile, codec: str, split_on: str | None = None) -> Iterator[Piece]:
    """The documents of one file, in order, as pieces; a document without text still ends (with an empty piece).

    Text is one document a file, or those between `split_on`; JSON lines one a line, parquet one a row. Nothing is
    changed but this: a byte-order mark, and line breaks beside `split_on`, belong to no document.

    Raises:
        DataError: naming the file and line or byte of whatever can't be read.
    """
    with open_bytes(file) as unpacked:
        if file.form == "parquet":
            yield from _rows(unpacked, file)
        elif file.form == "jsonl":
            for number, line in enumerate(_lines(decode(unpacked, codec, file.path)), start=1):
                if line.strip():
                    yield Piece(_text_of(line, where=f"{file.path}, line {number}"), ends=True)
        elif split_on:
            yield from separate(decode(unpacked, codec, file.path), split_on)
        else:
            yield from cut(decode(unpacked, codec, file.path))


def decode(file: BinaryIO, codec: str, where: object) -> Iterator[str]:
    """Bytes as blocks of text.

    Raises:
        DataError: naming the first byte that the codec can't read.
    """
    decoder = codecs.getincrementaldecoder(codec)()
    offset, last = 0, False
    while not last:
        block = file.read(BLOCK)
        last = not block
        try:
            text = decoder.decode(block, final=last)
        except UnicodeDecodeError as error:
            at = offset + len(block) - len(error.object) + error.start
            raise DataError(
                f"not {codec} text at byte {at} (0x{error.object[error.start]:02X})",
                where=where,
                do="repair the file, or name its --encoding",
            ) from None
        except UnicodeError as error:  # UTF-16 without a mark
            raise DataError(f"not {codec} text: {error}", where=where, do="name its --encoding, as utf-16-le") from None
        offset += len(block)
        if text:
            yield text


def cut(blocks: Iterable[str]) -> Iterator[Piece]:
    """One document as pieces of about PIECE characters that can be tokenised one by one, with the ids of the whole.

    Pieces end at line ends, or between words where lines are very long. Only where PIECE characters offer neither,
    a piece ends anywhere, and the ids may differ there from those of the whole.
    """
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > 2 * PIECE:
            end = _place_to_cut(rest)
            if end is None:
                break
            yield Piece(rest[:end], ends=False)
            rest = rest[end:]
    yield Piece(rest, ends=True)


def _place_to_cut(text: str) -> int | None:
    """Where the first piece of `text` ends; None to wait for more text. Never at the very end."""
    if place := LINE_END.search(text, PIECE):
        return place.end()
    if len(text) < 4 * PIECE:
        return None
    place = WORD_END.search(text, PIECE, 2 * PIECE)
    return place.end() if place else PIECE


def separate(blocks: Iterable[str], separator: str) -> Iterator[Piece]:
    """The documents between separators, without the separators and the line breaks beside them."""
    rest, fresh = "", True  # fresh: nothing of the present document was given out yet
    for block in blocks:
        rest += block
        *documents, rest = rest.split(separator)
        for text in documents:
            yield Piece((text.lstrip("\r\n") if fresh else text).rstrip("\r\n"), ends=True)
            fresh = True
        # Keeping back a whole piece means that no separator can begin where a piece ends
        while len(rest) > 2 * PIECE + len(separator) and (end := _place_to_cut(rest[: len(rest) - len(separator)])):
            yield Piece(rest[:end].lstrip("\r\n") if fresh else rest[:end], ends=False)
            rest, fresh = rest[end:], False
    yield Piece((rest.lstrip("\r\n") if fresh else rest).rstrip("\r\n"), ends=True)


def _lines(blocks: Iterable[str]) -> Iterator[str]:
    """Lines ended by a line feed alone: JSON strings may hold the other line separators of Unicode."""
    begun: list[str] = []
    for block in blocks:
        first, *others = block.split("\n")
        begun.append(first)
        for line in others:
            yield "".join(begun)
            begun = [line]
    yield "".join(begun)


def _text_of(line: str, where: str) -> str:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:  # also a number of too many digits, or too deep a nesting
        why = getattr(error, "msg", "a value that can't be read")
        raise DataError(f"not valid JSON: {why}", where=where, do='expected {"text": "…"} on each line') from None
    if not isinstance(record, dict) or "text" not in record:
        came = f"fields {', '.join(map(repr, list(record)[:5]))}" if isinstance(record, dict) else type(record).__name__
        raise DataError(f'no field "text": got {came}', where=where, do='expected {"text": "…"} on each line')
    text = record["text"]
    if not isinstance(text, str):
        raise DataError(f'"text" should be a string, got {type(text).__name__}', where=where)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError('"text" holds half of a surrogate pair: not a character', where=where) from None
    return text


def _rows(file: BinaryIO, source: TextFile) -> Iterator[Piece]:
    """The column `text` of a parquet file, a few rows at a time."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(
            "reading parquet needs pyarrow", where=source.path, do='pip install "glassformer[parquet]"'
        ) from None
    with tempfile.TemporaryFile() as unpacked:
        if source.gzipped:  # parquet is read from its end: no stream
            shutil.copyfileobj(file, unpacked)
            file = cast(BinaryIO, unpacked)
        try:
            table = parquet.ParquetFile(file)
            if "text" not in table.schema_arrow.names:
                names = ", ".join(table.schema_arrow.names) or "none"
                raise DataError(f'no column "text": there are {names}', where=source.path, do="rename one to text")
            for batch in table.iter_batches(batch_size=256, columns=["text"], use_threads=False):
                for text in batch.column(0).to_pylist():
                    if not isinstance(text, str | None):
                        came = type(text).__name__
                        raise DataError(f'column "text" should hold strings, not {came}', where=source.path)
                    yield Piece(text or "", ends=True)
        except ArrowException as error:
            raise DataError(f"not a sound parquet file: {str(error).splitlines()[0]}", where=source.path) from None
