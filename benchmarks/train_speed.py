"""Training tokens per second, ours beside nanoGPT's: two processes that step in turns, so that the ratio holds when the
machine's speed drifts.

    python benchmarks/train_speed.py --nanogpt PATH/TO/nanoGPT --text ../shared/data/tinyshakespeare/input.txt

Both train the same architecture (nanoGPT's CPU example, 0.8M parameters; its GPU baby, 10.65M) on the same characters:
batch, forward, backward, clip, AdamW. nanoGPT runs as its train.py does on a CPU. `--nanogpt` is a checkout of it.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import contention, machine

from glassformer.model import TransformerSpec
from glassformer.model.count import training_flops_per_token
from glassformer.train import Trainer, recipe, start_run
from glassformer.train.data import Dataset, PrepareOptions, prepare
from glassformer.train.recipes import nanogpt_model


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    dtype: str
    threads: int
    rounds: int
    steps: int


SIZES = {
    "cpu example, 0.8M, fp32, 2 threads": Size(4, 128, 4, 64, 12, "float32", 2, 25, 20),
    "cpu example, 0.8M, auto, 2 threads": Size(4, 128, 4, 64, 12, "auto", 2, 25, 20),
    "baby, 10.65M, fp32, 1 thread": Size(6, 384, 6, 256, 8, "float32", 1, 15, 1),
    "baby, 10.65M, fp32, 2 threads": Size(6, 384, 6, 256, 8, "float32", 2, 8, 2),
    "baby, 10.65M, auto, 2 threads": Size(6, 384, 6, 256, 8, "auto", 2, 10, 2),
}


def our_model(size: Size, vocabulary: int) -> TransformerSpec:
    """NanoGPT's architecture."""
    return nanogpt_model(vocabulary, layers=size.layers, width=size.width, heads=size.heads, context=size.context)


def our_trainer(size: Size, dataset: Dataset, folder: Path) -> Trainer:
    """Ours, with nanoGPT's architecture and optimizer."""
    run = recipe("nanogpt-cpu", dataset.vocabulary)
    spec = run.replace(
        model=our_model(size, dataset.vocabulary), batch_size=size.batch, dtype=size.dtype, max_steps=10**6
    )
    trainer = start_run(spec, dataset, folder)
    trainer.model.train()
    return trainer


def our_step(trainer: Trainer) -> Callable[[], None]:
    """One update as `fit` makes it."""

    def step() -> None:
        trainer.step()
        trainer.state = trainer.state.replace(step=trainer.state.step + 1)

    return step


def their_step(module: Any, size: Size, data: np.ndarray, vocabulary: int) -> Callable[[], None]:
    """One iteration as nanoGPT's train.py makes it on a CPU (no dropout, no compile, as its README's CPU example)."""
    config = module.GPTConfig(
        n_layer=size.layers, n_head=size.heads, n_embd=size.width, block_size=size.context, bias=False,
        vocab_size=vocabulary, dropout=0.0,
    )  # fmt: skip
    model = module.GPT(config)
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.randint(len(data) - size.context, (size.batch,))
        x = torch.stack([torch.from_numpy(data[i : i + size.context].astype(np.int64)) for i in places])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + size.context].astype(np.int64)) for i in places])
        return x, y

    def step() -> None:
        with nullcontext():
            _, loss = model(*batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def seconds(step: Callable[[], None], count: int) -> float:
    """Of one step, over `count` of them."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def work(side: str, size: Size, data: Path, nanogpt: Path) -> None:
    """One side, in a process of its own: for each number that comes in, that many steps, and their time goes out."""
    torch.set_num_threads(size.threads)
    dataset, sink = Dataset.open(data), sys.stdout
    sys.stdout = sys.stderr  # nanoGPT prints
    with tempfile.TemporaryDirectory() as folder:
        if side == "ours":
            trainer = our_trainer(size, dataset, Path(folder) / "run")
            step, dtype = our_step(trainer), trainer.spec.dtype
        else:
            tokens = dataset.split("train").read(0, dataset.split("train").tokens).astype(np.uint16)
            step, dtype = their_step(load_nanogpt(nanogpt), size, tokens, dataset.vocabulary), "float32"
        print(dtype, file=sink, flush=True)
        for line in sys.stdin:
            print(seconds(step, int(line)), file=sink, flush=True)


class Worker:
    """A side, seen from outside."""

    def __init__(self, side: str, name: str, data: Path, nanogpt: Path):
        command = [sys.executable, __file__, "--worker", side, "--only", name, "--data", data, "--nanogpt", nanogpt]
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.dtype = self._read()

    def steps(self, count: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        self.process.communicate()

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            sys.exit(f"the worker ended: {' '.join(map(str, self.process.args))}")  # pyright: ignore
        return line


def measure(name: str, size: Size, data: Path, nanogpt: Path, peaks: dict[str, float]) -> dict[str, Any]:
    """Rounds in turn; the median of the ratios, and each side's median tokens per second."""
    with contention() as others:
        ours, theirs = (Worker(side, name, data, nanogpt) for side in ("ours", "nanogpt"))
        ours.steps(2), theirs.steps(2)
        pairs = [(ours.steps(size.steps), theirs.steps(size.steps)) for _ in range(size.rounds)]
        ours.close(), theirs.close()
    per_step = size.batch * size.context
    rate = per_step / statistics.median(a for a, _ in pairs)
    flops = rate * training_flops_per_token(our_model(size, Dataset.open(data).vocabulary), size.context)
    return {
        "name": name,
        "dtype": ours.dtype,
        "tokens_per_second": rate,
        "nanogpt_tokens_per_second": per_step / statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
        "share_of_peak": flops / (peaks[ours.dtype] * 1e9 * size.threads / 2),
        **others.to_dict(),
    }


def load_nanogpt(path: Path) -> Any:
    """NanoGPT's model.py as a module, from a checkout."""
    file = path / "model.py"
    if not file.exists():
        sys.exit(f"{file} is missing: --nanogpt must be a checkout of nanoGPT")
    spec = importlib.util.spec_from_file_location("nanogpt_model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True)
    parser.add_argument("--text", type=Path, default=Path("../shared/data/tinyshakespeare/input.txt"))
    parser.add_argument("--only", help="sizes whose name contains this")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=["ours", "nanogpt"], help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker, SIZES[arguments.only], arguments.data, arguments.nanogpt)
    load_nanogpt(arguments.nanogpt)
    torch.set_num_threads(2)
    here = machine()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        prepare([arguments.text], "char", data, PrepareOptions())
        chosen = {name: size for name, size in SIZES.items() if (arguments.only or "") in name}
        rows = [measure(name, size, data, arguments.nanogpt, here.gflops) for name, size in chosen.items()]
    if arguments.json:
        return print(json.dumps({"machine": asdict(here), "rows": rows}, indent=2))
    print(here)
    print(f"{'':36}{'tokens/s':>10}{'nanoGPT':>10}{'ratio':>7}{'of peak':>9}  format    others' CPU")
    for row in rows:
        mark = "  CONTENDED" if row["contended"] else ""
        print(
            f"{row['name']:36}{row['tokens_per_second']:>10,.0f}{row['nanogpt_tokens_per_second']:>10,.0f}"
            f"{row['ratio']:>7.2f}{row['share_of_peak']:>9.1%}  {row['dtype']:9} {row['others_share']:.1%}{mark}"
        )


if __name__ == "__main__":
    main()
