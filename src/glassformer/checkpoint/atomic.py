"""Atomic writing: a file or folder appears whole or not at all, and a crash leaves what was there before.

Everything is written beside its target, forced to the disk, and renamed. What a killed process left beside a
target is swept away at the next write: the owner of a partial write holds a lock on it that dies with the process.
"""

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from glassformer.errors import CheckpointError


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Make `target` the folder that `write` fills; an existing one is replaced once the new one is complete.

    Raises:
        CheckpointError: what the operating system refused, in plain words; `target` is then as it was before.
    """
    target = Path(target).resolve()  # through a link, to where the folder really is
    with explained(target):
        if target.exists() and not target.is_dir():
            raise CheckpointError("expected a folder, found a file", where=target, do="choose another name")
        partial = _partial(target)
        partial.mkdir()
        lock = _hold(partial)
        try:
            write(partial)
            _sync_tree(partial)
            _put(partial, target)
            _sync(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # what failed, or what was replaced
            os.close(lock)


def write_file(path: Path, data: bytes) -> None:
    """Make `path` the file that holds `data`; an existing one is replaced once the new one is complete.

    Raises:
        CheckpointError: as `write_folder`.
    """
    path = Path(path).resolve()
    with explained(path):
        partial = _partial(path)
        try:
            with partial.open("xb") as file:
                _lock(file.fileno())
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                partial.replace(path)
            _sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def explained(target: Path, after: str = "what was there before is untouched") -> Iterator[None]:
    """What the operating system refuses, as one line for a user; `after` says how things stand now."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # no refusal of the system's
            raise
        what, do = _EXPLANATIONS.get(error.errno, (error.strerror or str(error), "see whether the path is right"))
        raise CheckpointError(f"can't write: {what}", where=target, do=f"{do}; {after}") from None


_FULL = ("the disk is full", "free some space and try again")
_FORBIDDEN = ("no permission to write here", "choose another folder or change its permissions")
_IN_THE_WAY = ("a part of the path is a file", "choose another folder")
_EXPLANATIONS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: ("the file system is read-only", "choose another folder"),
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
}


def _partial(target: Path) -> Path:
    """The path beside `target` to write to, with the leftovers of earlier crashes swept away."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")


def _sweep(target: Path) -> None:
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.(partial|old)")
    for name in os.listdir(target.parent):
        if (match := ours.fullmatch(name)) is None:
            continue
        leftover = target.parent / name
        if match[1] == "old" and not target.exists():
            leftover.rename(target)  # a crash between the two renames of `_put`
        elif _abandoned(leftover):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


def _hold(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    _lock(descriptor)
    return descriptor


def _lock(descriptor: int) -> None:
    with suppress(OSError):  # a file system without locks: its leftovers are not swept, and nothing else is lost
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _abandoned(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder):
        for name in files:
            _sync(Path(parent, name))
        _sync(Path(parent))


def _put(partial: Path, target: Path) -> None:
    """Rename `partial` to `target`; what was there ends up at `partial`, in one step where the system can."""
    if not target.exists():
        partial.rename(target)
    elif not _exchange(partial, target):
        old = partial.with_suffix(".old")
        target.rename(old)
        try:
            partial.rename(target)
        except BaseException:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in a single step, so that no moment is without a target; False where that can't be done."""
    libc = ctypes.CDLL(None)
    names = os.fsencode(one), os.fsencode(other)
    swap = 2  # RENAME_EXCHANGE on Linux, RENAME_SWAP on macOS
    if sys.platform == "darwin":
        return libc.renamex_np(*names, swap) == 0
    at_here = -100  # AT_FDCWD
    return hasattr(libc, "renameat2") and libc.renameat2(at_here, names[0], at_here, names[1], swap) == 0
