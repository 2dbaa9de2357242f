"""moet: E-step and gate by finite differences, the hard mixture as a tree, budgets, seeds and checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

import custard
from custard import Actions, CustardError, Features, Tree
from custard.baselines import moet
from custard.baselines.mixture import (
    Adam,
    ExpertTree,
    Fitting,
    Mixture,
    fit_expert,
    fit_mixture,
    gate_gradient,
    gate_inputs,
    gate_probabilities,
    responsibilities,
)
from custard.baselines.soft_trees import Scaling
from custard.tree.shape import Split, build_tree
from tests.baselines.test_growing_trees import problem_of
from tests.solvers.test_budgets import LONGEST, Counting

FEATURES, ACTIONS = Features(("a", "b"), [-9, -9], [9, 9]), Actions("discrete", ("left", "right"))


def balance(x):
    """Return Q-values for CartPole: the pole is pushed back to where it stands upright."""
    push = x @ np.array([0.1, 0.3, 3.0, 1.0])
    return np.stack([-push, push], axis=1)


def walk(x):
    """Return Q-values for `Counting`: back towards 0."""
    return np.stack([x[:, 0], -x[:, 0]], axis=1)


# -- the mixture -------------------------------------------------------------------------------------------------------


def test_responsibilities_by_hand():
    g, p = np.array([[0.5, 0.5], [0.8, 0.2], [0.3, 0.7]]), np.array([[0.9, 0.1], [0.5, 0.5], [0.0, 0.0]])
    np.testing.assert_allclose(responsibilities(g, p), [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])


@pytest.mark.parametrize("seed", range(3))
def test_the_gates_gradient_is_that_of_the_log_likelihood(seed):
    """sum_i log sum_j g_ij p_ij, by central differences in every weight of the gate."""
    rng = np.random.default_rng(seed)
    inputs, p = np.column_stack([rng.normal(size=(20, 3)), np.ones(20)]), rng.random((20, 4))
    gate = rng.normal(size=(4, 4))

    def likelihood(gate):
        return np.log((gate_probabilities(gate, inputs) * p).sum(axis=1)).sum()

    g = gate_probabilities(gate, inputs)
    found = gate_gradient(responsibilities(g, p), g, inputs)
    for where in np.ndindex(*gate.shape):
        step = np.zeros_like(gate)
        step[where] = 1e-5
        difference = (likelihood(gate + step) - likelihood(gate - step)) / 2e-5
        assert found[where] == pytest.approx(difference, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_the_e_step_is_the_best_lower_bound(seed):
    """h makes sum_j h_j log(g_j p_j / h_j) equal to the log-likelihood; any other distribution is below it."""
    rng = np.random.default_rng(seed)
    g, p = rng.dirichlet(np.ones(3), size=10), rng.random((10, 3))

    def bound(h):
        return (h * np.log(g * p / h)).sum(axis=1)

    h = responsibilities(g, p)
    np.testing.assert_allclose(bound(h), np.log((g * p).sum(axis=1)))
    other = 0.9 * h + 0.1 * rng.dirichlet(np.ones(3), size=10)
    assert (bound(other) < bound(h)).all()


def test_adams_first_steps_by_hand():
    """The first step is the rate in the gradient's direction; the second one averages."""
    adam = Adam((2,))
    np.testing.assert_allclose(adam.step(np.array([4.0, -0.01]), 0.3), [0.3, -0.3], rtol=1e-4)
    mean, square = (0.1 * 4.0 * 0.9 + 0.1 * 2.0) / 0.19, (0.001 * 16.0 * 0.999 + 0.001 * 4.0) / (1.0 - 0.999**2)
    assert adam.step(np.array([2.0, 0.0]), 0.3)[0] == pytest.approx(0.3 * mean / np.sqrt(square), rel=1e-6)


def test_the_hard_mixture_of_two_leaves_by_hand():
    """theta_0 = (1, 0, 0), theta_1 = (0, 2, 1); a = (a - 1) / 2: the second wins where 2 b + 1 > (a - 1) / 2."""
    gate, scaling = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 1.0]]), Scaling(np.array([1.0, 0.0]), np.array([2.0, 1.0]))
    mixture = Mixture(gate, scaling, (ExpertTree(np.array([0.9, 0.1])), ExpertTree(np.array([0.2, 0.8]))))
    tree = mixture.tree(FEATURES, ACTIONS)
    expected = build_tree(Split(2, -1.5, 0, 1), FEATURES.with_sums([{0: -0.5, 1: 2.0}]), ACTIONS)
    assert tree == expected
    assert (tree.depth, tree.n_leaves, tree.n_coefficients) == (1, 2, 2)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_hard_mixture_follows_the_tree_with_the_largest_score(count):
    rng = np.random.default_rng(count)
    x, y = rng.normal(size=(400, 2)), rng.integers(2, size=400)
    trees = tuple(fit_expert(x, y, rng.random(400), 2, 2, 0) for _ in range(count))
    mixture = Mixture(rng.normal(size=(count, 3)), Scaling(np.array([0.5, -1.0]), np.array([2.0, 0.3])), trees)
    tree = mixture.tree(FEATURES, ACTIONS)
    g = gate_probabilities(mixture.gate, gate_inputs(mixture.scaling, x))
    each = np.stack([expert.probabilities(x).argmax(axis=1) for expert in trees], axis=1)
    assert (tree.predict(x) == each[np.arange(400), g.argmax(axis=1)]).mean() > 0.995  # CART compares in float32
    assert tree.depth <= count - 1 + 2
    assert Tree.from_json(tree.to_json()) == tree


