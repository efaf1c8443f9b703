"""What each change bought: characters of Shakespeare, the same seconds on the same machine for every rung.

    python experiments/001-shakespeare/run.py [--text FILE] [--seconds 75] [--threads 2]

Rung 0 is nanoGPT's CPU example in our code. Each further rung adds one change to the one before it; the last is the
`shakespeare` recipe. Then follow single changes to that recipe. Finished rows are kept in result.json; run it again to
go on where it stopped.
"""

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

from glassformer.spec import override
from glassformer.train import TrainSpec, recipe, resolve, start_run
from glassformer.train.data import Dataset, PrepareOptions, prepare

HERE = Path(__file__).parent
ROTARY = "model.blocks.0.attention.position.kind=rotary"
MUON = {"kind": "muon"}

LADDER: dict[str, list[str]] = {
    "0 nanoGPT's CPU example": ["dtype=float32"],
    "1 + the faster number format here": ["dtype=auto"],
    "2 + context 128 instead of 64": ["model.context=128", "model.position.length=128"],
    "3 + rotary instead of learned positions": ["model.position.kind=none", ROTARY],
    "4 + RMSNorm without gain, q/k norm, squared ReLU": [
        "model.norm.kind=rms", "model.norm.gain=false",
        "model.blocks.0.norm.kind=rms", "model.blocks.0.norm.gain=false",
        "model.blocks.0.attention.qk_norm={kind: rms, gain: false}",
        "model.blocks.0.feedforward.activation=relu_squared",
    ],
    "5 + a quiet start, a head of its own": [
        "model.head.kind=untied", "model.init.kind=quiet", "model.init.embedding=0.5",
    ],
    "6 + Muon": ["optimizer.kind=muon"],
    "7 + stable, then straight down to zero": [
        "schedule.kind=wsd", "schedule.warmup_steps=20", "schedule.decay=0.5",
    ],
}  # fmt: skip
"""Each rung's settings, added to those of the rungs before it."""

SINGLE: dict[str, list[str]] = {
    "batch 8 instead of 12": ["batch_size=8"],
    "2 heads of 64 instead of 4 of 32": [f"model.blocks.0.attention.{name}=2" for name in ("heads", "kv_heads")],
    "width 160 instead of 128": [
        "model.width=160",
        "model.blocks.0.feedforward.hidden=640",
        *(f"model.blocks.0.attention.{name}=5" for name in ("heads", "kv_heads")),
    ],
}
"""Changes to the whole recipe, one at a time."""


def train(spec: TrainSpec, dataset: Dataset, folder: Path) -> dict[str, Any]:
    """One row: what the run reached, and how many tokens it saw."""
    state = start_run(spec, dataset, folder).fit()
    return {
        "loss": state.best_loss,
        "steps": state.step,
        "tokens": state.step * spec.tokens_per_step,
        "seconds": state.seconds,
    }


def rows(dataset: Dataset) -> dict[str, TrainSpec]:
    """All rows by name."""
    found: dict[str, TrainSpec] = {}
    tree = recipe("nanogpt-cpu", dataset.vocabulary).model_dump(mode="json")
    for name, settings in LADDER.items():
        tree = override(tree, settings)
        found[name] = resolve(tree, dataset)
    for name, settings in SINGLE.items():
        found[name] = resolve(override(tree, settings), dataset)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path("../shared/data/tinyshakespeare/input.txt"))
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "result.json")
    arguments = parser.parse_args()
    setting = {"seconds": arguments.seconds, "threads": arguments.threads, "machine": platform.processor()}
    results: dict[str, Any] = {"setting": setting, "rows": {}}
    if arguments.out.exists():
        results = json.loads(arguments.out.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare([arguments.text], "char", folder / "data", PrepareOptions())
        dataset = Dataset.open(folder / "data")
        limits = {
            "max_steps": 10**6, "max_seconds": arguments.seconds, "threads": arguments.threads,
            "evaluate_every": 10**6, "save_every": 10**6,
        }  # fmt: skip
        for number, (row, spec) in enumerate(rows(dataset).items()):
            if row not in results["rows"]:
                results["rows"][row] = train(spec.replace(**limits), dataset, folder / f"run{number}")
                arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
            values = results["rows"][row]
            print(f"{row:52} {values['loss']:.4f}  {values['steps']:6,} steps  {values['tokens'] / 1e6:5.2f}M tokens")


if __name__ == "__main__":
    main()
