"""ddt: the crisp tree by hand, soft trees and their advantages, budgets, seeds and checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

import custard
from custard import Actions, Features, Tree
from custard.baselines.soft_trees import Branches, Scaling, crisp_shape, leaf_probabilities, paths_of
from custard.baselines.whole_episodes import Batch, WholeEpisodes
from custard.core.errors import CustardError
from custard.tree.shape import Split, build_tree
from tests.baselines.test_growing_trees import problem_of
from tests.solvers.test_budgets import LONGEST, Counting

pytest.importorskip("jax", reason='needs the extra "neural"')

from custard.baselines import ddt

FEATURES, ACTIONS = Features(("a", "b"), [-9, -9], [9, 9]), Actions("discrete", ("left", "right", "stay"))


def policy_of(beta, phi, leaf, shape="list", alpha=1.0, shift=(0.0, 0.0), scale=(1.0, 1.0), start=0):
    branches = Branches(np.array(beta, np.float32), np.array(phi, np.float32), np.float32(alpha))
    paths = paths_of(shape, len(leaf), None)
    return ddt.SoftPolicy(
        ddt.SoftTree(branches, np.array(leaf)), paths, Scaling(np.array(shift), np.array(scale)), start
    )


def test_the_crisp_tree_of_two_nodes_by_hand():
    """Rule 1: 0.5 a - 2 b > 1 becomes b < -0.5; rule 2: 4 a + b > 2 becomes a > 0.5. High takes the rule's leaf."""
    policy = policy_of([[0.5, -2.0], [4.0, 1.0]], [1.0, 2.0], [[3.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, 5.0]])
    tree = policy.crisp(FEATURES, ACTIONS)
    expected = Split(1, -0.5, 0, Split(0, 0.5, 2, 1))
    assert tree == build_tree(expected, FEATURES, ACTIONS)
    assert tree.predict([[0.0, -1.0], [1.0, 0.0], [0.0, 0.0]]).tolist() == [0, 1, 2]


def test_thresholds_are_in_the_features_own_units_and_a_negative_alpha_turns_tests_round():
    """b is (b - 10) / 4 for the tree: -2 z > 1 is z < -0.5 is b < 8."""
    given = {
        "beta": [[0.5, -2.0]],
        "phi": [1.0],
        "leaf": [[1.0, 0.0], [0.0, 1.0]],
        "shift": (0.0, 10.0),
        "scale": (1.0, 4.0),
    }
    assert policy_of(**given).crisp(FEATURES, ACTIONS) == Tree.stump(1, 8.0, 0, 1, FEATURES, ACTIONS)
    assert policy_of(**given, alpha=-3.0).crisp(FEATURES, ACTIONS) == Tree.stump(1, 8.0, 1, 0, FEATURES, ACTIONS)


@pytest.mark.parametrize(("phi", "leaf"), [(1.0, 1), (-1.0, 0)])
def test_a_node_without_weights_has_one_answer(phi, leaf):
    policy = policy_of([[0.0, 0.0]], [phi], [[1.0, 0.0], [0.0, 1.0]])
    assert policy.crisp(FEATURES, ACTIONS) == Tree.leaf(leaf, FEATURES, ACTIONS)


@pytest.mark.parametrize("shape", ["tree", "list"])
def test_a_steep_soft_tree_over_single_features_is_its_crisp_tree(shape):
    rng = np.random.default_rng(0)
    paths = paths_of(shape, 8, None)
    beta = np.zeros((7, 2))
    beta[np.arange(7), rng.integers(2, size=7)] = rng.normal(size=7)
    branches = Branches(beta, rng.normal(size=7), 1e4)
    x, scaling = rng.normal(size=(500, 2)), Scaling(np.array([0.1, -0.2]), np.array([2.0, 0.5]))
    soft = leaf_probabilities(branches, paths, (x - scaling.shift) / scaling.scale)
    np.testing.assert_allclose(soft.sum(axis=1), 1.0)
    names = Actions("discrete", tuple(map(str, range(8))))
    tree = build_tree(crisp_shape(branches, paths, scaling, int), FEATURES, names)
    is_clear = soft.max(axis=1) > 0.99
    assert is_clear.mean() > 0.9
    assert (tree.predict(x) == soft.argmax(axis=1))[is_clear].all()


def test_leaf_probabilities_by_hand():
    """A rule list whose tests are true with probability 0.75 and 0.5."""
    branches = Branches(np.zeros((2, 1)), np.array([-np.log(3.0), 0.0]), 1.0)
    found = leaf_probabilities(branches, paths_of("list", 3, None), np.zeros((1, 1)))
    np.testing.assert_allclose(found, [[0.75, 0.125, 0.125]])


@pytest.mark.parametrize(
    ("shape", "leaves", "max_depth", "expected"),
    [
        ("tree", 8, None, 8),
        ("tree", 7, None, 4),
        ("tree", 8, 2, 4),
        ("list", 8, 2, 3),
        ("list", 5, None, 5),
        ("tree", 8, 0, 1),
    ],
)
def test_the_depth_limit_makes_shapes_smaller(shape, leaves, max_depth, expected):
    assert paths_of(shape, leaves, max_depth).high.shape == (expected - 1, expected)


