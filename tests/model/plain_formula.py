"""The Transformer once more: the formulas of the papers in float64, one head, one query and one key at a time.

It shares no code with the package; it reads a spec by its kinds and a model by the names of its weights.
"""

import cmath
import math

import torch
from torch import Tensor

from glassformer.model import Transformer


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
    if spec.embedding.norm:
        xs = [norm(spec.embedding.norm, x, weights.inside("embedding.norm")) for x in xs]
    xs = [
        placed(spec.position, x, position, weights.inside("position"))
        for x, position in zip(xs, positions, strict=True)
    ]
    for layer in range(spec.layers):
        block = spec.blocks[layer % len(spec.blocks)]
        xs = BLOCKS[block.wiring.kind](block, xs, positions, segments, weights.inside(f"blocks.{layer}"))
    out = [head(spec.head, norm(spec.norm, x, weights.inside("norm")), weights) for x in xs]
    return torch.stack(out)


def _pre(block, xs, positions, segments, weights):
    normed = [norm(block.norm, x, weights.inside("norm1")) for x in xs]
    added = attention(block.attention, normed, positions, segments, weights.inside("attention"))
    xs = [x + a for x, a in zip(xs, added, strict=True)]
    return [
        x + feedforward(block.feedforward, norm(block.norm, x, weights.inside("norm2")), weights.inside("feedforward"))
        for x in xs
    ]


def _post(block, xs, positions, segments, weights):
    added = attention(block.attention, xs, positions, segments, weights.inside("attention"))
    xs = [norm(block.norm, x + a, weights.inside("norm1")) for x, a in zip(xs, added, strict=True)]
    out = [x + feedforward(block.feedforward, x, weights.inside("feedforward")) for x in xs]
    return [norm(block.norm, x, weights.inside("norm2")) for x in out]


BLOCKS = {"pre": _pre, "post": _post}


def norm(spec, x, weights):
    if spec.kind == "layer":
        centred = x - x.sum() / len(x)
        y = centred / math.sqrt((centred**2).sum() / len(x) + spec.eps) * weights["weight"]
        return y + weights["bias"] if spec.bias else y
    assert spec.kind == "rms"
    y = x / math.sqrt((x**2).sum() / len(x) + spec.eps)
    return y * weights["weight"] if spec.gain else y


def placed(spec, x, position, weights):
    """A token's vector with what its position adds to it."""
    if spec.kind == "learned":
        return x + weights["table"][position]
    if spec.kind == "sinusoidal":
        return x + torch.tensor(sinusoid(position, len(x), spec.base), dtype=x.dtype)
    assert not spec.acts, f"no formula for {spec.kind} at the embedding"
    return x


def sinusoid(position, width, base=10_000.0):
    return [
        (math.cos if component % 2 else math.sin)(position / base ** (2 * (component // 2) / width))
        for component in range(width)
    ]


def turned(spec, x, position):
    """A query or key turned as pairs, each a complex number."""
    if spec.kind != "rotary":
        return x
    pairs = int(len(x) * spec.fraction / 2)
    y = x.clone()
    for i in range(pairs):
        angle = position * spec.theta ** (-2 * i / (2 * pairs))
        z = complex(x[i], x[i + pairs]) * cmath.exp(1j * angle)
        y[i], y[i + pairs] = z.real, z.imag
    return y


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
        "bidirectional": lambda: True,
    }[spec.kind]()


def attention(spec, xs, positions, segments, weights):
    width = spec.head_width or len(xs[0]) // spec.heads
    scale = spec.scale or 1 / math.sqrt(width)

    def heads(part):
        projected = [list(weights.project(part, x).split(width)) for x in xs]
        if spec.qk_norm and part != "v":
            projected = [[norm(spec.qk_norm, h, weights.inside(f"{part}_norm")) for h in row] for row in projected]
        if part == "v":
            return projected
        return [[turned(spec.position, h, at) for h in row] for row, at in zip(projected, positions, strict=True)]

    q, k, v = heads("q"), heads("k"), heads("v")
    out = []
    for t, place in enumerate(positions):
        mixed = []
        for h in range(spec.heads):
            shared = h // (spec.heads // spec.kv_heads)
            keys = [
                s
                for s, at in enumerate(positions)
                if at >= 0 and segments[s] == segments[t] and sees(spec.mask, place, at)
            ]
            scores = [scale * float(q[t][h] @ k[s][shared]) for s in keys]
            if spec.position.kind == "alibi":
                slope = slopes(spec.heads)[h]
                scores = [score - slope * abs(place - positions[s]) for score, s in zip(scores, keys, strict=True)]
            total = sum(math.exp(score - max(scores)) for score in scores)
            mixed.append(
                sum(math.exp(score - max(scores)) / total * v[s][shared] for score, s in zip(scores, keys, strict=True))
            )
        out.append(weights.project("out", torch.cat(mixed)))
    return out


ACTIVATIONS = {
    "relu": lambda x: max(x, 0.0),
    "relu_squared": lambda x: max(x, 0.0) ** 2,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def feedforward(spec, x, weights):
    activation = ACTIVATIONS[spec.activation]
    opened = weights.project("gate" if spec.kind == "gated" else "up", x)
    hidden = torch.tensor([activation(value) for value in opened.tolist()], dtype=x.dtype)
    if spec.kind == "gated":
        hidden = hidden * weights.project("up", x)
    else:
        assert spec.kind == "mlp", f"no formula for {spec.kind}"
    return weights.project("down", hidden)


def head(spec, x, weights):
    matrix = {"tied": "embedding.weight", "untied": "head.own.weight"}[spec.kind]
    scores = weights[matrix] @ x
    return scores if spec.softcap is None else spec.softcap * torch.tanh(scores / spec.softcap)
