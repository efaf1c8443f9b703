"""Models of llama2.c: a published one against a float64 pass written from the format's description, and liars."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import logits_of

from data_sets import data_set
from glassformer.checkpoint import load_model
from glassformer.engine import Engine, SamplingParams
from glassformer.errors import CheckpointError, TokenizerError

SMALL = (16, 24, 2, 4, 2, 19, 8)  # width, hidden, layers, heads, kv-heads, vocabulary, context


def a_file(path: Path, header: tuple[int, ...] = SMALL, seed: int = 0) -> Path:
    """A model with drawn numbers, as long as its header needs."""
    D, F, L, H, K, V, T = header
    C, own = D // H, 0 if V > 0 else -V * D
    layer = 2 * D + 2 * D * D + 2 * K * C * D + 3 * D * F
    numbers = np.random.default_rng(seed).standard_normal(abs(V) * D + L * layer + D + T * C + own) * 0.3
    path.write_bytes(struct.pack("<7i", *header) + numbers.astype("<f4").tobytes())
    return path


def a_tokenizer(path: Path, pieces: list[tuple[float, bytes]]) -> Path:
    longest = max(len(piece) for _, piece in pieces)
    packed = b"".join(struct.pack("<fi", score, len(piece)) + piece for score, piece in pieces)
    path.write_bytes(struct.pack("<i", longest) + packed)
    return path


class Reference:
    """The pass of a llama2.c model over single tokens, in float64 and with plain NumPy."""

    def __init__(self, path: Path):
        raw = path.read_bytes()
        self.D, self.F, self.L, self.H, self.K, vocabulary, T = struct.unpack_from("<7i", raw)
        self.C, V = self.D // self.H, abs(vocabulary)
        D, F, L, C = self.D, self.F, self.L, self.C
        rest = np.frombuffer(raw, "<f4", offset=28).astype(np.float64)

        def take(*shape: int) -> np.ndarray:
            nonlocal rest
            count = int(np.prod(shape))
            values, rest = rest[:count].reshape(shape), rest[count:]
            return values

        self.embedding, self.norm1 = take(V, D), take(L, D)
        self.wq, self.wk, self.wv, self.wo = (
            take(L, D, D),
            take(L, self.K * C, D),
            take(L, self.K * C, D),
            take(L, D, D),
        )
        self.norm2, self.w1, self.w2, self.w3 = take(L, D), take(L, F, D), take(L, D, F), take(L, F, D)
        self.norm = take(D)
        take(2, T, C // 2)
        self.head = self.embedding if vocabulary > 0 else take(V, D)
        assert len(rest) == 0
        self.keys: list[list[np.ndarray]] = [[] for _ in range(L)]
        self.values: list[list[np.ndarray]] = [[] for _ in range(L)]

    def logits(self, token: int, position: int) -> np.ndarray:
        x = self.embedding[token]
        for i in range(self.L):
            h = self.normed(x, self.norm1[i])
            q = self.turned((self.wq[i] @ h).reshape(self.H, self.C), position)
            self.keys[i].append(self.turned((self.wk[i] @ h).reshape(self.K, self.C), position))
            self.values[i].append((self.wv[i] @ h).reshape(self.K, self.C))
            k, v = np.stack(self.keys[i]), np.stack(self.values[i])
            heads = []
            for head in range(self.H):
                shared = head // (self.H // self.K)
                scores = k[:, shared] @ q[head] / np.sqrt(self.C)
                weights = np.exp(scores - scores.max())
                heads.append(weights / weights.sum() @ v[:, shared])
            x = x + self.wo[i] @ np.concatenate(heads)
            h = self.normed(x, self.norm2[i])
            gate = self.w1[i] @ h
            x = x + self.w2[i] @ (gate / (1 + np.exp(-gate)) * (self.w3[i] @ h))
        return self.head @ self.normed(x, self.norm)

    def normed(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return gain * x / np.sqrt(np.mean(x * x) + 1e-5)

    def turned(self, x: np.ndarray, position: int) -> np.ndarray:
        """Neighbouring components turned as one complex number."""
        pairs = x[:, 0::2] + 1j * x[:, 1::2]
        pairs = pairs * np.exp(1j * position / 10_000.0 ** (np.arange(0, self.C, 2) / self.C))
        return np.stack((pairs.real, pairs.imag), axis=-1).reshape(x.shape)

    def greedy(self, prompt: list[int], count: int) -> Iterator[int]:
        rest = list(prompt)
        for position in range(len(prompt) + count - 1):
            logits = self.logits(rest[position], position)
            if position + 1 == len(rest):
                rest.append(int(np.argmax(logits)))
                yield rest[-1]


def by_best_pair(text: str, path: Path) -> list[int]:
    """The ids that the format's own rule gives: always join the two neighbours that make the best scored piece."""
    raw, at, scores, ids = path.read_bytes(), 4, [], {}
    while at < len(raw):
        score, length = struct.unpack_from("<fi", raw, at)
        ids.setdefault(raw[at + 8 : at + 8 + length], len(scores))
        scores.append(score)
        at += 8 + length
    tokens: list[int] = []
    for character in f" {text}" if text else "":
        own = character.encode()
        tokens += [ids[own]] if own in ids else [byte + 3 for byte in own]
    pieces = {index: piece for piece, index in ids.items()}
    while True:
        joined = [(ids.get(pieces[a] + pieces[b], -1), i) for i, (a, b) in enumerate(pairwise(tokens))]
        best = max(((scores[token], -i, token) for token, i in joined if token >= 0), default=None)
        if best is None:
            return tokens
        tokens[-best[1] : -best[1] + 2] = [best[2]]


