"""Experts in training: the losses that balance them against their formulas and transformers', the bias, whole runs."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from glassformer.checkpoint import load_model
from glassformer.errors import SpecError
from glassformer.model import Step
from glassformer.model.feedforward import Experts, ExpertsSpec, GatedSpec
from glassformer.model.recipes import llama
from glassformer.train import TrainSpec
from glassformer.train.balance import Balance, BalanceSpec, Routed, Routers, balance_loss, z_loss
from glassformer.train.history import read_log
from glassformer.train.loop import Trainer
from glassformer.train.objective import causal
from glassformer.train.optimizer import MuonSpec, orthogonalise
from glassformer.train.prove import prove_resume
from glassformer.train.run import RunFolder
from glassformer.train.start import start_run
from tiny_runs import tiny_data, tiny_spec

EXPERTS = ExpertsSpec(experts=4, chosen=2, hidden=12)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return tiny_data(tmp_path_factory.mktemp("data"))


def spec_of(dataset, experts=EXPERTS, **fields) -> TrainSpec:
    spec = tiny_spec(dataset, **fields)
    block = spec.model.blocks[0].replace(feedforward=experts)
    return spec.replace(model=spec.model.replace(blocks=(block,)))


def mixtures(model: nn.Module) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


def routed(scores: torch.Tensor, spec: ExpertsSpec, real: torch.Tensor | None = None) -> Routed:
    return Routed.of(spec.build(8), scores, real)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_loss_is_its_formula_over_the_tokens_that_are_not_padding(kind):
    spec = ExpertsSpec(experts=5, chosen=2, hidden=4, scores=kind)
    scores = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    real = torch.ones(3, 6, dtype=torch.bool)
    real[1, 4:], real[2, :2] = False, False
    rows = [row for keep, row in zip(real.flatten().tolist(), scores.flatten(0, 1).tolist(), strict=True) if keep]
    f, P, z = [0.0] * 5, [0.0] * 5, 0.0
    for row in rows:
        each = [math.exp(s) if kind == "softmax" else 1 / (1 + math.exp(-s)) for s in row]
        for expert in sorted(range(5), key=lambda e: -row[e])[:2]:
            f[expert] += 1 / len(rows)
        P = [p + e / sum(each) / len(rows) for p, e in zip(P, each, strict=True)]
        z += math.log(sum(math.exp(s) for s in row)) ** 2 / len(rows)
    found = routed(scores, spec, real)
    assert float(balance_loss([found])) == pytest.approx(5 * sum(a * b for a, b in zip(f, P, strict=True)), rel=1e-12)
    assert float(z_loss([found])) == pytest.approx(z, rel=1e-12)


def test_at_balance_the_loss_is_the_number_of_chosen_experts_and_no_less_anywhere_near():
    even = torch.eye(4).repeat(6, 1)[None] * 3 + torch.eye(4).roll(1, 0).repeat(6, 1)[None] * 2
    assert float(balance_loss([routed(even, EXPERTS)])) == pytest.approx(2)
    one_sided = torch.tensor([3.0, 2.0, 0.0, 0.0]).repeat(1, 24, 1)
    assert float(balance_loss([routed(one_sided, EXPERTS)])) > 3


@pytest.mark.parametrize("padded", [False, True])
def test_it_is_the_auxiliary_loss_of_a_mixtral_of_transformers(tmp_path: Path, padded):
    config = MixtralConfig(
        vocab_size=53, hidden_size=24, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2, output_router_logits=True,
        router_aux_loss_coef=0.1, max_position_embeddings=64, sliding_window=None,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = MixtralForCausalLM(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path).model.train()
    tokens, mask = torch.randint(53, (2, 17)), torch.ones(2, 17, dtype=torch.long)
    if padded:
        mask[1, 11:] = 0
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)
    out = theirs(tokens, attention_mask=mask, labels=tokens)
    balance = Balance.of(ours, BalanceSpec(loss=0.1, jointly=True))
    watcher = balance.watcher()
    logits = ours(tokens, Step(positions, watch=watcher))
    extra = balance.loss(watcher, positions)
    again = load_balancing_loss_func(out.router_logits, 6, 2, mask)
    assert extra.item() == pytest.approx(0.1 * again.item(), abs=1e-6)
    assert extra.item() == pytest.approx(0.1 * out.aux_loss.item(), abs=1e-6)
    if padded:  # what is predicted after padding has a meaning in neither
        return
    # The whole loss, and what it makes of the routers.
    surprise = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    (surprise + extra).backward()
    out.loss.backward()
    assert (surprise + extra).item() == pytest.approx(out.loss.item(), abs=1e-5)
    gates = [p.grad for name, p in theirs.named_parameters() if name.endswith("mlp.gate.weight")]
    assert len(gates) == 3
    for mixture, gradient in zip(mixtures(ours), gates, strict=True):
        torch.testing.assert_close(mixture.router.weight.grad, gradient, atol=1e-5, rtol=1e-4)


def test_one_expert_is_a_dense_model_with_equal_logits_and_gradients():
    spec = llama(41, layers=2, width=16, heads=2, kv_heads=1, context=12)
    block = spec.blocks[0].replace(feedforward=GatedSpec(hidden=20))
    dense = spec.replace(blocks=(block,)).build()
    one = spec.replace(blocks=(block.replace(feedforward=ExpertsSpec(experts=1, chosen=1, hidden=20)),)).build()
    weights = dict(one.named_parameters())
    with torch.no_grad():
        for name, parameter in dense.named_parameters():
            weights[name].copy_(parameter.view_as(weights[name]))
    tokens = torch.randint(41, (3, 12))
    losses = [causal(model, tokens, tokens.roll(-1, 1)) for model in (dense, one)]
    torch.testing.assert_close(losses[1], losses[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(one(tokens, Step.whole(tokens)), dense(tokens, Step.whole(tokens)), atol=1e-6, rtol=0)
    for loss in losses:
        loss.backward()
    for name, parameter in dense.named_parameters():
        torch.testing.assert_close(weights[name].grad.view_as(parameter), parameter.grad, atol=1e-5, rtol=1e-5)
    router = weights["blocks.0.feedforward.router.weight"]
    assert router.grad is None or router.grad.abs().max() < 1e-6, "nothing to choose, nothing to learn"


def test_watching_the_routers_changes_no_number_and_keeps_their_gradients():
    model = llama(41, layers=2, width=16, heads=2, kv_heads=1, context=12)
    model = model.replace(blocks=(model.blocks[0].replace(feedforward=EXPERTS),)).build()
    tokens, watcher = torch.randint(41, (2, 12)), Routers()
    assert torch.equal(causal(model, tokens, tokens, watch=watcher), causal(model, tokens, tokens))
    assert list(watcher.scores) == ["blocks.0", "blocks.1"]
    assert all(scores.requires_grad and scores.shape == (2, 12, 4) for scores in watcher.scores.values())


def test_biases_move_by_the_rate_against_what_all_micro_batches_together_counted():
    spec = llama(41, layers=1, width=16, heads=2, kv_heads=1, context=12)
    experts = EXPERTS.replace(balance=True, scores="sigmoid")
    model = spec.replace(blocks=(spec.blocks[0].replace(feedforward=experts),)).build()
    balance = Balance.of(model, BalanceSpec(rate=0.25))
    balance.begin()
    counted = torch.zeros(4)
    for seed in range(2):
        tokens = torch.randint(41, (3, 12), generator=torch.Generator().manual_seed(seed))
        watcher = balance.watcher()
        causal(model, tokens, tokens, watch=watcher)
        balance.loss(watcher, None)
        counted += mixtures(model)[0].route(watcher.scores["blocks.0"])[1].flatten().bincount(minlength=4)
    assert counted.sum() == 2 * 3 * 12 * 2
    balance.move()
    expected = [0.25 if count < 36 else -0.25 if count > 36 else 0.0 for count in counted.tolist()]
    assert mixtures(model)[0].balance.tolist() == expected
    assert balance.load == (pytest.approx(float(counted.max() / 36)),)
    balance.begin()
    assert balance.load is None


def crowded(trainer: Trainer) -> None:
    """Make every router prefer two of its experts for any token: a constant in what it reads pulls them up."""
    for block in trainer.model.blocks:
        with torch.no_grad():
            block.norm2.bias.fill_(1.0)
            block.feedforward.router.weight[:2] += 0.1


def entropy(trainer: Trainer) -> float:
    """Of the load of the first layer over some batches, as a share of the most there can be."""
    balance, counts = Balance.of(trainer.model, BalanceSpec()), 0
    for step in range(4):
        watcher = balance.watcher()
        with torch.no_grad():
            causal(trainer.model, *trainer.batches.batch(step).rows(slice(None), trainer.device), watch=watcher)
        balance.loss(watcher, None)
    counts = sum(balance.counts.values()).double()
    share = counts / counts.sum()
    return float(-(share * share.clamp_min(1e-12).log()).sum() / math.log(len(share)))


@pytest.mark.slow
def test_balance_returns_from_a_crowded_start_by_loss_or_by_bias_and_costs_no_quality(dataset, tmp_path):
    means = {
        "nothing": (EXPERTS, BalanceSpec(loss=0)),
        "loss": (EXPERTS, BalanceSpec(loss=0.1)),
        "bias": (EXPERTS.replace(balance=True), BalanceSpec(loss=0, rate=0.02)),
    }
    after, losses, loads = {}, {}, {}
    for name, (experts, balance) in means.items():
        quick = {"kind": "adamw", "learning_rate": 0.01}
        spec = spec_of(dataset, experts, max_steps=150, evaluate_every=1000, save_every=1000, optimizer=quick)
        trainer = start_run(spec.replace(balance=balance), dataset, tmp_path / name)
        crowded(trainer)
        before = entropy(trainer)
        assert before < 0.55
        losses[name] = trainer.fit().best_loss
        after[name] = entropy(trainer)
        loads[name] = [row.load for row in read_log(tmp_path / name / "log.csv") if row.load]
    assert after["loss"] > 0.9 > after["nothing"]
    assert after["bias"] > 0.9
    assert losses["loss"] < losses["nothing"] + 0.1
    assert losses["bias"] < losses["nothing"] + 0.1
    assert all(len(load) == 2 for rows in loads.values() for load in rows)
    assert loads["loss"][0][0] == pytest.approx(2, abs=0.1), "two of four experts get all: twice their share"
    assert loads["loss"][-1][0] < 1.5


def test_a_dense_model_has_no_load_in_its_log(dataset, tmp_path):
    start_run(tiny_spec(dataset, max_steps=2), dataset, tmp_path / "run").fit()
    assert all(row.load is None for row in read_log(tmp_path / "run" / "log.csv"))


def test_biases_are_in_the_checkpoint(dataset, tmp_path):
    spec = spec_of(dataset, EXPERTS.replace(balance=True), max_steps=3)
    trainer = start_run(spec, dataset, tmp_path / "run")
    trainer.fit()
    saved = load_model(RunFolder.open(tmp_path / "run")[0].path / "checkpoints" / "step-00000003").model
    for mine, theirs in zip(mixtures(saved), mixtures(trainer.model), strict=True):
        assert mine.balance.abs().max() > 0
        assert torch.equal(mine.balance, theirs.balance)


def test_resuming_with_experts_is_exact_to_the_bit(dataset, tmp_path):
    spec = spec_of(dataset, EXPERTS.replace(balance=True), optimizer={"kind": "muon"})
    proofs = prove_resume(spec.replace(balance=BalanceSpec(z_loss=0.001)), dataset, tmp_path)
    assert len(proofs) == 3
    assert all(proof.holds for proof in proofs)


def test_micro_batches_weigh_the_balance_loss_by_their_share(dataset, tmp_path):
    """With the loss alone (no z, no choice near a border) two halves differ from the whole only in f·P of each half."""
    spec = spec_of(dataset, EXPERTS, batch_size=4, micro_batch_size=2)
    trainer = start_run(spec.replace(balance=BalanceSpec(loss=0.5)), dataset, tmp_path / "run")
    batch, model = trainer.batches.batch(0), trainer.model
    expected = 0.0
    for part in (slice(0, 2), slice(2, 4)):
        balance, rows = Balance.of(model, BalanceSpec(loss=0.5)), batch.rows(part, trainer.device)
        watcher = balance.watcher()
        loss = causal(model, *rows, watch=watcher) / batch.targets.numel()
        expected = expected + loss + 0.5 * balance.loss(watcher, None)
    expected.backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    gradients = []
    trainer.optimizer.step = lambda factor: gradients.extend(p.grad.clone() for p in model.parameters())
    trainer.spec = trainer.spec.replace(clip=0)
    trainer.step()
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_muon_steps_every_expert_as_a_matrix_of_its_own():
    spec = llama(41, layers=1, width=16, heads=2, kv_heads=1, context=12)
    model = spec.replace(blocks=(spec.blocks[0].replace(feedforward=EXPERTS),)).build()
    optimizer = MuonSpec(learning_rate=0.1, momentum=0.0).build(model)
    up = model.blocks[0].feedforward.up.weight
    before, gradient = up.detach().clone(), torch.randn(up.shape)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    up.grad = gradient.clone()
    optimizer.step(1.0)
    for expert in range(4):
        wanted = orthogonalise(gradient[expert][None], 5)[0] * max(1, 12 / 16) ** 0.5
        torch.testing.assert_close(before[expert] - up[expert], 0.1 * wanted, atol=1e-5, rtol=1e-4)


def test_layers_of_unlike_experts_are_not_judged_jointly(dataset):
    spec = spec_of(dataset)
    other = spec.model.blocks[0].replace(feedforward=EXPERTS.replace(experts=6))
    model = spec.model.replace(blocks=(*spec.model.blocks, other))
    with pytest.raises(SpecError, match=r"balance\.jointly needs equally many experts in all layers, got \[4, 6\]"):
        spec.replace(model=model, balance=BalanceSpec(jointly=True))
