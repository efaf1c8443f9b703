"""How well a model predicts text: the exact loss over all of it, in nats per token, bits per byte and perplexity.

docs/evaluation.md has the formulas.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import DataError
from glassformer.model.step import Step
from glassformer.model.transformer import Transformer
from glassformer.tokenizer import Tokenizer

IGNORED = -100
"""The target of a place that isn't predicted, as in PyTorch's cross entropy."""
LOGITS_AT_ONCE = 1 << 22
"""Scores held at one time: 16 MB in float32, whatever the vocabulary."""


class Window(Protocol):
    """Rows of text to predict, each target the token after its place, or IGNORED. Training's `Batch` is one.

    positions, segments: as in `Step`; None: every row stands at 0 … T-1 and is of one document.
    """

    @property
    def tokens(self) -> Int[Tensor, "B T"]: ...
    @property
    def targets(self) -> Int[Tensor, "B T"]: ...
    @property
    def positions(self) -> Int[Tensor, "B T"] | None: ...
    @property
    def segments(self) -> Int[Tensor, "B T"] | None: ...


@dataclass(frozen=True)
class Rows:
    """A window of plain rows."""

    tokens: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    positions: Int[Tensor, "B T"] | None = None
    segments: Int[Tensor, "B T"] | None = None


@dataclass(frozen=True)
class Score:
    """What predicting a text cost.

    loss: nats per predicted token, the mean over all of them. perplexity: e to the loss.
    bits_per_byte: all nats / ln 2 / bytes. It doesn't depend on the tokenizer, so it compares models of any kind.
    tokens: how many were predicted. bytes: of the text that they stand for, in UTF-8. seconds: spent.
    """

    loss: float
    bits_per_byte: float
    perplexity: float
    tokens: int
    bytes: int
    seconds: float

    @classmethod
    def of(cls, nats: float, tokens: int, bytes: int, seconds: float) -> "Score":
        """The score of `tokens` predictions that cost `nats` altogether, for text of so many bytes.

        Raises:
            DataError: nothing was predicted, or the nats are no number.
        """
        if tokens < 1 or bytes < 1:
            raise DataError(
                f"nothing to predict: {tokens} tokens after the first, {bytes} bytes", do="give a longer text"
            )
        if not math.isfinite(nats):
            raise DataError("the loss is not a number: the model's weights or scores aren't finite")
        loss = nats / tokens
        perplexity = math.exp(loss) if loss < 700 else math.inf  # e^709 is the largest float
        return cls(loss, bits(nats) / bytes, perplexity, tokens, bytes, seconds)


def bits(nats: float) -> float:
    """Nats (units of e) as bits (units of 2)."""
    return nats / math.log(2)


@torch.inference_mode()
def score_windows(
    model: Transformer,
    windows: Iterable[Window],
    bytes: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    on_progress: Callable[[int], None] | None = None,
) -> Score:
    """The score of a model on all predicted places of all windows, summed in float64.

    bytes: of the text that the predicted tokens stand for.
    device: where the model is (None: look). dtype: bfloat16 or float16 runs the blocks in it, by autocast; the head
    and the loss stay as exact as the weights. on_progress: told the tokens predicted so far, after each window.

    The model is in evaluation mode meanwhile (no dropout), and left in the mode it was in.

    Raises:
        DataError: nothing to predict, or a loss that is no number.
    """
    device = torch.device(device) if device is not None else next(model.parameters()).device
    nats, tokens, begun = 0.0, 0, time.perf_counter()
    with _evaluating(model):
        for window in windows:
            cost, count = _cost(model, window, device, dtype)
            nats, tokens = nats + cost, tokens + count
            if on_progress is not None:
                on_progress(tokens)
    return Score.of(nats, tokens, bytes, time.perf_counter() - begun)


def score_text(
    model: Transformer,
    tokenizer: Tokenizer,
    text: str,
    *,
    context: int | None = None,
    batch_size: int = 16,
    stride: int | None = None,
) -> Score:
    """The score of a model on a whole text, where the model is and in float32. The first token isn't predicted.

    context: how many tokens a prediction may see at most (None: the model's). stride: see `text_windows`.

    Raises:
        DataError: a text of fewer than two tokens.
    """
    tokens = tokenizer.encode(text)
    windows = text_windows(tokens, context or model.spec.context, batch_size, stride)
    return score_windows(model, windows, predicted_bytes(tokenizer, tokens, len(text.encode())))


def text_windows(tokens: Sequence[int], context: int, batch_size: int, stride: int | None = None) -> Iterator[Rows]:
    """A text as windows in which every token but the first is predicted exactly once.

    Window k sees tokens k·stride to k·stride + context. Without a stride windows don't overlap (stride = context), so
    a token sees half a context on average. With a smaller one, those that an earlier window predicted are only seen:
    each prediction sees at least context - stride tokens (where the text has them), at context / stride of the cost.
    """
    stride = stride or context
    assert 0 < stride <= context, (stride, context)
    text, last = torch.tensor(tokens, dtype=torch.int64), len(tokens) - 1
    # The last window starts where the ones before have left something to predict.
    starts = range(0, max(1, last - context + stride), stride) if last > 0 else range(0)
    for first in range(0, len(starts), batch_size):
        rows = [_row(text, start, context, context - stride if start else 0) for start in starts[first:][:batch_size]]
        yield Rows(*(torch.stack(column) for column in zip(*rows, strict=True)))


def predicted_bytes(tokenizer: Tokenizer, tokens: Sequence[int], bytes: int) -> int:
    """Bytes of a text without its first token, which nothing comes before to predict it from."""
    return bytes - (len(tokenizer.token_bytes(tokens[0])) if len(tokens) else 0)


def _row(text: Tensor, start: int, context: int, seen: int) -> tuple[Tensor, Tensor]:
    """One window, padded with token 0; its first `seen` places have been predicted before."""
    inputs, following = text[start : start + context], text[start + 1 : start + 1 + context]
    tokens = F.pad(inputs, (0, context - len(inputs)))
    targets = F.pad(following, (0, context - len(following)), value=IGNORED)
    targets[:seen] = IGNORED
    return tokens, targets


def _cost(model: Transformer, window: Window, device: torch.device, dtype: torch.dtype) -> tuple[float, int]:
    """Nats of all predicted places of a window, and their number."""
    tokens, targets = window.tokens.to(device), window.targets.to(device)
    with torch.autocast(device.type, dtype, enabled=dtype in (torch.bfloat16, torch.float16)):
        x = model.read(tokens, _step(window, tokens, device))
    predicted = targets != IGNORED
    x, targets = x[predicted].to(model.embedding.weight.dtype), targets[predicted]
    rows = max(1, LOGITS_AT_ONCE // model.spec.vocabulary)
    parts = zip(x.split(rows), targets.split(rows), strict=True)
    return sum(_nats(model, *part) for part in parts), len(targets)


def _step(window: Window, tokens: Tensor, device: torch.device) -> Step:
    if window.positions is None:
        return Step.whole(tokens)
    segments = None if window.segments is None else window.segments.to(device)
    return Step(window.positions.to(device), segments)


def _nats(model: Transformer, x: Float[Tensor, "N D"], targets: Int[Tensor, "N"]) -> float:
    logits = model.head(x[None], model.embedding)[0].float()
    return F.cross_entropy(logits, targets, reduction="none").cpu().double().sum().item()


@contextmanager
def _evaluating(model: Transformer) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
