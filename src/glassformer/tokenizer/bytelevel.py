"""Byte-level BPE from the files of GPT-2 (vocab.json, merges.txt) and of tiktoken (ranks)."""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.errors import TokenizerError
from glassformer.tokenizer.base import EOS, Tokenizer
from glassformer.tokenizer.bert import name_of
from glassformer.tokenizer.pieces import byte_alphabet
from glassformer.tokenizer.pretokenize import ALIAS, cutting, cutting_by
from glassformer.tokenizer.tree import BYTE_DECODER, ROLES, Tree, added, bpe, framing, merges_by_rank, rules, sequence

FRAMED = ("roberta", "bart", "longformer", "led", "xlm_roberta")
"""Families whose texts stand between <s> and </s>."""
CUT_OF = {"qwen2": "qwen2", "qwen3": "qwen2", "qwen": "qwen2"}
"""Families that cut words otherwise than GPT-2; they also normalise to NFC."""

FIM = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
SPECIAL = {
    "r50k_base": {EOS: 50256},
    "p50k_base": {EOS: 50256},
    "cl100k_base": {EOS: 100257, **FIM, "<|endofprompt|>": 100276},
    "o200k_base": {EOS: 199999, "<|endofprompt|>": 200018},
}
"""The special tokens of OpenAI's encodings, which their files leave out."""
LONGEST_LINE = 4096


def from_merges(vocabulary: Path, merges: Path, config: Mapping[str, Any], family: str = "gpt2") -> Tokenizer:
    """The tokenizer of a vocab.json and a merges.txt; `family` is a model_type, which says what stands around a text.

    Raises:
        TokenizerError: files that can't be read, or that don't fit together.
    """
    tokens = read_vocabulary(vocabulary)
    pairs = _pairs(merges, tokens)
    special = _special(tokens, config)
    if len({*tokens.values()}) != len(tokens):
        raise TokenizerError("two tokens have the same id", where=vocabulary)
    steps: Tree = {"type": "ByteLevel", "add_prefix_space": bool(config.get("add_prefix_space")), "trim_offsets": True}
    cut = CUT_OF.get(family)
    tree: Tree = {
        "added_tokens": [added(tokens[name], name, **flags) for name, flags in special.items()],
        "normalizer": {"type": "NFC"} if cut else None,
        "pre_tokenizer": sequence("pretokenizers", cutting(cut)) if cut else {**steps, "use_regex": True},
        "decoder": BYTE_DECODER,
        "model": bpe(tokens, pairs),
    }
    if family in FRAMED:
        begin = name_of(config.get("cls_token") or config.get("bos_token")) or "<s>"
        end = name_of(config.get("sep_token") or config.get("eos_token")) or "</s>"
        if begin not in tokens or end not in tokens:
            raise TokenizerError(f"a tokenizer of kind {family} needs {begin} and {end}", where=vocabulary)
        tree["post_processor"] = framing(f"{begin} $A {end}", f"{begin} $A {end} {end} $B {end}", tokens)
    return Tokenizer(rules(tree), config)


