"""Learning rates, step by step."""

import pytest

from storm import digits_config


def rates(total, per_epoch, **fields):
    config = digits_config(model="mlp", method="normal", **fields)
    return config.schedule, [config.schedule.rate(1.0, step, per_epoch, total) for step in range(total)]


def test_the_rate_drops_at_the_start_of_epochs_counted_from_one():
    schedule, found = rates(8, 2, schedule={"kind": "steps", "drops": [2, 4], "factor": 0.1})
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01])
    assert [step for step in range(8) if schedule.resets_momentum(step, 2)] == [2, 6]


def test_the_momentum_can_be_kept():
    schedule, _ = rates(8, 2, schedule={"kind": "steps", "drops": [2, 4], "factor": 0.1, "momentum": "keep"})
    assert not any(schedule.resets_momentum(step, 2) for step in range(8))


def test_the_exponential_rate_ends_at_a_hundredth_in_the_last_epoch():
    _, found = rates(100, 2, schedule={"kind": "exponential"})
    assert found[-1] == pytest.approx(0.01)
    assert found[0] == pytest.approx(0.01 ** (1 / 50))
    assert found[0] == found[1]


def test_the_linear_tail_is_constant_and_then_falls_to_zero():
    _, found = rates(6, 2, schedule={"kind": "linear-tail", "constant_steps": 3})
    assert found == pytest.approx([1, 1, 1, 1, 2 / 3, 1 / 3])


def test_the_cosine_rises_linearly_and_falls_to_its_final_share():
    _, found = rates(12, 4, schedule={"kind": "cosine", "warmup_steps": 4, "final": 0.1})
    assert found[:5] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert found[8] == pytest.approx(0.55)
    assert found[4:] == sorted(found[4:], reverse=True)
    assert 0.1 < found[-1] < 0.15


def test_a_constant_rate_stays():
    assert set(rates(5, 2, schedule={"kind": "constant"})[1]) == {1.0}
