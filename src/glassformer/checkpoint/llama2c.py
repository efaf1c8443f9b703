"""Models of llama2.c: a `.bin` file of seven numbers and then float32 tensors, its tokenizer in another beside it.

The header holds width, hidden width, layers, heads, kv-heads, vocabulary and context as little-endian int32; a
negative vocabulary says that the head has a matrix of its own. The tensors follow in one fixed order, those of all
layers together, with two tables of rotations that are computed here and so skipped. A tokenizer is the length of its
longest piece and then, for each piece, a score, a length and its bytes.
Source: the legacy export (version 0) of Karpathy's llama2.c, 2023.
"""

import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoint.gguf_model import unpermuted
from glassformer.checkpoint.reading import NumberFile
from glassformer.checkpoint.tensors import Entry
from glassformer.errors import CheckpointError, TokenizerError
from glassformer.tokenizer import Tokenizer
from glassformer.tokenizer.foreign import from_lists
from glassformer.tokenizer.pieces import BYTE_TOKEN
from glassformer.tokenizer.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN

HEADER = struct.Struct("<7i")
LATER_VERSIONS = struct.pack("<i", 0x616B3432)  # "ak42", with which the exports of version 1 and 2 begin
WORD = struct.Struct("<fi")  # the score of a piece, and its length
MAX_TOKENIZER = 64 * 2**20  # bytes
NAMED = {"\n<s>\n": "<s>", "\n</s>\n": "</s>"}  # how a tokenizer file writes its two special tokens