def read_vocabulary(path: Path) -> dict[str, int]:
    """A vocab.json: the id of each token."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"expected JSON: {error}", where=path, do="the file is damaged; copy it again") from None
    if not isinstance(tree, dict) or not all(type(index) is int and 0 <= index < 2**31 for index in tree.values()):
        raise TokenizerError("expected a JSON mapping from tokens to ids", where=path)
    if not tree:
        raise TokenizerError("it has no tokens", where=path)
    return tree


def _pairs(path: Path, tokens: Mapping[str, int]) -> list[list[str]]:
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"expected UTF-8 text; byte {error.start} is no part of it", where=path) from None
    pairs: list[list[str]] = []
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or any(part not in tokens for part in (*pair, "".join(pair))):
            what = f"line {number}: expected two tokens that make a third, got {line[:40]!r}"
            raise TokenizerError(what, where=path, do="give the vocab.json that belongs to this merges.txt")
        pairs.append(pair)
    return pairs


def _special(tokens: dict[str, int], config: Mapping[str, Any]) -> dict[str, dict[str, bool]]:
    """The special tokens with their flags, by id; tokens that only the config lists join the vocabulary."""
    found: dict[str, dict[str, bool]] = {}
    for name in (EOS, "<s>", "</s>", "<pad>", "<unk>"):
        if name in tokens:
            found[name] = {}
    if "<mask>" in tokens:
        found["<mask>"] = {"lstrip": True}
    for role in ROLES:
        if (name := name_of(config.get(role))) and name in tokens:
            found.setdefault(name, {})
    for index, content, flags in listed(config):
        tokens.setdefault(content, index)
        found[content] = flags
    return dict(sorted(found.items(), key=lambda item: tokens[item[0]]))


def listed(config: Mapping[str, Any]) -> list[tuple[int, str, dict[str, bool]]]:
    """The tokens of `added_tokens_decoder` (and of added_tokens.json, which files.py brings in): id, name, flags."""
    found: list[tuple[int, str, dict[str, bool]]] = []
    entries = config.get("added_tokens_decoder")
    for index, entry in (entries if isinstance(entries, Mapping) else {}).items():
        name = name_of(entry)
        if name is None or not str(index).isdecimal() or len(str(index)) > 9:
            raise TokenizerError("expected added_tokens_decoder to map ids to tokens")
        kinds = ("single_word", "lstrip", "rstrip", "normalized", "special")
        found.append((int(index), name, {kind: bool(entry[kind]) for kind in kinds if kind in entry}))
    return sorted(found)


def from_ranks(
    path: Path,
    config: Mapping[str, Any],
    pattern: str | None = None,
    special: Mapping[str, int] | None = None,
) -> Tokenizer:
    """The tokenizer of a file of ranks as tiktoken has it: a token in base64 and its rank, a line each.

    pattern: how words are cut: a name of `pretokenize.ALIAS`, or a regular expression. None: by the file's name.
    special: the ids of special tokens, which such files leave out. None: those that OpenAI gives that name.

    Raises:
        TokenizerError: lines that are something else, or a file whose name says nothing of its pattern.
    """
    ranks = read_ranks(path)
    name = path.stem if pattern is None else pattern
    if pattern is not None and pattern not in ALIAS and re.fullmatch(r"[\w.-]*", pattern):
        raise TokenizerError(
            f"no way of cutting is called {pattern!r}",
            where=path,
            do="name one (cl100k_base, o200k_base, qwen2, llama3 …), or give a regular expression",
        )
    if pattern is None and name not in ALIAS:
        what = "a file of ranks doesn't say how words are cut"
        raise TokenizerError(what, where=path, do="name the pattern: cl100k_base, o200k_base, qwen2, llama3 …")
    steps = cutting(name) if name in ALIAS else cutting_by((name,))
    character = {byte: letter for letter, byte in byte_alphabet().items()}

    def spelled(token: bytes) -> str:
        return "".join(character[byte] for byte in token)

    if missing := sum(bytes([byte]) not in ranks for byte in range(256)):
        raise TokenizerError(f"{missing} of the 256 bytes have no rank", where=path, do="the file isn't complete")
    tokens = {spelled(token): rank for token, rank in ranks.items()}
    own = dict(SPECIAL.get(name, {}) if special is None else special)
    for content, index in own.items():
        if content in tokens or index in ranks.values():
            raise TokenizerError(f"the special token {content!r} takes the place {index} of another", where=path)
    merges = [(spelled(left), spelled(right)) for left, right in merges_by_rank(ranks)]
    tree: Tree = {
        "added_tokens": [added(index, content) for content, index in sorted(own.items(), key=lambda item: item[1])],
        "pre_tokenizer": sequence("pretokenizers", steps),
        "decoder": BYTE_DECODER,
        "model": bpe(tokens | own, merges, whole_words=True),
    }
    return Tokenizer(rules(tree), config)


def read_ranks(path: Path) -> dict[bytes, int]:
    """The rank of each token."""
    ranks: dict[bytes, int] = {}
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            token, _, rank = line.strip().partition(b" ")
            if not token and not rank:
                continue
            try:
                spelled = base64.b64decode(token, validate=True)
                if not spelled or not rank.isdigit() or len(rank) > 9 or spelled in ranks:
                    raise ValueError
            except (binascii.Error, ValueError):
                what = f"line {number}: expected a token in base64 and its rank, got {line[:40]!r}"
                raise TokenizerError(what, where=path, do="give a file of tiktoken") from None
            ranks[spelled] = int(rank)
    if len(set(ranks.values())) != len(ranks):
        raise TokenizerError("two tokens have the same rank", where=path)
    return ranks
