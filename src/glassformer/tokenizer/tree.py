"""The pieces that a tokenizer.json is put together from, for tokenizers that come in other files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import processors

Tree = dict[str, Any]

BYTE_DECODER: Tree = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def rules(tree: Tree) -> str:
    """The text of a tokenizer.json: `tree`, and nothing where it says nothing."""
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"), None)
    return json.dumps({"version": "1.0", **empty, "added_tokens": [], **tree}, ensure_ascii=False)


def added(index: int, content: str, **flags: bool) -> Tree:
    """An entry of `added_tokens`: a special token, unless `flags` say something else."""
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": content, **usual, **flags}


def bpe(
    vocabulary: Mapping[str, int],
    merges: Iterable[Sequence[str]],
    *,
    bytes_for_unknown: bool = False,
    unknown: str | None = None,
    whole_words: bool = False,
) -> Tree:
    """A BPE model. `whole_words`: a word that is a token is taken as it stands."""
    return {
        "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": unknown is not None, "byte_fallback": bytes_for_unknown,
        "ignore_merges": whole_words, "vocab": dict(vocabulary), "merges": [list(pair) for pair in merges],
    }  # fmt: skip


def sequence(kind: str, steps: Sequence[Tree]) -> Tree | None:
    """Steps one after the other; `kind` is the name of their list (normalizers, pretokenizers, decoders)."""
    if not steps:
        return None
    return steps[0] if len(steps) == 1 else {"type": "Sequence", kind: list(steps)}


def replaced(pattern: str, content: str, *, regex: bool = False) -> Tree:
    return {"type": "Replace", "pattern": {"Regex" if regex else "String": pattern}, "content": content}


def framing(single: str, pair: str, ids: Mapping[str, int]) -> Tree:
    """What stands around a text, as `[CLS] $A [SEP]`, and around two, as `[CLS] $A [SEP] $B:1 [SEP]:1`."""
    single, pair = " ".join(single.split()), " ".join(pair.split())
    names = {word.partition(":")[0] for word in f"{single} {pair}".split() if not word.startswith("$")}
    processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, ids[name]) for name in sorted(names)]
    )
    return json.loads(processor.__getstate__())


def merges_by_rank(tokens: Mapping[Any, int]) -> list[tuple[Any, Any]]:
    """Every way to make a token of two others, in the order of the ranks: the order in which they merge.

    Works on texts and on bytes. Of the ways to one token, those whose parts come first are first.
    """
    merges: list[tuple[Any, Any]] = []
    for token in sorted(tokens, key=tokens.__getitem__):
        ways = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        known = [(left, right) for left, right in ways if left in tokens and right in tokens]
        merges += sorted(known, key=lambda way: (tokens[way[0]], tokens[way[1]]))
    return merges
