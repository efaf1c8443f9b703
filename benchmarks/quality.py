"""Quality for time: the full-validation loss a recipe reaches in the wall-clock that nanoGPT's CPU example needs, here.

    python benchmarks/quality.py --nanogpt PATH/TO/nanoGPT [--text ../shared/data/tinyshakespeare/input.txt]

First nanoGPT trains as its README says for a CPU (2,000 iterations; about 80 s), in a copy of the checkout, and its
model is scored on the whole validation split. Then the `shakespeare` recipe gets that wall-clock, with start-up and
evaluation. `--best` runs `shakespeare-best` (10 minutes) instead, `--seconds` sets the wall-clock without nanoGPT.
"""

import argparse
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import contention, machine
from train_speed import load_nanogpt

from glassformer.checkpoint import load_model
from glassformer.evaluate import score_windows
from glassformer.train.data import Dataset, PrepareOptions, prepare, validation_windows

CPU_EXAMPLE = [
    "config/train_shakespeare_char.py",
    *("--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1", "--block_size=64", "--batch_size=12"),
    *("--n_layer=4", "--n_head=4", "--n_embd=128", "--max_iters=2000", "--lr_decay_iters=2000", "--dropout=0.0"),
]


def run_nanogpt(checkout: Path, text: Path, folder: Path) -> dict[str, Any]:
    """NanoGPT's CPU example: its wall-clock, and the loss of its best model over the whole validation split."""
    work = folder / "nanogpt"
    shutil.copytree(checkout, work)
    characters = text.read_text(encoding="utf-8")
    letters = sorted(set(characters))
    ids = np.array([letters.index(c) for c in characters], dtype=np.uint16)
    data = work / "data" / "shakespeare_char"
    cut = int(len(ids) * 0.9)
    ids[:cut].tofile(data / "train.bin")
    ids[cut:].tofile(data / "val.bin")
    # Without this file their train.py takes GPT-2's 50,304 tokens for the vocabulary, and ten times as long.
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(letters)}))
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "train.py", *CPU_EXAMPLE, "--always_save_checkpoint=True"],
        cwd=work, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "loss": _their_loss(work, len(letters), ids[cut:].astype(np.int64))}


def _their_loss(work: Path, vocabulary: int, ids: np.ndarray) -> float:
    """Their last model's loss over windows side by side, every character after the first predicted once."""
    module = load_nanogpt(work)
    config = module.GPTConfig(
        n_layer=4, n_head=4, n_embd=128, block_size=64, bias=False, vocab_size=vocabulary, dropout=0.0
    )
    model = module.GPT(config)
    # A checkpoint that this very command has just written.
    saved = torch.load(work / "out-shakespeare-char" / "ckpt.pt", map_location="cpu", weights_only=True)["model"]
    model.load_state_dict({name.removeprefix("_orig_mod."): value for name, value in saved.items()})
    model.eval()
    total, count = 0.0, 0
    with torch.inference_mode():
        for start in range(0, len(ids) - 1, 64):
            window = torch.from_numpy(ids[start : start + 65])[None]
            _, loss = model(window[:, :-1], window[:, 1:])
            total, count = total + loss.item() * (window.size(1) - 1), count + window.size(1) - 1
    return total / count


def run_recipe(recipe: str, text: Path, seconds: float, folder: Path) -> dict[str, Any]:
    """A recipe through the command line, stopped by the clock; the loss is scored again from the saved model."""
    prepare([text], "char", folder / "data", PrepareOptions())
    command = [sys.executable, "-m", "glassformer", "train", "--recipe", recipe]
    command += ["--data", str(folder / "data"), "--out", str(folder / "run"), "--set", f"max_seconds={seconds - 8:.1f}"]
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    loaded = load_model(folder / "run")
    split = Dataset.open(folder / "data").split("validation")
    score = score_windows(loaded.model, validation_windows(split, loaded.spec.context, 32), split.bytes)
    parameters = sum(p.numel() for p in loaded.model.parameters())
    return {
        "recipe": recipe,
        "seconds": wall,
        "parameters": parameters,
        "step": loaded.folder.name,
        "loss": score.loss,
        "bits_per_byte": score.bits_per_byte,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--text", type=Path, default=Path("../shared/data/tinyshakespeare/input.txt"))
    parser.add_argument("--seconds", type=float, help="wall-clock for the recipe, without running nanoGPT")
    parser.add_argument("--best", action="store_true", help="the ten-minute recipe")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.nanogpt is None and arguments.seconds is None and not arguments.best:
        parser.error("give --nanogpt CHECKOUT, or --seconds, or --best")
    results: dict[str, Any] = {"machine": asdict(machine())}
    with tempfile.TemporaryDirectory() as name, contention() as others:
        folder = Path(name)
        seconds = arguments.seconds or 600.0
        if arguments.nanogpt is not None:
            results["nanogpt"] = run_nanogpt(arguments.nanogpt, arguments.text, folder)
            if arguments.seconds is None and not arguments.best:
                seconds = results["nanogpt"]["seconds"]
        recipe = "shakespeare-best" if arguments.best else "shakespeare"
        results["ours"] = run_recipe(recipe, arguments.text, seconds, folder)
    results |= others.to_dict()
    if arguments.json:
        return print(json.dumps(results, indent=2))
    print(machine())
    if "nanogpt" in results:
        print(f"nanoGPT CPU example  {results['nanogpt']['seconds']:6.1f} s  loss {results['nanogpt']['loss']:.4f}")
    ours = results["ours"]
    print(f"{recipe:20} {ours['seconds']:6.1f} s  loss {ours['loss']:.4f}  ({ours['bits_per_byte']:.4f} bits per byte)")
    print(others)


if __name__ == "__main__":
    main()
