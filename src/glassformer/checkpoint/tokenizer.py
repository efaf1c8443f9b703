"""The tokenizer that a path means: of a run, a checkpoint, a model folder, a GGUF file or any file of a tokenizer."""

from collections.abc import Mapping
from pathlib import Path

from glassformer.checkpoint.gguf import GgufFile
from glassformer.checkpoint.locate import GGUF
from glassformer.errors import TokenizerError
from glassformer.tokenizer import Tokenizer, read_tokenizer
from glassformer.tokenizer.foreign import from_lists
from glassformer.tokenizer.read import tokenizer_file


def load_tokenizer(
    path: Path | str, *, pattern: str | None = None, special: Mapping[str, int] | None = None, target: bool = False
) -> Tokenizer:
    """The tokenizer at `path`, whatever kind it is; the options are those of `read_tokenizer`.

    Raises:
        TokenizerError: when there is none, or it can't be read.
        CheckpointError: a GGUF file that is damaged.
    """
    place = Path(path)
    if place.suffix.lower() == GGUF and place.is_file():
        with GgufFile(place) as file:
            inside = tokenizer_inside(file)
        if inside is None:
            raise TokenizerError("this file holds no tokenizer", where=place, do="give the original model's folder")
        return inside
    if place.is_dir() and tokenizer_file(place) is None and place.resolve().parent.name == "checkpoints":
        place = place.resolve().parent.parent
    return read_tokenizer(place, pattern=pattern, special=special, target=target)


def tokenizer_inside(file: GgufFile | None) -> Tokenizer | None:
    """The tokenizer that a GGUF file holds, if it holds one."""
    if file is None or "tokenizer.ggml.model" not in file.facts:
        return None
    try:
        return from_lists(file.facts)
    except TokenizerError as error:
        raise TokenizerError(error.what, where=file.path, do=error.do) from None
