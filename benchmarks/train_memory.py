"""Peak memory of training beside the estimate that is printed before the first step, and whether it stays flat.

    python benchmarks/train_memory.py --text ../shared/data/tinyshakespeare/input.txt [--steps 500]

Trains the 10.65M-parameter model (nanoGPT's baby: 6 layers of 384, context 256, batch 8) in a fresh process. The peak
is VmHWM above what the process held after its imports.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from machine import contention

from glassformer.spec import override
from glassformer.train import recipe, resolve, start_run
from glassformer.train.data import Dataset, PrepareOptions, prepare


def memory(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"{field} is not in /proc/self/status: this benchmark needs Linux")


def work(data: Path, dtype: str, steps: int, dropout: float) -> dict[str, object]:
    """Train in this process; the estimate, the peak above the baseline, and the peak at several steps."""
    torch.set_num_threads(2)
    baseline = memory("VmHWM")
    dataset = Dataset.open(data)
    changes = {"batch_size": 8, "micro_batch_size": None, "dtype": dtype, "max_steps": 10**6}
    changes["evaluate_every"] = max(1, steps // 5)  # an evaluation must fit, too
    tree = recipe("nanogpt-baby", dataset.vocabulary).model_dump(mode="json") | changes
    places = ("model.embedding", "model.blocks.0.attention", "model.blocks.0.wiring")
    tree = override(tree, [f"{place}.dropout={dropout}" for place in places])
    peaks: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        trainer = start_run(resolve(tree, dataset), dataset, Path(folder) / "run")
        estimate = trainer.plan().memory_bytes
        marks = {steps // 10, steps // 2, steps}

        def listen(progress: object) -> None:
            step = trainer.state.step
            if step in marks:
                peaks[step] = memory("VmHWM") - baseline

        trainer.listen = listen
        trainer.model.train()
        trainer.fit(until=steps)
    return {"dtype": dtype, "estimate": estimate, "peaks": peaks, "ratio": peaks[steps] / estimate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path("../shared/data/tinyshakespeare/input.txt"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return print(json.dumps(work(arguments.worker, arguments.dtype, arguments.steps, arguments.dropout)))
    with tempfile.TemporaryDirectory() as folder, contention() as others:
        prepare([arguments.text], "char", Path(folder) / "data", PrepareOptions())
        command = [sys.executable, __file__, "--worker", f"{folder}/data", "--dtype", arguments.dtype]
        command += ["--dropout", str(arguments.dropout)]
        done = subprocess.run([*command, "--steps", str(arguments.steps)], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    if arguments.json:
        return print(json.dumps(result | others.to_dict(), indent=2))
    for step, peak in result["peaks"].items():
        print(f"step {step:>5}: peak {peak / 1e6:,.0f} MB above the baseline")
    print(f"estimate {result['estimate'] / 1e6:,.0f} MB ({result['dtype']}): peak / estimate = {result['ratio']:.2f}")
    print(others)


if __name__ == "__main__":
    main()