def test_trees_with_the_same_scores_leave_the_first():
    mixture = Mixture(np.ones((2, 3)), Scaling(np.zeros(2), np.ones(2)), (ExpertTree(np.array([1.0, 0.0])),) * 2)
    assert mixture.tree(FEATURES, ACTIONS) == Tree.leaf(0, FEATURES, ACTIONS)


def test_actions_that_begin_at_another_number():
    actions = Actions("discrete", ("left", "right"), start=5)
    x = np.random.default_rng(0).normal(size=(50, 2))
    tree = fit_expert(x, (x[:, 0] > 0).astype(int), np.ones(50), 1, 2, 0)
    mixture = Mixture(np.zeros((1, 3)), Scaling(np.zeros(2), np.ones(2)), (tree,), start=5)
    assert mixture.tree(FEATURES, actions).predict([[-1.0, 0.0], [1.0, 0.0]]).tolist() == [5, 6]
    assert mixture(np.array([[-1.0, 0.0], [1.0, 0.0]])).tolist() == [5, 6]


def test_em_finds_a_diagonal_that_no_small_tree_can():
    """The class is that of a + b > 0: two leaves and a gate know it, a tree of depth 2 does not."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (2000, 2)) * [1.0, 3.0]
    y = (x.sum(axis=1) > 0).astype(int)
    mixture, accuracy = fit_mixture(x, y, FEATURES, ACTIONS, Fitting(2, 0, 50, 0.3, 0.97, 0.8), rng)
    assert accuracy > 0.97
    assert (mixture.tree(FEATURES, ACTIONS).predict(x) == y).mean() > 0.97
    single, _ = fit_mixture(x, y, FEATURES, ACTIONS, Fitting(1, 2, 50, 0.3, 0.97, 0.8), rng)
    assert (single(x) == y).mean() < 0.95


# -- the method --------------------------------------------------------------------------------------------------------


def test_two_leaves_and_a_gate_solve_cartpole():
    """E = 2, depth 0, imitating a policy that balances."""
    run = custard.learn("CartPole-v1", "moet", expert=balance, experts=2, expert_depth=0, budget=300_000, seed=0)
    assert (run.tree.n_leaves, run.tree.depth) == (2, 1)
    assert run.tree.n_coefficients == 4
    assert custard.evaluate(run.tree, "CartPole-v1", episodes=200, seed=7).mean > 495.0
    assert 0.0 <= run.metrics[-1]["disagreement"] < 0.5


@pytest.mark.parametrize(("budget", "settings"), [(300, {}), (2000, {}), (2000, {"expert": "dqn"})])
def test_a_budget_is_kept_and_every_step_counted(budget, settings):
    if settings:
        pytest.importorskip("jax", reason='needs the extra "neural"')
    Counting.taken = 0
    given = {"expert": walk, "epochs": 5, "expert_settings": {"hidden": 8}, **settings}
    run = custard.learn(Counting, "moet", budget=budget, max_depth=2, **given)
    assert run.steps == Counting.taken
    assert run.steps <= budget + LONGEST
    assert run.tree.depth <= 2


@pytest.mark.parametrize(
    ("max_depth", "expected"), [(None, (4, 2)), (4, (4, 1)), (3, (4, 0)), (1, (2, 0)), (0, (1, 0))]
)
def test_the_depth_limit_counts_the_gate(max_depth, expected):
    problem = problem_of(Counting, max_depth=max_depth)
    assert moet._mixture_fitting(problem, moet.Settings(experts=4, expert_depth=2))[:2] == expected


@pytest.mark.parametrize("expert", ["dqn", "function"])
def test_the_same_seed_gives_the_same_tree_also_after_a_break(expert):
    env, how = (Counting, walk) if expert == "function" else ("CartPole-v1", "dqn")
    if how == "dqn":
        pytest.importorskip("jax", reason='needs the extra "neural"')

    def snapshots(state=None):
        given = {"expert": how, "expert_settings": {"hidden": 8}, "epochs": 3, "iterations": 5, "experts": 2}
        found = list(moet.solve(problem_of(env, 3), moet.Settings(budget=12_000, **given), state))
        return [snapshot for snapshot in found if snapshot.tree is not None]

    whole = snapshots()
    assert len(whole) > 2
    rest = snapshots(whole[1].state())
    assert [(s.steps, s.tree, str(s.value), s.final) for s in rest] == [
        (s.steps, s.tree, str(s.value), s.final) for s in whole[2:]
    ]
    assert snapshots(whole[-1].state()) == []
    assert "iterations, expert: " in whole[-1].message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"experts": 9}, "experts=9 must be at most 8"), ({"experts": 0}, "experts=0"),
        ({"weights": "qs"}, "unknown weighting"), ({"expert_depth": -1}, "expert_depth"),
        ({"expert": "nobody"}, "unknown expert"),
    ],
)  # fmt: skip
def test_bad_settings(settings, message):
    with pytest.raises(CustardError, match=message):
        custard.learn("CartPole-v1", "moet", **settings)


def test_vectors_of_actions_are_refused():
    with pytest.raises(CustardError, match="moet needs discrete actions"):
        custard.learn("Pendulum-v1", "moet", budget=100)
