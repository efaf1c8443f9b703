"""What the engine costs per token, beside a plain loop over the same model and the same cache, in one run.

    python benchmarks/decode.py [--threads 1] [--tokens 100] [--rounds 5] [--json]

The plain loop feeds the best token back and does nothing else: no scheduler, no sampling parameters, no text. Ways are
measured in turns, and each is given by its best round, so that other processes disturb all alike. Besides wall time
there is the time that this process spent computing, which others hardly touch.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from machine import contention, machine

from glassformer.engine import Engine, SamplingParams
from glassformer.engine.cache import PagedCache, PagePool
from glassformer.engine.pages import Lease
from glassformer.model.recipes import gpt2
from glassformer.model.transformer import Transformer
from glassformer.tokenizer import train_tokenizer

PROMPT = "ROMEO:\n"
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=1)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokenizer = train_tokenizer("char", [PROMPT])
    model = gpt2(tokenizer.vocabulary, layers=6, width=384, heads=6, context=256).build().eval()
    engine = Engine(model, tokenizer)
    ways: dict[str, tuple[int, Callable[[], object]]] = {}
    for rows in (1, 8):
        prompts, written = [PROMPT] * rows, {"max_tokens": options.tokens, "ignore_eos": True}
        greedy, sampled = SamplingParams(temperature=0, **written), SAMPLED.replace(**written)
        ids = tokenizer.encode(PROMPT)
        assert plain(model, ids, rows, options.tokens) == [list(c.tokens) for c in engine.generate(prompts, greedy)]
        ways[f"plain loop, batch {rows}"] = rows, lambda r=rows, i=ids: plain(model, i, r, options.tokens)
        ways[f"engine, greedy, batch {rows}"] = rows, lambda p=prompts, g=greedy: engine.generate(p, g)
        ways[f"engine, sampled, batch {rows}"] = rows, lambda p=prompts, s=sampled: engine.generate(p, s)
    with contention() as taken:
        results = measure(ways, options.tokens, options.rounds)
    report = {
        "model": "gpt2 recipe, 6 layers, 384 wide, 6 heads, float32",
        "results": results,
        "machine": machine().to_dict(),
        **taken.to_dict(),
    }
    print(json.dumps(report, indent=2) if options.json else table(report, str(taken)))


@torch.inference_mode()
def plain(model: Transformer, prompt: list[int], rows: int, count: int) -> list[list[int]]:
    """Greedy decoding of `rows` equal prompts, with nothing around the model but its cache."""
    pool = PagePool(model, pages=rows * PagePool(model).span.pages)
    leases = [Lease() for _ in range(rows)]
    tokens = torch.tensor([prompt] * rows)
    written = []
    for _ in range(count):
        cache = PagedCache(pool, leases, [tokens.size(1)] * rows)
        tokens = model(tokens, cache.step())[:, -1].argmax(dim=-1)[:, None]
        cache.advance()
        written.append(tokens)
    return torch.cat(written, dim=1).tolist()


def measure(ways: dict[str, tuple[int, Callable[[], object]]], count: int, rounds: int) -> dict[str, dict[str, float]]:
    """For each way the best time of a pass (one new token in each row) in microseconds, and tokens/s."""
    wall, own = dict.fromkeys(ways, float("inf")), dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, (_, way) in ways.items():
            start, start_own = time.perf_counter(), time.process_time()
            way()
            wall[name] = min(wall[name], time.perf_counter() - start)
            own[name] = min(own[name], time.process_time() - start_own)
    results = {}
    for name, (rows, _) in ways.items():
        base = f"plain loop, batch {rows}"
        results[name] = {
            "wall_us_per_pass": wall[name] / count * 1e6,
            "cpu_us_per_pass": own[name] / count * 1e6,
            "tokens_per_second": rows * count / wall[name],
            "wall_ratio": wall[name] / wall[base],
            "cpu_ratio": own[name] / own[base],
        }
    return results


def table(report: dict, taken: str) -> str:
    lines = [report["model"], f"{'':28}{'µs a pass':>12}{'CPU µs':>10}{'tokens/s':>10}{'ratio':>8}{'CPU':>8}"]
    for name, figures in report["results"].items():
        lines.append(
            f"{name:28}{figures['wall_us_per_pass']:12.0f}{figures['cpu_us_per_pass']:10.0f}"
            f"{figures['tokens_per_second']:10.0f}{figures['wall_ratio']:8.3f}{figures['cpu_ratio']:8.3f}"
        )
    facts = report["machine"]
    peaks = ", ".join(f"{name} {value:.0f}" for name, value in facts["gflops"].items())
    lines.append(f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads; GFLOP/s at best: {peaks}")
    return "\n".join([*lines, taken])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
