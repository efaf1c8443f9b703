"""Time and peak memory of attention by length: the plain formula, our blocks, torch's fused kernel, block-sparse.

    python benchmarks/attention.py [--longest 16384] [--backward] [--json]

One batch row, two heads of 64, causal, float32. Each measurement is a process of its own, so that its peak (VmHWM above
what was held before) is its own. Block-sparse keeps the two nearest blocks of 128 and the first.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from machine import contention, machine

from glassformer.model.mask import BlocksSpec
from glassformer.ops.attend import Scores, attend
from glassformer.ops.blockwise import attend_in_blocks, causal

WAYS = ("plain", "blocks", "torch fused", "block-sparse")
HEADS, WIDTH, BLOCK = 2, 64, 128


def memory() -> int:
    """The most this process has held, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def sparse(spec: BlocksSpec):
    """The blocks that a block-sparse mask keeps."""

    def seen(queries: slice, keys: slice) -> torch.Tensor | bool:
        kept = spec.keeps(torch.tensor(queries.start // BLOCK), torch.tensor(keys.start // BLOCK))
        return causal(queries, keys) if kept else False

    return seen


def work(way: str, length: int, backward: bool) -> dict[str, float]:
    """Seconds of the best of a few runs, and megabytes of the peak."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=backward) for _ in range(3))
    scores = Scores(WIDTH**-0.5)

    def run() -> torch.Tensor:
        if way == "plain":
            mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
            return attend(q, k, v, mask, scores, lambda name, value: value)
        if way == "torch fused":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scores.scale)
        seen = causal if way == "blocks" else sparse(BlocksSpec(size=BLOCK, local=2, first=1))
        return attend_in_blocks(q, k, v, seen, scores, BLOCK)

    before, best = memory(), float("inf")
    for _ in range(3 if length <= 4096 else 2):
        start = time.perf_counter()
        out = run()
        if backward:
            out.sum().backward()
        best = min(best, time.perf_counter() - start)
    return {"seconds": best, "megabytes": (memory() - before) / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--backward", action="store_true", help="the gradient too")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return print(json.dumps(work(arguments.worker[0], int(arguments.worker[1]), arguments.backward)))
    lengths = [length for length in (1024, 4096, 16384) if length <= arguments.longest]
    rows = []
    with contention() as others:
        for length in lengths:
            for way in WAYS:
                command = [sys.executable, __file__, "--worker", way, str(length)]
                command += ["--backward"] if arguments.backward else []
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                rows.append({"way": way, "tokens": length, **json.loads(done.stdout.splitlines()[-1])})
    if arguments.json:
        return print(json.dumps({"rows": rows, **others.to_dict()}, indent=2))
    print(machine())
    print(f"{'':14}{'tokens':>8}{'ms':>10}{'peak MB':>10}")
    for row in rows:
        print(f"{row['way']:14}{row['tokens']:>8,}{row['seconds'] * 1e3:>10,.1f}{row['megabytes']:>10,.0f}")
    print(others)


if __name__ == "__main__":
    main()
