"""Whole texts through a model, in batches: vectors of texts, and words that fill a gap."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import RequestError
from glassformer.model.embedding import PooledHeadSpec, Pooling, pool
from glassformer.model.step import Step
from glassformer.model.transformer import Transformer
from glassformer.ops.softmax import softmax
from glassformer.tokenizer import Tokenizer
from glassformer.tokenizer.base import Framed

MASKS = ("[MASK]", "<mask>")
"""What tokenizers call the token that stands for a gap."""


@dataclass(frozen=True)
class Gap:
    """One gap of a text: its place among the tokens, and the likeliest tokens for it with their probabilities."""

    place: int
    candidates: tuple[tuple[int, float], ...]


@torch.inference_mode()
def embed(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pooling: Pooling | None = None,
    batch_size: int = 32,
    cut: Callable[[int], object] = lambda tokens: None,
) -> Float[Tensor, "N D"]:
    """A vector for every text, in their order.

    A model that was made for it (its folder says how it pools) does as its head says, unless `pooling` is given. Any
    other pools its last stream, by default to the mean: a decoder that of its tokens, an encoder-decoder that of its
    encoder. So does BERT, whose own pooler (`model(tokens, step)` gives it) learnt whether two texts follow each other,
    not what they say. Texts longer than the context lose their last tokens; `cut` is told how many tokens it has.

    Raises:
        RequestError: a text without tokens.
    """
    head = model.spec.head
    way = head if isinstance(head, PooledHeadSpec) and head.transform is None else PooledHeadSpec()
    way = way.replace(pooling=pooling or way.pooling)
    framed = [_framed(model, tokenizer, text, cut) for text in texts]
    vectors = torch.empty(0)
    for rows, tokens, step in _batches(model, framed, batch_size):
        states = model.read(tokens, step) if model.encoder is None else model.encode(tokens, step).states
        found = pool(states, step.positions, way.pooling)
        found = F.normalize(found, dim=-1) if way.normalise else found
        if not len(vectors):
            vectors = found.new_empty(len(texts), found.size(-1))
        vectors[rows] = found
    return vectors


@torch.inference_mode()
def fill(model: Transformer, tokenizer: Tokenizer, text: str, top: int = 5) -> tuple[list[int], list[Gap]]:
    """The tokens of a text with gaps, and what may stand in each, all judged in one pass.

    Raises:
        RequestError: a text without a gap or longer than the context, a model or tokenizer that can't fill gaps.
    """
    mask = gap_name(tokenizer)
    if "V" not in model.spec.head.logits or model.spec.writes:
        raise RequestError("this model doesn't fill gaps", do="take a masked language model, such as BERT")
    framed = tokenizer.frame(text, parse_special=True)
    tokens, gap = framed.tokens, tokenizer.special[mask]
    if gap not in tokens:
        raise RequestError(f"the text has no gap: expected {mask} in it", do=f'write "… {mask} …"')
    if len(tokens) > model.spec.context:
        what = f"the text has {len(tokens)} tokens, the model's context holds {model.spec.context}"
        raise RequestError(what, do=f"leave out at least {len(tokens) - model.spec.context} tokens")
    ((_, row, step),) = _batches(model, [framed], 1)
    # Ids that no token has are rows of the table that were added to make its size round.
    found = softmax(model(row, step)[0, :, : tokenizer.vocabulary].float())
    best = found.topk(min(top, found.size(-1)), dim=-1)
    listed = cast("list[list[int]]", best.indices.tolist())  # pyright: ignore[reportUnknownMemberType]
    likely = cast("list[list[float]]", best.values.tolist())  # pyright: ignore[reportUnknownMemberType]
    gaps = [
        Gap(place, tuple(zip(listed[place], likely[place], strict=True)))
        for place, token in enumerate(tokens)
        if token == gap
    ]
    return tokens, gaps


def gap_name(tokenizer: Tokenizer) -> str:
    """What stands for a gap in a text."""
    found = next((name for name in MASKS if name in tokenizer.special), None)
    if found is None:
        raise RequestError(f"the tokenizer has no token for a gap (known: {', '.join(MASKS)})")
    return found


def _framed(model: Transformer, tokenizer: Tokenizer, text: str, cut: Callable[[int], object]) -> Framed:
    framed = tokenizer.frame(text)
    if len(framed.tokens) > model.spec.context:
        cut(len(framed.tokens))
        framed = tokenizer.frame(text, limit=model.spec.context)
    if not framed.tokens:
        raise RequestError("a text without a single token has no vector", do="leave empty texts out")
    return framed


def _batches(model: Transformer, framed: Sequence[Framed], size: int) -> Iterator[tuple[list[int], Tensor, Step]]:
    """Texts of like length side by side: which rows they are, their tokens [B, T], and where those stand."""
    device = model.embedding.weight.device
    order = sorted(range(len(framed)), key=lambda index: len(framed[index].tokens))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        longest = len(framed[rows[-1]].tokens)
        tokens, types, real = (torch.zeros(len(rows), longest, dtype=torch.long, device=device) for _ in range(3))
        for line, index in enumerate(rows):
            length = len(framed[index].tokens)
            tokens[line, :length] = torch.tensor(framed[index].tokens, device=device)
            types[line, :length] = torch.tensor(framed[index].types, device=device)
            real[line, :length] = 1
        positions = torch.where(real.bool(), torch.arange(longest, device=device), -1)
        # With one length there is no padding, and nothing needs to be hidden.
        step = Step.whole(tokens) if bool(real.all()) else Step(positions)
        yield rows, tokens, Step(step.positions, plain=step.plain, types=types)
