"""Tree policy iteration in spaces without bounds, with very wide ones, and broken off in the middle of a round."""

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.errors import CustardError
from custard.solvers import tpi


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
    def env():
        return Walk(gym.spaces.Box(-1, 1, (2,), np.float32))

    given = dict(max_depth=2, budget=60_000, polish=20, episodes=20, states=20)
    whole = custard.learn(env, **given)
    judge, calls = tpi.Search.judge, []

    def broken_off(self, now, rng):
        calls.append(1)
        if len(calls) == 2:  # in the second round, when much of it is done
            raise KeyboardInterrupt
        judge(self, now, rng)

    monkeypatch.setattr(tpi.Search, "judge", broken_off)
    first = custard.learn(env, **given, out=tmp_path / "run")
    assert first.message == "interrupted"
    monkeypatch.setattr(tpi.Search, "judge", judge)
    again = custard.learn(env, **given, out=tmp_path / "run", resume=True)
    assert (again.tree, again.value, again.steps) == (whole.tree, whole.value, whole.steps)
