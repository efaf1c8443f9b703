"""BERT's tokenizer from its vocab.txt: a token a line, words in pieces, `[CLS]` before and `[SEP]` behind."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import TokenizerError
from glassformer.tokenizer.base import Tokenizer
from glassformer.tokenizer.tree import Tree, added, framing, rules

NAMES = {
    "unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
}  # fmt: skip
BRACKETED = re.compile(r"[\[<].*[\]>]")
LONGEST_WORD = 100


def from_vocabulary(path: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a vocab.txt; `config` is the tokenizer_config.json beside it.

    Of it `do_lower_case`, `strip_accents` and `tokenize_chinese_chars` are honoured. Without do_lower_case, a
    vocabulary in which words have capitals is cased.

    Raises:
        TokenizerError: a file that isn't UTF-8, a token that occurs twice, no token for unknown words.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"expected UTF-8 text; byte {error.start} is no part of it", where=path) from None
    lines = [line.removesuffix("\r") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    tokens: dict[str, int] = {}
    for number, line in enumerate(lines):
        if tokens.setdefault(line, number) != number:
            raise TokenizerError(f"{line[:40]!r} occurs twice (lines {tokens[line] + 1} and {number + 1})", where=path)
    try:
        return Tokenizer(rules(bert_tree(tokens, config)), config)
    except TokenizerError as error:
        raise TokenizerError(error.what, where=path, do=error.do) from None


def bert_tree(tokens: Mapping[str, int], config: Mapping[str, Any]) -> Tree:
    """The rules of a BERT with these tokens."""
    names = {role: name_of(config.get(role)) or usual for role, usual in NAMES.items()}
    if (unknown := names["unk_token"]) not in tokens:
        raise TokenizerError(f"not a vocabulary of BERT: it has no {unknown}", do="give a file with a token a line")
    lower = config.get("do_lower_case")
    special = [name for name in names.values() if name in tokens]
    tree: Tree = {
        "added_tokens": [added(tokens[name], name) for name in sorted(special, key=tokens.__getitem__)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True) is not False,
            "strip_accents": config.get("strip_accents"),
            "lowercase": lower if isinstance(lower, bool) else not _cased(tokens),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": LONGEST_WORD, "vocab": dict(tokens),
        },
    }  # fmt: skip
    cls, sep = names["cls_token"], names["sep_token"]
    if cls in tokens and sep in tokens:
        tree["post_processor"] = framing(f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", tokens)
    return tree


def name_of(token: object) -> str | None:
    """The name of a token as configs write it: a text, or a mapping with its content."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) and token else None


def _cased(tokens: Mapping[str, int]) -> bool:
    return any(token != token.lower() and not BRACKETED.fullmatch(token) for token in tokens)


def from_gguf(tokens: Sequence[str], config: Mapping[str, Any]) -> Tree:
    """The rules of kind `bert` inside GGUF, where ▁ marks the beginning of a word instead of ## its continuation."""
    special = {name_of(config.get(role)) or usual for role, usual in NAMES.items()}
    plain: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token not in special and not BRACKETED.fullmatch(token):
            token = token[1:] if token.startswith("▁") else f"##{token}"
        plain[token] = index
    return bert_tree(plain, {"do_lower_case": True, **config})
