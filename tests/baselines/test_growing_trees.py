"""cqi, pyeatt, cutree and utree: steps computed by hand, split tests against scipy, budgets, seeds and checkpoints."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from scipy import stats
from scipy.special import kolmogorov

import custard
from custard.baselines import cqi, cutree, pyeatt, utree
from custard.baselines.growing_tree import ks_scale
from custard.core.spaces import describe
from custard.task.problem import Problem
from custard.task.source import source
from tests.solvers.test_budgets import LONGEST, Counting

MODULES = {"cqi": cqi, "pyeatt": pyeatt, "cutree": cutree, "utree": utree}


def problem_of(env, seed=0, max_depth=None, budget=None):
    where = source(env)
    return Problem(where, describe(where.make_vec(1)), seed, max_depth, budget=budget)


class Line(gym.Env):
    """One feature in [0, 1], two actions; only its spaces are used."""

    observation_space, action_space = gym.spaces.Box(0.0, 1.0, (1,), dtype=np.float64), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action):
        return np.zeros(1), 0.0, True, False, {}


# -- cqi ---------------------------------------------------------------------------------------------------------------


def cqi_tables(**settings):
    problem = problem_of(Line)
    return cqi.make_tables(problem, problem.base.features, cqi.Settings(thresholds_per_feature=1, **settings), seed=0)


def test_one_step_of_cqi_by_hand():
    """alpha 0.5, gamma 0.9, d 0.8; the leaf has Q = (1, 2), its candidate 0.5 has Q_L = (1, 2) and Q_R = (3, 2)."""
    tables = cqi_tables(alpha=0.5, gamma=0.9, visit_decay=0.8, min_split_gain=10.0, min_split_gain_decay=0.5)
    assert tables.threshold[0].tolist() == [0.5]
    tables.tree.q[0] = 1.0, 2.0
    tables.side_q[0, 0] = [[1.0, 2.0], [3.0, 2.0]]
    cqi.learn_step(tables, np.array([0.75]), 0, 1.0, np.array([0.1]), False)
    # y = 1 + 0.9 * 2 = 2.8; Q[0] = (1 + 2.8) / 2 = 1.9; right: (3 + 2.8) / 2 = 2.9.
    np.testing.assert_allclose(tables.tree.q[0], [1.9, 2.0])
    np.testing.assert_allclose(tables.side_q[0, 0], [[1.0, 2.0], [2.9, 2.0]])
    # v_L = 0.8 * 0.5 = 0.4; v_R = 0.4 + 0.2 = 0.6.
    np.testing.assert_allclose(tables.side_visits[0, 0], [0.4, 0.6])
    # a* = 1; the gain is 0.4 * 0 + 0.6 * (2.9 - 2.0) = 0.54, below 10: no split, and the bar sinks to 5.
    assert tables.tree.size.tolist() == [1, 1]
    assert tables.bar.tolist() == [5.0]


@pytest.mark.parametrize(("bar", "splits"), [(0.53, True), (0.55, False)])
def test_cqi_splits_when_the_gain_exceeds_the_bar(bar, splits):
    """The same step: its gain is 0.54."""
    tables = cqi_tables(alpha=0.5, gamma=0.9, visit_decay=0.8, min_split_gain=bar, min_split_gain_decay=0.5)
    tables.tree.q[0] = 1.0, 2.0
    tables.side_q[0, 0] = [[1.0, 2.0], [3.0, 2.0]]
    cqi.learn_step(tables, np.array([0.75]), 0, 1.0, np.array([0.1]), False)
    assert (tables.tree.size[0] == 3) == splits
    if not splits:
        assert tables.bar.tolist() == [bar / 2]
        return
    assert tables.bar.tolist() == [bar]
    assert (tables.tree.feature[0], tables.tree.threshold[0]) == (0, 0.5)
    np.testing.assert_allclose(tables.tree.q[1:3], [[1.0, 2.0], [2.9, 2.0]])
    np.testing.assert_allclose(tables.visits[:3], [1.0, 0.4, 0.6])
    assert tables.threshold[1:3].tolist() == [[0.25], [0.75]]  # fresh candidates halve the children's boxes
    np.testing.assert_allclose(tables.side_q[2, 0], [[2.9, 2.0]] * 2)
    # A terminal step on the left: both shares of visits decay, the left one gains 0.2.
    cqi.learn_step(tables, np.array([0.25]), 1, 4.0, np.array([0.9]), True)
    np.testing.assert_allclose(tables.tree.q[1], [1.0, 3.0])
    np.testing.assert_allclose(tables.visits[:3], [1.0, 0.52, 0.48])


def test_a_bar_that_is_a_whole_number_sinks_all_the_same():
    tables = cqi_tables(min_split_gain=1, min_split_gain_decay=0.5)
    cqi.learn_step(tables, np.array([0.5]), 0, 0.0, np.array([0.5]), True)
    assert tables.bar.tolist() == [0.5]


def test_the_candidates_of_whole_numbers_separate_something():
    problem = problem_of("custard/PrereqWorld-v0")
    tables = cqi.make_tables(problem, problem.base.features, cqi.Settings(thresholds_per_feature=2), seed=0)
    assert not np.isnan(tables.threshold[0]).any()
    cqi._split_leaf(tables, 0, 0)
    assert np.isnan(tables.threshold[1, :2]).all()  # a binary feature is known after one split
    assert not np.isnan(tables.threshold[1, 2:]).any()


# -- pyeatt ------------------------------------------------------------------------------------------------------------


def test_one_step_of_pyeatt_by_hand():
    """alpha 0.5, gamma 0.9: a greedy step enters the history, another one does not."""
    tables = pyeatt.make_tables(problem_of(Line), pyeatt.Settings(alpha=0.5, gamma=0.9, leaf_history=4), seed=0)
    tables.tree.q[0] = 2.0, 1.0
    pyeatt.learn_step(tables, np.array([0.3]), 0, 1.0, np.array([0.8]), False)
    # y = 1 + 0.9 * 2 = 2.8; the change is 0.5 * (2.8 - 2) = 0.4.
    np.testing.assert_allclose(tables.tree.q[0], [2.4, 1.0])
    np.testing.assert_allclose((tables.x[0, 0, 0], tables.change[0, 0]), (0.3, 0.4))
    pyeatt.learn_step(tables, np.array([0.3]), 1, 2.0, np.array([0.8]), True)
    np.testing.assert_allclose(tables.tree.q[0], [2.4, 1.5])
    assert tables.length[0] == 1


def test_pyeatt_splits_between_falling_and_rising_values():
    """Rewards alternate around the value: below 0.4 it falls, above it rises; the fourth step splits at 0.5."""
    tables = pyeatt.make_tables(problem_of(Line), pyeatt.Settings(alpha=0.1, leaf_history=4), seed=0)
    tables.tree.q[0] = 0.0, -10.0
    for x, reward in ((0.2, -5.0), (0.6, 5.0), (0.4, -5.0), (0.8, 5.0)):
        assert tables.tree.size[0] == 1
        pyeatt.learn_step(tables, np.array([x]), 0, reward, np.array([0.0]), True)
    assert tables.tree.size[0] == 3
    assert (tables.tree.feature[0], tables.tree.threshold[0]) == (0, 0.5)
    np.testing.assert_array_equal(tables.tree.q[1], tables.tree.q[2])  # both begin with the leaf's values
    assert tables.slot[1:3].tolist() == [0, 1]
    assert tables.length[:2].tolist() == [0, 0]


def test_pyeatt_keeps_a_leaf_whose_changes_agree():
    """Changes of 1 and a little: their mean is more than twice their deviation."""
    tables = pyeatt.make_tables(problem_of(Line), pyeatt.Settings(alpha=0.01, leaf_history=4), seed=0)
    tables.tree.q[0] = 0.0, -10.0
    for k in range(20):
        pyeatt.learn_step(tables, np.array([0.04 * k]), 0, 100.0 + k % 2, np.array([0.0]), True)
    assert tables.tree.size[0] == 1


def splits_of(x, least):
    """Yield feature, threshold, and which rows are on the left, for every midpoint with enough rows on both sides."""
    for c in range(x.shape[1]):
        values = np.unique(x[:, c])
        for threshold in (values[1:] + values[:-1]) / 2:
            left = x[:, c] <= threshold
            if min(left.sum(), (~left).sum()) >= least:
                yield c, threshold, left


def sample(seed, n=60):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, 3))
    x[:, 2] = rng.integers(4, size=n)  # with ties
    return x, rng.normal(size=n) + 1.5 * (x[:, seed % 3] > np.median(x[:, seed % 3]))


def entropy(is_positive):
    return stats.entropy(np.bincount(is_positive.astype(int), minlength=2), base=2)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("test", pyeatt.SPLIT_TESTS)
def test_the_split_tests_of_pyeatt_are_scipys(test, seed):
    x, change = sample(seed)
    scores = {}
    for c, threshold, left in splits_of(x, 3):
        a, b = change[left], change[~left]
        if test == "t":
            score = abs(stats.ttest_ind(a, b, equal_var=False).statistic)
        elif test == "information":
            score = entropy(change > 0) - (len(a) * entropy(a > 0) + len(b) * entropy(b > 0)) / len(x)
        else:
            score = len(x) * change.var() - len(a) * a.var() - len(b) * b.var()
        scores[c, threshold] = score
    feature, threshold, score = pyeatt.best_split(x, change, pyeatt.SPLIT_TESTS.index(test))
    assert score == pytest.approx(max(scores.values()))
    assert scores[feature, threshold] == pytest.approx(score)


# -- cutree ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_kolmogorov_smirnov_split_is_scipys(seed):
    x, q = sample(seed)
    q = q.round(1)  # with ties
    accepted = {}
    for c, threshold, left in splits_of(x, 5):
        d = stats.ks_2samp(q[left], q[~left]).statistic
        assert cutree.ks_statistic(left, q, np.argsort(q)) == pytest.approx(d)
        root = np.sqrt(left.sum() * (~left).sum() / len(q))
        if kolmogorov(d * (root + 0.12 + 0.11 / root)) < 0.05:
            accepted[c, threshold] = d
    feature, threshold, d = cutree.best_ks_split(x, q, 5, ks_scale(0.05))
    assert d == pytest.approx(max(accepted.values()))
    assert accepted[feature, threshold] == pytest.approx(d)
    left = x[:, feature] <= threshold
    assert stats.ks_2samp(q[left], q[~left]).pvalue < 0.06  # the exact probability agrees


@pytest.mark.parametrize("seed", range(6))
def test_the_variance_split_is_scipys(seed):
    x, q = sample(seed)
    rest = {
        (c, threshold): left.sum() * stats.tvar(q[left], ddof=0) + (~left).sum() * stats.tvar(q[~left], ddof=0)
        for c, threshold, left in splits_of(x, 5)
    }
    feature, threshold, gain = cutree.best_variance_split(x, q, 5, 0.0)
    assert rest[feature, threshold] == pytest.approx(min(rest.values()))
    assert gain == pytest.approx(len(q) * q.var() - min(rest.values()))
    share = gain / (len(q) * q.var())
    assert cutree.best_variance_split(x, q, 5, share * 1.01)[0] == -1


def test_values_that_do_not_depend_on_the_state_are_not_split():
    x = np.arange(40.0)[:, None]
    q = np.tile([0.0, 1.0], 20)
    assert cutree.best_ks_split(x, q, 5, ks_scale(0.05))[0] == -1
    assert cutree.best_variance_split(x, q, 5, 0.1)[0] == -1
    assert pyeatt.best_split(np.ones((40, 1)), q, 0)[0] == -1


def test_the_leaf_mdp_has_the_values_of_its_model():
    """Left of 0.5, action 1 leads to the right for -1; right of it, action 1 ends with 10. gamma 0.5."""
    learner = cutree._Learner(problem_of(Line), cutree.Settings(memory=8), 1000)
    tables = learner.tables
    cutree.split_leaf(tables.tree, 0, 0, 0.5)
    rows = ((0.2, 1, -1.0, 0.8, False), (0.8, 1, 10.0, 0.8, True), (0.8, 0, -1.0, 0.2, False))
    for x, action, reward, after, terminated in rows:
        cutree.learn_step(tables, np.array([x]), action, reward, np.array([after]), terminated)
    leaves, worth = cutree._run_value_iteration(tables, 3, 0.5)
    assert leaves.tolist() == [1, 2, 2]
    # V(right) = 10, V(left) = -1 + 5 = 4; going back is worth -1 + 2. Action 0 was never taken on the left.
    np.testing.assert_allclose(tables.tree.q[1:3], [[4.0, 4.0], [1.0, 10.0]])
    np.testing.assert_allclose(worth, [4.0, 10.0, 1.0])


# -- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", MODULES)
@pytest.mark.parametrize("budget", [300, 2000])
def test_a_budget_is_kept_and_every_step_counted(method, budget):
    Counting.taken = 0
    run = custard.learn(Counting, method, budget=budget, max_depth=2)
    assert run.steps == Counting.taken
    assert run.steps <= budget + LONGEST
    assert run.tree.depth <= 2


@pytest.mark.parametrize("method", MODULES)
def test_the_same_seed_gives_the_same_tree_also_after_a_break(method):
    module = MODULES[method]

    def snapshots(env, state=None):
        settings = module.Settings(budget=30_000 if isinstance(env, str) else 10_000, epsilon_steps=1000)
        return module.solve(problem_of(env, 3), settings, state)

    for env in ("custard/RobotNav-v0", Counting):
        whole = list(snapshots(env))
        assert len(whole) > 1
        first = next(snapshots(env))
        rest = list(snapshots(env, first.state()))
        assert [(s.steps, s.tree, str(s.value), s.final) for s in rest] == [
            (s.steps, s.tree, str(s.value), s.final) for s in whole[1:]
        ]
        assert whole[-1].message == "budget used"
        assert list(snapshots(env, whole[-1].state())) == []


@pytest.mark.parametrize("method", MODULES)
def test_the_best_return_is_found_on_prereq_world(method):
    """The best return for m = 7 is -4, and learning action values in the leaves of a tree finds it."""
    run = custard.learn("custard/PrereqWorld-v0", method, env_kwargs={"m": 7}, budget=400_000)
    assert run.value == -4.0
    assert run.steps <= 401_000


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("pyeatt", {"split_test": "tt"}, "unknown split test"), ("cutree", {"split_test": "k"}, "did you mean 'ks'"),
        ("cqi", {"alpha": 2.0}, "alpha"), ("cqi", {"thresholds_per_feature": 0}, "thresholds_per_feature"),
        ("utree", {"fringe": 3}, "1 or 2"),
    ],
)  # fmt: skip
def test_bad_settings(method, settings, message):
    with pytest.raises(custard.CustardError, match=message):
        custard.learn("CartPole-v1", method, **settings)


def test_vectors_of_actions_are_refused():
    with pytest.raises(custard.CustardError, match="cqi needs discrete actions"):
        custard.learn("Pendulum-v1", "cqi", budget=100)