def test_advantages_by_hand():
    """gamma 0.5, lambda 0.5; the first episode terminates, the second is cut and keeps the value of its last state."""
    false, true = False, True
    batch = Batch(
        np.zeros((4, 1)), np.zeros(4), np.array([1.0, 2.0, 3.0, 4.0]), np.zeros((4, 1)),
        np.array([false, true, false, false]), np.array([false, true, false, true]),
    )  # fmt: skip
    found = ddt.advantages(batch, np.array([1.0, 1.0, 2.0, 2.0]), np.array([1.0, 9.0, 2.0, 6.0]), 0.5, 0.5)
    # Deltas: 1 + 0.5 - 1, 2 - 1, 3 + 1 - 2, 4 + 3 - 2.
    np.testing.assert_allclose(found, [0.5 + 0.25 * 1.0, 1.0, 2.0 + 0.25 * 5.0, 5.0])


def test_ppo_prefers_what_returned_more():
    """Two leaves, the action with the higher advantage becomes likelier; an old probability far away does not count."""
    from custard.nn.checkpoints import StoredPytree

    first = Branches(np.ones((1, 1), np.float32), np.zeros(1, np.float32), np.float32(1.0))
    actor, critic = (ddt.SoftTree(first, np.zeros((2, outputs), np.float32)) for outputs in (2, 1))
    learned = ddt.Learned(actor, critic)
    stored, paths = StoredPytree((learned, ddt.optimiser(0.01).init(learned))), paths_of("tree", 2, None)
    z, action = np.array([[[2.0], [-2.0]]], np.float32), np.array([[0, 0]], np.int32)
    rows = ddt.Rows(z, action, np.log([[0.5, 0.5]]), np.array([[1.0, -1.0]]), np.array([[3.0, 3.0]]))
    after, _ = ddt.improve(*stored.pytree(), rows, paths, ddt.UpdateConfig(0.01, 0.2, 0.0))
    leaf = np.asarray(after.actor.leaf)
    assert leaf[0, 0] > 0.0 > leaf[1, 0]  # high (z = 2) is leaf 0
    assert (np.asarray(after.critic.leaf) > 0.0).all()


# -- whole episodes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", Counting])
@pytest.mark.parametrize("steps", [1, 700])
def test_whole_episodes_are_whole_and_as_many_as_asked(env, steps):
    episodes = WholeEpisodes(problem_of(env), 3, 4, 60, limit_terminates=False)
    Counting.taken = 0
    batch = episodes.collect(lambda x, rng: rng.integers(2, size=len(x)), steps)
    assert batch.last[-1]
    assert steps <= batch.steps < steps + 60
    assert Counting.taken in (0, batch.steps)
    assert batch.last.sum() == episodes.seed_and_episodes[1]
    inside = ~batch.last[:-1]
    np.testing.assert_array_equal(batch.after[:-1][inside], batch.x[1:][inside])
    assert not batch.terminated[~batch.last].any()
    lengths = np.diff(np.flatnonzero(batch.last), prepend=-1)
    assert lengths.max() <= 60
    assert (batch.terminated[batch.last] | (lengths == 60)).all()


# -- the method --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [300, 2000])
def test_a_budget_is_kept_and_every_step_counted(budget):
    Counting.taken = 0
    run = custard.learn(Counting, "ddt", budget=budget, max_depth=2)
    assert run.steps == Counting.taken
    assert run.steps <= budget + LONGEST
    assert run.tree.depth <= 2


@pytest.mark.parametrize("preset", ["tuned", "paper"])
def test_the_same_seed_gives_the_same_tree_also_after_a_break(preset):
    def snapshots(env, state=None):
        given = {**ddt.PRESETS[preset][""], "budget": 6_000, "num_steps": 500}
        return ddt.solve(problem_of(env, 3), ddt.Settings(**given), state)

    for env in ("custard/RobotNav-v0", Counting) if preset == "tuned" else (Counting,):
        whole = list(snapshots(env))
        assert len(whole) > 1
        first = next(snapshots(env))
        rest = list(snapshots(env, first.state()))
        assert [(s.steps, s.tree, str(s.value), s.final) for s in rest] == [
            (s.steps, s.tree, str(s.value), s.final) for s in whole[1:]
        ]
        assert whole[-1].message == "budget used"
        assert list(snapshots(env, whole[-1].state())) == []


def test_soft_and_crisp_returns_are_reported_and_the_soft_policy_is_kept(tmp_path):
    run = custard.learn("CartPole-v1", "ddt", budget=60_000, seed=1, out=tmp_path / "run")
    assert run.value > 100.0  # random actions return about 22
    soft = ddt.load_soft_policy(tmp_path / "run")
    assert custard.evaluate(soft, "CartPole-v1", episodes=20, seed=5).mean > 150.0
    assert soft.crisp(run.tree.features, run.tree.actions) == run.final
    judged = [row for row in run.metrics if np.isfinite(row.get("soft_return", np.nan))]
    assert judged
    for row in judged:
        assert row["crisp_loss"] == pytest.approx(row["soft_return"] - row["tree_return"])
    with pytest.raises(CustardError, match="cannot read"):
        ddt.load_soft_policy(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shape": "lists"}, "did you mean 'list'"), ({"critic": "nets"}, "unknown critic"),
        ({"max_leaves": 1}, "max_leaves=1"), ({"clip": 2.0}, "clip"),
    ],
)  # fmt: skip
def test_bad_settings(settings, message):
    with pytest.raises(CustardError, match=message):
        custard.learn("CartPole-v1", "ddt", **settings)


def test_vectors_of_actions_are_refused():
    with pytest.raises(CustardError, match="ddt needs discrete actions"):
        custard.learn("Pendulum-v1", "ddt", budget=100)
