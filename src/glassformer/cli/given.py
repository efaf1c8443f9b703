"""Text that a command is given: as an argument, in a file, or on standard input."""

import sys
from pathlib import Path

from glassformer.errors import DataError


def read_text(argument: str | None, file: Path | None, name: str) -> str:
    """The text of an argument (- is standard input) or of a UTF-8 file, to the last character.

    `name` is what the argument is called in messages.

    Raises:
        DataError: when both or neither are given, or what is read is no UTF-8 text.
    """
    if (argument is None) == (file is None):
        raise DataError(f"expected {name} or --file, one of the two", do=f"give {name}, or - to read standard input")
    if argument is not None and argument != "-":
        return argument
    where = file or "standard input"
    if file is not None and file.is_char_device():
        raise DataError("expected a file of text, found a device", where=where)
    try:
        return (sys.stdin.buffer.read() if file is None else file.read_bytes()).decode("utf-8")
    except OSError as error:
        raise DataError(f"can't read it: {error.strerror or error}", where=where) from None
    except UnicodeDecodeError as error:
        raise DataError(f"expected UTF-8 text; byte {error.start} is no part of it", where=where) from None
