"""Every number of docs/articles.md, computed."""

import base64
import json
import math
import re

import numpy as np
import pytest
import torch
from model_examples import base, logits_of, randomised, some_tokens

from data_sets import data_set
from glassformer.model import Step, Trace
from glassformer.model.count import cache_bytes_per_token, parameters_by_part
from glassformer.model.recipes import gpt2, llama
from glassformer.ops.attend import Scores, attend
from glassformer.ops.softmax import softmax


def rounded(values, digits=2):
    return [round(float(value), digits) for value in values]


def everyone(tokens):
    return torch.ones(1, 1, tokens, tokens, dtype=torch.bool)


def test_the_masked_row_of_like_is_005_022_073():
    weights = softmax(torch.tensor([3.8, 5.2, 6.4, -math.inf, -math.inf]))
    assert rounded(weights) == [0.05, 0.22, 0.73, 0, 0]
    # No scale makes it 0.08, 0.21, 0.71: these would need scores whose gaps stand in another ratio.
    theirs, gaps = math.log(0.71 / 0.21) / math.log(0.71 / 0.08), (6.4 - 5.2) / (6.4 - 3.8)
    assert rounded([theirs, gaps]) == [0.56, 0.46]


def test_one_masked_pass_gives_what_a_pass_for_each_prefix_would():
    model, tokens = randomised(base()), some_tokens(rows=1)
    at_once = logits_of(model, tokens)
    for t in range(1, tokens.size(1) + 1):
        torch.testing.assert_close(logits_of(model, tokens[:, :t])[:, -1], at_once[:, t - 1], atol=1e-5, rtol=1e-5)


def test_dividing_by_the_maximum_changes_a_softmax_and_subtracting_it_does_not():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert rounded(softmax(x)) == [0.09, 0.24, 0.67]
    assert rounded(softmax(x - 3)) == [0.09, 0.24, 0.67]
    assert rounded(softmax(x / 3)) == [0.23, 0.32, 0.45]


def test_the_running_softmax_is_the_softmax():
    scores = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    largest, total = -math.inf, 0.0
    for score in scores.tolist():
        new = max(largest, score)
        total = total * math.exp(largest - new) + math.exp(score - new)
        largest = new
    torch.testing.assert_close((scores - largest).exp() / total, softmax(scores))


@pytest.mark.parametrize(
    ("temperature", "probabilities"),
    [(0.1, [0.55, 0.45, 0.0]), (0.01, [0.88, 0.12, 0.0]), (1, [0.5, 0.49, 0.01]), (10, [0.37, 0.37, 0.25])],
)
def test_temperature_moves_50_49_and_1_percent_little_where_two_are_close(temperature, probabilities):
    logits = torch.tensor([0.50, 0.49, 0.01], dtype=torch.float64).log()
    assert rounded(softmax(logits / temperature)) == probabilities


def test_two_heads_of_one_token_have_one_score_each():
    x = torch.tensor([1.0, 2, 3, 4])
    matrix = torch.arange(16.0).reshape(4, 4)
    q = x @ matrix
    assert q.tolist() == [80, 90, 100, 110]  # 32 + 4·12, 38 + 4·13, 14 + 3·10 + 4·14, 17 + 3·11 + 4·15
    seen = {}
    heads = q.reshape(1, 2, 1, 2)
    attend(heads, heads, heads, everyone(1), Scores(1.0), seen.setdefault)
    assert seen["scores_raw"].shape == (1, 2, 1, 1)
    assert seen["scores_raw"].flatten().tolist() == [80**2 + 90**2, 100**2 + 110**2] == [14500, 22100]
    assert float(q @ q) == 14500 + 22100


