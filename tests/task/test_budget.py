"""Budgets of a time: what a method's steps cost is found by trials, and what networks take is counted."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.spaces import describe
from custard.task import budget as budgets
from custard.task.budget import budget_for, budget_of_time, parse_time, rounded_budget
from custard.task.problem import Problem, Snapshot
from custard.task.source import source


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


def test_what_is_compiled_again_for_every_budget_is_not_taken_for_the_cost_of_steps(monkeypatch):
    clock = Clock(3.0, 1e-5)
    monkeypatch.setattr(budgets, "time", clock)

    compiled = set()

    def solve(problem, settings):
        clock.first = 0.1 if settings.budget in compiled else 3.0
        compiled.add(settings.budget)
        return clock.solve(problem, settings)

    module = SimpleNamespace(solve=solve, __name__="compiling")
    assert budget_of_time(module, None, Settings(), 20.0) == 1_000_000  # 10 s, and 3 s to compile once more


def test_what_large_budgets_alone_compile_does_not_shorten_a_run(monkeypatch):
    clock, compiled = Clock(0.1, 1e-6), []
    monkeypatch.setattr(budgets, "time", clock)
    monkeypatch.setattr(budgets, "seconds_compiled", lambda: sum(compiled))

    def solve(problem, settings):
        if settings.budget >= 100_000 and not compiled:
            clock.now += 50.0
            compiled.append(50.0)
        return clock.solve(problem, settings)

    module = SimpleNamespace(solve=solve, __name__="late")
    assert budget_of_time(module, None, Settings(), 40.0) == 10_000_000  # half of the time is for learning


def test_slow_resets_count_less_where_good_episodes_are_longer(monkeypatch):
    class Falls(gym.Env):
        """Ends after ten steps of 1 ms; a reset takes 10 ms."""

        observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            clock.now += 0.01
            self.left = 10
            return np.zeros(1, dtype=np.float32), {}

        def step(self, action):
            clock.now += 0.001
            self.left -= 1
            return np.zeros(1, dtype=np.float32), 1.0, self.left == 0, False, {}

    clock = Clock(0.0, 0.0)
    monkeypatch.setattr(budgets, "time", clock)
    costs = {}
    for limit in (None, 1000):
        where = replace(source(Falls), time_limit=limit)
        costs[limit] = budgets.seconds_per_step(Problem(where, describe(where.make()), 0))
    assert costs[None] == pytest.approx(0.002, rel=0.05)  # a reset every ten steps
    assert costs[1000] == pytest.approx(0.0011, rel=0.05)  # every hundred: between ten and a thousand


def test_a_method_that_ends_by_itself_needs_no_budget(monkeypatch):
    clock = Clock(0.1, 1e-5, most=3000)
    monkeypatch.setattr(budgets, "time", clock)
    module = SimpleNamespace(solve=clock.solve, __name__="short")
    assert budget_of_time(module, None, Settings(), 60.0) is None


def test_what_networks_take_leaves_fewer_steps(monkeypatch):
    monkeypatch.setattr(budgets, "seconds_per_step", lambda problem: 1e-4)
    problem = SimpleNamespace(engine=None, workers=1, is_compiled=False, source=SimpleNamespace(vector=None))
    plain = budget_for(problem, 100.0, lambda budget, per_step: 0.0)
    with_network = budget_for(problem, 100.0, lambda budget, per_step: min(60.0, budget * per_step))
    assert plain == 500_000
    assert with_network == 200_000
    assert 500_000 * 1e-4 < 100.0 < 1_000_000 * 1e-4 / 0.8  # the next budget would take longer
    assert budget_for(problem, 1.0, lambda budget, per_step: 1e9) == 1
