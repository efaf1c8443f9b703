"""Models of the hub, through the command line, from a small hub on this machine that speaks as the real one does."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_models import random_model, small_llama

from glassformer.checkpoint.export import export_folder
from glassformer.tokenizer import train_tokenizer
from hub_server import COMMIT, Hub

pytestmark = pytest.mark.slow
NAME = "someone/tiny-llama"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a model's repository holds: what is needed, and what nobody should download."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer = train_tokenizer("char", ["the cat sat on the mat"])
    export_folder(random_model(small_llama(vocabulary=400, width=64)), tokenizer, folder, "llama")
    held = {file.name: file.read_bytes() for file in folder.iterdir()}
    pickle = b"\x80\x02}q\x00."
    return {
        **held,
        "chat_template.jinja": b"{{ messages }}",
        "pytorch_model.bin": pickle,
        "README.md": b"# Tiny",
        "onnx/model.onnx": b"onnx",
        "original/consolidated.safetensors": b"again",
    }


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    with Hub(NAME, dict(files)).running() as running:
        yield running


class Home:
    """A user's machine: a cache of its own, and the small hub as its mirror."""

    def __init__(self, folder: Path, hub: Hub):
        self.folder = folder
        self.env = {
            **os.environ,
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_OFFLINE": "0",
            "HF_TOKEN": "",
            "COLUMNS": "300",
        }

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "ignore", "-m", "glassformer", *arguments]
        environment = {**self.env, **env}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=120
        )

    def described(self, *arguments: str, **env: str) -> dict:
        done = self.run("describe", *arguments, "--json", **env)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, *arguments: str, **env: str) -> str:
        done = self.run("describe", *arguments, **env)
        assert done.returncode == 2, done.stdout + done.stderr
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        assert len(lines) == 1, done.stderr
        return lines[0]

    def cached(self) -> list[str]:
        """The files of the cached snapshot, and downloads that aren't whole."""
        root = self.folder / "hf" / "hub" / f"models--{NAME.replace('/', '--')}"
        snapshot = root / "snapshots" / COMMIT
        partial = [path.name[-11:] for path in root.rglob("*.incomplete")]
        return sorted(str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()) + partial


@pytest.fixture
def home(tmp_path: Path, hub: Hub) -> Home:
    return Home(tmp_path, hub)


def test_a_model_comes_by_its_name_with_the_files_it_needs_and_no_others(home: Home, hub: Hub):
    assert home.described(NAME)["parameters"]["total"] > 0
    needed = {"config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert needed <= set(home.cached()) <= needed | {"generation_config.json", "special_tokens_map.json"}
    fetched = {line.rpartition("/")[2] for line in hub.asked if line.startswith("GET /someone")}
    assert not fetched & {"pytorch_model.bin", "README.md", "model.onnx", "consolidated.safetensors"}


def test_what_is_cached_is_not_downloaded_again_and_serves_without_a_network(home: Home, hub: Hub):
    first = home.described(NAME)
    hub.asked.clear()
    assert home.described(NAME, "--revision", "v1") == first
    assert hub.downloads(WEIGHTS) == []
    hub.asked.clear()
    assert home.described(NAME, HF_HUB_OFFLINE="1") == first
    assert home.described(NAME, "--revision", COMMIT) == first
    assert hub.asked == []
    assert home.described(NAME, HF_ENDPOINT="http://127.0.0.1:9") == first


def test_it_writes_as_from_a_folder(home: Home):
    done = home.run("generate", f"hf:{NAME}", "the cat", "--temperature", "0", "--max-tokens", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the cat")


def test_a_connection_that_breaks_is_taken_up_where_it_broke(home: Home, hub: Hub):
    hub.cut[WEIGHTS] = 100_000
    home.described(NAME)
    assert hub.downloads(WEIGHTS) == ["", "bytes=100000-"]


def test_a_download_that_was_killed_continues_in_the_next_process(home: Home, hub: Hub):
    hub.hang[WEIGHTS] = 120_000
    process = subprocess.Popen(
        [sys.executable, "-m", "glassformer", "describe", NAME],
        cwd=home.folder,
        env=home.env,
        stderr=subprocess.DEVNULL,
    )
    assert hub.hung.wait(60)
    time.sleep(0.5)  # what was sent arrives
    process.kill()
    process.wait()
    assert ".incomplete" in home.cached()[-1]
    assert WEIGHTS not in home.cached()
    hub.asked.clear()
    home.described(NAME)
    [wanted] = hub.downloads(WEIGHTS)
    assert wanted.startswith("bytes=")
    assert 0 < int(wanted[6:-1]) <= 120_000
    assert home.cached()[-1] != ".incomplete"


def test_a_server_that_can_not_send_parts_sends_all_of_it_anew(home: Home, hub: Hub):
    hub.ranges, hub.cut[WEIGHTS] = False, 100_000
    assert home.described(NAME)["parameters"]["total"] > 0


def test_bytes_that_are_not_those_announced_are_thrown_away(home: Home, hub: Hub):
    hub.corrupt.add(WEIGHTS)
    assert "what came is not what the hub announced" in home.refused(NAME)
    assert WEIGHTS not in home.cached()
    assert "a part of it is" in home.refused(NAME, HF_HUB_OFFLINE="1")
    hub.corrupt.clear()
    home.described(NAME)


def test_shards_are_those_of_the_index(home: Home, hub: Hub, files: dict[str, bytes]):
    import torch
    from safetensors.torch import load, save

    tensors = load(hub.files.pop(WEIGHTS))
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, own in halves.items():
        hub.files[file] = save({name: torch.clone(tensors[name]) for name in own})
    index = {"weight_map": {name: file for file, own in halves.items() for name in own}}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    done = home.run("generate", NAME, "the", "--max-tokens", "2")
    assert done.returncode == 0, done.stderr
    assert set(halves) <= set(home.cached())


def test_an_existing_path_wins_over_a_name_of_the_hub(home: Home, hub: Hub, files: dict[str, bytes]):
    folder = home.folder / "someone" / "tiny-llama"
    folder.mkdir(parents=True)
    for name in ("config.json", WEIGHTS):
        (folder / name).write_bytes(files[name])
    assert home.described(NAME)["name"] == "tiny-llama"
    assert "no such folder" in home.refused("someone/other")  # it is meant to lie beside the one that exists
    assert hub.asked == []


def test_what_can_not_be_had_is_said_in_a_line_with_advice(home: Home, hub: Hub):
    assert "the hub has no such model, or it is private (check the name" in home.refused("someone/else")
    assert "no revision 'v9'" in home.refused(NAME, "--revision", "v9")
    assert f"no revision '{'f' * 40}'" in home.refused(NAME, "--revision", "f" * 40)
    unreachable = home.refused(NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert "http://127.0.0.1:9 can't be reached (check the network, or set HF_ENDPOINT to a mirror" in unreachable
    assert "HF_HUB_OFFLINE says not to ask" in home.refused(NAME, HF_HUB_OFFLINE="1")
    assert "is no name of a model of the hub" in home.refused("hf:what is this")
    assert "only a model of the hub has revisions" in home.refused(".", "--revision", "main")
    hub.gated = True
    assert "its licence must be accepted" in home.refused(NAME)


def test_weights_that_are_pickles_only_are_never_fetched(home: Home, hub: Hub):
    hub.files.pop(WEIGHTS)
    assert "no weights as safetensors" in home.refused(NAME)
    assert hub.downloads("pytorch_model.bin") == []
