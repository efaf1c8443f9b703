"""A tokenizer on disk: tokenizer.json (the rules) and tokenizer_config.json (the names of its special tokens)."""

import json
import os
from pathlib import Path
from typing import Any

from glassformer.errors import TokenizerError

RULES, CONFIG = "tokenizer.json", "tokenizer_config.json"


def read_files(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of tokenizer.json and the tree of tokenizer_config.json (empty when absent) of a folder or file.

    Raises:
        TokenizerError: when tokenizer.json is missing or either file can't be read as a JSON mapping.
    """
    rules = path if path.is_file() else path / RULES
    if not rules.exists():
        missing = f"no {RULES} in this folder" if path.is_dir() else "no such file or folder"
        raise TokenizerError(missing, where=path, do="give a folder that holds a trained tokenizer")
    text = _read_mapping(rules)
    config = rules.with_name(CONFIG)
    return text, json.loads(_read_mapping(config)) if config.is_file() else {}


def write_files(folder: Path, rules: str, config: dict[str, Any]) -> None:
    """Write both files; each appears whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / RULES, rules)
        _write(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise TokenizerError(f"can't write the tokenizer: {error.strerror or error}", where=folder) from None


def _read_mapping(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        tree = json.loads(text)
    except OSError as error:
        raise TokenizerError(f"can't read it: {error.strerror or error}", where=path) from None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise TokenizerError(f"expected JSON: {error}", where=path, do="the file is damaged; save it again") from None
    if not isinstance(tree, dict):
        raise TokenizerError(f"expected a JSON mapping, got {type(tree).__name__}", where=path)
    return text


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
