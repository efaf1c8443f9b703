"""Renders docs/mechanisms from the specs: formula, shapes, fields, source and cost of every member of every union.

What a page says of a member comes from its docstring, its fields, and the standard model (`costs.py`) with the member
in place. `--check` fails when a page is stale.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from costs import CONTEXT, FAR, HEAD, buildable, free, memory, row, settings, standard
from pages import Said, block, fields, keep_fresh, kind_of, page, plain, said, table
from reference import union_names
from softmax_page import render_softmax

from glassformer.model import TransformerSpec
from glassformer.model.attention import AttentionSpec
from glassformer.model.attention.cross import CrossAttentionSpec
from glassformer.model.block import WiringSpec
from glassformer.model.count import outline
from glassformer.model.embedding import EmbeddingSpec, HeadSpec, TransformSpec
from glassformer.model.feedforward import FeedForwardSpec
from glassformer.model.linear import ExpertLinear, Linear
from glassformer.model.mask import BidirectionalSpec, BlocksSpec, MaskSpec, SinksSpec, WindowSpec, visible
from glassformer.model.norm import NormSpec
from glassformer.model.position import PositionSpec, RotarySpec
from glassformer.model.rotary_scaling import ScalingSpec
from glassformer.model.transformer import InitSpec
from glassformer.spec import Spec, members

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "mechanisms"
SPECS = "../reference/specs.md"
B = 1


@dataclass(frozen=True)
class Part:
    """One page: a union, where its members stand in a spec, and what is said before them.

    watched: what can be watched of it, by names within a block; None where each member says that itself.
    inside:  the modules whose parameters belong to it, as a pattern of names; None where there are none.
    also:    specs that aren't members of the union, each with its own place.
    """

    title: str
    union: Any
    place: str
    at: str
    about: str
    inside: str | None
    watched: tuple[str, ...] | None = None
    also: tuple[tuple[str, type[Spec], str], ...] = ()


PARTS: dict[str, Part] = {
    "positions.md": Part(
        "Positions", PositionSpec, "position", "model.position, or model.blocks.N.attention.position",
        """How a model knows where its tokens stand. Attention by itself reads a set: it would find the same in a text
