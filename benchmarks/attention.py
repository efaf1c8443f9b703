"""Time and peak memory of attention by length: the plain formula, our blocks, torch's fused kernel, block-sparse.

    python benchmarks/attention.py [--longest 16384] [--json] [--picture docs/img/attention.png]

One batch row, one head of 64, causal, float32, forward alone and with the backward pass. The block-sparse masks keep
the first block of 128 tokens and the nearest 8 or 32, through the model's own `mix`. Each line is a process of its own,
so that its peak (VmHWM above what was held before) is its own.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from machine import contention, machine
from torch import Tensor

from glassformer.model.attention.mix import NOWHERE, mix, sight
from glassformer.model.mask import BlocksSpec, CausalSpec, MaskSpec
from glassformer.model.step import Step, ThisPass
from glassformer.ops.attend import Scores, attend
from glassformer.ops.blockwise import attend_in_blocks

WIDTH, BLOCK = 64, 128
MASKS: dict[str, MaskSpec] = {
    "blocks": CausalSpec(),
    "sparse, 32 blocks": BlocksSpec(size=BLOCK, local=32, first=1),
    "sparse, 8 blocks": BlocksSpec(size=BLOCK, local=8, first=1),
}
WAYS = ("plain", "torch fused", *MASKS)
PASSES = ("forward", "forward and backward")


def memory() -> int:
    """The most this process has held, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def way_of(way: str, length: int) -> tuple[Callable[[Tensor, Tensor, Tensor], Tensor], float]:
    """What is measured, and the share of a causal triangle's blocks that it makes."""
    scores, where = Scores(WIDTH**-0.5), torch.arange(length)[None]
    step, memory = Step(where).layer(0), ThisPass(where, None, ())
    if way == "torch fused":
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scores.scale), 1.0
    if way == "plain":
        mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
        return lambda q, k, v: attend(q, k, v, mask, scores, lambda name, value: value), 1.0
    seeing = sight(MASKS[way], memory, step, NOWHERE, 1)
    blocks = length // BLOCK
    share = int(seeing.kept.sum()) / (blocks * (blocks + 1) / 2)
    if way == "blocks" or length < 2048:  # shorter ones, and plain causal ones, `mix` gives to the fused kernel
        return lambda q, k, v: attend_in_blocks(q, k, v, seeing, scores), share
    return lambda q, k, v: mix((q, k, v), scores, MASKS[way], memory, step), share


def work(way: str, length: int) -> list[dict[str, Any]]:
    """Seconds of the best of two runs (of one, where they are long), and megabytes of the peak, for both passes."""
    torch.manual_seed(0)
    run, share = way_of(way, length)
    q, k, v = (torch.randn(1, 1, length, WIDTH) for _ in range(3))
    before, rows = memory(), []
    for name in PASSES:
        best = float("inf")
        for _ in range(2 if length < 16384 else 1):
            given = [x.clone().requires_grad_(name != "forward") for x in (q, k, v)]
            start = time.perf_counter()
            out = run(*given)
            if name != "forward":
                out.sum().backward()
            best = min(best, time.perf_counter() - start)
            del out
        figures = {"seconds": best, "megabytes": (memory() - before) / 1e6}
        rows.append({"way": way, "tokens": length, "pass": name, "share": share, **figures})
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Time and memory over tokens, both passes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharex=True)
    for line, name in zip(panels, PASSES, strict=True):
        for axes, field, factor, unit in zip(line, ("seconds", "megabytes"), (1e3, 1), ("ms", "MB"), strict=True):
            for way in WAYS:
                mine = [row for row in rows if row["way"] == way and row["pass"] == name]
                axes.plot([r["tokens"] for r in mine], [factor * r[field] for r in mine], "o-", markersize=4, label=way)
            axes.set(xscale="log", yscale="log", title=name, ylabel=unit, xlabel="tokens")
            axes.grid(alpha=0.3)
    panels[0][0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def measure(longest: int) -> list[dict[str, Any]]:
    """Every way at every length, each in a process of its own."""
    rows: list[dict[str, Any]] = []
    for length in (length for length in (1024, 4096, 16384) if length <= longest):
        for way in WAYS:
            command = [sys.executable, __file__, "--worker", way, str(length)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows += json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", type=Path, help="draw the curves as a PNG there")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return print(json.dumps(work(arguments.worker[0], int(arguments.worker[1]))))
    with contention() as others:
        rows = measure(arguments.longest)
    if arguments.picture:
        draw(rows, arguments.picture)
    if arguments.json:
        return print(json.dumps({"rows": rows, **others.to_dict()}, indent=2))
    print(machine())
    print(f"{'':20}{'':>10}{'':>8}{'forward':>20}{'with backward':>20}")
    print(f"{'':20}{'tokens':>10}{'made':>8}" + f"{'ms':>10}{'peak MB':>10}" * 2)
    for one, both in zip(rows[::2], rows[1::2], strict=True):
        figures = "".join(f"{row['seconds'] * 1e3:>10,.1f}{row['megabytes']:>10,.0f}" for row in (one, both))
        print(f"{one['way']:20}{one['tokens']:>10,}{one['share']:>8.0%}{figures}")
    print(others)


if __name__ == "__main__":
    main()
