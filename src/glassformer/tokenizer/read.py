"""One door to every tokenizer file: tokenizer.json, vocab.json and merges.txt, vocab.txt, .model, .spm, .tiktoken."""

from collections.abc import Mapping
from pathlib import Path

from glassformer.errors import TokenizerError
from glassformer.tokenizer.base import Tokenizer
from glassformer.tokenizer.bert import from_vocabulary
from glassformer.tokenizer.bytelevel import from_merges, from_ranks
from glassformer.tokenizer.files import RULES, family_of, read_config
from glassformer.tokenizer.spm_families import from_marian, from_model

VOCABULARY, MERGES, WORDS = "vocab.json", "merges.txt", "vocab.txt"
MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
SOURCE, TARGET = "source.spm", "target.spm"
KNOWN = f"{RULES}, {VOCABULARY} with {MERGES}, {WORDS}, a .model of SentencePiece, or a .tiktoken"


def tokenizer_file(folder: Path) -> Path | None:
    """The file that a folder's tokenizer is read from; None when it has none."""
    for name in (RULES, SOURCE, VOCABULARY, WORDS, *MODELS):
        if (folder / name).is_file() and not (name == VOCABULARY and not (folder / MERGES).is_file()):
            return folder / name
    if not folder.is_dir():
        return None
    return next((path for kind in ("*.tiktoken", "*.model") for path in sorted(folder.glob(kind))), None)


def read_tokenizer(
    path: Path | str,
    *,
    pattern: str | None = None,
    special: Mapping[str, int] | None = None,
    target: bool = False,
) -> Tokenizer:
    """The tokenizer of a folder or a file of any known kind.

    pattern, special: for ranks of tiktoken: how words are cut, and the ids of special tokens (`bytelevel.from_ranks`).
    target: of a Marian folder, the tokenizer of the language it translates into.

    Raises:
        TokenizerError: when there is none, or it can't be read.
    """
    place = Path(path)
    file = place if place.is_file() else tokenizer_file(place)
    if file is None:
        missing = f"no {RULES} in this folder, nor another tokenizer" if place.is_dir() else "no such file or folder"
        raise TokenizerError(missing, where=place, do=f"give a folder that holds one: {KNOWN}")
    try:
        return _read(file, pattern, special, target)
    except TokenizerError as error:
        raise TokenizerError(error.what, where=error.where or file, do=error.do) from None
    except OSError as error:
        raise TokenizerError(f"can't read it: {error.strerror or error}", where=file) from None


def _read(file: Path, pattern: str | None, special: Mapping[str, int] | None, target: bool) -> Tokenizer:
    folder = file.parent
    if file.name in (SOURCE, TARGET) and (folder / VOCABULARY).is_file():
        return from_marian(folder, target or file.name == TARGET, read_config(folder))
    if file.name in (VOCABULARY, MERGES):
        if missing := [name for name in (VOCABULARY, MERGES) if not (folder / name).is_file()]:
            raise TokenizerError(f"{file.name} needs {missing[0]} beside it", where=folder)
        config = read_config(folder)
        return from_merges(folder / VOCABULARY, folder / MERGES, config, family_of(folder, config))
    if file.suffix == ".txt":
        return from_vocabulary(file, read_config(folder))
    if file.suffix == ".tiktoken" or (file.suffix == ".model" and _is_ranks(file)):
        return from_ranks(file, read_config(folder), pattern, special)
    if file.suffix in (".model", ".spm"):
        config = read_config(folder)
        return from_model(file, config, family_of(folder, config))
    return Tokenizer.load(file)


def _is_ranks(file: Path) -> bool:
    """Whether a .model is in truth a list of ranks, as Llama 3 has it."""
    with file.open("rb") as content:
        return content.read(64).startswith((b"IQ== 0\n", b"AA== 0\n"))
