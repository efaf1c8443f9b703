"""Writing that a crash, a full disk or an exception can't leave half done."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassformer.checkpoint import atomic, write_file, write_folder
from glassformer.errors import CheckpointError


def fill(text: str):
    def write(folder: Path) -> None:
        (folder / "inner").mkdir()
        (folder / "inner" / "a.txt").write_text(text)

    return write


def content(folder: Path) -> str:
    return (folder / "inner" / "a.txt").read_text()


def test_a_folder_is_written_and_replaced_and_nothing_else_is_left(tmp_path):
    target = tmp_path / "runs" / "step-1"
    for text in ("old", "new"):
        write_folder(target, fill(text))
        assert content(target) == text
        assert os.listdir(target.parent) == ["step-1"]


def test_a_folder_has_the_permissions_of_an_ordinary_one(tmp_path):
    write_folder(tmp_path / "ours", fill("x"))
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("mishap", [RuntimeError("no"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_whatever_goes_wrong_the_old_folder_stays_and_the_new_one_goes(tmp_path, mishap):
    target = tmp_path / "model"
    write_folder(target, fill("old"))

    def fail(folder: Path) -> None:
        fill("new")(folder)
        raise mishap

    with pytest.raises((CheckpointError, RuntimeError, KeyboardInterrupt)) as caught:
        write_folder(target, fail)
    assert content(target) == "old"
    assert os.listdir(tmp_path) == ["model"]
    if isinstance(mishap, OSError):
        assert str(caught.value) == (
            f"{target}: can't write: the disk is full "
            "(free some space and try again; what was there before is untouched)"
        )


def test_a_real_full_device_is_reported_in_plain_words(tmp_path):
    def write(folder: Path) -> None:
        with Path("/dev/full").open("wb", buffering=0) as device:
            device.write(b"x")

    with pytest.raises(CheckpointError, match="the disk is full"):
        write_folder(tmp_path / "model", write)
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "model").write_text("mine")
    with pytest.raises(CheckpointError, match="expected a folder, found a file"):
        write_folder(tmp_path / "model", fill("x"))
    with pytest.raises(CheckpointError, match="a part of the path is a file"):
        write_folder(tmp_path / "model" / "below", fill("x"))
    assert (tmp_path / "model").read_text() == "mine"


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    write_folder(tmp_path / "real", fill("old"))
    (tmp_path / "link").symlink_to("real")
    write_folder(tmp_path / "link", fill("new"))
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "real") == "new"


def test_the_old_folder_stays_when_the_system_can_not_exchange(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    for text in ("old", "new"):
        write_folder(tmp_path / "model", fill(text))
        assert content(tmp_path / "model") == text
        assert os.listdir(tmp_path) == ["model"]


def test_a_crash_between_two_renames_is_mended_at_the_next_write(tmp_path):
    write_folder(tmp_path / ".model.01234567.old", fill("old"))

    def fail(folder: Path) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_folder(tmp_path / "model", fail)
    assert content(tmp_path / "model") == "old"
    assert os.listdir(tmp_path) == ["model"]


# The module by itself, since importing all of a room with torch takes seconds.
ALONE = f"import runpy; write_folder = runpy.run_path({atomic.__file__!r})['write_folder']"

KILLED = """
import sys, time
from pathlib import Path

def write(folder):
    (folder / "half").write_text("half")
    print("writing", flush=True)
    time.sleep(60)

write_folder(Path(sys.argv[1]), write)
"""


def test_what_a_killed_process_left_is_swept_but_not_what_a_living_one_writes(tmp_path):
    target = tmp_path / "model"
    write_folder(target, fill("old"))
    with subprocess.Popen(
        [sys.executable, "-c", ALONE + KILLED, str(target)], stdout=subprocess.PIPE, env=_path()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        write_folder(target, fill("new"))
        assert len(os.listdir(tmp_path)) == 2, "the living process's folder was swept"
        process.send_signal(signal.SIGKILL)
    assert content(target) == "new"
    write_folder(target, fill("newest"))
    assert os.listdir(tmp_path) == ["model"]


REPLACED_FOR_EVER = """
import sys
from pathlib import Path

n = 0
while True:
    n += 1
    def write(folder):
        for name in "ab":
            (folder / name).write_text(str(n) * 1000)
    write_folder(Path(sys.argv[1]), write)
    if n == 1:
        print("ready", flush=True)
"""


def test_killed_at_any_moment_the_folder_is_whole(tmp_path):
    target = tmp_path / "model"
    for attempt in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", ALONE + REPLACED_FOR_EVER, str(target)], stdout=subprocess.PIPE, env=_path()
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.013 * (attempt + 1))
            process.kill()
        assert (target / "a").read_text() == (target / "b").read_text() != ""


def test_a_file_is_written_replaced_and_swept(tmp_path):
    (tmp_path / ".best.json.01234567.partial").write_text("from a crash")
    for data in (b"one", b"two"):
        write_file(tmp_path / "best.json", data)
        assert (tmp_path / "best.json").read_bytes() == data
        assert os.listdir(tmp_path) == ["best.json"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="can't write"):
        write_file(tmp_path / "folder", b"three")
    assert sorted(os.listdir(tmp_path)) == ["best.json", "folder"]


def _path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
