"""Experts that tree policy iteration begins from: files of ours and of Stable-Baselines3, and one that it trains."""

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.actions import Actions
from custard.core.spaces import describe
from custard.experts import dqn
from custard.experts.kinds import experts
from custard.experts.numbered_actions import choice_of_vectors
from custard.lab.frontier import frontier
from custard.solvers import direct
from custard.solvers.direct import experts as direct_experts
from custard.task.problem import Problem
from custard.task.source import source
from tests.task.test_probe import Push


def problem(name):
    where = source(name)
    return Problem(where, describe(where.make_vec(1)), 0)


def expert_of(task, given, **training):
    *progress, found = experts(task, given, dqn.Settings(**training), 1)
    return found, progress


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
    found, progress = expert_of(task, file)
    x = np.random.default_rng(1).uniform([-1.2, -0.07], [0.6, 0.07], size=(500, 2))
    np.testing.assert_array_equal(found.act(x), made.q(x).argmax(axis=1))
    np.testing.assert_allclose(found.q(x), made.q(x))
    assert not progress
    run = custard.learn("MountainCar-v0", "tpi", expert=file, tests="axis", max_leaves=3, budget=60_000, workers=0)
    assert run.tree.n_leaves <= 3


def test_a_frontier_against_a_file(network):
    made, file = network
    points = frontier("MountainCar-v0", max_leaves=2, budget=60_000, episodes=20, expert=file, tests="axis")
    expert = custard.evaluate(lambda x: made.q(x).argmax(axis=1), "MountainCar-v0", 20, 0).mean
    assert expert == -200.0  # it never gets there, so that the gap is the same for all episodes
    assert points
    assert all(point.gap == pytest.approx(expert - point.mean) for point in points)


def test_a_stable_baselines_file(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3", reason='needs the extra "sb3"')
    model = sb3.DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [16]}, seed=0, device="cpu")
    model.save(tmp_path / "dqn.zip")
    found, _ = expert_of(problem("CartPole-v1"), str(tmp_path / "dqn.zip"))
    x = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(found.act(x.astype(np.float64)), model.predict(x, deterministic=True)[0])
    np.testing.assert_array_equal(found.q(x.astype(np.float64)).argmax(axis=1), found.act(x.astype(np.float64)))
    run = custard.learn(
        "CartPole-v1", "tpi", expert=str(tmp_path / "dqn.zip"), tests="axis", max_leaves=3, budget=30_000, workers=0
    )
    assert run.tree.n_leaves <= 3


def test_an_expert_trained_first():
    pytest.importorskip("jax", reason='needs the extra "neural"')
    where = source("custard/PrereqWorld-v0", {"m": 4})
    task = Problem(where, describe(where.make_vec(1)), 0)
    found, progress = expert_of(task, "dqn", steps=12_000, checks=8, standardise=True)
    assert progress[-1].steps >= 12_000  # the expert's own, and those of the episodes it was checked on
    assert custard.evaluate(found.act, where, 3, 0).mean == -2.0


class Glide(Push):
    """The same by a real force, and a second one that does nothing."""

    action_space = gym.spaces.Box(-1, 1, (2, 1))

    def step(self, action):
        assert self.action_space.contains(action)
        return super().step(1 + float(action[0, 0]))


@pytest.mark.parametrize(
    ("actions", "count", "some"),
    [
        (Actions("box", ("a",), low=[0], high=[3]), 5, [[0], [0.75], [3]]),
        (Actions("box", ("a", "b"), low=[-1, 0], high=[1, np.inf]), 9, [[0, 0], [-1, 2]]),
        (Actions("box", tuple("abcdef"), low=[-1] * 6, high=[1] * 6), 13, [[0] * 6, [0, 0, 1, 0, 0, 0]]),
        (Actions("multi", ("a", "b"), low=[0, 2], high=[1, 5]), 8, [[0, 2], [1, 5], [1, 3]]),
        (Actions("multi", ("a", "b"), low=[0, 0], high=[999, 1]), 6, [[0, 0], [999, 1]]),
    ],
)
def test_vectors_that_an_expert_chooses_among(actions, count, some):
    vectors = choice_of_vectors(actions)
    assert len(np.unique(vectors, axis=0)) == len(vectors) == count
    assert all((vectors == one).all(axis=1).any() for one in some)
    assert (vectors >= actions.low).all()
    assert (vectors <= actions.high).all()


def test_vector_actions_have_an_expert_too():
    pytest.importorskip("jax", reason='needs the extra "neural"')
    run = custard.learn(Glide, budget=30_000, expert="dqn", leaves="constant", workers=0)
    assert any("training dqn" in row for row in messages(Glide, expert="dqn", leaves="constant"))
    assert custard.evaluate(run.tree, Glide, 100, seed=1).mean > -4
    pushed = custard.learn(Glide, budget=9000, expert=lambda x: -x[:, [0, 0]].clip(-1, 1), leaves="constant", workers=0)
    assert custard.evaluate(pushed.tree, Glide, 100, seed=1).mean > -4


def messages(env, **given):
    """What a direct search says it is doing."""
    where = source(env)
    task = Problem(where, describe(where.make()), workers=0)
    return [one.message for one in direct.solve(task, direct.Settings(budget=20_000, **given))]


def test_an_expert_is_trained_unasked_where_a_linear_policy_may_not_do(monkeypatch):
    pytest.importorskip("jax", reason='needs the extra "neural"')
    monkeypatch.setattr(direct_experts, "MIN_DQN_STEPS", 1500)
    for tests in ("axis", "linear"):  # it may also show where a linear policy should begin
        assert any("training dqn" in text for text in messages(Push, tests=tests))
    for given in ({"expert": "linear", "tests": "axis"}, {"expert": "none", "tests": "axis"}):
        assert not any("training dqn" in text for text in messages(Push, **given))
    monkeypatch.setattr(direct_experts, "find_spec", lambda name: None)
    assert not any("training dqn" in text for text in messages(Push, tests="axis"))


def test_trees_for_the_same_task_and_seed_share_one_expert(monkeypatch):
    pytest.importorskip("jax", reason='needs the extra "neural"')
    trained = []
    train = dqn.train
    monkeypatch.setattr(dqn, "train", lambda *given: trained.append(given[2]) or train(*given))
    gym.register("Push-v0", Push)
    try:
        given = {"expert": "dqn", "budget": 9000, "tests": "axis", "workers": 0}
        first, again = (custard.learn("Push-v0", max_depth=2, **given) for _ in range(2))
        custard.learn("Push-v0", max_depth=1, **given)
        assert len(trained) == 1
        assert first.tree == again.tree
        assert first.steps == again.steps
        custard.learn("Push-v0", max_depth=1, seed=1, **given)
        gym.register("Push-v0", Push)  # may be another task now
        custard.learn("Push-v0", max_depth=1, **given)
        assert len(trained) == 3
    finally:
        del gym.registry["Push-v0"]
