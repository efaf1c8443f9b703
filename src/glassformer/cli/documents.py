"""The documents of a user's files: whatever `prepare` reads, as whole texts."""

from collections.abc import Iterator
from pathlib import Path

from glassformer.train.data import PrepareOptions
from glassformer.train.data.pipeline import look


def read_documents(path: Path, *, leave_out: Path | None = None, limit: int | None = None) -> Iterator[str]:
    """The texts of a file or folder, one by one; with a `limit`, the first so many bytes of them.

    `leave_out`: a folder that isn't walked into.

    Raises:
        DataError: nothing there that is text, or a file that can't be read.
    """
    corpus = look([path], leave_out or path, PrepareOptions())
    parts: list[str] = []
    left = limit
    for text, ends in corpus.pieces():
        parts.append(text)
        if left is not None:
            left -= len(text.encode())
        if ends or (left is not None and left <= 0):
            if document := "".join(parts):
                yield document
            parts = []
        if left is not None and left <= 0:
            return
