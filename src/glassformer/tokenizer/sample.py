"""An even sample of a stream of texts, in bounded memory: what a tokenizer is trained on."""

from collections.abc import Iterable, Iterator

PIECE = 4096  # characters


def cut(text: str) -> Iterator[str]:
    """Cuts a text into pieces of at most PIECE characters, before white space where there is some."""
    start = 0
    while len(text) - start > PIECE:
        end, half = start + PIECE, start + PIECE // 2
        end = max(text.rfind("\n", half, end), text.rfind(" ", half, end)) if text[half:end].strip() else end
        end = end if end > start else start + PIECE
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def spread(texts: Iterable[str], limit: int) -> list[str]:
    """Every k-th piece of the texts, with the smallest power of two k for which they have at most `limit` bytes.

    The same texts always give the same sample, and a text below the limit is its own sample.
    """
    kept: list[str] = []
    size, stride, number = 0, 1, 0
    for text in texts:
        for piece in cut(text):
            if number % stride == 0:
                kept.append(piece)
                size += len(piece.encode("utf-8"))
            number += 1
            while size > limit and len(kept) > 1:
                kept, stride = kept[::2], stride * 2
                size = sum(len(piece.encode("utf-8")) for piece in kept)
    return kept
