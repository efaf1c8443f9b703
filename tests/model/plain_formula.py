"""The Transformer once more: the formulas of the papers in float64, one head, one query and one key at a time.

It shares no code with the package; it reads a spec by its kinds and a model by the names of its weights.
"""

import cmath
import math

import torch
from torch import Tensor

from glassformer.model import Transformer
from glassformer.model.feedforward import GatedSpec, MLPSpec


def formula_logits(model: Transformer, tokens: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
    """The logits [B, T, V] of a model in evaluation mode, row by row."""
    weights = Weights({name: value.detach().double() for name, value in model.state_dict().items()})
    segments = torch.zeros_like(positions) if segments is None else segments
    rows = zip(tokens.tolist(), positions.tolist(), segments.tolist(), strict=True)
    return torch.stack([_row(model.spec, weights, *row) for row in rows])


class Weights:
    def __init__(self, tensors, prefix=""):
        self.tensors, self.prefix = tensors, prefix

    def inside(self, part):
        return Weights(self.tensors, f"{self.prefix}{part}.")

    def __getitem__(self, name):
        return self.tensors[self.prefix + name]

    def project(self, part, x):
        y = self[f"{part}.weight"] @ x
        return y + self[f"{part}.bias"] if f"{self.prefix}{part}.bias" in self.tensors else y


def _row(spec, weights, tokens, positions, segments):
    xs = [spec.embedding.scale * weights["embedding.weight"][token] for token in tokens]
    if spec.embedding.types:
        xs = [x + weights["embedding.types"][0] for x in xs]
    xs = [
        placed(spec.position, x, position, weights.inside("position"))
        for x, position in zip(xs, positions, strict=True)
    ]
    if spec.embedding.norm:
        xs = [norm(spec.embedding.norm, x, weights.inside("embedding_norm")) for x in xs]
    for layer in range(spec.layers):
        block = spec.blocks[layer % len(spec.blocks)]
        shared = (spec.position, weights.inside("position"))
        xs = _block(block, xs, positions, segments, weights.inside(f"blocks.{layer}"), shared)
    if spec.norm:
        xs = [norm(spec.norm, x, weights.inside("norm")) for x in xs]
    if hasattr(spec.head, "pooling"):
        return head(spec.head, pooled(spec.head.pooling, xs), weights)
    return torch.stack([head(spec.head, x, weights) for x in xs])


def _block(block, xs, positions, segments, weights, shared):
    wiring = block.wiring

    def normed(name, xs):
        return [norm(block.norm, x, weights.inside(name)) for x in xs]

    def attended(xs):
        return attention(block.attention, xs, positions, segments, weights.inside("attention"), shared)

    def fed(xs):
        return [feedforward(block.feedforward, x, weights.inside("feedforward")) for x in xs]

    def added(xs, found):
        found = [wiring.scale * y for y in found]
        return [x + y for x, y in zip(xs, found, strict=True)] if wiring.residual else found

    if wiring.kind == "pre":
        xs = added(xs, attended(normed("norm1", xs) if wiring.attention_norm else xs))
        return added(xs, fed(normed("norm2", xs)))
    if wiring.kind == "post":
        xs = normed("norm1", added(xs, attended(xs)))
        return normed("norm2", added(xs, fed(xs)))
    if wiring.kind == "output":
        xs = added(xs, normed("norm1", attended(xs)))
        return added(xs, normed("norm2", fed(xs)))
    if wiring.kind == "sandwich":
        xs = added(xs, normed("norm1_after", attended(normed("norm1", xs))))
        return added(xs, normed("norm2_after", fed(normed("norm2", xs))))
    assert wiring.kind == "parallel", f"no formula for {wiring.kind}"
    found = fed(normed("norm1" if wiring.one_norm else "norm2", xs))
    return [x + wiring.scale * y for x, y in zip(added(xs, attended(normed("norm1", xs))), found, strict=True)]


def norm(spec, x, weights):
    if spec.kind == "layer":
        centred = x - x.sum() / len(x)
        y = centred / math.sqrt((centred**2).sum() / len(x) + spec.eps) * weights["weight"]
        return y + weights["bias"] if spec.bias else y
    if spec.kind == "batch":
        y = (x - weights["mean"]) / (weights["variance"] + spec.eps).sqrt()
        return y * weights["weight"] + weights["bias"]
    assert spec.kind == "rms", f"no formula for {spec.kind}"
    y = x / math.sqrt((x**2).sum() / len(x) + spec.eps)
    return y * (weights["weight"] + (1 if spec.unit_offset else 0)) if spec.gain else y


def placed(spec, x, position, weights):
    """A token's vector with what its position adds to it."""
    if spec.kind == "integer":
        return x + spec.scale * position
    if spec.kind == "learned":
        return x + weights["table"][position + spec.unused]
    if spec.kind == "sinusoidal":
        return x + torch.tensor(sinusoid(position, len(x), spec.base, spec.layout), dtype=x.dtype)
    assert "embed" not in spec.acts, f"no formula for {spec.kind} at the embedding"
    return x


def sinusoid(position, width, base=10_000.0, layout="interleaved"):
    half = (width + 1) // 2
    waves = [
        (i // 2, math.cos if i % 2 else math.sin)
        if layout == "interleaved"
        else (i % half, (math.sin, math.cos)[i // half])
        for i in range(width)
    ]
    return [wave(position / base ** (2 * pair / width)) for pair, wave in waves]


def turned(spec, x, position, furthest):
    """A query or key turned as pairs, each a complex number; `furthest` is the last position of the pass."""
    if spec.kind != "rotary":
        return x
    pairs = int(len(x) * spec.fraction / 2)
    y = x.clone()
    for i in range(pairs):
        one, other = (i, i + pairs) if spec.layout == "halves" else (2 * i, 2 * i + 1)
        slowed, stretch = scaled(spec, i, pairs, furthest)
        z = complex(x[one], x[other]) * cmath.exp(1j * position * slowed) * stretch
        y[one], y[other] = z.real, z.imag
    return y


def scaled(spec, i, pairs, furthest):
    """The frequency of pair i and what its vector is stretched by, each scheme in the words of its paper."""
    d, scaling = 2 * pairs, spec.scaling
    plain = spec.theta ** (-2 * i / d)
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return plain / scaling.factor, 1.0
    if scaling.kind == "ntk":
        base = spec.theta * scaling.factor ** (d / (d - 2)) if d > 2 else spec.theta
        return base ** (-2 * i / d), 1.0
    if scaling.kind == "longrope":
        divisor = (scaling.short if furthest < scaling.original else scaling.long)[i]
        return plain / divisor, scaling.stretched
    length = 2 * math.pi / plain
    if scaling.kind == "llama3":
        if length > scaling.original / scaling.low:
            return plain / scaling.factor, 1.0
        if length < scaling.original / scaling.high:
            return plain, 1.0
        smooth = (scaling.original / length - scaling.low) / (scaling.high - scaling.low)
        return (1 - smooth) * plain / scaling.factor + smooth * plain, 1.0
    assert scaling.kind == "yarn", f"no formula for {scaling.kind}"

    def place(turns):
        return d * math.log(scaling.original / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = place(scaling.fast), place(scaling.slow)
    if scaling.whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    ramp = min(1.0, max(0.0, (i - low) / max(high - low, 0.001)))
    stretch = 0.1 * math.log(scaling.factor) + 1 if scaling.stretched is None else scaling.stretched
    return plain * (1 - ramp) + plain / scaling.factor * ramp, stretch


def bucket(spec, distance):
    """T5's bucket of a distance key - query."""
    buckets, first = spec.buckets, 0
    if spec.bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(0, -distance)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    far = exact + int(math.log(distance / exact) / math.log(spec.furthest / exact) * (buckets - exact))
    return first + min(far, buckets - 1)


def slopes(heads):
    """The recursion of Press et al. 2021, appendix: a number between two powers borrows from the larger one."""
    power = 2 ** int(math.log2(heads))
    if power == heads:
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    return slopes(power) + slopes(2 * power)[0::2][: heads - power]


def sees(spec, query, key):
    return {
        "causal": lambda: key <= query,
        "window": lambda: query - spec.size < key <= query,
        "sinks": lambda: key <= query and (query - key < spec.size or key < spec.first),
        "blocks": lambda: key <= query and _block_seen(spec, query // spec.size, key // spec.size),
        "bidirectional": lambda: spec.window is None or -spec.window <= query - key <= spec.window,
    }[spec.kind]()


def _block_seen(spec, query, key):
    return query - key < spec.local or key < spec.first or (bool(spec.stride) and (query - key) % spec.stride == 0)


def latent_attention(spec, xs, positions, segments, weights):
    """Keys and values of one head at a time, made of one latent a token."""
    n, p, w = spec.head_width, spec.turned, spec.value_width
    scale, last = spec.scale or (n + p) ** -0.5, max(positions)
    queries, keys, values = [], [], []
    for x, place in zip(xs, positions, strict=True):
        down = weights.project("kv_down", x)
        latent = norm(spec.norm, down[: spec.rank], weights.inside("kv_norm"))
        opened = weights.project("kv_up", latent).view(spec.heads, n + w)
        shared_key = turned(spec.position, down[spec.rank :], place, last)
        source = norm(spec.norm, weights.project("q_down", x), weights.inside("q_norm")) if spec.query_rank else x
        q = weights.project("q", source).view(spec.heads, n + p)
        queries.append([torch.cat((h[:n], turned(spec.position, h[n:], place, last))) for h in q])
        keys.append([torch.cat((h[:n], shared_key)) for h in opened])
        values.append([h[n:] for h in opened])
    out = []
    for t, place in enumerate(positions):
        seen = [
            s for s, at in enumerate(positions) if at >= 0 and segments[s] == segments[t] and sees(spec.mask, place, at)
        ]
        mixed = []
        for h in range(spec.heads):
            weight = [math.exp(scale * float(queries[t][h] @ keys[s][h])) for s in seen]
            mixed.append(sum(y / sum(weight) * values[s][h] for y, s in zip(weight, seen, strict=True)))
        out.append(weights.project("out", torch.cat(mixed)))
    return out


def linear_attention(spec, xs, positions, segments, weights):
    """Weights are products of features, elu(x) + 1, fading with distance; nothing but their sum is divided by."""

    def heads(part, mapped):
        whole = [weights.project(part, x).view(spec.heads, -1) for x in xs]
        return [torch.where(y > 0, y + 1, y.exp()) if mapped else y for y in whole]

    q, k, v = heads("q", True), heads("k", True), heads("v", False)
    out = []
    for t, place in enumerate(positions):
        mixed = []
        for h in range(spec.heads):
            fading = 1 - 2 ** (-5 - h) if spec.decay else 1.0
            weight = {
                s: fading ** abs(place - at) * float(q[t][h] @ k[s][h])
                for s, at in enumerate(positions)
                if at >= 0 and segments[s] == segments[t] and sees(spec.mask, place, at)
            }
            mixed.append(sum(w / sum(weight.values()) * v[s][h] for s, w in weight.items()))
        out.append(weights.project("out", torch.cat(mixed)))
    return out


def attention(spec, xs, positions, segments, weights, shared):
    if spec.kind == "latent":
        return latent_attention(spec, xs, positions, segments, weights)
    if spec.kind == "linear":
        return linear_attention(spec, xs, positions, segments, weights)
    where, table = shared if spec.position.kind == "shared" else (spec.position, weights.inside("position"))
    width = spec.head_width or len(xs[0]) // spec.heads
    scale = spec.scale or 1 / math.sqrt(width)

    def heads(part):
        whole = [weights.project(part, x) for x in xs]
        if spec.qk_norm and part != "v" and spec.qk_norm_over == "all":
            whole = [norm(spec.qk_norm, y, weights.inside(f"{part}_norm")) for y in whole]
        projected = [list(y.split(width)) for y in whole]
        if spec.qk_norm and part != "v" and spec.qk_norm_over == "head":
            projected = [[norm(spec.qk_norm, h, weights.inside(f"{part}_norm")) for h in row] for row in projected]
        if part == "v":
            return projected
        last = max(positions)
        return [[turned(where, h, at, last) for h in row] for row, at in zip(projected, positions, strict=True)]

    q, k, v = heads("q"), heads("k"), heads("v")
    out = []
    for t, place in enumerate(positions):
        mixed = []
        for h in range(spec.heads):
            shared_head = h // (spec.heads // spec.kv_heads)
            keys = [
                s
                for s, at in enumerate(positions)
                if at >= 0 and segments[s] == segments[t] and sees(spec.mask, place, at)
            ]
            scores = [scale * float(q[t][h] @ k[s][shared_head]) for s in keys]
            if spec.softcap:
                scores = [spec.softcap * math.tanh(score / spec.softcap) for score in scores]
            if where.kind == "alibi":
                slope = slopes(spec.heads)[h]
                scores = [score - slope * abs(place - positions[s]) for score, s in zip(scores, keys, strict=True)]
            if where.kind == "relative":
                near = [bucket(where, positions[s] - place) for s in keys]
                scores = [score + float(table["table"][b, h]) for score, b in zip(scores, near, strict=True)]
            nothing = [float(weights["sink"][h])] if spec.sink else []
            most = max([*scores, *nothing])
            total = sum(math.exp(score - most) for score in [*scores, *nothing])
            mixed.append(
                sum(math.exp(score - most) / total * v[s][shared_head] for score, s in zip(scores, keys, strict=True))
            )
        z = torch.cat(mixed)
        if spec.gate:
            z = z / (1 + (-weights.project("gate", xs[t])).exp())
        out.append(weights.project("out", z))
    return out


ACTIVATIONS = {
    "relu": lambda x: max(x, 0.0),
    "relu_squared": lambda x: max(x, 0.0) ** 2,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


def feedforward(spec, x, weights):
    if spec.kind == "experts":
        return experts(spec, x, weights)
    opened = weights.project("gate" if spec.kind == "gated" else "up", x)
    hidden = torch.tensor([ACTIVATIONS[spec.activation](value) for value in opened.tolist()], dtype=x.dtype)
    if spec.kind == "gated":
        hidden = hidden * weights.project("up", x)
    else:
        assert spec.kind == "mlp", f"no formula for {spec.kind}"
    return weights.project("down", hidden)


def experts(spec, x, weights):
    """One token through the experts that its router chooses."""
    logits = weights.project("router", x).tolist()
    if spec.scores == "softmax":
        total = sum(math.exp(y) for y in logits)
        scores = [math.exp(y) / total for y in logits]
    else:
        scores = [1 / (1 + math.exp(-y)) for y in logits]
    judged = [s + (float(weights["balance"][e]) if spec.balance else 0.0) for e, s in enumerate(scores)]
    each = spec.experts // spec.groups
    groups = [judged[g * each : (g + 1) * each] for g in range(spec.groups)]
    worth = [sum(sorted(group)[-(1 if spec.group_by == "best" else 2) :]) for group in groups]
    opened = sorted(range(spec.groups), key=lambda g: -worth[g])[: spec.chosen_groups]
    chosen = sorted((e for e in range(spec.experts) if e // each in opened), key=lambda e: -judged[e])[: spec.chosen]
    whole = sum(scores[e] for e in chosen) if spec.normalise else 1.0
    out = torch.zeros_like(x)
    for e in chosen:
        one = {name: weights[f"{name}.weight"][e] for name in ("gate", "up", "down") if name != "gate" or spec.gated}
        opened_by = one["gate" if spec.gated else "up"] @ x
        hidden = torch.tensor([ACTIVATIONS[spec.activation](value) for value in opened_by.tolist()], dtype=x.dtype)
        out = out + spec.scale * scores[e] / whole * (
            one["down"] @ (hidden * (one["up"] @ x) if spec.gated else hidden)
        )
    if spec.shared:
        kind = GatedSpec if spec.gated else MLPSpec
        common = feedforward(kind(hidden=spec.shared, activation=spec.activation), x, weights.inside("shared"))
        out = out + common * (1 / (1 + (-weights.project("shared_gate", x)).exp()) if spec.shared_gate else 1.0)
    return out


def pooled(pooling, xs):
    if pooling in ("first", "last"):
        return xs[0 if pooling == "first" else -1]
    columns = torch.stack(xs).t().tolist()
    return torch.tensor([sum(c) / len(c) if pooling == "mean" else max(c) for c in columns], dtype=xs[0].dtype)


def transformed(spec, x, weights):
    y = weights.project("dense", x)
    if spec.activation:
        y = torch.tensor([ACTIVATIONS[spec.activation](value) for value in y.tolist()], dtype=x.dtype)
    return norm(spec.norm, y, weights.inside("norm")) if spec.norm else y


def head(spec, x, weights):
    if spec.transform:
        x = transformed(spec.transform, x, weights.inside("head.transform"))
    if spec.kind == "pooled":
        return x / math.sqrt(float(x @ x)) if spec.normalise else x
    if spec.kind in ("classifier", "tokens", "span"):
        return weights.project("head.labels", x)
    matrix = {"tied": "embedding.weight", "untied": "head.own.weight"}[spec.kind]
    scores = spec.scale * weights[matrix] @ x
    scores = scores + weights["head.bias"] if spec.bias else scores
    return scores if spec.softcap is None else spec.softcap * torch.tanh(scores / spec.softcap)
