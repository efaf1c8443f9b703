"""Tensors on disk: equal to what the safetensors library writes and reads, and safe from whatever a file claims."""

import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.checkpoint import load_tensors, save_tensors
from glassformer.checkpoint.tensors import DTYPES
from glassformer.errors import CheckpointError

TENSORS = {
    "weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.randn(5, dtype=torch.float32).to(torch.bfloat16),
    "state": torch.arange(7, dtype=torch.uint8),
    "step": torch.tensor(41),
    "flag": torch.tensor([True, False]),
    "nothing": torch.empty(0, 3),
}


@pytest.fixture
def valid(tmp_path) -> Path:
    save_tensors(tmp_path / "valid.safetensors", TENSORS, {"step": "41"})
    return tmp_path / "valid.safetensors"


def test_tensors_come_back_equal(valid):
    loaded = load_tensors(valid)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_the_library_reads_what_we_write_and_we_read_what_it_writes(tmp_path, valid):
    theirs = safetensors.torch.load_file(valid)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in TENSORS.items())
    safetensors.torch.save_file(TENSORS, tmp_path / "theirs", metadata={"step": "41"})
    assert all(torch.equal(load_tensors(tmp_path / "theirs")[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_number_format_survives(tmp_path, dtype):
    tensor = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).to(dtype)
    save_tensors(tmp_path / "t", {"t": tensor})
    loaded = load_tensors(tmp_path / "t")["t"]
    assert loaded.dtype == dtype
    assert torch.equal(loaded.float(), tensor.float())
    assert torch.equal(safetensors.torch.load_file(tmp_path / "t")["t"].float(), tensor.float())


def test_views_are_stored_as_what_they_show(tmp_path):
    base = torch.randn(4, 6)
    save_tensors(tmp_path / "t", {"turned": base.t(), "slice": base[1:3, ::2]})
    loaded = load_tensors(tmp_path / "t")
    assert torch.equal(loaded["turned"], base.t())
    assert torch.equal(loaded["slice"], base[1:3, ::2])


def test_equal_tensors_make_equal_bytes_in_any_order(tmp_path):
    save_tensors(tmp_path / "one", TENSORS)
    save_tensors(tmp_path / "two", dict(reversed(TENSORS.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def headed(header: object, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def one(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8), **more: object) -> dict:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}


HUGE = 10**4000  # JSON may hold it; a product of thousands of them would take minutes

LIES = {
    "expected at least 8 bytes, found 3": b"\x01\x02\x03",
    "a pointer of Git LFS lies in the place of the weights": b"version https://git-lfs.github.com/spec/v1\n",
    "the file claims 1152921504606846976": (2**60).to_bytes(8, "little") + b"{}",
    "expected a header of at most 2 bytes": (3).to_bytes(8, "little") + b"{}",
    "nested too deeply": headed(b'{"a":' * 200_000),
    "nested too deeply ": headed(b"[" * 1_000_000),
    "the name 't' occurs twice": headed(b'{"t":' + json.dumps(one()["t"]).encode() + b',"t":1}'),
    "can't decode": headed(b"\xff\xfe{}"),
    "expected a JSON object, found list": headed([]),
    "Expecting": headed(b"{"),
    "expected dtype, shape and data_offsets": headed({"t": 1}),
    "expected dtype, shape and data_offsets ": headed(one(extra=1)),
    "expected a dtype of F64": headed(one("F4096")),
    "expected a dtype of F64 ": headed(one(["F32"])),
    "expected a shape of whole numbers": headed(one(shape=[-2])),
    "expected a shape of whole numbers ": headed(one(shape=[2.0])),
    "expected a shape of whole numbers  ": headed(one(shape=[True, 2])),
    "expected a shape   ": headed(one(shape=[HUGE] * 2000)),
    "expected a shape    ": headed(one(shape=[1] * 100_000)),
    "expected a shape     ": headed(one(shape=[0, 2**62, 2**62], offsets=[0, 0])),
    "expected two offsets": headed(one(offsets=[0, 2**60])),
    "expected two offsets ": headed(one(offsets=[8, 0])),
    "expected two offsets  ": headed(one(offsets=[0, 8, 8])),
    "expected two offsets   ": headed(one(offsets=[-8, 0])),
    "needs 2199023255552 bytes": headed(one(shape=[2**39])),
    "needs 4 bytes, its offsets give 8": headed(one(shape=[1])),
    "overlaps the tensor before it": headed({"s": one()["t"], "t": one(offsets=[4, 12])["t"]}, bytes(12)),
    "overlaps the tensor before it ": headed({"s": one()["t"], "t": one()["t"]}),
    "leaves 4 bytes unused": headed(one(offsets=[4, 12]), bytes(12)),
    "expected 77 bytes, found 81": headed(one(), bytes(12)),
    "expected __metadata__": headed({"__metadata__": {"a": 1}, **one()}),
    "expected __metadata__ ": headed({"__metadata__": 1, **one()}),
}


@pytest.mark.parametrize("message", LIES)
def test_a_file_that_lies_is_refused_in_one_line_before_anything_is_allocated(tmp_path, message):
    path = tmp_path / "lie.safetensors"
    path.write_bytes(LIES[message])
    tracemalloc.start()
    with pytest.raises(CheckpointError) as caught:
        load_tensors(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message.rstrip() in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 400
    assert peak < 4 * len(LIES[message]) + 2**21


def test_a_file_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "not a regular"),
        (tmp_path / "pipe", "not a"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_tensors(path)


def test_a_file_cut_at_any_byte_is_refused(valid, tmp_path):
    whole = valid.read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            load_tensors(tmp_path / "cut")


def damage(data: bytes, seed: int) -> bytes:
    """Bits flipped, numbers and names changed, pieces cut or doubled, mostly in the header."""
    chance = random.Random(seed)
    damaged = bytearray(data)
    header = 8 + int.from_bytes(data[:8], "little")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(header)
        match chance.randrange(6):
            case 0:
                damaged[at] ^= 1 << chance.randrange(8)
            case 1:
                damaged[at : at + 1] = chance.choice([b"9999999999999999", b"-1", b"1e400", b"null", b"[[", b'"', b"{"])
            case 2:
                del damaged[at : at + chance.randint(1, 9)]
            case 3:
                damaged[:8] = chance.choice([0, 1, header, 2**31, 2**60, 2**64 - 1]).to_bytes(8, "little")
            case 4:
                damaged += bytes(chance.randint(1, 9))
            case 5:
                for digit in b"0123456789":
                    damaged = damaged.replace(bytes([digit]), bytes([chance.choice(b"0123456789")]), 1)
    return bytes(damaged)


@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(min_value=0))
def test_a_damaged_file_is_refused_or_holds_tensors_within_its_size(valid, seed):
    data = damage(valid.read_bytes(), seed)
    path = valid.with_name("damaged")
    path.write_bytes(data)
    refusal = ""
    try:
        assert sum(tensor.nbytes for tensor in load_tensors(path).values()) <= len(data)
    except CheckpointError as error:
        refusal = str(error)
    assert "\n" not in refusal