whose words are shuffled (with a causal mask only nearly so). A scheme may act at three joints: at the **embedding** it
adds to the token vectors, once; at the **rotation** it turns queries and keys in every layer; as a **bias** it adds to
the scores. The later it acts, the more directly it tells distance rather than place. In the formulas t is the position
of a token or query, s that of a key. Worked examples are tests: `tests/model/test_position.py`.
[How to add one](../add-a-positional-encoding.md).""",
        r"(position|blocks\.0\.attention\.position)", (),
    ),
    "rotary-scaling.md": Part(
        "Scaling of rotary positions", ScalingSpec, "scaling", "model.blocks.N.attention.position.scaling",
        """How a model with [rotary positions](positions.md#rotary) reads further than it was first trained to. Pair i
of R turns by f_i = theta^(-i/R) radians from one position to the next: the first pairs tell neighbours apart, the last
turn so slowly that one context is less than a round. Positions beyond the training length bring angles the model has
never seen; each scheme slows some pairs so that it has. A scheme costs nothing; a model usually needs a little further
training with it.""",
        r"blocks\.0\.attention\.position", ("q", "q_rotated", "k", "k_rotated"),
    ),
    "attention.md": Part(
        "Attention", AttentionSpec, "attention", "model.blocks.N.attention",
        """Where tokens read from each other. Every token asks (a query), offers (a key) and gives (a value); it takes
a mixture of the values of those it may see (its [mask](masks.md)), weighed by how well their keys answer its query. All
of it is in H heads side by side, each with its own question. Kinds differ in what has to be **remembered** for later
tokens, which is what limits long texts: keys and values of every token, a short latent, or one state. How the weights
are computed without ever being written out is on [the page on softmax](softmax.md).
[How to add one](../add-an-attention.md).""",
        r"blocks\.0\.attention(?!\.position)", None,
        (("model.blocks.N.cross, with model.encoder", CrossAttentionSpec, "cross"),),
    ),
    "masks.md": Part(
        "Masks", MaskSpec, "mask", "model.blocks.N.attention.mask",
        """Which keys a query may see. Every mask is one predicate on positions (t the query's, s the key's); to it
belong, in all of them, that the key isn't padding and that both are of the same document. The one formula serves
training, packed documents, cached decoding and batches of unlike rows: `visible` in
[`model/mask.py`](../../src/glassformer/model/mask.py). In the pictures each row is a query, each column a key; ■ is
seen. A mask has no parameters; what it hides costs nothing.""",
        None, ("mask", "pattern"),
    ),
    "norms.md": Part(
        "Norms", NormSpec, "norm", "model.blocks.N.norm, model.norm (and others)",
        """A norm brings each token's vector to a known size before it is read: what layers add to the stream grows
with depth, and a sublayer that read it as it is would see other numbers in every layer. Where norms stand is
[wiring](wiring.md); queries and keys may be normed as well ([`qk_norm`](attention.md)). Means are over the width of
each token by itself, except in a batch norm.""",
        r"blocks\.0\.norm1", ("resid_pre", "norm1"),
    ),
    "wiring.md": Part(
        "Wiring of a block", WiringSpec, "wiring", "model.blocks.N.wiring",
        """How attention and feed-forward are joined to the residual stream x. A layer doesn't replace its input; it
adds to it, so that what earlier layers found stays readable and gradients have a straight way back. Wirings differ in
where [norms](norms.md) stand. In all of them `scale` is a factor on what is added, `dropout` thins it out in training,
and without `residual` what was found takes the place of the stream, to show what the addition is good for. With
[cross-attention](attention.md#crossattention) a third sublayer stands between the two.""",
        r"blocks\.0\.norm\w*", ("resid_pre", "norm1", "attention_out", "resid_mid", "norm2", "ffn_out", "resid_post"),
    ),
    "feed-forward.md": Part(
        "Feed-forward", FeedForwardSpec, "feedforward", "model.blocks.N.feedforward",
        """What each token does by itself, with the same weights at every place: into a wider hidden layer, and back.
Most parameters of a block are here (two thirds, at four times the width), and much of what a model knows. Attention
brings tokens together; this works on what was brought.""",
        r"blocks\.0\.feedforward", None,
    ),
    "embedding.md": Part(
        "Embedding", EmbeddingSpec, "embedding", "model.embedding",
        """The way in: ids of tokens become vectors, the beginning of the residual stream. What a position
[adds to them](positions.md) comes next. The way out is a [head](heads.md), which may use the same vectors again.""",
        r"embedding", ("embedding",),
    ),
    "heads.md": Part(
        "Heads", HeadSpec, "head", "model.head",
        """The way out: the last, normed stream becomes scores, of the vocabulary (what comes next), of labels, of
places in the text, or one vector for it all. The stream below is the same model whatever its head is.""",
        r"head", ("final_norm", "logits"), (("model.head.transform", TransformSpec, "transform"),),
    ),
    "initialisation.md": Part(
        "Initialisation", InitSpec, "init", "model.init",
        """How weights start. Too large, and the first steps blow up; too small, and nothing arrives at the bottom of
the stack; all alike, and all units stay alike. Only the start differs: shapes and costs are those of the model.""",
        None, (),
    ),
}  # fmt: skip


def sections(part: Part) -> Iterator[tuple[type[Spec], str, str]]:
    """What has a section on a page: each with its place in the standard model and in a spec."""
    for member in members(part.union):
        yield member, part.place, part.at
    for at, spec, place in part.also:
        yield spec, place, at


def name_of(spec: type[Spec]) -> str:
    """What a section is called: `Rotary` for `RotarySpec`."""
    return spec.__name__.removesuffix("Spec")


def render(part: Part) -> str:
    names = union_names()
    listed = ", ".join(f"[{name_of(spec)}](#{name_of(spec).lower()})" for spec, _, _ in sections(part))
    body = [f"On this page: {listed}. [All mechanisms](README.md)\n"]
    for spec, place, at in sections(part):
        text, examples = said(spec), settings(spec)
        models = [buildable(place, example) for example in examples]
        body += [f"## {name_of(spec)}\n", f"{_where(spec, at, examples[0])}\n", *(f"{line}\n" for line in text.prose)]
        body += [block(text.formula)] if text.formula else []
        body += [f"Source: {text.source}\n"]
        body += [found for found in (_picture(spec, examples[0], models[0]),) if found]
        body += [_shapes(part, spec, place, models[0])]
        body += [f"**Fields**\n\n{found}" for found in (fields(spec, names, SPECS),) if found]
        body += [_cost(examples, models)]
    return page(part.title, " ".join(part.about.split()), "\n".join(body))


