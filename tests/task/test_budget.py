"""Budgets of a time: what a method's steps cost is found by trials, and what networks take is counted."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

import custard
from custard.task import budget as budgets
from custard.task.budget import budget_for, budget_of_time, parse_time, rounded_budget
from custard.task.problem import Snapshot


def test_times_and_budgets():
    assert [parse_time(text) for text in ("90", "45s", "10m", "1.5h", 3)] == [90, 45, 600, 5400, 3]
    for bad in ("", "ten", "-3", "0", "5d", float("nan"), -1):
        with pytest.raises(custard.CustardError, match="time"):
            parse_time(bad)
    assert [rounded_budget(steps) for steps in (0.1, 1, 4.9, 5, 19, 20, 499, 5.1e6)] == [
        1,
        1,
        2,
        5,
        10,
        20,
        200,
        5 * 10**6,
    ]


@dataclass(frozen=True)
class Settings:
    budget: int | None = None


class Clock:
    """A method that begins slowly and then takes its steps at a constant pace, and the time that passes."""

    def __init__(self, first, pace, most=10**12):
        self.now, self.first, self.pace, self.most = 0.0, first, pace, most

    def perf_counter(self):
        return self.now

    def solve(self, problem, settings):
        self.now += self.first
        self.first = min(self.first, 0.1)  # compiled once
        steps, last = 0, min(self.most, settings.budget)
        while steps < last:
            steps = min(last, steps + max(1, settings.budget // 20))
            self.now += self.pace * max(1, settings.budget // 20)
            yield Snapshot(steps, None, 0.0)


@pytest.mark.parametrize("first", [0.2, 4.0, 15.0, 25.0])
@pytest.mark.parametrize("pace", [1e-6, 1e-4, 1e-2])
def test_trials_find_a_budget_that_keeps_the_time_and_uses_it(monkeypatch, first, pace):
    clock = Clock(first, pace)
    monkeypatch.setattr(budgets, "time", clock)
    module = SimpleNamespace(solve=clock.solve, __name__="slow")
    budget = budget_of_time(module, None, Settings(), 60.0)
    *_, last = clock.solve(None, Settings(budget))
    assert last.steps == budget == rounded_budget(budget)
    assert clock.now <= 1.2 * 60
    assert clock.now >= 0.25 * 60  # rounded to 1, 2 or 5: down to two fifths of what the trials leave


def test_a_method_that_compiles_for_longer_than_the_time_still_learns(monkeypatch):
    clock = Clock(40.0, 1e-5)
    monkeypatch.setattr(budgets, "time", clock)
    module = SimpleNamespace(solve=clock.solve, __name__="cold")
    assert budget_of_time(module, None, Settings(), 15.0) >= 100_000


def test_a_method_that_ends_by_itself_needs_no_budget(monkeypatch):
    clock = Clock(0.1, 1e-5, most=3000)
    monkeypatch.setattr(budgets, "time", clock)
    module = SimpleNamespace(solve=clock.solve, __name__="short")
    assert budget_of_time(module, None, Settings(), 60.0) is None


def test_what_networks_take_leaves_fewer_steps(monkeypatch):
    monkeypatch.setattr(budgets, "seconds_per_step", lambda problem: 1e-4)
    problem = SimpleNamespace(engine=None, workers=1, source=SimpleNamespace(vector=None))
    plain = budget_for(problem, 100.0, lambda budget, per_step: 0.0)
    with_network = budget_for(problem, 100.0, lambda budget, per_step: min(60.0, budget * per_step))
    assert plain == 500_000
    assert with_network == 200_000
    assert 500_000 * 1e-4 < 100.0 < 1_000_000 * 1e-4 / 0.8  # the next budget would take longer
    assert budget_for(problem, 1.0, lambda budget, per_step: 1e9) == 1
