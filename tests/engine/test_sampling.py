import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as theirs

from glassformer.engine import sampling
from glassformer.engine.sampling import Sampler, SamplingParams, choose, draw, transform
from glassformer.errors import RequestError, SpecError
from glassformer.spec import check


def some_logits(rows=5, vocabulary=101, seed=0, scale=3.0):
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("k", [1, 2, 17, 101, 5000])
def test_top_k_is_that_of_transformers(k):
    logits = some_logits().round(decimals=1)  # rounded, so that there are ties
    assert torch.equal(sampling.keep_top_k(logits, k), theirs.TopKLogitsWarper(k)(None, logits))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 0.999])
def test_top_p_is_that_of_transformers(p):
    logits = some_logits()
    assert torch.equal(sampling.keep_top_p(logits, p), theirs.TopPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize("p", [0.0, 0.01, 0.3, 1.0])
def test_min_p_is_that_of_transformers(p):
    logits = some_logits()
    assert torch.equal(sampling.keep_min_p(logits, p), theirs.MinPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 13.0])
def test_temperature_is_that_of_transformers(temperature):
    logits = some_logits()
    ours = sampling.divide_by_temperature(logits, temperature)
    assert torch.equal(ours, theirs.TemperatureLogitsWarper(temperature)(None, logits))


@pytest.mark.parametrize("penalty", [0.5, 1.3, 4.0])
def test_repetition_penalty_is_that_of_transformers(penalty):
    logits = some_logits(rows=1)
    prompt, written = [5, 5, 9, 40], [3, 9, 100]
    params = SamplingParams(repetition_penalty=penalty, temperature=0)
    sampler = Sampler(params, prompt, 101)
    for token in written:
        sampler.note(token)
    expected = theirs.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + written]), logits)
    assert torch.equal(transform(logits, [sampler]), expected)


@given(
    temperature=st.sampled_from([0.6, 1.0, 1.7]),
    k=st.sampled_from([0, 3, 30]),
    p=st.sampled_from([0.4, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3]),
    penalty=st.sampled_from([1.0, 1.4]),
    seed=st.integers(0, 1000),
)
def test_all_transforms_in_a_row_are_those_of_transformers_in_its_order(temperature, k, p, min_p, penalty, seed):
    logits = some_logits(rows=1, seed=seed)
    prompt = [1, 2, 3, 60]
    params = SamplingParams(temperature=temperature, top_k=k, top_p=p, min_p=min_p, repetition_penalty=penalty)
    chain = [theirs.RepetitionPenaltyLogitsProcessor(penalty), theirs.TemperatureLogitsWarper(temperature)]
    chain += [theirs.TopKLogitsWarper(k)] if k else []
    chain += [theirs.TopPLogitsWarper(p), theirs.MinPLogitsWarper(min_p)]
    expected = logits
    for one in chain:
        expected = one(torch.tensor([prompt]), expected)
    assert torch.equal(transform(logits, [Sampler(params, prompt, 101)]), expected)


def test_presence_and_frequency_follow_the_formula_and_count_only_what_was_written():
    logits = some_logits(rows=1)
    params = SamplingParams(presence_penalty=0.7, frequency_penalty=-0.3, temperature=0)
    sampler = Sampler(params, [1, 2, 3], 101)
    for token in [3, 3, 9, 3]:
        sampler.note(token)
    ours = transform(logits, [sampler])
    for token, count in {3: 3, 9: 1, 1: 0, 50: 0}.items():
        expected = float(logits[0, token].double()) - (0.7 if count else 0.0) - (-0.3) * count
        assert math.isclose(float(ours[0, token]), expected, rel_tol=1e-6)


def test_draws_follow_the_probabilities():
    probabilities = torch.tensor([0.5, 0.2, 0.0, 0.15, 0.1, 0.05])
    n = 20_000
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = torch.bincount(draw(probabilities.expand(n, -1), uniform), minlength=6).double()
    expected = probabilities.double() * n
    assert counts[2] == 0
    kept = expected > 0
    chi_square = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    assert chi_square < 13.28, "the 99 % point of χ² with 4 degrees of freedom"


@given(position=st.integers(0, 7), weights=st.lists(st.floats(0, 1, width=32), min_size=8, max_size=8))
def test_an_impossible_token_is_never_drawn_not_even_at_the_edges(position, weights):
    probabilities = torch.tensor([weights])
    probabilities[0, position] = 0
    if probabilities.sum() == 0:
        return
    for u in (0.0, 0.5, 1 - 2**-53):
        token = int(draw(probabilities, torch.tensor([u], dtype=torch.float64)))
        assert token < 8
        assert probabilities[0, token] > 0


def test_sampling_statistics_follow_the_transformed_distribution():
    logits = some_logits(rows=1, vocabulary=12, scale=1.5)
    params = SamplingParams(temperature=0.8, top_k=6, top_p=0.9, seed=11)
    sampler, n = Sampler(params, [], 12), 4000
    counts = torch.zeros(12, dtype=torch.float64)
    for _ in range(n):
        counts[choose(logits, [sampler])[0].token] += 1
    expected = transform(logits, [sampler]).double().softmax(-1)[0] * n
    kept = expected > 0
    assert 2 <= int(kept.sum()) <= 6
    assert float(counts[~kept].sum()) == 0
    chi_square = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    assert chi_square < 20.5, "the 99.9 % point of χ² with 5 degrees of freedom"