def _where(spec: type[Spec], at: str, example: Any) -> str:
    """The kind, the place in a model's spec, and what is written there; what builds it, and where."""
    joints = getattr(spec, "acts", None)
    if joints:  # a position stands where it acts
        at = at.partition(", or ")[0 if "embed" in joints else 2]
    file = Path(*spec.__module__.split(".")).with_suffix(".py")
    places = re.sub(r"(model\.[\w.]+)", r"`\1`", at)
    home = f"[`{file.relative_to('glassformer')}`](../../src/{file})"
    kind = f"`kind: {kind_of(spec)}`, at" if "kind" in spec.model_fields else "At"
    written = f" For instance: `{_written(example)}`." if 2 < len(_written(example)) < 100 else ""
    return f"{kind} {places}.{written} Built by [{spec.__name__}]({SPECS}#{spec.__name__.lower()}) in {home}."


def _written(example: Any) -> str:
    """A spec as it stands in a file."""
    kind = {"kind": example.kind} if "kind" in type(example).model_fields else {}
    return json.dumps({**kind, **example.model_dump(mode="json", exclude_defaults=True)}, ensure_ascii=False)


# Shapes


def _shapes(part: Part, spec: type[Spec], place: str, model: TransformerSpec) -> str:
    """What can be watched of a part, and its weights, in the standard model."""
    watched = [
        (f"`{point.name}`", f"`{point.axes}`", " × ".join(map(str, point.shape(B=B, T=CONTEXT, S=CONTEXT, M=CONTEXT))))
        for point in model.points().values()
        if point.name.startswith(("blocks.0.", "embedding", "position", "final_norm", "logits"))
        and point.name.removeprefix("blocks.0.") in _watched(part, spec, place, model)
    ]
    rows = [*watched, *_weights(part, place, model)]
    if not rows:
        return "**Shapes**: it has no weights, and no values of its own to watch.\n"
    return "**Shapes** in the standard model, of a pass over one text\n\n" + table(("", "axes", "shape"), rows)


def _watched(part: Part, spec: type[Spec], place: str, model: TransformerSpec) -> tuple[str, ...]:
    if place == "cross":
        return tuple(name for name in model.blocks[0].points() if name.startswith("cross."))
    if place == "position":
        at = {"embed": ("embedding", "position"), "rotate": ("q", "q_rotated", "k", "k_rotated")}
        joints = getattr(spec, "acts", ())
        return tuple(name for joint in joints for name in at.get(joint, ("scores_raw", "scores")))
    if part.watched is None:
        return getattr(model.blocks[0], place).points()
    return part.watched


def _weights(part: Part, place: str, model: TransformerSpec) -> list[tuple[str, str, str]]:
    """Parameters, and tables that are computed or counted (buffers)."""
    if part.inside is None:
        return []
    built = outline(model)
    pattern = {"cross": r"blocks\.0\.cross", "transform": r"head\.transform"}.get(place, part.inside)
    inside = re.compile(rf"{pattern}(\.|$)")
    axes = {
        f"{name}.weight": f"W of {module.axes}"
        for name, module in built.named_modules()
        if isinstance(module, Linear | ExpertLinear)
    }
    found = [(name, axes.get(name, "parameter"), value) for name, value in built.named_parameters()]
    found += [(name, "computed" if name not in built.state_dict() else "kept", v) for name, v in built.named_buffers()]
    return [(f"`{name}`", what, " × ".join(map(str, value.shape))) for name, what, value in found if inside.match(name)]


# Costs


def _cost(examples: list[Any], models: list[TransformerSpec]) -> str:
    base = standard()
    if free(models, base):
        return "**Cost**: none that is counted: parameters, products and cache are those of the standard model.\n"
    rows = [row("standard model", base, None)]
    rows += [row(f"`{_named(example)}`", model, base) for example, model in zip(examples, models, strict=True)]
    kept = [f"{found}\n" for found in (memory(models[0]),) if found]
    return "**Cost** in the standard model, beside it as it is\n\n" + "\n".join([table(HEAD, rows), *kept])


def _named(example: Any) -> str:
    """A setting in a few words: its lists are left out."""
    return re.sub(r"\[[^]]*\]", "[…]", plain(example).replace("Spec", ""))


# Pictures


def _picture(spec: type[Spec], example: Any, model: TransformerSpec) -> str:
    """What is worth seeing of some parts before their shapes."""
    place = {frozenset(members(part.union)): part.place for part in PARTS.values()}
    unions = [place[found] for found in place if spec in found]
    pictures: dict[str, Callable[[Any, TransformerSpec], str]] = {
        "mask": _seen, "scaling": _slowed, "init": _deviations,
    }  # fmt: skip
    return next((pictures[name](example, model) for name in unions if name in pictures), "")


