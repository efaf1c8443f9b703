"""Models of sentences: the files beside an encoder that say how its vectors become one (as sentence-transformers does).

`modules.json` lists the steps: the encoder, pooling, and perhaps a division by the length.
"""

import json
from pathlib import Path
from typing import Any

from glassformer.checkpoint.document import read_document, read_list
from glassformer.checkpoint.families.encoders import LONGEST, SENTENCES
from glassformer.errors import CheckpointError
from glassformer.model.embedding import PooledHeadSpec

MODES = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
"""Ways of pooling, by the fields that choose them."""

NO_LIMIT = 10**9
"""A length from here on is how a tokenizer says that it has no limit."""

KIND = "sentence_transformers.models."
FILES = ("modules.json", "sentence_bert_config.json", "1_Pooling", "2_Normalize")
"""What such a folder has beside the encoder's own files."""


def sentence_facts(folder: Path) -> dict[str, Any]:
    """What the files say, as fields of the encoder's config; nothing where there are none.

    Raises:
        CheckpointError: steps that we don't have (a dense layer, say), or several ways of pooling at once.
    """
    path = folder / "modules.json"
    if not path.exists():
        return {}
    head: dict[str, Any] = {"normalise": False}
    for step in read_list(path):
        kind, place = str(step.get("type", "")).rpartition(".")[2], str(step.get("path", ""))
        if kind == "Pooling":
            head["pooling"] = _pooling(folder / Path(place).name / "config.json")
        elif kind == "Normalize":
            head["normalise"] = True
        elif kind != "Transformer":
            raise CheckpointError(
                f"step {kind[:80]!r} isn't supported", where=path, do="known: Transformer, Pooling, Normalize"
            )
    return {SENTENCES: head, **_longest(folder)}


def _pooling(path: Path) -> str:
    config = read_document(path)
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    named = config.get("pooling_mode")
    if not chosen and isinstance(named, str):
        chosen = [f"pooling_mode_{named}", f"pooling_mode_{named}_token", f"pooling_mode_{named}_tokens"]
        chosen = [name for name in chosen if name in MODES][:1]
    if len(chosen) != 1 or chosen[0] not in MODES:
        raise CheckpointError(
            f"expected one way of pooling, found {', '.join(chosen)[:80] or 'none'}",
            where=path,
            do=f"known: {', '.join(MODES)}",
        )
    return MODES[chosen[0]]


def _longest(folder: Path) -> dict[str, Any]:
    """The most tokens of a sentence: newer files leave it to the tokenizer."""
    named = [("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")]
    found = [read_document(folder / file).get(field) for file, field in named if (folder / file).exists()]
    limits = [limit for limit in found if type(limit) is int and 0 < limit < NO_LIMIT]
    return {LONGEST: min(limits)} if limits else {}


def write_sentence_files(folder: Path, head: PooledHeadSpec, width: int, longest: int) -> None:
    """The files for a head that sentence-transformers makes itself."""
    steps = ["Transformer", "Pooling", *(["Normalize"] if head.normalise else [])]
    places = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": index, "name": str(index), "path": places[index], "type": f"{KIND}{kind}"}
        for index, kind in enumerate(steps)
    ]
    for place in places[1 : len(steps)]:
        (folder / place).mkdir()
    pooling = {"word_embedding_dimension": width, **{name: mode == head.pooling for name, mode in MODES.items()}}
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", pooling)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})


def _write(path: Path, tree: Any) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
