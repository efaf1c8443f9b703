"""A tokenizer on disk: tokenizer.json (the rules), tokenizer_config.json (special tokens), and files beside them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.errors import TokenizerError

RULES, CONFIG, MODEL_CONFIG = "tokenizer.json", "tokenizer_config.json", "config.json"
ROLE_FILE, ADDED = "special_tokens_map.json", "added_tokens.json"
TEMPLATE, OLD_TEMPLATE, MORE_TEMPLATES = "chat_template.jinja", "chat_template.json", "additional_chat_templates"


def read_files(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of tokenizer.json and the tree of tokenizer_config.json (empty when absent) of a folder or file.

    Raises:
        TokenizerError: when tokenizer.json is missing or either file can't be read as a JSON mapping.
    """
    rules = path if path.is_file() else path / RULES
    if not rules.exists():
        missing = f"no {RULES} in this folder" if path.is_dir() else "no such file or folder"
        raise TokenizerError(missing, where=path, do="give a folder that holds a trained tokenizer")
    return _read_mapping(rules), read_config(rules.parent)


def read_config(folder: Path) -> dict[str, Any]:
    """The tree of tokenizer_config.json, with what other files of the folder add to it.

    special_tokens_map.json names roles, added_tokens.json tokens behind the vocabulary; chat_template.jinja (or, of
    older models, chat_template.json) goes before the template in tokenizer_config.json.
    """
    config = read_mapping(folder / ROLE_FILE) | read_mapping(folder / CONFIG)
    if (folder / ADDED).is_file():
        listed = {
            str(index): {"content": name, "special": False} for name, index in read_mapping(folder / ADDED).items()
        }
        config["added_tokens_decoder"] = listed | (config.get("added_tokens_decoder") or {})
    templates = _templates(folder, config.get("chat_template"))
    if templates:
        config["chat_template"] = templates
    return config


def _templates(folder: Path, written: object) -> object:
    """The template of a folder, or the list of its named ones; `written` stands in tokenizer_config.json."""
    if isinstance(old := read_mapping(folder / OLD_TEMPLATE).get("chat_template"), str):
        written = old
    if (folder / TEMPLATE).is_file():
        written = _read_text(folder / TEMPLATE)
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja")) if (folder / MORE_TEMPLATES).is_dir() else []
    if not more:
        return written
    named = written if isinstance(written, list) else [{"name": "default", "template": written}] if written else []
    return [*named, *({"name": path.stem, "template": _read_text(path)} for path in more)]


def family_of(folder: Path, config: Mapping[str, Any]) -> str:
    """What family a folder says its tokenizer is of, as a model_type: `bert`, `t5`, `xlm_roberta` …; "" if nothing."""
    written = config.get("tokenizer_class")
    if isinstance(written, str) and written.removesuffix("Fast") not in ("PreTrainedTokenizer", "TokenizersBackend"):
        name = written.removesuffix("Fast").removesuffix("Tokenizer")
        return FAMILY_OF_CLASS.get(name, name.lower())
    kind = read_mapping(folder / MODEL_CONFIG).get("model_type")
    return kind if isinstance(kind, str) else ""


FAMILY_OF_CLASS = {"XLMRoberta": "xlm_roberta", "MT5": "mt5"}


def write_files(folder: Path, rules: str, config: dict[str, Any]) -> None:
    """Write both files; each appears whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / RULES, rules)
        _write(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise TokenizerError(f"can't write the tokenizer: {error.strerror or error}", where=folder) from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The tree of a JSON file; an absent one is empty."""
    return json.loads(_read_mapping(path)) if path.is_file() else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise TokenizerError(f"can't read it: {error.strerror or error}", where=path) from None
    except UnicodeDecodeError as error:
        raise TokenizerError(f"expected UTF-8 text; byte {error.start} is no part of it", where=path) from None


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
