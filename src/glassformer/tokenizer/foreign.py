"""Tokenizers that come as lists of tokens, merges and scores (inside GGUF files), as rules of the Rust library."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from glassformer.errors import TokenizerError
from glassformer.tokenizer import bert
from glassformer.tokenizer.base import Tokenizer
from glassformer.tokenizer.pretokenize import cutting, takes_whole_words
from glassformer.tokenizer.sentencepiece import BPE, CONTROL, DEFINED, NORMAL, UNKNOWN, Piece, SpmModel, spm_tree
from glassformer.tokenizer.tree import BYTE_DECODER, Tree, added, bpe, framing, rules, sequence

FIELD_OF = {
    "bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator", "cls": "cls", "mask": "mask",
}  # fmt: skip
"""What files call the token of each role (the wrong spelling is the format's)."""
TEMPLATE = "tokenizer.chat_template"


def from_lists(facts: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that the facts `tokenizer.ggml.…` of a GGUF file describe.

    Raises:
        TokenizerError: a kind or a way of cutting words that isn't known, or lists that don't fit together.
    """
    kind, tokens = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.tokens")
    types = facts.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise TokenizerError("expected tokenizer.ggml.tokens to be a list of texts")
    if types is None:
        types = [NORMAL] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise TokenizerError("the lists of tokens and their kinds don't fit together, or a token occurs twice")
    config = _named(facts, tokens)
    if kind == "gpt2":
        tree = _byte_level(facts, tokens, types)
    elif kind == "llama":
        tree = _sentencepiece(facts, tokens, types)
    elif kind == "bert":
        tree = bert.from_gguf(tokens, config)
    else:
        raise TokenizerError(f"a tokenizer of kind {str(kind)[:40]!r} is not read", do="known: gpt2, llama, bert")
    return Tokenizer(rules(tree | _framed(facts, tokens, tree)), config)


def _byte_level(facts: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tree:
    # Files from before the name existed cut as GPT-2 did.
    name = facts.get("tokenizer.ggml.pre", "default")
    steps = cutting(name)
    merges = facts.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(pair, str) and pair.count(" ") == 1 for pair in merges):
        raise TokenizerError("expected tokenizer.ggml.merges to be a list of pairs")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [pair.split(" ") for pair in merges]
    return {
        "added_tokens": _added(tokens, types),
        "pre_tokenizer": sequence("pretokenizers", steps),
        "decoder": BYTE_DECODER,
        "model": bpe(vocabulary, pairs, whole_words=takes_whole_words(name)),
    }


def _sentencepiece(facts: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tree:
    scores = facts.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise TokenizerError("expected tokenizer.ggml.scores to have a score for each token")
    pieces = [Piece(token, score, kind) for token, score, kind in zip(tokens, scores, types, strict=True)]
    prefix = bool(facts.get("tokenizer.ggml.add_space_prefix", True))
    model = SpmModel(tuple(pieces), BPE, byte_fallback=True, prefix=prefix, collapse=False)
    tree = spm_tree(model)
    # Not the symbols of a text that SentencePiece normalises as a whole: here each is cut out before.
    tree["added_tokens"] = _added(tokens, types)
    tree["normalizer"] = spm_tree(SpmModel((), BPE, prefix=prefix, collapse=False))["normalizer"]
    index = facts.get("tokenizer.ggml.unknown_token_id")
    first = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    tree["model"]["unk_token"] = tokens[index] if _is_id(index, tokens) else first
    return tree


def _added(tokens: Sequence[str], types: Sequence[int]) -> list[Tree]:
    return [
        added(index, token, special=kind == CONTROL)
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, DEFINED) and token
    ]


def _named(facts: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """The names of its special tokens, whether a text begins with one, and its chat templates."""
    named: dict[str, Any] = {}
    for role, field in FIELD_OF.items():
        index = facts.get(f"tokenizer.ggml.{field}_token_id")
        if _is_id(index, tokens):
            named[f"{role}_token"] = tokens[index]
    for role in ("bos", "eos"):
        if isinstance(adds := facts.get(f"tokenizer.ggml.add_{role}_token"), bool):
            named[f"add_{role}_token"] = adds
    templates = {
        fact.removeprefix(f"{TEMPLATE}."): text
        for fact, text in facts.items()
        if fact.startswith(f"{TEMPLATE}.") and isinstance(text, str)
    }
    if isinstance(template := facts.get(TEMPLATE), str):
        templates["default"] = template
    if templates:
        listed = [{"name": name, "template": text} for name, text in templates.items()]
        named["chat_template"] = templates["default"] if list(templates) == ["default"] else listed
    return named


def _framed(facts: Mapping[str, Any], tokens: Sequence[str], tree: Tree) -> Tree:
    """What stands around a text, where the file says that something does."""
    ends = dict.fromkeys(("bos", "eos"), "")
    for role in ends:
        index = facts.get(f"tokenizer.ggml.{role}_token_id")
        if facts.get(f"tokenizer.ggml.add_{role}_token") is True and _is_id(index, tokens):
            ends[role] = tokens[index]
    begin, end = ends["bos"], ends["eos"]
    if tree.get("post_processor") or not (begin or end):
        return {}
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return {"post_processor": framing(f"{begin} $A {end}", f"{begin} $A {end} {begin} $B:1 {end}", vocabulary)}


def _is_id(index: object, tokens: Sequence[str]) -> TypeGuard[int]:
    return type(index) is int and 0 <= index < len(tokens)
