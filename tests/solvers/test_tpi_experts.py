"""Experts that tree policy iteration begins from: files of ours and of Stable-Baselines3, and one that it trains."""

import numpy as np
import pytest

import custard
from custard.baselines import dqn
from custard.lab.evaluate import rollouts
from custard.lab.frontier import frontier
from custard.lab.source import source
from custard.solvers.api import Problem
from custard.solvers.starts import imitations, outside_expert
from custard.spaces import describe

FEW = {"patience": 1, "polish": 10, "states": 50}


def problem(name):
    where = source(name)
    return Problem(where, describe(where.vector(1)), 0)


@pytest.fixture
def network(tmp_path):
    """A network of random weights for MountainCar, in a file."""
    rng = np.random.default_rng(0)
    shapes = ((2 * 5, 8), (8,), (8, 8), (8,), (8, 1), (1,), (8, 3), (3,))
    weights = tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
    made = dqn.Network(np.array([-1.2, -0.07]), np.array([0.6, 0.07]), 2, weights)
    made.save(tmp_path / "expert.npz")
    return made, str(tmp_path / "expert.npz")


def test_a_file_of_ours(network):
    made, file = network
    task = problem("MountainCar-v0")
    act, worth, steps = outside_expert(task, file, 0, 0)
    x = np.random.default_rng(1).uniform([-1.2, -0.07], [0.6, 0.07], size=(500, 2))
    np.testing.assert_array_equal(act(x), made.q(x).argmax(axis=1))
    np.testing.assert_allclose(worth(x), made.q(x))
    assert steps == 0
    tree, used = list(imitations(task, act, worth, 3, None, 15, 0))[-1]
    assert used > 0
    met = []
    rollouts(lambda x: met.append(x.copy()) or tree.predict(x), task.source, np.arange(5))
    q = made.q(np.concatenate(met))
    lost = q.max(axis=1) - q[np.arange(len(q)), tree.predict(np.concatenate(met))]
    assert lost.mean() < 0.2 * (q.max(axis=1) - q.mean(axis=1)).mean()  # far better than any action
    run = custard.learn("MountainCar-v0", "tpi", expert=file, max_leaves=3, budget=200_000, **FEW)
    assert run.tree.n_leaves <= 3


def test_a_frontier_against_a_file(network):
    made, file = network
    points = frontier("MountainCar-v0", max_leaves=2, budget=200_000, episodes=20, expert=file, **FEW)
    expert = custard.evaluate(lambda x: made.q(x).argmax(axis=1), "MountainCar-v0", 20, 0).mean
    assert expert == -200.0  # it never gets there, so that the gap is the same for all episodes
    assert points
    assert all(point.gap == pytest.approx(expert - point.mean) for point in points)


def test_a_stable_baselines_file(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3", reason='needs the extra "sb3"')
    model = sb3.DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [16]}, seed=0, device="cpu")
    model.save(tmp_path / "dqn.zip")
    act, worth, _ = outside_expert(problem("CartPole-v1"), str(tmp_path / "dqn.zip"), 0, 0)
    x = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(act(x.astype(np.float64)), model.predict(x, deterministic=True)[0])
    np.testing.assert_array_equal(worth(x.astype(np.float64)).argmax(axis=1), act(x.astype(np.float64)))
    run = custard.learn(
        "CartPole-v1", "tpi", expert=str(tmp_path / "dqn.zip"), max_leaves=3, budget=100_000, max_depth=2, **FEW
    )
    assert run.tree.n_leaves <= 3


def test_an_expert_trained_first():
    pytest.importorskip("jax", reason='needs the extra "neural"')
    where = source("custard/PrereqWorld-v0", {"m": 4})
    task = Problem(where, describe(where.vector(1)), 0)
    act, worth, steps = outside_expert(task, "dqn", 12_000, 1)
    assert steps >= 12_000  # the expert's own, and those of the episodes it was checked on
    assert custard.evaluate(act, where, 3, 0).mean == -2.0
    tree, _ = list(imitations(task, act, worth, 3, None, 15, 0))[-1]
    assert custard.evaluate(tree, where, 3, 0).mean == -2.0
