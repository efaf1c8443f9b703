"""How near each family is to transformers: largest error of logits and hidden states, greedy tokens, both directions.

    python benchmarks/fidelity.py [--only qwen] [--write docs/fidelity.md]

Tiny random models of transformers (the configs of tests/checkpoint/their_configs.py) are saved, loaded here and run
side by side in float32, and in float64 where their code allows it.
"""

import argparse
import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "checkpoint"))

from their_configs import VARIANTS
from their_models import (
    GENERATING,
    LENGTH,
    TOKENS,
    cached_greedy,
    kind_of,
    our_pass,
    ours,
    some_tokens,
    their_greedy,
    their_pass,
    theirs,
)  # fmt: skip

from glassformer.checkpoint import load_model
from glassformer.checkpoint.export import export_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="variants whose name contains this")
    parser.add_argument("--write", type=Path, help="put the table between the marks of this file")
    arguments = parser.parse_args()
    rows = [measure(name) for name in VARIANTS if arguments.only in name]
    text = table(rows)
    print(text)
    if arguments.write:
        before, _, rest = arguments.write.read_text(encoding="utf-8").partition("<!-- table -->\n")
        after = rest.partition("<!-- end -->")[2]
        arguments.write.write_text(f"{before}<!-- table -->\n{text}\n<!-- end -->{after}", encoding="utf-8")


@torch.no_grad()
def measure(name: str) -> dict[str, Any]:
    """One variant: its largest errors, and how many of 64 greedy tokens agree (None where it writes none)."""
    (model, folder), tokens, agreed = theirs(name), some_tokens(2, LENGTH), None
    expected, states = their_pass(model, tokens)
    logits, hidden = our_pass(ours(name), tokens)
    wide = load_model(folder, dtype=torch.float64).model
    with tempfile.TemporaryDirectory() as place:
        export_folder(ours(name), None, Path(place) / "back", VARIANTS[name][0])
        back = kind_of(name).from_pretrained(Path(place) / "back", experts_implementation="eager")
        returned = _largest(their_pass(back, tokens)[0], expected)
    if name in GENERATING:
        prompt, written, memory = their_greedy(name)
        same = (cached_greedy(ours(name), prompt, memory) == written)[0, prompt.size(1) :]
        agreed = int(same.int().cumprod(0).sum())
    return {
        "name": name,
        "logits": _largest(logits, expected),
        "hidden": max(_largest(mine, state) for mine, state in zip(hidden, states, strict=True)),
        "float64": _largest(our_pass(wide, tokens)[0], their_pass(copy.deepcopy(model).double(), tokens)[0]),
        "greedy": agreed,
        "export": returned,
    }


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| variant | logits | hidden states | logits in float64 | greedy tokens | exported and loaded there |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        errors = [f"{row[key]:.1e}" for key in ("logits", "hidden", "float64")]
        greedy = "-" if row["greedy"] is None else f"{row['greedy']} of {TOKENS}"
        cells = [row["name"], *errors, greedy, f"{row['export']:.1e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
