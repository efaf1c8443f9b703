"""Preparing takes the same memory however much text there is."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

import glassformer

PREPARE = """
import resource, sys
from pathlib import Path
from glassformer.train.data import PrepareOptions, prepare
prepare([sys.argv[1]], sys.argv[2], Path(sys.argv[3]), PrepareOptions(clean=True))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak_megabytes(source: Path, tokenizer: Path, out: Path) -> int:
    command = [sys.executable, "-c", PREPARE, str(source), str(tokenizer), str(out)]
    environment = {"PYTHONPATH": str(Path(glassformer.__file__).parents[1]), "TOKENIZERS_PARALLELISM": "false"}
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def line(number: int) -> str:
    return f"{number}: 今天天气真好，we go out {number % 97} times. " * 20 + "\n"


def write(path: Path, megabytes: float) -> Path:
    lines = (line(number) for number in range(int(megabytes * 1e6 / 1000)))
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" if ".jsonl" in path.name else text for text in lines)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["book.txt", "lines.jsonl.gz"])
def test_twenty_times_the_text_takes_no_more_memory(tmp_path: Path, name: str):
    from glassformer.tokenizer import train_tokenizer

    train_tokenizer("char", [line(number) for number in range(200)], None).save(tmp_path)
    little = peak_megabytes(write(tmp_path / f"little-{name}", 1), tmp_path, tmp_path / "one")
    much = peak_megabytes(write(tmp_path / f"much-{name}", 20), tmp_path, tmp_path / "two")
    assert much - little < 40, (little, much)
