"""Models of the Hugging Face hub, in the cache that all programs on a machine share: only the files that are needed.

The library `huggingface_hub` finds, names and caches; it reads HF_HOME, HF_ENDPOINT (a mirror), HF_HUB_OFFLINE and
HF_TOKEN itself. Weights come down here: what an interrupted download left is continued by the next one.
"""

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from glassformer.checkpoint.atomic import explained
from glassformer.checkpoint.document import read_document
from glassformer.errors import CheckpointError

SMALL = (
    "config.json", "generation_config.json", "model.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
    "spm.model", "source.spm", "target.spm",
    "chat_template.jinja", "chat_template.json",
    "modules.json", "sentence_bert_config.json", "1_Pooling/config.json",
)  # fmt: skip
"""What a model needs beside its weights. Nothing else is asked for, and a pickle never."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
ATTEMPTS = 4  # in a row that may bring nothing
TIMEOUT = 30  # seconds without a byte

Progress = Callable[[int, int], None]
"""Is told how many bytes are there, of how many."""


class UnreachableError(CheckpointError):
    """The hub can't be asked, and what is cached isn't enough."""


def fetch(
    name: str, revision: str | None = None, *, progress: Progress = lambda done, total: None, cached: bool = False
) -> Path:
    """The folder of a model of the hub, such as "Qwen/Qwen3-0.6B", downloaded where it isn't in the cache.

    `revision` is a branch, a tag or a commit (None: the main branch). `cached` asks nobody and takes what is there.

    Raises:
        UnreachableError: there is no way to the hub, and the model isn't in the cache as a whole.
        CheckpointError: no such model or revision, no access to it, or no weights that are safe to read.
    """
    hub = _library()
    with _said(hub, name, revision):
        if cached or re.fullmatch(r"[0-9a-f]{40}", revision or ""):
            try:
                return _whole(Path(_snapshot(hub, name, revision, SMALL, local=True)))
            except (UnreachableError, hub.errors.LocalEntryNotFoundError):
                if cached:
                    raise
            # Asked once, and not five times as the library would where it knows the commit already.
            hub.HfApi().model_info(name, revision=revision, timeout=TIMEOUT)
        folder = Path(_snapshot(hub, name, revision, SMALL))
        missing = _missing(folder)
        if missing and not hub.constants.HF_HUB_OFFLINE:
            _download(hub, name, folder, missing, progress)
            _snapshot(hub, name, folder.name, missing)  # links what came into the folder
    return _whole(folder)


def _missing(folder: Path) -> list[str]:
    """The files of weights that a folder lacks."""
    if not (folder / "config.json").exists():
        raise CheckpointError("it holds no model that can be read: config.json is missing", where=folder)
    return [file for file in _weights(folder) if not (folder / file).exists()]


def _whole(folder: Path) -> Path:
    """The folder of a model, if nothing is missing."""
    if missing := _missing(folder):
        do = "run the same command again where there is a network"
        raise UnreachableError(f"only a part of it is here: {missing[0]} is missing", where=folder, do=do)
    return folder


def _library() -> ModuleType:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise UnreachableError(
            "models of the hub need the package huggingface_hub", do="pip install 'glassformer[hub]'"
        ) from None
    return huggingface_hub


def _snapshot(hub: Any, name: str, revision: str | None, files: Sequence[str], *, local: bool = False) -> str:
    class Silent(hub.utils.tqdm):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **{**options, "disable": True})

    return hub.snapshot_download(
        name, revision=revision, allow_patterns=list(files), local_files_only=local, tqdm_class=Silent
    )


def _weights(folder: Path) -> list[str]:
    """The files of weights that a model has: those that its index lists, or the one."""
    if not (folder / INDEX).exists():
        return [WEIGHTS]
    named = read_document(folder / INDEX).get("weight_map")
    files = sorted(set(named.values())) if isinstance(named, dict) else []
    if not files or not all(isinstance(file, str) and re.fullmatch(r"[\w.-]+\.safetensors", file) for file in files):
        raise CheckpointError("expected weight_map to map tensors to .safetensors files", where=folder / INDEX)
    return files


def _download(hub: Any, name: str, folder: Path, files: Sequence[str], progress: Progress) -> None:
    """Bring files of the commit that a snapshot folder is named after into the cache's `blobs`."""
    blobs, started = folder.parent.parent / "blobs", 0
    urls = [hub.hf_hub_url(name, file, revision=folder.name) for file in files]
    facts = [hub.get_hf_file_metadata(url) for url in urls]
    total = sum(fact.size or 0 for fact in facts)
    for url, fact in zip(urls, facts, strict=True):
        if not re.fullmatch(r"[\w-]+", fact.etag or "") or not fact.size:
            raise CheckpointError("it answers unlike a hub: a file without a size or a hash", where=url)
        _blob(hub, url, blobs / fact.etag, fact.size, lambda done, before=started: progress(before + done, total))
        started += fact.size


