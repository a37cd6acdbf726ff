"""Learning-rate schedules against their formulas, and their state."""

import copy

import pytest
import torch

from reluformers.translation.trainer import WarmupThenPlateau


def make_optimizer(rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def rates(optimizer, schedule, updates: int) -> list[float]:
    """The rates that the next updates use."""
    used = []
    for _ in range(updates):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return used


def test_plateau_warms_up_linearly_and_then_stays():
    optimizer = make_optimizer(4.94e-4)
    schedule = WarmupThenPlateau(optimizer, warmup_steps=8)
    used = rates(optimizer, schedule, 20)
    assert used[:8] == pytest.approx([4.94e-4 * update / 8 for update in range(1, 9)])
    assert used[8:] == pytest.approx([4.94e-4] * 12)


def test_plateau_falls_when_a_score_is_below_the_minimum_of_the_previous_three():
    optimizer = make_optimizer(1.0)
    schedule = WarmupThenPlateau(optimizer, warmup_steps=2, factor=0.8, patience=3)
    rates(optimizer, schedule, 3)
    expected = [
        (20.0, 1.0),  # nothing to compare with
        (19.0, 1.0),
        (18.0, 1.0),
        (18.0, 1.0),  # equal to the minimum is not below it
        (17.9, 0.8),
        (18.5, 0.8),  # better than the minimum of 18, 18 and 17.9
        (17.0, 0.64),
    ]
    for score, rate in expected:
        assert not schedule.add_score(score)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
        assert rates(optimizer, schedule, 2) == pytest.approx([rate] * 2)


def test_plateau_does_not_fall_during_warmup():
    optimizer = make_optimizer(1.0)
    schedule = WarmupThenPlateau(optimizer, warmup_steps=10, min_lr=0.5)
    rates(optimizer, schedule, 4)
    for score in (9.0, 8.0, 7.0, 6.0, 5.0):
        assert not schedule.add_score(score)
    assert schedule.reductions == 0


def test_plateau_asks_to_stop_below_the_minimal_rate():
    optimizer = make_optimizer(1.0)
    schedule = WarmupThenPlateau(optimizer, warmup_steps=1, factor=0.5, patience=1, min_lr=0.2)
    rates(optimizer, schedule, 2)
    assert [schedule.add_score(score) for score in (5.0, 4.0, 3.0, 2.0)] == [False, False, False, True]


def test_plateau_goes_on_from_its_state():
    optimizer = make_optimizer(1.0)
    schedule = WarmupThenPlateau(optimizer, warmup_steps=5, patience=2)
    rates(optimizer, schedule, 6)
    for score in (3.0, 2.0, 1.0):
        schedule.add_score(score)
    other = make_optimizer(1.0)
    resumed = WarmupThenPlateau(other, warmup_steps=5, patience=2)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed.load_state_dict(copy.deepcopy(schedule.state_dict()))
    for score in (0.5, 0.7, 0.1):
        assert resumed.add_score(score) == schedule.add_score(score)
        assert rates(other, resumed, 2) == rates(optimizer, schedule, 2)
    assert other.param_groups[0]["lr"] == pytest.approx(0.8**3)
