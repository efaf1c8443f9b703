import math

import pytest

from glassformer.train.schedule import ConstantSpec, CosineSpec, StableDecaySpec


def test_warm_up_rises_in_a_line_and_reaches_one_at_its_last_step():
    schedule = ConstantSpec(warmup_steps=4)
    assert [schedule.factor(step, 0.0) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("done", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_cosine_follows_its_formula(done: float):
    wanted = 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2
    assert CosineSpec(warmup_steps=0, final=0.1).factor(1000, done) == pytest.approx(wanted, abs=1e-15)


def test_stable_decay_stays_and_then_falls_in_a_line():
    schedule = StableDecaySpec(warmup_steps=0, decay=0.4, final=0.2)
    values = [schedule.factor(1000, done) for done in (0.0, 0.6, 0.8, 1.0)]
    assert values == pytest.approx([1.0, 1.0, 0.6, 0.2])


def test_warm_up_and_decay_multiply():
    assert CosineSpec(warmup_steps=10, final=0.0).factor(4, 0.5) == pytest.approx(0.25)
