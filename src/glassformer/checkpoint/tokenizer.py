"""The tokenizer that a path means: of a run, a checkpoint, a model folder, a GGUF file or any file of a tokenizer."""

from collections.abc import Mapping
from pathlib import Path

from glassformer.checkpoint.gguf import GgufFile
from glassformer.checkpoint.gguf_model import tokenizer_inside
from glassformer.checkpoint.llama2c import Llama2cFile
from glassformer.checkpoint.locate import GGUF, LLAMA2C
from glassformer.errors import TokenizerError
from glassformer.tokenizer import Tokenizer, read_tokenizer
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
    if place.suffix.lower() in (GGUF, LLAMA2C) and place.is_file():
        gguf = place.suffix.lower() == GGUF
        with GgufFile(place) if gguf else Llama2cFile(place) as file:
            inside = tokenizer_inside(file) if isinstance(file, GgufFile) else file.take_tokenizer()
        if inside is None:
            do = "give the original model's folder" if gguf else "put tokenizer.bin beside it"
            raise TokenizerError("this file holds no tokenizer", where=place, do=do)
        return inside
    if place.is_dir() and tokenizer_file(place) is None and place.resolve().parent.name == "checkpoints":
        place = place.resolve().parent.parent
    return read_tokenizer(place, pattern=pattern, special=special, target=target)
