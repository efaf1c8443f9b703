"""AdamW and Muon against formulas in float64 and against torch's own."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from glassformer.errors import CheckpointError
from glassformer.model.recipes import gpt2, llama
from glassformer.train.optimizer import AdamWSpec, Muon, MuonSpec, orthogonalise


def gradients(model: nn.Module, steps: int) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}


def small() -> nn.Module:
    torch.manual_seed(0)
    return gpt2(11, layers=1, width=8, heads=2, context=4).build()


def test_adamw_follows_the_paper_step_by_step():
    spec = AdamWSpec(learning_rate=0.01, beta1=0.8, beta2=0.95, weight_decay=0.3)
    model = small()
    optimizer = spec.build(model)
    wanted = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in wanted.items()}
    v = {name: torch.zeros_like(p) for name, p in wanted.items()}
    factors = (1.0, 0.5, 0.25, 1.0)
    for t, (factor, step) in enumerate(zip(factors, gradients(model, 4), strict=True), start=1):
        for name, p in model.named_parameters():
            p.grad = step[name].clone()
            g, rate = step[name].double(), spec.learning_rate * factor
            m[name] = spec.beta1 * m[name] + (1 - spec.beta1) * g
            v[name] = spec.beta2 * v[name] + (1 - spec.beta2) * g * g
            hat_m, hat_v = m[name] / (1 - spec.beta1**t), v[name] / (1 - spec.beta2**t)
            decay = spec.weight_decay if p.ndim >= 2 else 0.0
            wanted[name] = wanted[name] * (1 - rate * decay) - rate * hat_m / (hat_v.sqrt() + spec.eps)
        optimizer.step(factor)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.double(), wanted[name], rtol=1e-5, atol=1e-6)


def test_gradients_are_dropped_after_a_step():
    model = small()
    optimizer = AdamWSpec().build(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step(1.0)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_muon_equals_torchs_muon(shape: tuple[int, int]):
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(shape)) for _ in range(2))
    spec = MuonSpec(learning_rate=0.02, momentum=0.9, weight_decay=0.1)
    muon = Muon([ours], spec, torch.bfloat16)
    reference = torch.optim.Muon(
        [theirs], lr=0.02, momentum=0.9, weight_decay=0.1, nesterov=True, ns_steps=5, adjust_lr_fn="original"
    )
    for _ in range(4):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        muon.step()
        reference.step()
    # Both iterate in bfloat16, whose rounding depends on the order of operations.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=4 * 0.02 * 3**0.5 * 0.02)


@pytest.mark.parametrize("shape", [(3, 24, 8), (2, 8, 24), (1, 16, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one_and_the_same_directions(shape: tuple[int, int, int]):
    torch.manual_seed(0)
    g = torch.randn(shape, dtype=torch.float64)
    values = torch.linalg.svdvals(orthogonalise(g, 5))
    # Tiny singular values need more than five iterations to grow; all others land in the band.
    assert values.max() < 1.25
    assert values[:, : min(shape[1:]) - 2].min() > 0.6
    u, _, vh = torch.linalg.svd(g, full_matrices=False)
    overlap = (orthogonalise(g, 5) * (u @ vh)).sum((-2, -1)) / min(shape[1:])
    assert overlap.min() > 0.8


def test_muon_steps_matrices_of_one_shape_as_it_would_each_alone():
    torch.manual_seed(0)
    start = [torch.randn(6, 4) for _ in range(3)]
    gradient = [torch.randn(6, 4) for _ in range(3)]

    def stepped(indices: list[int]) -> list[Tensor]:
        parameters = [nn.Parameter(start[i].clone()) for i in indices]
        for p, i in zip(parameters, indices, strict=True):
            p.grad = gradient[i].clone()
        Muon(parameters, MuonSpec(), torch.float32).step()
        return [p.detach() for p in parameters]

    together = stepped([0, 1, 2])
    for i in range(3):
        torch.testing.assert_close(together[i], stepped([i])[0])


def test_muon_takes_the_hidden_matrices_and_adamw_the_rest():
    model = llama(11, layers=1, width=8, heads=2, kv_heads=1, context=4).build()
    optimizer = MuonSpec().build(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step(1.0)
    kinds: dict[str, set[str]] = {"momentum": set(), "exp_avg": set()}
    for name in optimizer.state():
        parameter, _, key = name.rpartition("/")
        if key in kinds:
            kinds[key].add(parameter)
    hidden = {n for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("blocks.")}
    assert kinds["momentum"] == hidden
    assert kinds["exp_avg"] == {n for n, _ in model.named_parameters()} - hidden


@pytest.mark.parametrize("spec", [AdamWSpec(), MuonSpec()], ids=lambda spec: spec.kind)
def test_state_put_into_a_new_optimizer_goes_on_bit_for_bit(spec: AdamWSpec | MuonSpec):
    def train(model: nn.Module, optimizer, steps) -> None:
        for step in steps:
            for name, p in model.named_parameters():
                p.grad = step[name].clone()
            optimizer.step(1.0)

    whole, first, second = small(), small(), small()
    steps = list(gradients(whole, 4))
    train(whole, spec.build(whole), steps)
    optimizer = spec.build(first)
    train(first, optimizer, steps[:2])
    second.load_state_dict(first.state_dict())
    resumed = spec.build(second)
    resumed.load_state(optimizer.state(), where="test")
    train(second, resumed, steps[2:])
    for name, p in whole.named_parameters():
        assert torch.equal(p, dict(second.named_parameters())[name]), name


def test_state_of_another_models_parameters_is_refused():
    with pytest.raises(CheckpointError, match="unknown parameters"):
        AdamWSpec().build(small()).load_state({"nobody.weight/exp_avg": torch.zeros(1)}, where="x")
