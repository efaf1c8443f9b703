"""What a folder of prepared data says about itself: meta.json, and its reading."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from glassformer.errors import DataError, SpecError
from glassformer.spec import Spec, read

META = "meta.json"
FORMAT, VERSION = "glassformer-tokens", 1
Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


class PrepareOptions(Spec):
    """How text becomes training data.

    vocab_size: of a tokenizer to be trained; None: its default.
    validation: the share held out.
    clean: Unicode NFC, no control characters, no repeated documents.
    seed: of the choice of validation documents.
    encoding: of every file; None: guessed for each.
    split_on: what stands between documents in a text file; None: a file is a document.
    shard_tokens: the most tokens in one file.
    """

    vocab_size: int | None = Field(default=None, ge=1)
    validation: float = Field(default=0.1, ge=0.0, lt=1.0)
    clean: bool = False
    seed: int = Field(default=0, ge=0, lt=2**64)
    encoding: str | None = None
    split_on: str | None = Field(default=None, min_length=1)
    shard_tokens: int = Field(default=100_000_000, ge=1)


class CleaningReport(Spec):
    """What `clean` changed: documents put into NFC, characters removed, documents left out as repeated."""

    normalised: int
    control_characters: int
    repeated: int


class PrepareReport(Spec):
    """What was read and what came of it; `skipped`, `encodings` count files, `tokens` and the like go by split."""

    files: int
    skipped: dict[str, int]
    skipped_examples: list[str]
    encodings: dict[str, int]
    empty_documents: int
    cleaning: CleaningReport | None
    split: str
    tokenizer: str
    vocabulary: int
    documents: dict[Split, int]
    characters: dict[Split, int]
    bytes: dict[Split, int]
    tokens: dict[Split, int]


class FileMeta(Spec):
    """A file of the folder, its length in bytes and the SHA-256 of its bytes."""

    file: str = Field(pattern=r"^[a-z]+(-[0-9]+)?\.(bin|idx)$")
    bytes: int
    sha256: str


class ShardMeta(FileMeta):
    tokens: int


class SplitMeta(Spec):
    """Sizes of a split: `bytes` (of its text in UTF-8) and `characters` without end tokens; `starts` of documents."""

    tokens: int
    documents: int
    bytes: int
    characters: int
    starts: FileMeta
    shards: tuple[ShardMeta, ...]


class DataMeta(Spec):
    """meta.json. Tokens are little-endian `dtype`, document starts little-endian int64.

    stream: one document, cut in two: no end tokens anywhere.
    """

    format: Literal["glassformer-tokens"] = FORMAT
    version: Literal[1] = VERSION
    tokenizer: str
    vocabulary: int
    dtype: Literal["uint16", "uint32"]
    stream: bool
    splits: dict[Split, SplitMeta]
    options: PrepareOptions
    report: PrepareReport


def is_prepared(folder: Path) -> bool:
    """Whether `prepare` made this folder, in any version."""
    try:
        return f'"format": "{FORMAT}"' in (folder / META).read_text(encoding="utf-8", errors="replace")[:200]
    except OSError:
        return False


def read_meta(folder: Path) -> DataMeta:
    """The meta.json of a folder.

    Raises:
        DataError: no such folder, or not one that `prepare` of this version made.
    """
    do = "make the data with `glassformer prepare`"
    if not folder.is_dir():
        raise DataError("no such data folder", where=folder, do=do)
    if not (folder / META).is_file():
        raise DataError(f"not a folder of prepared data: it has no {META}", where=folder, do=do)
    try:
        meta = read(DataMeta, folder / META)
    except SpecError as error:
        raise DataError(error.what, where=error.where, do=do) from None
    missing = [name for name in SPLITS if name not in meta.splits]
    if missing:
        raise DataError(f"no {missing[0]} split", where=folder / META, do=do)
    return meta