class Llama2cFile(NumberFile):
    """An open file with a checked header: `config` as a Llama of Hugging Face's has it, and tensors by their names."""

    def __init__(self, path: Path):
        """Open and check; raises CheckpointError where the header isn't one, or isn't that of this file."""
        super().__init__(path)
        try:
            self.config = self._header()
            self.entries = self._layout()
        except BaseException:
            self.close()
            raise

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name; queries and keys with their components in two halves instead of in pairs."""
        entry = self.entries[name]
        tensor = self.read(entry.shape, entry.dtype, entry.start, dtype)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            return unpermuted(tensor, self.config[heads])
        return tensor

    @property
    def facts(self) -> Mapping[str, Any]:
        """A header has none but those of the config."""
        return {}

    def take_tokenizer(self) -> Tokenizer | None:
        """The tokenizer beside it: tok512.bin for a vocabulary of 512, else tokenizer.bin, else the only tok*.bin."""
        folder, vocabulary = self.path.parent, self.config["vocab_size"]
        fitting = [folder / f"tok{vocabulary}.bin", folder / "tokenizer.bin"]
        others = sorted(path for path in folder.glob("tok*.bin") if path != self.path)
        found = next((path for path in fitting if path.is_file()), others[0] if len(others) == 1 else None)
        return read_tokenizer(found, vocabulary) if found else None

    def _header(self) -> dict[str, Any]:
        if self.size < HEADER.size:
            raise self._refused(f"expected a header of {HEADER.size} bytes, the file has {self.size}")
        raw = bytearray(HEADER.size)
        self.fill(memoryview(raw), 0)
        if raw.startswith(LATER_VERSIONS):
            raise self._refused(
                "this is a later version of the format; only the legacy one is read", "export it with --version 0"
            )
        width, hidden, layers, heads, kv_heads, vocabulary, context = HEADER.unpack(raw)
        fields = {"width": width, "hidden width": hidden, "layers": layers, "heads": heads, "kv-heads": kv_heads}
        for name, value in {**fields, "vocabulary": abs(vocabulary), "context": context}.items():
            if value < 1:
                raise self._refused(f"expected a positive number as {name}, found {value}")
        if width % heads or heads % kv_heads or width // heads % 2:
            raise self._refused(f"{heads} heads that share {kv_heads} keys don't divide a width of {width}")
        return {
            "model_type": "llama", "vocab_size": abs(vocabulary), "hidden_size": width, "intermediate_size": hidden,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
            "tie_word_embeddings": vocabulary > 0,
        }  # fmt: skip

    def _layout(self) -> Mapping[str, Entry]:
        """Where each tensor lies; the size of the file must be exactly what the header needs."""
        stacks = list(_stacks(self.config))
        needed = HEADER.size + 4 * sum(count * prod(shape) for _, count, shape in stacks)
        if needed != self.size:
            raise self._refused(f"its header needs {needed} bytes, the file has {self.size}")
        entries: dict[str, Entry] = {}
        start = HEADER.size
        for name, count, shape in stacks:
            for index in range(count):
                stop = start + 4 * prod(shape)
                if name:
                    entries[name.format(index)] = Entry(torch.float32, shape, start, stop)
                start = stop
        return entries

    def _refused(self, what: str, do: str = "copy or download it again") -> CheckpointError:
        return CheckpointError(f"no usable model of llama2.c: {what}", where=self.path, do=do)


def _stacks(config: Mapping[str, Any]) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """What lies in a file, in its order: the name, how many times (one for each layer, or one), the shape of each."""
    D, F, V = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    C = D // config["num_attention_heads"]
    L, K = config["num_hidden_layers"], config["num_key_value_heads"]
    layer = "model.layers.{}."
    yield "model.embed_tokens.weight", 1, (V, D)
    yield layer + "input_layernorm.weight", L, (D,)
    yield layer + "self_attn.q_proj.weight", L, (D, D)
    yield layer + "self_attn.k_proj.weight", L, (K * C, D)
    yield layer + "self_attn.v_proj.weight", L, (K * C, D)
    yield layer + "self_attn.o_proj.weight", L, (D, D)
    yield layer + "post_attention_layernorm.weight", L, (D,)
    yield layer + "mlp.gate_proj.weight", L, (F, D)
    yield layer + "mlp.down_proj.weight", L, (D, F)
    yield layer + "mlp.up_proj.weight", L, (F, D)
    yield "model.norm.weight", 1, (D,)
    yield "", 1, (config["max_position_embeddings"], C)  # the cosines and sines of all rotations
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", 1, (V, D)


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """The tokenizer in a file, which must have as many pieces as the model has tokens.

    Raises:
        TokenizerError: the file can't be read, is damaged, or belongs to another model.
    """
    pieces = list(_pieces(path))
    if len(pieces) != vocabulary:
        raise TokenizerError(
            f"it has {len(pieces)} pieces, the model {vocabulary} tokens",
            where=path,
            do="put the model's own tokenizer beside it, as tokenizer.bin",
        )
    tokens = [NAMED.get(text, text).replace(" ", "▁") for _, text in pieces]
    special = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    types = [BYTE if BYTE_TOKEN.fullmatch(token) else special.get(token, NORMAL) for token in tokens]
    facts = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [score for score, _ in pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 1,  # stories begin with <s>, and where one ends the next begins
        "tokenizer.ggml.add_bos_token": True,
    }
    try:
        return from_lists(facts)
    except TokenizerError as error:
        raise TokenizerError(error.what, where=path, do=error.do) from None


def _pieces(path: Path) -> Iterator[tuple[float, str]]:
    """The score and the text of each piece."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TOKENIZER + 1)
    except OSError as error:
        raise TokenizerError(f"can't read: {error.strerror}", where=path) from None
    at = 4  # the length of the longest piece, which nobody needs
    if not at <= len(raw) <= MAX_TOKENIZER:
        raise _damaged(path, f"expected from 4 to {MAX_TOKENIZER} bytes, found {len(raw)}")
    while at < len(raw):
        if at + WORD.size > len(raw):
            raise _damaged(path, f"it ends within the piece at {at}")
        score, length = WORD.unpack_from(raw, at)
        at += WORD.size
        if not 0 <= length <= len(raw) - at:
            raise _damaged(path, f"a piece of {length} bytes is announced at {at}, {len(raw) - at} are left")
        try:
            yield score, raw[at : at + length].decode("utf-8")
        except UnicodeDecodeError:
            raise _damaged(path, f"the piece at {at} is no UTF-8") from None
        at += length


def _damaged(path: Path, what: str) -> TokenizerError:
    return TokenizerError(f"damaged tokenizer of llama2.c: {what}", where=path, do="copy or download it again")
