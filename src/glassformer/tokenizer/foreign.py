"""Tokenizers that come as lists of tokens, merges and scores (inside GGUF files), as rules of the Rust library."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.errors import TokenizerError
from glassformer.tokenizer.base import Tokenizer

NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The kinds of tokens."""

WORDS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""How text is cut into words before bytes are merged, by the name that a file gives it."""
WORDS |= {"default": WORDS["gpt-2"], "smollm": WORDS["gpt-2"], "llama3": WORDS["llama-bpe"]}
SINGLE_DIGITS = ("smollm",)


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
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise TokenizerError("the lists of tokens and their kinds don't fit together, or a token occurs twice")
    if kind == "gpt2":
        tree = _byte_level(facts, tokens)
    elif kind == "llama":
        tree = _sentencepiece(facts, tokens, types)
    else:
        raise TokenizerError(f"a tokenizer of kind {str(kind)[:40]!r} is not read", do="known: gpt2, llama")
    added = [
        {
            "id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": kind_of == CONTROL,
        }
        for index, (token, kind_of) in enumerate(zip(tokens, types, strict=True))
        if kind_of in (CONTROL, DEFINED) and token
    ]  # fmt: skip
    tree |= {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None}
    return Tokenizer(json.dumps(tree), _named(facts, tokens))


def _byte_level(facts: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    name = facts.get("tokenizer.ggml.pre", "default")
    if name not in WORDS:
        raise TokenizerError(f"words are cut in the way of {str(name)[:40]!r}, which isn't known", do=", ".join(WORDS))
    merges = facts.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(pair, str) and pair.count(" ") == 1 for pair in merges):
        raise TokenizerError("expected tokenizer.ggml.merges to be a list of pairs")
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": WORDS[name]}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]
    if name in SINGLE_DIGITS:
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(tokens, [pair.split(" ") for pair in merges]),
    }


def _sentencepiece(facts: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    scores = facts.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise TokenizerError("expected tokenizer.ggml.scores to have a score for each token")
    prefix = facts.get("tokenizer.ggml.add_space_prefix", True)
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    steps = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    decode: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    if prefix:
        decode.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decode},
        "model": _bpe(tokens, merges_by_score(tokens, scores, types), byte_fallback=True, unknown=unknown),
    }


def merges_by_score(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[list[str]]:
    """Every way to make a token of two others, the best scored token first: the order in which SentencePiece merges."""
    known = {token: index for index, token in enumerate(tokens) if types[index] in (NORMAL, DEFINED, UNUSED)}
    found: list[tuple[float, int, int, str, str]] = []
    for token, index in known.items():
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        for left, right in sorted(
            ((left, right) for left, right in pairs if left in known and right in known),
            key=lambda pair: (known[pair[0]], known[pair[1]]),
        ):
            found.append((scores[index], len(left), len(right), left, right))
    found.sort(key=lambda entry: entry[:3], reverse=True)
    return [[left, right] for *_, left, right in found]


def _bpe(
    tokens: Sequence[str], merges: Sequence[Sequence[str]], byte_fallback: bool = False, unknown: str | None = None
) -> dict[str, Any]:
    return {
        "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": byte_fallback, "byte_fallback": byte_fallback, "ignore_merges": False,
        "vocab": {token: index for index, token in enumerate(tokens)}, "merges": [list(pair) for pair in merges],
    }  # fmt: skip


def _named(facts: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """The names of its special tokens, and whether a text begins with one."""
    named: dict[str, Any] = {}
    for role, field in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        index = facts.get(f"tokenizer.ggml.{field}_token_id")
        if isinstance(index, int) and 0 <= index < len(tokens):
            named[f"{role}_token"] = tokens[index]
    if isinstance(begins := facts.get("tokenizer.ggml.add_bos_token"), bool):
        named["add_bos_token"] = begins
    if isinstance(template := facts.get("tokenizer.chat_template"), str):
        named["chat_template"] = template
    return named
