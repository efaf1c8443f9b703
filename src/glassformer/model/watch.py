"""Who watches a forward pass. Every value worth seeing passes through a watcher: `q = watch("q", q)`.

`OFF` hands each value straight back: one cheap call in eager mode, nothing at all when compiled.
`Trace` keeps what it is asked for and may replace it on its way. A trace belongs to one request.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol, runtime_checkable

from torch import Tensor

from glassformer.errors import RequestError

CATALOGUE: Mapping[str, tuple[str, str]] = {
    "embedding": ("B T D", "the tokens as vectors"),
    "position": ("B T D", "the vectors with their position added (equal to embedding where nothing is added)"),
    "resid_pre": ("B T D", "the residual stream as the block receives it"),
    "norm1": ("B T D", "what attention reads: the stream, normed where the wiring norms first"),
    "latent": ("B T R", "the short vector that keys and values are made of (latent attention only)"),
    "q": ("B H T C", "queries, after q/k norm where there is one"),
    "k": ("B K T C", "keys of the new tokens, after q/k norm where there is one"),
    "v": ("B K T W", "values of the new tokens"),
    "q_rotated": ("B H T C", "queries turned by position (equal to q where nothing turns)"),
    "k_rotated": ("B K T C", "keys turned by position (equal to k where nothing turns)"),
    "q_features": ("B H T C", "queries after the feature map, all positive (linear attention only)"),
    "k_features": ("B K T C", "keys after the feature map (linear attention only)"),
    "scores_raw": ("B H T S", "q·k of every pair, unscaled (of their features in linear attention)"),
    "scores": ("B H T S", "scaled, with position bias, before the mask"),
    "mask": ("B 1 T S", "true where a query may see a key"),
    "pattern": ("B H T S", "attention weights: each row sums to 1"),
    "z": ("B H T W", "what each head mixed from the values: the input of the output projection"),
    "attention_out": ("B T D", "what attention adds to the stream"),
    "resid_mid": ("B T D", "the stream between attention and feed-forward"),
    "resid_cross": ("B T D", "the stream between cross-attention and feed-forward (encoder-decoders only)"),
    "norm2": ("B T D", "what the feed-forward reads: the stream, normed where the wiring norms first"),
    "router": ("B T E", "a score for every expert, before softmax or sigmoid (mixtures of experts only)"),
    "ffn_pre": ("B T F", "hidden units before the activation (the linear branch in a gated unit)"),
    "ffn_gate": ("B T F", "the gate before its activation (gated units only)"),
    "ffn_act": ("B T F", "hidden units after activation and gate"),
    "ffn_out": ("B T D", "what the feed-forward adds to the stream"),
    "resid_post": ("B T D", "the stream as the block hands it on"),
    "final_norm": ("B T D", "the stream as the head reads it"),
    "logits": ("B T V", "a score for every token of the vocabulary, or what else the head gives"),
}
"""Canonical names, in the order of the pass: axes and meaning.

Names inside block i are `blocks.i.NAME`, in its cross-attention `blocks.i.cross.NAME`, in an encoder `encoder.NAME`.
"""


@dataclass(frozen=True)
class Point:
    """One value of one model that can be watched."""

    name: str
    axes: str
    sizes: Mapping[str, int]
    meaning: str

    def shape(self, **free: int) -> tuple[int, ...]:
        """The shape for given B, T and S: `point.shape(B=2, T=7, S=7)`."""
        known = {**self.sizes, **free}
        return tuple(int(axis) if axis.isdigit() else known[axis] for axis in self.axes.split())


@runtime_checkable
class Watchable(Protocol):
    """What can be watched: the spec of a model."""

    def points(self) -> Mapping[str, Point]: ...


@runtime_checkable
class Watcher(Protocol):
    """What a forward pass asks of whoever watches it."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Shown `value`; returns what the pass shall go on with."""
        ...

    def expect(self, model: Watchable) -> None:
        """Called before a pass through a model: refuses what that has no point for."""
        ...

    def at(self, scope: str) -> "Watcher":
        """The watcher for a part of the model: its names are prefixed with `scope.`."""
        ...

    def wants(self, *names: str) -> bool:
        """True when one of these points would be kept or edited; the pass then takes the path that has them."""
        ...


class Off:
    """Nobody watches."""

    __slots__ = ()

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return value

    def expect(self, model: Watchable) -> None:
        pass

    def at(self, scope: str) -> "Off":
        return self

    def wants(self, *names: str) -> bool:
        return False


OFF = Off()

Edit = Callable[[Tensor], Tensor]


class Trace:
    """Keeps the points whose full name matches `keep` (`*` and `?` as in file names; one or several), and edits.

    `trace.kept["blocks.0.pattern"]` is then the tensor, detached and as the pass went on with it (after an edit).
    """

    def __init__(self, keep: str | Iterable[str] = "*", edits: Mapping[str, Edit] | None = None):
        self.keep = (keep,) if isinstance(keep, str) else tuple(keep)
        self.edits, self.scope = dict(edits or {}), ""
        self.kept: dict[str, Tensor] = {}

    def expect(self, model: Watchable) -> None:
        """Refuse names that the model has no point for: what is never seen would look like what is never there.

        Raises:
            RequestError: a pattern of `keep` that matches no point, or an edit of none.
        """
        known = model.points()
        for wanted in (*self.keep, *self.edits):
            if wanted not in known and not (wanted in self.keep and any(fnmatchcase(name, wanted) for name in known)):
                near = difflib.get_close_matches(wanted, known, 1) or [f"*.{wanted}"]
                raise RequestError(f"no point of this model is called {wanted!r}", do=f"for example {near[0]!r}")

    def at(self, scope: str) -> "Trace":
        inner = Trace(self.keep, self.edits)
        inner.scope, inner.kept = f"{self.scope}{scope}.", self.kept
        return inner

    def wants(self, *names: str) -> bool:
        return any(self.scope + name in self.edits or self._keeps(self.scope + name) for name in names)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        full = self.scope + name
        if (edit := self.edits.get(full)) is not None:
            value = edit(value)
        if self._keeps(full):
            self.kept[full] = value.detach()
        return value

    def _keeps(self, full: str) -> bool:
        return any(fnmatchcase(full, wanted) for wanted in self.keep)
