"""Which files hold text: named files as they are, folders walked in a fixed order by what their suffixes promise."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glassformer.errors import DataError

Form = Literal["text", "jsonl", "parquet"]

PROSE = "txt text md markdown rst tex adoc org"
CODE = (
    "py pyi ipy js mjs cjs jsx ts tsx vue svelte html htm css scss c h cc cpp cxx hpp hh cu cuh m mm java kt kts scala "
    "groovy clj go rs swift zig nim d cs fs vb rb php pl pm lua r jl hs ml mli ex exs erl elm lisp el scm rkt sh bash "
    "zsh fish ps1 bat sql proto graphql cmake mk toml yaml yml ini cfg f90 f asm s v sv vhd tf dart sol"
)
TEXT = frozenset(f".{suffix}" for suffix in (PROSE + " " + CODE).split())
JSON_LINES = frozenset({".jsonl", ".ndjson"})
NAMES = frozenset({"Makefile", "Dockerfile", "README"})
IGNORED_FOLDERS = frozenset({"node_modules", "__pycache__", "site-packages", "venv"})


@dataclass(frozen=True)
class TextFile:
    """A file that promises text. `named`: the user named it, so that what it can't keep is an error, not a skip."""

    path: Path
    form: Form
    gzipped: bool
    named: bool


def find(paths: Sequence[Path], leave_out: Path) -> tuple[list[TextFile], Counter[str]]:
    """Every text file under `paths`, once each: in the order named, folders in the order of their names.

    Returns the files and how many others were skipped, by reason. `leave_out` is a folder never walked into.

    Raises:
        DataError: a path that doesn't exist or can't be entered, or nothing that looks like text.
    """
    found: dict[Path, TextFile] = {}
    skipped: Counter[str] = Counter()
    for path in paths:
        for file in _under(path, leave_out.resolve(), skipped):
            found.setdefault(file.path.resolve(), file)
    if not found:
        others = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "nothing at all"
        raise DataError(
            f"no text in here: found {others}",
            where=", ".join(str(path) for path in paths) or "prepare",
            do="name a file or folder with .txt, .md, .jsonl, .parquet or source code",
        )
    return list(found.values()), skipped


def _under(path: Path, leave_out: Path, skipped: Counter[str]) -> Iterator[TextFile]:
    try:
        os.stat(path)
    except FileNotFoundError:
        raise DataError("no such file or folder", where=path, do="check the path") from None
    except OSError as error:
        raise DataError(f"can't be read: {error.strerror}", where=path, do="check its permissions") from None
    if not path.is_dir() and not path.is_file():
        raise DataError("not a regular file", where=path, do="save what it gives into a file first")
    if not path.is_dir():
        form, gzipped = form_of(path)
        yield TextFile(path, form or "text", gzipped, named=True)
        return
    for folder, folders, names in os.walk(path, onerror=_refuse):
        kept = [name for name in sorted(folders) if name not in IGNORED_FOLDERS and not name.startswith(".")]
        skipped.update({"hidden or ignored folder": len(folders) - len(kept)} if len(kept) < len(folders) else {})
        folders[:] = [name for name in kept if (Path(folder) / name).resolve() != leave_out]
        for name in sorted(names):
            form, gzipped = form_of(Path(name))
            if name.startswith("."):
                skipped["hidden"] += 1
            elif form is None or not (Path(folder) / name).is_file():
                skipped["of another kind"] += 1
            else:
                yield TextFile(Path(folder) / name, form, gzipped, named=False)


def _refuse(error: OSError) -> None:
    raise DataError(f"can't be read: {error.strerror}", where=error.filename, do="check its permissions")


def form_of(path: Path) -> tuple[Form | None, bool]:
    """What a name promises: the form of the text (None: no text we know) and whether it is gzipped."""
    gzipped = path.suffix.lower() == ".gz"
    inner = Path(path.stem) if gzipped else path
    suffix = inner.suffix.lower()
    if suffix in JSON_LINES:
        return "jsonl", gzipped
    if suffix == ".parquet":
        return "parquet", gzipped
    return ("text" if suffix in TEXT or inner.name in NAMES else None), gzipped
