"""Compiled episodes are those of stepping the environment from Python, for every kind of policy."""

import numpy as np
import pytest

from custard.core.spaces import describe
from custard.solvers.common.linear_trees import random_linear_tree
from custard.task.compiled_runner import CompiledRunner, is_compiled
from custard.task.episodes import EpisodeRequest
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem
from custard.task.source import source
from custard.task.workers import make_runner
from custard.tree.tree import Tree

WORLDS = [
    ("CartPole-v1", {}), ("MountainCar-v0", {}), ("Acrobot-v1", {}), ("Pendulum-v1", {}),
    ("custard/PotholeWorld-v0", {}), ("custard/PrereqWorld-v0", {"m": 5}), ("custard/RobotNav-v0", {}),
]  # fmt: skip


def problem_of(env, kwargs):
    where = source(env, kwargs)
    return Problem(where, describe(where.make()))


@pytest.mark.parametrize(("env", "kwargs"), WORLDS)
def test_episodes_are_those_of_python(env, kwargs):
    problem, rng = problem_of(env, kwargs), np.random.default_rng(0)
    runner = make_runner(problem)
    assert isinstance(runner, CompiledRunner)
    base = problem.base
    count = base.actions.n if base.actions.discrete else base.actions.size
    policies = [
        LinearPolicy(rng.normal(size=(count, base.features.n_raw)), rng.normal(size=count), base.actions)
        for _ in range(4)
    ]
    middle = base.features.extend(rng.normal(size=(50, base.features.n_raw)))
    actions = (base.actions.start, base.actions.start + 1) if base.actions.discrete else ([-1.5], [0.3])
    policies.append(Tree.stump(0, float(np.median(middle[:, 0])), *actions, base.features, base.actions))
    if not base.actions.discrete:
        policies += [random_linear_tree(base.features, base.actions, middle, rng, leaves, 4) for leaves in (1, 2, 4)]
    requests = [
        EpisodeRequest(policy, np.arange(3) + 7 * k, 0.0, 150, keep_states=k % 2 == 0)
        for k, policy in enumerate(policies)
    ]
    assert all(map(is_compiled, requests))
    for found, wanted in zip(runner.run(requests), runner.stepped.run(requests), strict=True):
        for name in ("returns", "lengths", "terminated", "truncated", "forbidden", "states", "masks"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
    runner.close()


def test_states_are_kept_and_noise_and_discounts_are_respected_by_stepping_from_python():
    problem = problem_of("CartPole-v1", {})
    runner, tree = make_runner(problem), Tree.leaf(0, problem.base.features, problem.base.actions)
    kept = EpisodeRequest(tree, np.arange(3), keep_states=True)
    noisy, discounted = EpisodeRequest(tree, np.arange(3), noise=0.5), EpisodeRequest(tree, np.arange(3), gamma=0.5)
    plain = EpisodeRequest(tree, np.arange(3))
    results = runner.run([kept, plain, noisy, discounted])
    assert len(results[0].states) == results[0].steps == results[1].steps
    assert not len(results[1].states)
    assert not np.array_equal(results[2].lengths, results[1].lengths)
    assert (results[3].returns < 2.0).all()
    assert (results[1].returns > 7.0).all()
    runner.close()
