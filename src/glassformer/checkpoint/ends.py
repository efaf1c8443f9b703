"""At which tokens a model stops writing: all that its tokenizer and its files name."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from glassformer.checkpoint.document import read_document
from glassformer.errors import CheckpointError, TokenizerError
from glassformer.tokenizer import Tokenizer

GENERATION = "generation_config.json"
ENDS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


def stop_ids(
    tokenizer: Tokenizer | None, configs: Iterable[Mapping[str, Any]] = (), facts: Mapping[str, Any] | None = None
) -> frozenset[int]:
    """The end of the tokenizer, `eos_token_id` of each config (one id or several), and the ends of a GGUF's facts.

    A chat model ends its turn with another token than a document; its files name both, each in another place.

    Raises:
        CheckpointError: an eos_token_id that is no id.
    """
    stops = {index for config in configs for index in _listed(config.get("eos_token_id"))}
    stops |= {index for name in ENDS for index in _listed((facts or {}).get(name))}
    if tokenizer is not None:
        with suppress(TokenizerError):  # it has no end
            stops.add(tokenizer.eos)
    return frozenset(stops)


def generation_config(folder: Path) -> dict[str, Any]:
    """The generation_config.json of a folder; empty where there is none."""
    path = folder / GENERATION
    return read_document(path) if path.is_file() else {}


def _listed(value: object) -> Iterator[int]:
    for index in value if isinstance(value, list) else [] if value is None else [value]:
        if type(index) is not int or index < 0:
            raise CheckpointError(f"expected eos_token_id to be one id or several, got {str(value)[:60]!r}")
        yield index