def _blob(hub: Any, url: str, blob: Path, size: int, progress: Callable[[int], None]) -> None:
    """Make a file of the cache: it has its name, which is its hash, once it is whole and checked."""
    with explained(blob, "what came so far is kept, and the same command continues"):
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial = blob.with_name(f"{blob.name}.incomplete")
        with partial.open("ab") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file.fileno(), fcntl.LOCK_EX)  # waits for another process that downloads the same
            if blob.exists():
                partial.unlink(missing_ok=True)
                return
            _receive(hub, url, file, size, progress)
            os.fsync(file.fileno())
            _verify(partial, blob.name)
            partial.rename(blob)


def _receive(hub: Any, url: str, partial: BinaryIO, size: int, progress: Callable[[int], None]) -> None:
    """Append to `partial` what it lacks; a connection that breaks is taken up again where it broke."""
    failures = 0
    while (before := partial.tell()) != size:
        try:
            for done in _stream(hub, url, partial, before if before < size else 0):
                progress(done)
        except hub.errors.HTTPError as error:
            if hasattr(error, "response") or failures == ATTEMPTS:
                raise
        failures = 0 if partial.tell() > before else failures + 1
        if failures > ATTEMPTS:
            raise UnreachableError(f"the download stops at {before} of {size} bytes", do="run the same command again")
        time.sleep(0.2 * failures)


def _stream(hub: Any, url: str, partial: BinaryIO, start: int) -> Iterator[int]:
    """Append a file from `start` on, and tell how far it has come. A server that can't sends all of it anew."""
    headers = {**hub.utils.build_hf_headers(), "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    session = hub.utils.get_session()
    with session.stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT) as response:
        hub.utils.hf_raise_for_status(response)
        if response.status_code != 206:
            partial.seek(0)
            partial.truncate()
        for chunk in response.iter_bytes():
            partial.write(chunk)
            partial.flush()
            yield partial.tell()


def _verify(partial: Path, etag: str) -> None:
    """Hold a file against its sha256, where the hub names one; of small files it names another hash."""
    if not re.fullmatch(r"[0-9a-f]{64}", etag):
        return
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != etag:
        partial.unlink()
        what = f"what came is not what the hub announced: sha256 {found}, expected {etag}"
        raise CheckpointError(what, do="it was thrown away; run the same command again")


@contextmanager
def _said(hub: Any, name: str, revision: str | None) -> Iterator[None]:
    """What the library finds wrong, in one line that says what to do."""
    errors, place = hub.errors, f"{hub.constants.ENDPOINT}/{name}"
    try:
        yield
    except hub.errors.HFValidationError:
        raise CheckpointError(
            f"{name!r} is no name of a model of the hub", do="it looks like Qwen/Qwen3-0.6B"
        ) from None
    except errors.GatedRepoError:
        do = f"open {place}, accept it, then set HF_TOKEN to a token of yours (or: hf auth login)"
        raise CheckpointError("its licence must be accepted before it can be downloaded", where=name, do=do) from None
    except errors.RepositoryNotFoundError:
        do = "check the name; for a private one set HF_TOKEN"
        raise CheckpointError("the hub has no such model, or it is private", where=place, do=do) from None
    except errors.RevisionNotFoundError:
        do = f"its revisions are listed at {place}/commits/main"
        raise CheckpointError(f"it has no revision {revision!r}", where=name, do=do) from None
    except errors.RemoteEntryNotFoundError:
        do = "take another conversion of it; pickled weights are never loaded"
        raise CheckpointError("it has no weights as safetensors", where=name, do=do) from None
    except errors.IncompleteSnapshotError:
        do = "run the same command again where there is a network"
        raise UnreachableError(
            "only a part of it is in the cache, and the hub can't be asked", where=name, do=do
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HTTPError) as error:
        raise _unreachable(hub, name, error) from None
    except (AssertionError, KeyError, TypeError, json.JSONDecodeError):
        raise UnreachableError(
            "its answer is none of a hub's", where=place, do="check HF_ENDPOINT, and whether a proxy answers instead"
        ) from None


def _unreachable(hub: Any, name: str, error: Exception) -> UnreachableError:
    if hub.constants.HF_HUB_OFFLINE:
        return UnreachableError(
            "not in the cache, and HF_HUB_OFFLINE says not to ask the hub",
            where=name,
            do="download it where HF_HUB_OFFLINE is not set",
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    why = f"{hub.constants.ENDPOINT} " + (f"answers with error {status}" if status else "can't be reached")
    do = "check the network, or set HF_ENDPOINT to a mirror of the hub"
    return UnreachableError(f"not in the cache, and {why}", where=name, do=do)