SMALL = {
    WindowSpec: {"size": 4}, SinksSpec: {"size": 4, "first": 2}, BlocksSpec: {"size": 2, "local": 2, "first": 1},
    BidirectionalSpec: {"window": 3},
}  # fmt: skip
"""Masks in numbers that show in twelve tokens."""


def _seen(example: Any, model: TransformerSpec) -> str:
    small = type(example)(**SMALL.get(type(example), {})) if type(example) in SMALL else example
    places = torch.arange(12)[None]
    seen = visible(small, places, places)[0, 0].tolist()
    return f"`{plain(small)}` on twelve tokens:\n\n" + block(
        tuple(" ".join("■" if one else "·" for one in line) for line in seen)
    )


def _slowed(example: Any, model: TransformerSpec) -> str:
    """How many positions some pairs need for a whole turn, plain and scaled."""

    def waves(spec: RotarySpec) -> tuple[list[float], list[float]]:
        turning = spec.build(64, 12)
        far = getattr(turning, "far", None)
        near = turning.frequency
        return [(2 * torch.pi / f).tolist() for f in (near, near if far is None else far)]

    (plain_waves, _), (near, far) = waves(RotarySpec()), waves(RotarySpec(scaling=example))
    pairs = (0, 4, 8, 12, 16, 20, 24, 28, 31)
    rows = [("as trained", *(f"{plain_waves[pair]:,.0f}" for pair in pairs))]
    rows.append(("scaled" if near == far else "scaled, near", *(f"{near[pair]:,.0f}" for pair in pairs)))
    rows += [] if near == far else [("scaled, far", *(f"{far[pair]:,.0f}" for pair in pairs))]
    head = ("positions for a whole turn", *(f"pair {pair}" for pair in pairs))
    return f"`{_named(example)}` in heads of width 64:\n\n" + table(head, rows)


def _deviations(example: Any, model: TransformerSpec) -> str:
    """The standard deviation that the matrices of a layer start with."""
    built = outline(model.replace(head={"kind": "untied"}))
    rows = [("`embedding`", "V × D", f"{example.of_embedding():.4f}")]
    for name, module in built.named_modules():
        if isinstance(module, Linear):
            rows.append((f"`{name}`", str(module.axes), f"{example.deviation(module, model.layers):.4f}"))
    return "Standard deviations at the start, in the standard model:\n\n" + table(("matrix", "axes", ""), rows)


# The index


def render_index() -> str:
    parts = []
    for file, part in PARTS.items():
        rows = []
        for spec, _, _ in sections(part):
            text: Said = said(spec)
            rows.append((f"[{name_of(spec)}]({file}#{name_of(spec).lower()})", text.first, text.source))
        parts.append(f"## [{part.title}]({file})\n\n{table(('mechanism', 'what it is', 'source'), rows)}")
    about = f"""Every part that a model can be made of: what it is, its formula, its shapes, its fields, where it comes
from and what it costs. The pages are rendered from the specs of the parts and from their docstrings, so that formula,
code and page stand together. Each part is held to its formula by tests, which have it once more in plain Python and
float64: `tests/model/plain_formula.py`.

**The standard model** is what shapes and costs are stated in: 12 layers of width D = 768, H = 12 heads of width C = 64,
hidden width F = 3,072, a vocabulary of V = 50,257 and a context of {CONTEXT:,}, with rotary positions, RMS norms before
each sublayer, GELU, and a tied head. Each mechanism takes the place of one part of it. Counted are parameters; FLOPs of
matrix products for a token, on average over a prefill of {CONTEXT:,} and for a new token at the end of {CONTEXT:,} and
of {FAR:,}; and what the cache keeps in bfloat16 (states in float32), for each token and for sequences of {CONTEXT:,}
and of {FAR:,}. Norms, activations, softmax and what positions add are not counted: beside the products they are small.
An empty cell means that there is no such thing: what reads both ways, or scores labels, doesn't write.
`glassformer describe` counts any model of your own in the same way.

Beside these: [softmax, at once, online and in blocks](softmax.md). To add a part:
[a positional encoding](../add-a-positional-encoding.md), [an attention](../add-an-attention.md),
[a norm, mask, feed-forward or wiring](../add-a-part.md), [a family](../add-a-family.md)."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in about.split("\n\n")]
    return page("Mechanisms", "\n\n".join(paragraphs), "\n".join(parts))


def main() -> None:
    """Write the pages; with --check, only say which differ."""
    pages: dict[str, Callable[[], str]] = {"README.md": render_index, "softmax.md": render_softmax}
    keep_fresh(FOLDER, pages | {file: lambda part=part: render(part) for file, part in PARTS.items()})


if __name__ == "__main__":
    main()
