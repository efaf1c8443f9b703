"""Peak memory and time of training each kind of tokenizer on Chinese without spaces (default 100 MB).

    python benchmarks/tokenizer_memory.py --data ../shared/data/zh-classics [--random] [--megabytes 100] [--json]

The text is the books of the folder without white space, in blocks of 50 characters in random order, until it is large
enough. `--random` shuffles single characters instead: nearly every word is then different, the worst case there is.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

KINDS = ("char", "bpe", "wordpiece", "unigram")


def write_text(books: Path, path: Path, size: int, block: int) -> None:
    """A file of about `size` bytes of shuffled blocks of the books' characters."""
    text = "".join("".join(book.read_text(encoding="utf-8").split()) for book in sorted(books.glob("*.txt")))
    if not text:
        sys.exit(f"{books}: no .txt files with text")
    order, written = random.Random(0), 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            starts = list(range(0, len(text), block))
            order.shuffle(starts)
            shuffled = "".join(text[start : start + block] for start in starts)[: (size - written) // 3 + 1]
            written += len(shuffled.encode())
            file.write(shuffled)


def read_text(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        while chunk := file.read(1 << 20):
            yield chunk


def measure(kind: str, path: Path) -> dict[str, object]:
    """Trains one tokenizer of the default vocabulary in this process; memory in MB (10⁶ bytes), time in seconds."""
    from glassformer.tokenizer import train_tokenizer

    before, start, others = peak(), time.perf_counter(), busy()
    tokenizer = train_tokenizer(kind, read_text(path))
    seconds = time.perf_counter() - start
    used, total = (after - then for after, then in zip(busy(), others, strict=True))
    mine = sum(os.times()[:2]) if used else 0.0
    return {
        "kind": kind,
        "vocabulary": tokenizer.vocabulary,
        "seconds": round(seconds, 1),
        "peak_mb": round(peak()),
        "before_training_mb": round(before),
        "others_cpu": round(max(0.0, used - mine) / max(total, 1e-9), 3),
        "fingerprint": tokenizer.fingerprint[:12],
    }


def peak() -> float:
    """Largest resident memory of this process so far, in MB."""
    try:
        # Not getrusage, where Linux keeps the figure of the process that started this one.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # bytes on macOS


def busy() -> tuple[float, float]:
    """CPU seconds used by all processes, and CPU seconds that there were, since boot (zeros without /proc)."""
    try:
        ticks = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0, 0.0
    rate = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / rate, sum(ticks) / rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/zh-classics"), help="a folder of .txt files")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--random", action="store_true", help="shuffle single characters")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.kinds[0], options.measure)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        write_text(options.data, path, options.megabytes * 1_000_000, 1 if options.random else 50)
        command = [sys.executable, __file__, "--measure", str(path), "--kinds"]
        # A process for each kind, since peak memory is that of a process.
        rows = [json.loads(subprocess.check_output([*command, kind])) for kind in options.kinds]
        report = {"megabytes": round(path.stat().st_size / 1e6), "random": options.random, "kinds": rows}
    if options.json:
        print(json.dumps(report))
        return
    print(f"{report['megabytes']} MB of Chinese without spaces{', characters shuffled' if options.random else ''}")
    print(f"{'kind':10} {'vocabulary':>10} {'seconds':>8} {'peak MB':>8}  others' share of the CPU")
    for row in rows:
        mark = "  contended" if row["others_cpu"] > 0.05 else ""
        figures = f"{row['vocabulary']:10} {row['seconds']:8} {row['peak_mb']:8}  {row['others_cpu']:.1%}{mark}"
        print(f"{row['kind']:10} {figures}")


if __name__ == "__main__":
    main()
