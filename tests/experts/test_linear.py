"""Direct search over linear policies: known answers, the same with any number of workers, resumed from any point."""

from dataclasses import replace

import gymnasium as gym
import numpy as np

import custard
from custard.core.spaces import describe
from custard.experts.direct_search import DirectSearchSettings, direct_search
from custard.experts.linear import AUGMENTED, CMA, Trials, search_linear_policy
from custard.task.episodes import InProcess
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem
from custard.task.source import source
from custard.task.workers import make_runner


class Steer(gym.Env):
    """Keep a point at zero by a push of any size; only the first of two features matters. The best push is -x."""

    observation_space, action_space = gym.spaces.Box(-50, 50, (2,)), gym.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-1, 1), 0
        return self.observed(), {}

    def observed(self):
        return np.array([10 * self.x, self.np_random.uniform(-30, 30)], dtype=np.float32)

    def step(self, action):
        self.x, self.t = self.x + float(action[0]) + 0.1 * self.np_random.normal(), self.t + 1
        return self.observed(), -abs(self.x), False, self.t == 10, {}


class Choose(Steer):
    """The same with a choice of three pushes."""

    action_space = gym.spaces.Discrete(3)

    def step(self, action):
        return super().step([0.3 * (int(action) - 1)])


def problem_of(env):
    where = source(env)
    return Problem(where, describe(where.make()))


SETTINGS = DirectSearchSettings(steps=60_000, population=20)


def found(env, workers=0, state=None, settings=SETTINGS, seed=0):
    problem = problem_of(env)
    runner = make_runner(replace(problem, workers=workers))
    progress = list(search_linear_policy(problem, runner, settings, seed, state=state))
    runner.close()
    return progress


def test_it_finds_the_linear_controller():
    last = found(Steer)[-1]
    assert last.search.is_final
    assert last.search.value > -1.3  # ten steps of noise 0.1: -0.8 at best
    gain = last.policy.weights[0]
    assert -0.14 < gain[0] < -0.06  # the push -x is -0.1 of the feature
    assert abs(gain[1]) < 0.01


def test_discrete_actions_are_scored():
    last = found(Choose)[-1]
    x = np.array([[-9.0, 0.0], [9.0, 0.0], [-9.0, 20.0], [9.0, -20.0]])
    assert last.policy.predict(x).tolist() == [2, 0, 2, 0]


def test_workers_change_nothing():
    few = DirectSearchSettings(steps=8_000, population=10)
    here, there = found(Choose, 0, settings=few), found(Choose, 2, settings=few)
    assert [p.search.value for p in here] == [p.search.value for p in there]
    assert np.array_equal(here[-1].policy.weights, there[-1].policy.weights)


def test_a_search_goes_on_from_any_judgement():
    whole = found(Choose)
    for progress in whole[1 : -1 : len(whole) // 4]:  # the last one is over
        again = found(Choose, state=progress.state)[-1]
        assert np.array_equal(again.policy.weights, whole[-1].policy.weights)
        assert (again.search.steps, again.search.value) == (whole[-1].search.steps, whole[-1].search.value)


def test_the_budget_is_kept_and_the_value_is_not_the_best_of_many():
    problem = problem_of(Choose)
    env = problem.source.make()

    def policy_of(parameters):
        return LinearPolicy(np.zeros((3, 2)), parameters, problem.base.actions)

    runs = [list(direct_search(policy_of, 3, InProcess(env, problem.base), SETTINGS, seed))[-1] for seed in range(4)]
    assert all(run.steps <= SETTINGS.steps + 10 * 20 * 12 for run in runs)


def test_it_is_an_expert_by_name():
    run = custard.learn(Choose, "viper-dqn", expert="linear", expert_settings={"steps": 30_000}, iterations=3, seed=0)
    assert run.tree.predict(np.array([[-9.0, 0.0], [9.0, 0.0]])).tolist() == [2, 0]


def trials_of(*judged):
    """Return trials that are over, by what the judgements of each search said."""
    found = Trials((CMA, AUGMENTED), np.zeros(1), np.ones(1), np.zeros(4), 0, 0, tried=2)
    for number, (steps, values) in enumerate(judged):
        found.searches[number] = {
            "search.steps": np.array([steps, 1, 0, 10.0, 0]),
            "search.judged": np.column_stack([np.arange(len(values)), values]).astype(float),
        }
    return found


STILL, SLOW = [0, 50, 90, 99, 100, 100, 100, 101], [0, 50, 80, 90, 90, 95, 98, 100]
CLIMBING = [0, 1, 2, 3, 5, 8, 13, 21]


def test_a_search_stands_still_where_the_later_half_of_its_judgements_gains_little():
    assert trials_of((100, STILL)).stands_still(0)
    assert trials_of((100, [-300 + value for value in STILL])).stands_still(0)  # whatever the level
    assert not trials_of((100, SLOW)).stands_still(0)
    assert trials_of((100, SLOW)).late_gain(0) == 0.1
    assert not trials_of((100, [0, 0])).stands_still(0)  # too few judgements to tell
    assert trials_of((100, [5.0] * 8)).stands_still(0)


def test_the_other_kind_has_its_turn_when_the_best_search_slows_down():
    for values in (STILL, SLOW):
        trials = trials_of((300, values), (100, CLIMBING))
        assert trials.best == 0
        assert (trials.next_turn(1000), trials.turn_end) == (1, 200)
        trials.searches[1]["search.steps"][0] = 200
        assert trials.turn_is_over(1000)
        trials.searches[1]["search.judged"][:, 1] = 200 + np.array(CLIMBING)  # better now, and not slow
        assert trials.next_turn(1000) == 1
    assert trials_of((300, CLIMBING), (100, STILL[:3])).next_turn(1000) == 1  # better, and not slow
    assert trials_of((300, [1000 * value for value in CLIMBING]), (100, STILL)).next_turn(1000) == 0  # it climbs


def test_a_new_search_of_the_kind_with_fewer_steps_begins_where_those_of_it_stand_still():
    trials = trials_of((100, STILL), (300, SLOW))
    assert trials.next_turn(1000) == 2
    assert trials.kinds == (CMA, AUGMENTED, CMA)
    assert trials.is_decided
    assert trials_of((100, STILL), (700, SLOW)).next_turn(1000) == 0  # the best one has the last steps


def test_turns_are_kept():
    trials = trials_of((300, STILL), (100, CLIMBING))
    trials.next_turn(1000)
    again = Trials.from_arrays(trials.arrays())
    assert (again.turn, again.turn_end, again.tried, again.kinds) == (1, 200, 2, trials.kinds)
    assert again.next_turn(1000) == 1