def test_scores_have_the_rank_of_a_head_and_a_pattern_has_not():
    q, k = torch.randn(2, 1, 1, 32, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = {}
    attend(q, k, k, everyone(32), Scores(0.5), seen.setdefault)
    assert torch.linalg.matrix_rank(seen["scores_raw"][0, 0]) == 4
    assert torch.linalg.matrix_rank(seen["pattern"][0, 0]) == 32


def test_attention_is_not_linear_in_what_it_reads():
    x = torch.randn(1, 1, 5, 8, generator=torch.Generator().manual_seed(0))

    def read(x):
        return attend(x, x, x, everyone(5), Scores(0.35), lambda name, value: value)

    assert not torch.allclose(read(2 * x), 2 * read(x), atol=0.1)


def test_a_slightly_negative_score_still_gets_weight():
    assert rounded(softmax(torch.tensor([2.0, 2.0, -0.5]))) == [0.48, 0.48, 0.04]


def test_weights_of_the_knowledge_base_sum_to_one_and_a_half():
    similar = torch.tensor([0.48, 0.25, 0.10, 0.40, 0.30])
    assert float(similar.sum()) == pytest.approx(1.53)
    assert rounded(softmax(similar)) == [0.24, 0.19, 0.16, 0.22, 0.2]


def test_the_nearest_word_to_king_minus_man_plus_woman_is_king():
    king, man, woman, queen = torch.tensor(
        [
            [5.0, 3.2, 4.1, 2.5, 6.7, 1.8, 0.9, 3.3],
            [2.0, 1.5, 3.0, 1.2, 4.0, 0.8, 0.5, 2.1],
            [2.1, 1.6, 3.1, 1.3, 4.2, 0.9, 0.6, 2.2],
            [5.2, 3.4, 4.0, 2.7, 6.8, 2.0, 1.1, 3.2],
        ]
    )
    result = king - man + woman
    assert rounded(result, 1) == [5.1, 3.3, 4.2, 2.6, 6.9, 1.9, 1.0, 3.4]
    assert rounded([(result - king).norm(), (result - queen).norm()]) == [0.33, 0.37]
    assert torch.cosine_similarity(result, king, 0) > torch.cosine_similarity(result, queen, 0)


@pytest.mark.real
def test_of_real_word_vectors_too_the_nearest_is_king_and_queen_comes_next():
    folder = data_set("glove50-top30k")
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vectors = np.load(folder / "glove.6B.50d.top30k.float16.npy").astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    king, man, woman = (vectors[words.index(word)] for word in ("king", "man", "woman"))
    best = np.argsort(-(vectors @ (king - man + woman)))[:2]
    assert [words[index] for index in best] == ["king", "queen"]


def test_grouped_queries_cut_the_cache_to_groups_over_heads():
    def cache(kv_heads):
        return cache_bytes_per_token(llama(50, layers=1, width=64, heads=8, kv_heads=kv_heads, context=8), 2)

    assert [cache(kv_heads) / cache(8) for kv_heads in (1, 2, 4)] == [1 / 8, 2 / 8, 4 / 8]


def test_two_thirds_of_a_block_but_not_of_gpt2_small_are_feed_forward():
    counts = parameters_by_part(gpt2(50257, layers=12, width=768, heads=12, context=1024))
    block = counts["feed-forward"] + counts["attention"]
    assert rounded([counts["feed-forward"] / block, counts["feed-forward"] / counts["total"]]) == [0.67, 0.46]


def test_adding_the_mask_after_or_before_the_scale_is_the_same_for_infinity_alone():
    scores, root = torch.tensor([1.0, 2.0, 3.0]), 8.0
    for hidden, same in ((-math.inf, True), (-10.0, False)):
        mask = torch.tensor([0.0, 0.0, hidden])
        after, before = softmax(scores / root + mask), softmax((scores + mask) / root)
        assert torch.allclose(after, before, atol=1e-3) == same


def test_the_parts_of_unhappiness_must_spell_it():
    assert "un" + "happi" + "ness" == "unhappiness"
    assert "un" + "happy" + "ness" != "unhappiness"


def test_a_mask_with_the_dropped_share_of_ones_keeps_a_ninth_of_the_sum():
    torch.manual_seed(0)
    p, ones = 0.1, torch.ones(100_000)
    theirs, ours = (torch.bernoulli(ones * kept) / (1 - p) for kept in (p, 1 - p))
    assert rounded([theirs.mean(), ours.mean()]) == [0.11, 1.0]


def test_what_a_block_reads_is_normed_before_the_gain_and_never_at_the_embedding():
    trace, tokens = Trace(["embedding", "*.norm1"]), some_tokens()
    spec = base().replace(position={"kind": "sinusoidal"})
    torch.manual_seed(0)
    model = spec.build()
    model(tokens, Step.whole(tokens, trace))
    assert rounded([trace.kept["embedding"].std()]) == [0.02]
    first = torch.zeros(16)
    first[1::2] = 1  # sin 0 and cos 0
    assert rounded([first.mean(), first.var(correction=0)]) == [0.5, 0.25]
    assert trace.kept["blocks.0.norm1"].pow(2).mean(-1).allclose(torch.ones(2, 7), atol=1e-3)


def test_the_small_sums_that_are_right():
    value = torch.tensor(0.9, requires_grad=True)
    value.grad = torch.tensor(-0.4)
    torch.optim.SGD([value], lr=0.1).step()
    assert rounded([value.detach()]) == [0.94]
    assert [float(torch.relu(torch.tensor(x - 5.0))) for x in (3 + 3, 3)] == [1, 0]


def vocabulary_of_cl100k():
    lines = (data_set("tokenizer-tiktoken") / "cl100k_base.tiktoken").read_text(encoding="ascii").splitlines()
    return {base64.b64decode(piece): int(rank) for piece, rank in map(str.split, lines)}


def vocabulary_of_gpt2():
    names = json.loads((data_set("tokenizer-gpt2") / "vocab.json").read_text(encoding="utf-8"))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    del names["<|endoftext|>"]
    return {bytes(byte_of[character] for character in piece): rank for piece, rank in names.items()}


def tokens_in(piece: bytes, ranks: dict[bytes, int]) -> int:
    """How many tokens byte-pair encoding makes of a piece: the pair of lowest rank is joined first."""
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while len(parts) > 1:
        rank, i = min((ranks.get(parts[i] + parts[i + 1], math.inf), i) for i in range(len(parts) - 1))
        if rank == math.inf:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return len(parts)


@pytest.mark.real
@pytest.mark.parametrize(
    ("vocabulary", "talk", "classic"), [(vocabulary_of_gpt2, 2.13, 2.21), (vocabulary_of_cl100k, 1.23, 1.56)]
)
def test_tokens_per_han_character_depend_on_the_vocabulary_and_the_text(vocabulary, talk, classic):
    ranks = vocabulary()
    for path, expected in (
        (data_set("cpsycoun") / "CPsyCounD.jsonl", talk),
        (data_set("zh-classics") / "三国演义.txt", classic),
    ):
        with path.open(encoding="utf-8") as file:
            runs = re.findall("[\u4e00-\u9fff]+", file.read(40_000))
        characters = sum(map(len, runs))
        assert characters > 10_000
        assert sum(tokens_in(run.encode(), ranks) for run in runs) / characters == pytest.approx(expected, abs=0.02)
