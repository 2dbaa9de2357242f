"""Vector environments: the episodes of single environments, whatever the autoreset mode; refusals in one line."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import custard
from custard import CustardError
from custard.core.spaces import describe
from custard.task.episodes import EpisodeRequest, InProcess
from custard.task.problem import Problem
from custard.task.source import episode_seeds, source
from custard.task.vector_episodes import VectorRunner
from custard.task.workers import make_runner
from tests.task.test_workers import Masked, Walk, policies, problem_of

MODES = list(AutoresetMode)
FIELDS = ("returns", "lengths", "terminated", "truncated", "forbidden", "states", "masks")


class Plain(gym.vector.VectorWrapper):
    """A vector environment of unknown kind: sub-environments cannot be restarted alone, unless they must."""


def walks(mode, count=3, env=Walk, kind=SyncVectorEnv):
    return kind([env] * count, autoreset_mode=mode)


@pytest.mark.parametrize("wrap", [Plain, lambda venv: venv])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", [Walk, Masked])
def test_the_episodes_of_single_environments(mode, wrap, env):
    problem = problem_of(env)
    cases = [(0.0, None, 8), (0.4, 12, 7), (0.0, 1, 5), (0.3, None, 2)]  # noise, max_steps, episodes
    requests = [
        EpisodeRequest(policy, episode_seeds(3, count), noise, max_steps, True, 0.97)
        for policy in policies(problem)
        for noise, max_steps, count in cases
    ]
    expected = InProcess(problem.source.make(), problem.base).run(requests)
    where = source(wrap(walks(mode, env=env)))
    runner = make_runner(Problem(where, describe(where.make_vec(1))))
    assert isinstance(runner, VectorRunner)
    for result, wanted in zip(runner.run(requests), expected, strict=True):
        for name in FIELDS:
            assert np.array_equal(getattr(result, name), getattr(wanted, name)), name
    assert len(runner.run([EpisodeRequest(requests[0].policy, episode_seeds(0, 0))])[0].returns) == 0


def test_processes_of_a_vector_environment():
    problem = problem_of()
    venv = walks(AutoresetMode.NEXT_STEP, 2, kind=AsyncVectorEnv)
    try:
        tree = policies(problem)[0]
        there = custard.evaluate(tree, venv, 7, seed=2)
        here = custard.evaluate(tree, Walk, 7, seed=2)
        assert np.array_equal(there.returns, here.returns)
        assert np.array_equal(there.time_limited, here.time_limited)
    finally:
        venv.close()


def test_a_function_acts_in_a_vector_environment():
    venv = walks(AutoresetMode.SAME_STEP)
    act = lambda x: (x[:, 0] < 0).astype(int)  # noqa: E731
    assert np.array_equal(custard.evaluate(act, venv, 8).returns, custard.evaluate(act, Walk, 8).returns)
    with pytest.raises(CustardError, match="one answer for 3 observations"):
        custard.evaluate(lambda x: 1, venv, 8)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_tree_as_in_single_environments(mode):
    how = {"method": "direct", "budget": 1500, "seed": 1, "expert": "none", "max_leaves": 4}
    here, there = custard.learn(Walk, workers=0, **how), custard.learn(walks(mode), **how)
    assert (there.raw, there.value, there.steps) == (here.raw, here.value, here.steps)


def test_names_limits_and_vector_actions():
    venv = gym.make_vec("MountainCarContinuous-v0", num_envs=2, vectorization_mode="sync")
    where = source(venv)
    assert (where.name, where.time_limit) == ("MountainCarContinuous-v0", 999)
    base = describe(where.make_vec(1))
    assert base.features.names == ("position", "velocity")
    tree = custard.Tree.leaf([0.5], base.features, base.actions)
    here = custard.evaluate(tree, "MountainCarContinuous-v0", 3, max_steps=50)
    assert np.array_equal(custard.evaluate(tree, venv, 3, max_steps=50).returns, here.returns)


class Unseeded(SyncVectorEnv):
    """Ignores seeds."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None, options=options)


class Broken(Walk):
    """Gives a reward that is no number."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


def test_what_it_cannot_do_is_one_line():
    tree = policies(problem_of())[0]
    with pytest.raises(CustardError, match="does not start the same episode from the same seed"):
        custard.evaluate(tree, Unseeded([Walk] * 2))
    with pytest.raises(CustardError, match=r"does not take one seed per sub-environment in reset .*'sync' or 'async'"):
        custard.learn(gym.make_vec("CartPole-v1", num_envs=2), "direct", budget=100)
    with pytest.raises(CustardError, match="gave the reward nan"):
        custard.evaluate(tree, walks(AutoresetMode.NEXT_STEP, env=Broken))
    fails = SyncVectorEnv([lambda: Walk("raise")] * 2)
    with pytest.raises(CustardError, match="raised RuntimeError: out of fuel"):
        custard.evaluate(tree, fails)
    for method in ("mfec", "viper-dqn"):
        with pytest.raises(CustardError, match=f"{method} steps single environments, not a vector"):
            custard.learn(walks(AutoresetMode.NEXT_STEP), method)
    with pytest.raises(CustardError, match="environment arguments go with an id"):
        custard.learn(walks(AutoresetMode.NEXT_STEP), env_kwargs={"a": 1})
