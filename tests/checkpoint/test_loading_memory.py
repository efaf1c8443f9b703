"""Loading holds the weights once, or maps them: the peak of a fresh process, for every source, on a model of 200 MB."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest

from glassformer.checkpoint.families import FAMILIES

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

CONFIG = {
    "model_type": "llama", "vocab_size": 8000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 3,
    "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}  # fmt: skip
BYTES = {"F32": 4, "BF16": 2}
CHUNK = 2**20

MEASURE = """
import gc, sys, torch
from pathlib import Path
from glassformer.checkpoint import load_model
from glassformer.checkpoint.heap import give_back

def memory(field):
    return int(next(line for line in open("/proc/self/status") if line.startswith(field)).split()[1]) * 1024

# The first load also brings in pages of libraries, some twenty megabytes whatever the model's size.
load_model(sys.argv[1], dtype=getattr(torch, sys.argv[2]))
gc.collect()
give_back()
imports = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
model = load_model(sys.argv[1], dtype=getattr(torch, sys.argv[2])).model
peak = memory("VmHWM")
for parameter in model.parameters():  # every page of them
    parameter.detach().view(torch.uint8).max()
assert all(parameter.dtype == getattr(torch, sys.argv[2]) for parameter in model.parameters())
weights = sum(parameter.nbytes for parameter in model.parameters())
print(imports, peak - imports, memory("VmHWM") - imports, weights)
"""


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of the model, by their names in a folder of Hugging Face's."""
    family = FAMILIES["llama"]
    spec = family.spec(CONFIG)
    ours = {name: tuple(value.shape) for name, value in spec.replace(layers=3).build().state_dict().items()}
    rules = family.rules(spec)
    return {
        theirs: shape
        for rule in rules
        for theirs, shape in zip(rule.theirs, rule.shapes([ours[name] for name in rule.ours]), strict=True)
    }


def write_safetensors(path: Path, tensors: Mapping[str, tuple[int, ...]], format: str) -> None:
    header, end = {}, 0
    for name, shape in tensors.items():
        size = int(np.prod(shape)) * BYTES[format]
        header[name] = {"dtype": format, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # as the library does, so that numbers lie where they can be mapped
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, CHUNK):
            file.write(b"\x3c" * min(CHUNK, end - start))


def a_folder(folder: Path, format: str, shards: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = shapes()
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, format)
        return folder
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        own = dict(list(tensors.items())[shard::shards])
        write_safetensors(folder / name, own, format)
        weight_map |= dict.fromkeys(own, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def a_gguf(folder: Path) -> Path:
    """The same in blocks of eight bits."""
    from test_gguf import LAYER, WHOLE

    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", use_temp_file=True)
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    layer = {theirs: ours for ours, theirs in LAYER.items()}
    whole = {theirs: ours for ours, theirs in WHOLE.items()}
    for name, shape in shapes().items():
        stem, end = name.rsplit(".", 1)
        there = whole.get(stem) or "blk.{}.{}".format(stem.split(".")[2], layer[stem.split(".", 3)[3]])
        if len(shape) == 1:
            writer.add_tensor(f"{there}.{end}", np.ones(shape, np.float32))
        else:
            packed = np.full((shape[0], shape[1] // 32 * 34), 0x3C, np.uint8)
            writer.add_tensor(f"{there}.{end}", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "m.gguf"


SOURCES = {
    "one file of bfloat16": lambda folder: a_folder(folder / "m", "BF16", 1),
    "one file of float32": lambda folder: a_folder(folder / "m", "F32", 1),
    "shards of bfloat16": lambda folder: a_folder(folder / "m", "BF16", 3),
    "blocks of eight bits": a_gguf,
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_peak_is_at_most_a_fifth_above_the_weights(source: str, tmp_path: Path):
    path = SOURCES[source](tmp_path)
    for dtype in ("float32", "bfloat16"):
        command = [sys.executable, "-c", MEASURE, str(path), dtype]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        imports, taken, used, weights = map(int, subprocess.check_output(command, env=environment).split())
        print(f"{source} as {dtype}: imports {imports / 1e6:.0f} MB, then {taken / weights:.3f} x the weights")
        assert weights > (180e6 if dtype == "float32" else 90e6)
        assert used <= 1.2 * weights
        if source.endswith(dtype):  # they are mapped: nothing is read before it is used
            assert taken <= 0.1 * weights
