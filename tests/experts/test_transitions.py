"""Transitions that a DQN expert learns from, compiled and stepped."""

import numpy as np
import pytest

from custard.core.spaces import describe
from custard.experts.dqn import Network
from custard.experts.transitions import CompiledSteps, PythonSteps
from custard.task.problem import Problem
from custard.task.source import source


def _problem(name="CartPole-v1"):
    where = source(name)
    return Problem(where, describe(where.make_vec(1)))


def _network(n, actions, frequencies=1):
    rng = np.random.default_rng(3)
    sizes = ((n * (1 + 2 * frequencies), 8), (8, 8), (8, 1), (8, actions))
    weights = [w for a, b in sizes for w in (rng.normal(size=(a, b)), rng.normal(size=b))]
    return Network(np.zeros(n), np.full(n, 2.0), frequencies, tuple(w.astype(np.float32) for w in weights))


@pytest.mark.parametrize("kind", [CompiledSteps, PythonSteps])
def test_each_environment_goes_on_where_it_was_or_begins_anew(kind):
    envs = kind(_problem(), 3, np.random.default_rng(0), True)
    rows = [envs.collect(None, 1.0, 40), envs.collect(_network(4, 2), 0.3, 40)]
    x, after, ended = (np.concatenate([getattr(part, name) for part in rows]) for name in ("x", "after", "ended"))
    for i in range(3):
        one, then, over = x[i::3], after[i::3], ended[i::3]
        assert np.array_equal(one[1:][~over[:-1]], then[:-1][~over[:-1]])
        assert over.any()
        assert (np.abs(one[1:][over[:-1]]) <= 0.05).all()  # a start of CartPole
        assert (np.abs(then[over][:, 2]) > 0.2).all()  # fallen
    envs.close()


@pytest.mark.parametrize("kind", [CompiledSteps, PythonSteps])
@pytest.mark.parametrize("frequencies", [0, 2])
def test_actions_are_the_networks_best_unless_random(kind, frequencies):
    envs, network = kind(_problem(), 4, np.random.default_rng(1), True), _network(4, 2, frequencies)
    rows = envs.collect(network, 0.0, 100)
    assert (rows.action == network.q(rows.x).argmax(axis=1)).all()
    some = envs.collect(network, 0.5, 400)
    assert 0.65 < (some.action == network.q(some.x).argmax(axis=1)).mean() < 0.85
    envs.close()


@pytest.mark.parametrize("kind", [CompiledSteps, PythonSteps])
@pytest.mark.parametrize("bootstrap_at_limit", [False, True])
def test_time_limits_end_episodes_unless_what_follows_counts(kind, bootstrap_at_limit):
    envs = kind(_problem("MountainCar-v0"), 2, np.random.default_rng(2), bootstrap_at_limit)
    rows = envs.collect(None, 1.0, 401)
    assert np.flatnonzero(rows.ended).tolist() == ([] if bootstrap_at_limit else [398, 399, 798, 799])
    starts = np.flatnonzero((rows.x[2:] != rows.after[:-2]).any(axis=1)) + 2
    assert starts.tolist() == [400, 401, 800, 801]
    assert (rows.reward == -1.0).all()
    envs.close()
