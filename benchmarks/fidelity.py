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

from their_configs import VARIANTS, their_config
from transformers import AutoModelForCausalLM, GenerationConfig

from glassformer.checkpoint import load_model
from glassformer.checkpoint.export import export_folder
from glassformer.engine.cache import PagedCache, PagePool
from glassformer.engine.pages import Lease
from glassformer.model import Step, Trace, Transformer

PROMPT, LENGTH, TOKENS = 9, 29, 64


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
    """One variant: its largest errors, and how many of 64 greedy tokens agree."""
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(
        their_config(name), attn_implementation="eager", experts_implementation="eager"
    ).eval()
    for parameter in theirs.parameters():
        parameter.add_(0.2 * torch.randn(parameter.shape))
    theirs.generation_config.eos_token_id = None
    tokens = torch.randint(101, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours, wide = load_model(folder).model, load_model(folder, dtype=torch.float64).model
        export_folder(ours, None, Path(folder) / "back", VARIANTS[name][0])
        back = AutoModelForCausalLM.from_pretrained(Path(folder) / "back", experts_implementation="eager")
        returned = _largest(back(tokens).logits, theirs(tokens).logits)
    trace = Trace(["*.resid_post", "final_norm"])
    expected = theirs(tokens, output_hidden_states=True)
    logits = ours(tokens, Step.whole(tokens, watch=trace))
    places = [*(f"blocks.{i}.resid_post" for i in range(ours.spec.layers - 1)), "final_norm"]
    hidden = zip(places, expected.hidden_states[1:], strict=True)
    greedy = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    prompt = tokens[:1, :PROMPT]
    written = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=greedy)[0, PROMPT:]
    agreed = (torch.tensor(write(ours, prompt)) == written).int().cumprod(0).sum()
    return {
        "name": name,
        "logits": _largest(logits, expected.logits),
        "hidden": max(_largest(trace.kept[place], value) for place, value in hidden),
        "float64": _largest(wide(tokens, Step.whole(tokens)), copy.deepcopy(theirs).double()(tokens).logits),
        "greedy": int(agreed),
        "export": returned,
    }


def write(model: Transformer, prompt: torch.Tensor) -> list[int]:
    """Greedy tokens with the cache."""
    pool, lease, new, out = PagePool(model), Lease(), prompt, []
    for _ in range(TOKENS):
        cache = PagedCache(pool, [lease], [new.size(1)])
        new = model(new, cache.step())[:, -1:].argmax(-1)
        cache.advance()
        out.append(int(new))
    return out


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| variant | logits | hidden states | logits in float64 | greedy tokens | exported and loaded there |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        errors = [f"{row[key]:.1e}" for key in ("logits", "hidden", "float64")]
        cells = [row["name"], *errors, f"{row['greedy']} of {TOKENS}", f"{row['export']:.1e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
