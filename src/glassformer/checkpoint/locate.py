"""Which folder a path means: a checkpoint, the best or last of a run, or a model of Hugging Face's."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from glassformer.checkpoint.document import read_document
from glassformer.checkpoint.sentences import sentence_facts
from glassformer.errors import CheckpointError
from glassformer.tokenizer.read import tokenizer_file

Which = Literal["best", "last"]

SHAPES = (
    "a model folder has model.safetensors and spec.json, a run folder has checkpoints/, a Hugging Face folder has "
    "config.json and *.safetensors; or give a .gguf file, or a .bin of llama2.c"
)
GGUF, LLAMA2C = ".gguf", ".bin"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True)
class Place:
    """Where a model lies: its weights and spec in `folder`, its tokenizer (where it has one) in `tokenizer`.

    `config` is the content of config.json where the folder is in Hugging Face's format, else None. A single file is its
    own `folder`, and brings its tokenizer.
    """

    name: str
    folder: Path
    tokenizer: Path | None
    config: dict[str, Any] | None = None
    format: Literal["folder", "gguf", "llama2c"] = "folder"


def locate(path: Path, which: Which = "best") -> Place:
    """Find the model that a path given by a user means.

    Raises:
        CheckpointError: there is nothing there, or nothing that can be loaded; it says what such a folder must have.
    """
    try:
        return _locate(Path(path), which)
    except OSError as error:  # no permission, a name that is too long
        raise CheckpointError(
            f"can't read: {error.strerror}", where=path, do="check the path and its permissions"
        ) from None


def _locate(path: Path, which: Which) -> Place:
    if not path.exists():
        raise CheckpointError("no such folder", where=path, do=SHAPES)
    if path.is_file():
        return _single_file(path)
    if not path.is_dir():
        raise _not_a_folder(path)
    name = path.resolve().name
    if (path / "checkpoints").is_dir():
        return Place(name, _of_run(path, which), _tokenizer(path))
    if (path / "spec.json").exists():
        if not (path / "model.safetensors").exists():
            raise CheckpointError("model.safetensors is missing", where=path, do=SHAPES)
        run = path.resolve().parent.parent if path.resolve().parent.name == "checkpoints" else None
        return Place(name, path, _tokenizer(path) or (_tokenizer(run) if run else None))
    if (path / "config.json").exists():
        config = {**read_document(path / "config.json"), **sentence_facts(path)}
        return Place(name, path, _tokenizer(path), config)
    if (path / "run.json").exists():
        raise CheckpointError("this run has no checkpoint yet", where=path, do="train it further")
    raise CheckpointError("no model in this folder", where=path, do=SHAPES)


def _single_file(path: Path) -> Place:
    suffix = path.suffix.lower()
    if suffix == GGUF:
        return Place(path.stem, path, None, format="gguf")
    if suffix == LLAMA2C and not _is_pickle(path):
        return Place(path.stem, path, None, format="llama2c")
    raise _not_a_folder(path)


def _is_pickle(path: Path) -> bool:
    """Whether a file begins as pickled weights do: as a zip archive, or with the opcode and version of a pickle.

    A width can begin with the same two bytes (640 does), but is then followed by zeros, which no pickle is.
    """
    with path.open("rb") as file:
        start = file.read(4)
    return start == b"PK\x03\x04" or (start[:1] == b"\x80" and start[2:] != b"\0\0")


def checkpoints(run: Path) -> dict[int, Path]:
    """The complete checkpoints of a run, by step, oldest first."""
    if not (run / "checkpoints").is_dir():
        return {}
    found = [(re.fullmatch(r"step-(\d{1,18})", folder.name), folder) for folder in (run / "checkpoints").iterdir()]
    whole = ((int(match[1]), folder) for match, folder in found if match and (folder / "model.safetensors").exists())
    return dict(sorted(whole))


def best_step(run: Path) -> int | None:
    """The step that best.json names, or None where there is no such file."""
    path = run / "best.json"
    if not path.exists():
        return None
    step = read_document(path).get("step")
    if type(step) is not int:
        raise CheckpointError("expected a number at step", where=path, do="delete it to use the last checkpoint")
    return step


def _of_run(run: Path, which: Which) -> Path:
    steps = checkpoints(run)
    if not steps:
        raise CheckpointError("this run has no checkpoint yet", where=run / "checkpoints", do="train it further")
    step = best_step(run) if which == "best" else None
    if step is None:
        return list(steps.values())[-1]
    if step not in steps:
        raise CheckpointError(
            f"best.json names step {step}, which is gone (there are {', '.join(map(str, steps))})",
            where=run,
            do="use the last checkpoint, or delete best.json",
        )
    return steps[step]


def _tokenizer(folder: Path) -> Path | None:
    return folder if tokenizer_file(folder) is not None else None


def _not_a_folder(path: Path) -> CheckpointError:
    if path.suffix in PICKLES:
        return pickled(path)
    if path.suffix == ".safetensors":
        return CheckpointError("expected a folder, got a file of weights", where=path, do="give the folder it lies in")
    return CheckpointError("expected a folder, got a file", where=path, do=SHAPES)


def pickled(path: Path) -> CheckpointError:
    """The refusal of a pickled checkpoint."""
    return CheckpointError(
        "pickled weights are never loaded: reading them can run any program that was put into them",
        where=path,
        do="ask for a safetensors version, or convert it where you trust it, with save_pretrained of transformers",
    )