def test_the_same_seed_chooses_the_same_tokens_whatever_stands_beside_it():
    logits = some_logits(rows=6)
    params = SamplingParams(seed=5, top_p=0.9)

    def tokens(neighbours):
        mine = Sampler(params, [], 101)
        return [choose(logits[i : i + 1 + neighbours], [mine, *others(neighbours)])[0].token for i in range(3)]

    def others(count):
        kinds = [SamplingParams(), SamplingParams(temperature=0), params, SamplingParams(frequency_penalty=1)]
        return [Sampler(kinds[i % 4], [], 101) for i in range(count)]

    alone = tokens(0)
    assert tokens(1) == alone
    assert tokens(3) == alone
    assert [choose(logits[i : i + 1], [Sampler(params.replace(seed=6), [], 101)])[0].token for i in range(3)] != alone


def test_no_seed_means_other_tokens_each_time():
    logits = torch.zeros(1, 5000)
    drawn = {choose(logits, [Sampler(SamplingParams(), [], 5000)])[0].token for _ in range(8)}
    assert len(drawn) > 4


def test_greedy_takes_the_best_after_penalties():
    logits = torch.tensor([[1.0, 5.0, 4.9, 0.0]])
    plain = Sampler(SamplingParams(temperature=0), [], 4)
    assert choose(logits, [plain])[0].token == 1
    penalised = Sampler(SamplingParams(temperature=0, frequency_penalty=0.2), [], 4)
    penalised.note(1)
    assert choose(logits, [penalised])[0].token == 2
    both = choose(logits.expand(2, -1), [plain, penalised])
    assert [choice.token for choice in both] == [1, 2]


def test_reported_probabilities_are_the_models_own():
    logits = some_logits(rows=2)
    samplers = [
        Sampler(SamplingParams(temperature=0.3, top_k=2, repetition_penalty=1.5, probabilities=4, seed=1), [0, 1], 101),
        Sampler(SamplingParams(temperature=0), [], 101),
    ]
    expected = logits.double().softmax(-1)
    asked, silent = choose(logits, samplers)
    assert math.isclose(math.exp(asked.logprob), float(expected[0, asked.token]), rel_tol=1e-5)
    best = expected[0].topk(4)
    assert [token for token, _ in asked.top] == best.indices.tolist()
    assert [p for _, p in asked.top] == pytest.approx(best.values.tolist(), rel=1e-5)
    assert silent.top == ()


def test_more_probabilities_than_tokens_reports_them_all():
    (choice,) = choose(some_logits(1, 7), [Sampler(SamplingParams(probabilities=50), [], 7)])
    assert len(choice.top) == 7
    assert sum(p for _, p in choice.top) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5}], ids=str)
def test_scores_that_are_no_numbers_fail_their_own_row_only(params):
    logits = some_logits(rows=3)
    logits[1, 7] = math.nan
    samplers = [Sampler(SamplingParams(seed=1, **params), [], 101) for _ in range(3)]
    first, broken, last = choose(logits, samplers)
    assert isinstance(broken, RequestError)
    assert "not numbers" in str(broken)
    assert not isinstance(first, RequestError)
    assert not isinstance(last, RequestError)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": math.nan}, "temperature: Input should be a finite number, got nan"),
        ({"temperature": math.inf}, "temperature: Input should be a finite number, got inf"),
        ({"temperature": -0.1}, "temperature: Input should be greater than or equal to 0, got -0.1"),
        ({"top_p": 0}, "top_p: Input should be greater than 0, got 0"),
        ({"top_p": 1.5}, "top_p: Input should be less than or equal to 1, got 1.5"),
        ({"top_k": -1}, "top_k: Input should be greater than or equal to 0, got -1"),
        ({"min_p": 2}, "min_p: Input should be less than or equal to 1, got 2"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1, got 0"),
        ({"repetition_penalty": 0}, "repetition_penalty: Input should be greater than 0, got 0"),
        ({"presence_penalty": 3}, "presence_penalty: Input should be less than or equal to 2, got 3"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0, got -1"),
        ({"stop": ["x", ""]}, "stop: an empty stop string would end every text at once"),
        ({"temprature": 1}, "unknown field 'temprature'; did you mean 'temperature'?"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_parameter_out_of_range_is_refused_with_its_name_and_value(values, message):
    with pytest.raises(SpecError) as caught:
        check(SamplingParams, values)
    assert message in str(caught.value)


def test_whole_numbers_and_a_single_stop_string_are_accepted():
    params = check(SamplingParams, {"temperature": 1, "top_p": 1, "stop": "。"})
    assert params.temperature == 1.0
    assert params.stop == ("。",)


def test_a_temperature_too_small_to_divide_by_is_greedy():
    assert SamplingParams(temperature=1e-300).greedy
    assert not SamplingParams(temperature=1e-6).greedy
    logits = some_logits(rows=1)
    (choice,) = choose(logits, [Sampler(SamplingParams(temperature=1e-6), [], 101)])
    assert choice.token == int(logits.argmax())
