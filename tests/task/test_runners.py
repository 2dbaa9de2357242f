"""Stepping: episodes depend on their seeds alone, and runs of episodes can be resumed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.spaces import describe
from custard.ibmdp.base_environments import base_environments_of
from custard.task.compiled_episodes import make_compiled_episodes
from custard.task.problem import Problem
from custard.task.runners import PythonEpisodes, run_episodes, step_episodes
from custard.task.source import episode_seeds, source

SHIFTED = gym.spaces.Discrete(2, start=3)


class Walk(gym.Env):
    """A noisy walk on a line that terminates at either end and is truncated after some steps; actions are 3 and 4."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), SHIFTED

    def __init__(self, truncated_after: int = 12) -> None:
        self.truncated_after = truncated_after

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = self.np_random.uniform(-1, 1), 0
        return self._seen(), {}

    def step(self, action):
        assert action in SHIFTED
        self.at += (1.0 if action == 4 else -1.0) * self.np_random.uniform(0, 1)
        self.t += 1
        return self._seen(), -abs(self.at), bool(abs(self.at) > 1.2), self.t >= self.truncated_after, {}

    def _seen(self):
        return np.array([self.at, self.np_random.uniform()], dtype=np.float32)


def walk(**how: int) -> Problem:
    where = source(lambda: Walk(**how))
    return Problem(where, describe(where.make_vec(1)))


def choose(x: np.ndarray) -> int:
    """A base action number that depends on all of the state."""
    return int(np.sin(7.0 * x.sum()) > 0.0)


def transitions(episodes: PythonEpisodes, steps: int) -> list[tuple]:
    rows: list[tuple] = []
    while len(rows) < steps:
        x, ended = episodes.reset(), False
        while not ended:
            action = choose(x)
            after, reward, terminated, truncated = episodes.step(action + 3)
            rows.append((*x, action, reward, *after, terminated, truncated))
            x, ended = after, terminated or truncated
    return rows


@pytest.mark.parametrize("limit_terminates", [False, True])
@pytest.mark.parametrize("max_steps", [5, 1000])
def test_episodes_are_those_of_a_plain_loop(limit_terminates: bool, max_steps: int) -> None:
    problem, expected = walk(), []
    env = Walk()
    for number in range(20):
        seed = int(np.random.SeedSequence([7, number]).generate_state(1)[0])
        x, length, ended = env.reset(seed=seed)[0].astype(np.float64), 0, False
        while not ended:
            action = choose(x)
            observation, reward, terminated, truncated, _ = env.step(action + 3)
            length += 1
            after, terminated = observation.astype(np.float64), terminated or (truncated and limit_terminates)
            truncated = truncated or length >= max_steps
            expected.append((*x, action, reward, *after, terminated, truncated))
            x, ended = after, terminated or truncated
    episodes = PythonEpisodes(problem, 7, max_steps=max_steps, limit_terminates=limit_terminates)
    found = transitions(episodes, len(expected))
    assert found == expected
    assert episodes.seed_and_episodes.tolist() == [7, 20]
    assert {row[-2:] for row in found} >= {(False, False), (True, False)}


def test_a_run_resumes_from_its_arrays() -> None:
    whole = PythonEpisodes(walk(), 3, max_steps=100, limit_terminates=False)
    first = transitions(whole, 40)
    stored = {name: array.copy() for name, array in whole.arrays().items()}
    rest = transitions(whole, 40)
    again = PythonEpisodes(walk(), 0, max_steps=100, limit_terminates=False)
    for name, array in again.arrays().items():
        array[...] = stored[name]
    assert transitions(again, 40) == rest != first


def test_results_do_not_depend_on_what_runs_side_by_side() -> None:
    problem, seeds = walk(), episode_seeds(1, 30)
    tree = custard.Tree.stump(0, 0.0, 4, 3, problem.base.features, problem.base.actions)
    runs = []
    for count in (1, 7, 30):
        venv = problem.source.make_vec(count)
        runs.append(
            step_episodes(tree.predict, base_environments_of(venv, problem.base), seeds, 10, record_states=True)
        )
    for run in runs[1:]:
        for k in range(3):
            assert run[k].tolist() == runs[0][k].tolist()
        assert all((a == b).all() for a, b in zip(run.states, runs[0].states, strict=True))
    assert [len(states) for states in runs[0].states] == runs[0].lengths.tolist()


def test_compiled_rollouts_and_stepping_agree() -> None:
    where, seeds = source("CartPole-v1"), episode_seeds(2, 12)
    base = describe(where.make_vec(1))
    tree = custard.Tree.stump(2, 0.0, 0, 1, base.features, base.actions)
    compiled, stepped = (run_episodes(tree, where, seeds, record_states=states) for states in (False, True))
    for k in range(3):
        assert compiled[k].tolist() == stepped[k].tolist()
    assert compiled.states is None
    assert stepped.states[0].shape == (stepped.lengths[0], 4)


def test_compiled_episodes_know_whether_their_limit_terminates() -> None:
    for name, count, expected in (("custard/PotholeWorld-v0", 3, (10_000, False)), ("CartPole-v1", 1, (500, True))):
        where = source(name)
        problem = Problem(where, describe(where.make_vec(1)))
        episodes = make_compiled_episodes(problem, 4, limit_terminates=True, count=count)
        assert (episodes.time_limit, episodes.limit_terminates) == expected, "only a limit of its own terminates"
        assert {len(array) for array in episodes.arrays().values()} == {count}
