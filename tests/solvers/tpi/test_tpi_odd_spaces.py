"""Tree policy iteration in odd spaces, with odd rewards and limits, and broken off in the middle of a round."""

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.errors import CustardError
from custard.solvers.tpi import search as tpi
from custard.task.problem import Problem
from custard.task.source import source


class Walk(gym.Env):
    """A random walk that actions push; the reward is how near it is to 0."""

    infinite = False

    def __init__(self, actions: gym.Space) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
        self.action_space = actions

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.left = float(self.np_random.uniform(-1, 1)), 30
        return self.seen(), {}

    def seen(self):
        return np.array([np.inf if self.infinite and self.at > 0 else self.at], dtype=np.float32)

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, dtype=self.action_space.dtype))
        push = float(np.clip(np.asarray(action).reshape(-1)[0], -1, 1))
        self.at += 0.2 * push + 0.1 * float(self.np_random.normal())
        self.left -= 1
        return self.seen(), -abs(self.at), False, self.left == 0, {}


@pytest.mark.parametrize(("low", "high"), [(-3e38, 3e38), (2.0, np.inf), (-np.inf, -2.0), (-1e9, 1e9)])
def test_actions_with_wide_or_missing_bounds(low, high):
    actions = gym.spaces.Box(low, high, (1,), np.float32)
    run = custard.learn(lambda: Walk(actions), max_depth=1, budget=1500)
    leaves = run.tree.value[run.tree.feature < 0]
    assert ((leaves >= actions.low) & (leaves <= actions.high)).all()


def test_infinite_observations_are_refused_by_name():
    class Infinite(Walk):
        infinite = True

    with pytest.raises(CustardError, match=r"infinite value for feature 'obs_0'"):
        custard.learn(lambda: Infinite(gym.spaces.Discrete(2)), max_depth=1, budget=1500)


def test_actions_are_named_by_their_numbers():
    tree = custard.learn(lambda: Walk(gym.spaces.Discrete(3, start=-1)), max_depth=1, budget=1500).tree
    assert tree.actions.names == ("action_-1", "action_0", "action_1")
    with pytest.raises(CustardError, match=r"numbered from -1, the environment's from 3"):
        custard.evaluate(tree, lambda: Walk(gym.spaces.Discrete(3, start=3)), 5)


def test_a_run_broken_off_in_a_round_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    env, given = Shift, dict(budget=30_000)
    whole = custard.learn(env, **given)
    judge, calls = tpi.Search.judge, []

    def broken_off(self, candidate, rng):
        calls.append(1)
        if len(calls) == 2:  # in the second round, when much of it is done
            raise KeyboardInterrupt
        judge(self, candidate, rng)

    monkeypatch.setattr(tpi.Search, "judge", broken_off)
    first = custard.learn(env, **given, out=tmp_path / "run")
    assert first.message == "interrupted"
    monkeypatch.setattr(tpi.Search, "judge", judge)
    again = custard.learn(env, **given, out=tmp_path / "run", resume=True)
    assert (again.tree, again.value, again.steps) == (whole.tree, whole.value, whole.steps)


class Shift(gym.Env):
    """A machine that wears: work, or repair it. It sends everyone home after 25 steps, without declaring so."""

    observation_space = gym.spaces.MultiDiscrete([6, 2])
    action_space = gym.spaces.Discrete(2)

    def __init__(self, scale=1.0):
        self.scale = scale

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wear, self.rush, self.t = 0, 0, 0
        return np.array([self.wear, self.rush]), {}

    def step(self, action):
        reward = (4.0 + self.rush - self.wear) if action == 0 else -1.0
        self.wear = min(5, self.wear + 1) if action == 0 else 0
        self.rush = int(self.np_random.random() < 0.5)
        self.t += 1
        return np.array([self.wear, self.rush]), self.scale * reward, False, self.t == 25, {}


def snapshots(env, budget, state=None):
    where = source(env)
    problem = Problem(where, custard.describe(where.make_vec(1)), 0)
    return list(tpi.solve(problem, tpi.Settings(budget=budget), state))


def test_a_time_limit_that_is_not_declared_is_found():
    search = tpi.Search(Problem(source(Shift), custard.describe(Shift()), 0), tpi.Settings(budget=20_000))
    arena = search.arena
    assert arena.time_limit is None
    list(search.run_round())
    assert arena.time_limit == arena.environment.max_episode_steps == arena.simulator.max_episode_steps == 25


def test_a_run_goes_on_from_every_round_as_if_it_had_not_been_interrupted():
    whole = snapshots(Shift, 30_000)
    states = [one.state() for one in whole if one.state is not None]
    assert len(states) > 2
    for state in states[:-1]:
        again = snapshots(Shift, 30_000, state)[-1]
        assert (again.tree, again.value, again.steps) == (whole[-1].tree, whole[-1].value, whole[-1].steps)


def test_rewards_of_any_size_lead_to_the_same_tree():
    one, tiny = (custard.learn(lambda scale=scale: Shift(scale), budget=20_000) for scale in (1.0, 2.0**-40))
    assert one.tree == tiny.tree
    assert one.tree.n_leaves > 1
    assert tiny.value == pytest.approx(one.value * 2.0**-40)


def test_thresholds_of_whole_numbers_lie_half_way():
    tree = custard.learn(Shift, budget=20_000).tree
    asked = tree.threshold[tree.feature >= 0]
    assert len(asked)
    assert (asked % 1 == 0.5).all()


def test_an_interrupt_in_the_first_round_leaves_a_tree(monkeypatch):
    def broken_off(self, candidate, rng):
        raise KeyboardInterrupt

    monkeypatch.setattr(tpi.Search, "judge", broken_off)
    run = custard.learn(Shift, max_depth=1, budget=5000)
    assert run.message == "interrupted"
    assert run.tree.depth <= 1
