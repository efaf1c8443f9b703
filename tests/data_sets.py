"""Where the real data sets for tests are, if they are."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_set(name: str) -> Path:
    """The folder of a data set, below GLASSFORMER_DATA or ../shared/data; skips the test when it isn't there."""
    folder = Path(os.environ.get("GLASSFORMER_DATA", BESIDE)) / name
    if not folder.is_dir():
        pytest.skip(f"data set {name} missing: set GLASSFORMER_DATA")
    return folder