@pytest.mark.real
def test_a_story_is_that_of_a_pass_in_float64():
    path = data_set("stories260k") / "stories260K.bin"
    loaded = load_model(path)
    assert loaded.tokenizer is not None
    prompt = [1, *loaded.tokenizer.encode("Once upon a time")]
    params = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    written = Engine(loaded.model, loaded.tokenizer).generate([prompt], params)[0]
    assert list(written.tokens) == list(Reference(path).greedy(prompt, 200))
    assert written.text.startswith(", there was a little girl named Lily. She loved to play outside in the park.")


@pytest.mark.real
@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time, there was a little girl named Lily.",
        "The dog's  ball — it's \"big\"!\nAnd then…",
        "今天天气真好 👩‍👩‍👧 and zebras quiz <s> </s>",
        "",
        " x",
    ],
)
def test_ids_are_those_of_joining_the_best_pair_first(text: str):
    folder = data_set("stories260k")
    tokenizer = load_model(folder / "stories260K.bin").tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(text)
    assert ids == by_best_pair(text, folder / "tok512.bin")
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("vocabulary", [19, -19], ids=["tied", "untied"])
def test_logits_are_those_of_the_reference_with_either_head(tmp_path: Path, vocabulary: int):
    path = a_file(tmp_path / "m.bin", (*SMALL[:5], vocabulary, 8))
    model = load_model(path).model
    tokens = [3, 18, 0, 7, 7, 1]
    reference = Reference(path)
    expected = np.stack([reference.logits(token, position) for position, token in enumerate(tokens)])
    np.testing.assert_allclose(logits_of(model, torch.tensor([tokens]))[0].numpy(), expected, atol=1e-5)
    assert (model.head.own is None) == (vocabulary > 0)


def test_a_width_that_begins_like_a_pickle_is_no_pickle(tmp_path: Path):
    assert load_model(a_file(tmp_path / "m.bin", (640, 8, 1, 4, 4, 5, 2))).spec.width == 640


def test_without_a_tokenizer_beside_it_a_model_has_none(tmp_path: Path):
    assert load_model(a_file(tmp_path / "m.bin")).tokenizer is None


@pytest.mark.real
@pytest.mark.slow
def test_a_command_writes_with_it():
    folder = data_set("stories260k")
    command = [sys.executable, "-m", "glassformer", "generate", str(folder / "stories260K.bin"), "", "--temperature=0"]
    done = subprocess.run([*command, "--max-tokens=20"], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith("Once upon a time, there was")  # an empty text begins as a story does


def test_headers_that_lie_are_refused_before_anything_is_made_for_them(tmp_path: Path):
    whole = a_file(tmp_path / "whole.bin").read_bytes()

    def refused(content: bytes) -> str:
        (tmp_path / "m.bin").write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            load_model(tmp_path / "m.bin")
        return str(caught.value)

    def with_field(index: int, value: int) -> bytes:
        return whole[: 4 * index] + struct.pack("<i", value) + whole[4 * index + 4 :]

    assert f"needs {len(whole)} bytes, the file has {len(whole) - 4}" in refused(whole[:-4])
    assert f"the file has {len(whole) + 1}" in refused(whole + b"x")
    assert "a header of 28 bytes, the file has 5" in refused(b"hello")
    for index, name in enumerate(("width", "hidden width", "layers", "heads", "kv-heads", "vocabulary", "context")):
        assert f"a positive number as {name}, found 0" in refused(with_field(index, 0))
        assert "no usable model of llama2.c" in refused(with_field(index, 2**31 - 1))
    assert "don't divide a width of 16" in refused(with_field(3, 3))
    assert "later version" in refused(struct.pack("<i", 0x616B3432) + whole[4:])
    assert "pickled weights are never loaded" in refused(b"PK\x03\x04" + whole)
    assert "pickled weights are never loaded" in refused(b"\x80\x02\x8a\x0a" + whole)


def test_tokenizers_that_lie_or_belong_to_others_are_refused(tmp_path: Path):
    model = a_file(tmp_path / "m.bin")
    pieces = [
        (0.0, b"<unk>"),
        (0.0, b"\n<s>\n"),
        (0.0, b"\n</s>\n"),
        *((-float(i), bytes([97 + i])) for i in range(16)),
    ]

    def refused() -> str:
        with pytest.raises(TokenizerError) as caught:
            load_model(model)
        return str(caught.value)

    beside = a_tokenizer(tmp_path / "tok19.bin", pieces[:-1])
    assert "it has 18 pieces, the model 19 tokens" in refused()
    a_tokenizer(beside, pieces)
    tokenizer = load_model(model).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("abc")[-3:] == [3, 4, 5]
    whole = beside.read_bytes()
    for content, message in (
        (whole[:-1], "are left"),
        (whole + b"\0", "ends within the piece"),
        (whole[:8] + struct.pack("<i", -5) + whole[12:], "a piece of -5 bytes is announced"),
        (whole[:8] + struct.pack("<i", 2**31 - 1) + whole[12:], "a piece of 2147483647 bytes is announced"),
        (whole.replace(b"<unk>", b"\xff\xff\xff\xff\xff"), "is no UTF-8"),
        (b"", "expected from 4"),
    ):
        beside.write_bytes(content)
        assert message in refused()
