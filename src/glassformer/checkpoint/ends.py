"""What a model's files say of how it writes: at which tokens it stops, and which it never writes."""

from collections.abc import Collection, Iterable, Iterator, Mapping
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
    stops = {index for config in configs for index in _listed(config.get("eos_token_id"), "eos_token_id")}
    stops |= {index for name in ENDS for index in _listed((facts or {}).get(name), name)}
    if tokenizer is not None:
        with suppress(TokenizerError):  # it has no end
            stops.add(tokenizer.eos)
    return frozenset(stops)


def never_ids(configs: Iterable[Mapping[str, Any]]) -> frozenset[int]:
    """Tokens that are never to be written: `suppress_tokens`, and the `bad_words_ids` that are single tokens.

    Raises:
        CheckpointError: what is listed there are no ids.
    """
    found: set[int] = set()
    for config in configs:
        words = config.get("bad_words_ids") or []
        if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
            raise CheckpointError(f"expected bad_words_ids to be a list of lists of ids, got {str(words)[:60]!r}")
        single = [word[0] for word in words if len(word) == 1]
        found |= {*_listed(single, "bad_words_ids"), *_listed(config.get("suppress_tokens"), "suppress_tokens")}
    return frozenset(found)


ASKED: Mapping[str, Collection[Any]] = {
    "no_repeat_ngram_size": (0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "min_length": (0, None),
    "min_new_tokens": (0, None),
    "begin_suppress_tokens": (None,),
    "forced_eos_token_id": (None,),
    "force_words_ids": (None,),
    "sequence_bias": (None,),
}
"""What a generation_config.json may ask of every text and we don't do, with the values that ask nothing."""


def unheeded(configs: Collection[Mapping[str, Any]]) -> tuple[str, ...]:
    """What the files ask of every text that is written, and isn't done here."""
    asked = {name for config in configs for name, nothing in ASKED.items() if config.get(name) not in nothing}
    if any(len(word) > 1 for config in configs for word in config.get("bad_words_ids") or ()):
        asked.add("bad_words_ids (of several tokens)")
    return tuple(sorted(asked))


def generation_config(folder: Path) -> dict[str, Any]:
    """The generation_config.json of a folder; empty where there is none."""
    path = folder / GENERATION
    return read_document(path) if path.is_file() else {}


def _listed(value: object, name: str) -> Iterator[int]:
    for index in value if isinstance(value, list) else [] if value is None else [value]:
        if type(index) is not int or index < 0:
            raise CheckpointError(f"expected {name} to be one id or several, got {str(value)[:60]!r}")
        yield index
