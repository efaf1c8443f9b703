"""JSON documents from outside: read within bounds, refused in one line where they are not what they should be."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from glassformer.errors import CheckpointError

MAX_BYTES = 16 * 2**20


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CheckpointError: the file can't be read, is larger than 16 MiB, or is no JSON object.
    """
    return parse(_bytes(path), where=path)


def read_list(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a list in a file; errors as `read_document`."""
    tree = _parsed(_bytes(path), path)
    if not isinstance(tree, list) or not all(isinstance(item, dict) for item in tree):
        raise CheckpointError(f"expected a list of JSON objects, found {type(tree).__name__}", where=path)
    return tree


def parse(data: bytes, where: Path) -> dict[str, Any]:
    """The JSON object in UTF-8 bytes; a name that occurs twice is refused."""
    tree = _parsed(data, where)
    if not isinstance(tree, dict):
        raise CheckpointError(f"expected a JSON object, found {type(tree).__name__}", where=where)
    return tree


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise CheckpointError("no such file" if not path.exists() else "not a regular file", where=path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"can't read: {error.strerror}", where=path) from None
    if len(data) > MAX_BYTES:
        raise CheckpointError(f"expected at most {MAX_BYTES} bytes of JSON, found more", where=path)
    return data


def _parsed(data: bytes, where: Path) -> Any:
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise CheckpointError("not a usable JSON document: nested too deeply", where=where) from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError among them
        raise CheckpointError(f"not a usable JSON document: {error}", where=where) from None


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in pairs:
        if name in tree:
            raise ValueError(f"the name {name[:80]!r} occurs twice")
        tree[name] = value
    return tree
