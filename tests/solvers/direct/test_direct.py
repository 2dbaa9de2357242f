"""Direct search over trees: known answers, budgets kept, the same with any number of workers, resumed from anywhere."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.actions import Actions
from custard.core.features import Features
from custard.core.spaces import describe
from custard.experts.direct_search import DirectSearchSettings
from custard.solvers import direct, tpi
from custard.solvers.common.evolve import Arm, parametrise
from custard.solvers.common.linear_trees import (
    coefficients,
    linear_tree,
    with_few_terms,
    with_named_sums,
    with_random_split,
    with_rounded_numbers,
    without_coefficients,
)
from custard.solvers.common.mutations import trees_without_one_split, ways_to_close, with_split_leaves, without_splits
from custard.solvers.common.race import BudgetUsed, Racer, number_count
from custard.task.budget import rounded_budget
from custard.task.episodes import EpisodeRequest, InProcess
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem
from custard.task.source import source
from custard.tree.shape import LEFT, RIGHT, Split, build_tree, shape_of
from custard.tree.tree import Tree
from tests.experts.test_linear import Choose, Steer
from tests.task.test_workers import Walk

RNG = np.random.default_rng(0)
FEATURES = Features(("a", "b", "c"), [-3] * 3, [3] * 3)
X = RNG.normal(size=(2000, 3))


def problem_of(env, **more):
    where = source(env)
    return Problem(where, describe(where.make()), workers=0, **more)


def test_a_real_valued_task_has_one_linear_leaf():
    run = custard.learn(Steer, seed=1, budget=40_000, workers=0)
    tree = run.tree
    assert tree.n_leaves == 1
    assert tree.gains is not None
    assert tree.gains[0, 0, 0] == pytest.approx(-0.1, abs=0.04)  # the best push is -x, and the feature is 10 x
    assert custard.evaluate(tree, Steer, 200, seed=5).mean > -1.3


def test_constant_leaves_and_plain_tests_where_asked_for():
    run = custard.learn(Steer, seed=1, budget=40_000, workers=0, leaves="constant", max_leaves=8)
    assert run.tree.gains is None
    assert 1 < run.tree.n_leaves <= 8
    assert custard.evaluate(run.tree, Steer, 200, seed=5).mean > -2.5  # doing nothing: -6
    assert not run.tree.features.derived


def test_discrete_actions_with_sums_and_without():
    for tests in ("linear", "axis"):
        found = [
            custard.learn(Choose, seed=seed, budget=20_000, workers=0, tests=tests, max_depth=3).tree
            for seed in (1, 2, 3)
        ]
        assert all(tree.depth <= 3 for tree in found)
        assert np.mean([custard.evaluate(tree, Choose, 200, seed=5).mean for tree in found]) > -2.3
        assert all(bool(tree.n_coefficients) <= (tests == "linear") for tree in found)


@pytest.mark.parametrize("given", [{"tests": "axis"}, {"tests": "linear"}, {"expert": "none", "tests": "axis"}])
def test_a_run_goes_on_from_every_snapshot(given):
    settings = direct.Settings(budget=8000, **given)
    whole = list(direct.solve(problem_of(Choose), settings))
    for one in whole[::3]:
        again = list(direct.solve(problem_of(Choose), settings, one.state()))[-1]
        assert (again.tree, again.value, again.steps) == (whole[-1].tree, whole[-1].value, whole[-1].steps)


def test_a_run_whose_leaves_are_split_goes_on_from_every_snapshot():
    settings = direct.Settings(budget=20_000, tests="axis", leaves="constant", max_leaves=8)
    whole = list(direct.solve(problem_of(Steer), settings))
    refining = [one for one in whole if one.message.startswith("refining")]
    assert len(refining) > 1
    for one in refining[::3]:
        again = list(direct.solve(problem_of(Steer), settings, one.state()))[-1]
        assert (again.tree, again.value, again.steps) == (whole[-1].tree, whole[-1].value, whole[-1].steps)


def test_phases_are_named_and_no_time_is_foretold_before_networks():
    made = problem_of("CartPole-v1")
    found = list(direct.solve(made, direct.Settings(budget=20_000)))
    assert {"searching an expert", "imitating the expert", "racing trees", "judging"} <= {one.message for one in found}
    assert not any("inf" in one.message for one in found)
    begins = next(k for k, one in enumerate(found) if one.message == "imitating the expert")
    assert not any(one.is_foreseeable for one in found[:begins])  # compiled steps take no time beside what follows
    assert all(one.is_foreseeable for one in found[begins:])
    assert {one.end_without_progress for one in found} == {20_000}


def test_workers_change_nothing():
    runs = [custard.learn(Choose, seed=2, budget=8000, workers=workers, tests="axis") for workers in (0, 1, 3)]
    assert all((run.tree, run.value, run.steps) == (runs[0].tree, runs[0].value, runs[0].steps) for run in runs)


@pytest.mark.parametrize("budget", [50, 500, 3000, 20_000])
@pytest.mark.parametrize("env", [Steer, Choose])
def test_the_budget_is_kept(env, budget):
    run = custard.learn(env, seed=0, budget=budget, workers=0, expert="linear")
    assert run.steps <= budget + 10  # an episode has ten steps
    assert np.isfinite(run.value)


def test_a_search_for_numbers_goes_on_as_it_began():
    problem = problem_of(Choose)
    tree = Tree.stump(0, 2.0, 2, 0, problem.base.features, problem.base.actions)
    settings = DirectSearchSettings(2000, population=8, episodes=1, judge_every=2, judge_episodes=5, final_episodes=5)
    arm, met = Arm.begin(tree, 1, 2), RNG.normal(size=(100, 2))
    racer = Racer(InProcess(problem.source.make(), problem.base), 0, None, 10**9)
    list(arm.improve(racer, settings, met))
    found = arm.tree
    assert found != tree
    assert arm.steps <= 2100
    list(arm.improve(racer, settings, met))  # no steps are left, so the same centres are judged again
    assert arm.tree == found


def test_a_racer_stops_at_its_limit():
    problem = problem_of(Choose)
    racer = Racer(InProcess(problem.source.make(), problem.base), 0, None, 35)
    tree = Tree.leaf(1, problem.base.features, problem.base.actions)
    with pytest.raises(BudgetUsed):
        racer.run([EpisodeRequest(tree, np.arange(10))])
    assert 35 <= racer.steps < 45


def test_the_value_shown_is_of_episodes_that_chose_nothing():
    differences = []
    for seed in range(8):
        run = custard.learn(Choose, seed=seed, budget=3000, workers=0, tests="axis")
        differences.append(run.value - custard.evaluate(run.tree, Choose, 300, seed=99).mean)
    error = np.std(differences) / np.sqrt(len(differences))
    assert abs(np.mean(differences)) < 3 * error + 0.02


# -- trees of linear policies ----------------------------------------------------------------------------------------


def linear_policy(n_actions):
    return LinearPolicy(
        RNG.normal(size=(n_actions, 3)), RNG.normal(size=n_actions), Actions("discrete", tuple("vwxyz"[:n_actions]))
    )


@pytest.mark.parametrize("n_actions", [1, 2, 3, 4, 5])
def test_a_tournament_acts_as_its_scores_do(n_actions):
    policy = linear_policy(n_actions)
    tree = linear_tree(policy, FEATURES, X)
    taken = np.unique(policy.predict(X), return_counts=True)[1] > 4  # rare actions take no part
    assert tree.n_leaves == 2 ** (taken.sum() - 1)
    assert (tree.predict(X) == policy.predict(X)).mean() > 0.99


def test_coefficients_can_be_dropped_those_first_that_matter_least():
    tree = with_named_sums(linear_tree(linear_policy(3), FEATURES, X))
    found = coefficients(tree, X)
    assert len(found) == tree.n_coefficients
    for count in (1, 3):
        fewer = without_coefficients(tree, found[:count], X)
        assert number_count(fewer) < number_count(tree)
    agreement = [
        (without_coefficients(tree, [each], X).predict(X) == tree.predict(X)).mean() for each in (found[0], found[-1])
    ]
    assert agreement[0] > agreement[1]
    everything = without_coefficients(tree, found, X)  # of each sum one term stays, which makes it a plain test
    assert everything.n_coefficients == 0


def test_a_leaf_without_a_coefficient_keeps_its_mean_action():
    actions = Actions("box", ("push",), low=[-9], high=[9])
    tree = linear_tree(LinearPolicy(np.array([[0.5, -0.2, 0.01]]), np.array([0.1]), actions), FEATURES, X + 3.0)
    found = coefficients(tree, X)
    assert [each.feature for each in found] == [2, 1, 0]
    fewer = without_coefficients(tree, found[:2], X)
    assert fewer.n_coefficients == 1
    assert fewer.predict(X).mean() == pytest.approx(tree.predict(X).mean())


def test_sums_and_leaves_may_be_limited_to_a_few_features():
    tree = linear_tree(linear_policy(4), FEATURES, X)
    short = with_few_terms(tree, X, 2, None)
    assert max(len(entry.terms) for entry in short.features.derived) == 2
    assert with_few_terms(tree, X, 3, None) is tree
    actions = Actions("box", ("u", "v"), low=[-9] * 2, high=[9] * 2)
    vectors = linear_tree(LinearPolicy(RNG.normal(size=(2, 3)), np.zeros(2), actions), FEATURES, X)
    assert (np.count_nonzero(with_few_terms(vectors, X, None, 1).gains, axis=2) == 1).all()


@pytest.mark.parametrize("tests", ["linear:0", "linear:", "linear:x", "axis:2", "linear:-1", "linear:1:2"])
def test_a_limit_that_is_no_number_is_one_line(tests):
    with pytest.raises(custard.CustardError, match="linear:k"):
        custard.learn(Choose, budget=1000, tests=tests)


def test_a_search_keeps_the_limit_of_features_per_sum():
    run = custard.learn("CartPole-v1", "direct", budget=20_000, seed=1, tests="linear:2", workers=0)
    assert all(len(entry.terms) <= 2 for entry in run.tree.features.derived)


class AtTheBound(gym.Env):
    """Two forces: the first is best at its bound, the second follows the position."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.x = 0, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, {}

    def step(self, action):
        reward = float(action[0]) - float(abs(action[1] - self.x[0]))
        self.steps, self.x = self.steps + 1, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, reward, False, self.steps == 3, {}


def test_a_leaf_that_lost_its_gains_stays_within_the_bounds():
    run = custard.learn(AtTheBound, "direct", budget=10_000, seed=0, workers=0)
    assert run.tree.predict(np.zeros((1, 1)))[0, 0] <= 1.0
    actions = Actions("box", ("push",), low=[-0.436], high=[0.436])
    leaf = linear_tree(LinearPolicy(np.array([[0.5, 0.0, 0.0]]), np.array([3.0]), actions), FEATURES, X)
    constant = without_coefficients(leaf, coefficients(leaf, X), X)
    assert with_rounded_numbers(constant, 2).value.tolist() == [[0.436]]
    moved, size = parametrise(constant, X)
    assert moved(np.ones(size)).value.tolist() == [[0.436]]


@pytest.mark.parametrize(
    "given", [{"tests": "linear", "leaves": "constant"}, {"tests": "linear:2", "leaves": "constant"}]
)
def test_settings_that_leave_nothing_to_search_are_one_line(given):
    with pytest.raises(custard.CustardError, match="linear tests need leaves that are linear too"):
        custard.learn(AtTheBound, "direct", budget=1000, **given)


def test_a_comparison_without_challengers_changes_nothing():
    problem = problem_of(Choose)
    racer = Racer(InProcess(problem.source.make(), problem.base), 0, None, 10**6)
    tree = Tree.leaf(1, problem.base.features, problem.base.actions)
    racer.screen([tree], 4)
    before = racer.recent_length, racer.steps
    assert not racer.simplest(tree, [], 8, 0.0).is_new
    racer.run([])
    assert (racer.recent_length, racer.steps) == before


def test_a_user_expert_keeps_the_budget():
    def scores(x):
        return np.stack([-(x[:, 2] + x[:, 3]), x[:, 2] + x[:, 3]], axis=1)

    run = custard.learn("CartPole-v1", "direct", budget=3000, seed=0, workers=0, expert=scores)
    assert run.steps <= 3000 + 500


def test_rounded_numbers_have_few_digits():
    tree = with_named_sums(linear_tree(linear_policy(3), FEATURES, X))
    short = with_rounded_numbers(tree, 2)
    assert all(weight == float(f"{weight:.2g}") for entry in short.features.derived for _, weight in entry.terms)
    assert (short.predict(X) == tree.predict(X)).mean() > 0.9


class Noisy(gym.Env):
    """One step: the action is worth its number, with noise."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        return np.zeros(1, dtype=np.float32), float(action) + self.np_random.normal(), True, False, {}


@pytest.mark.parametrize(("tolerance", "wins"), [(1.3, True), (0.7, False)])
def test_a_simpler_tree_wins_only_where_it_loses_no_more_than_tolerated(tolerance, wins):
    problem = problem_of(Noisy)
    racer = Racer(InProcess(problem.source.make(), problem.base), 3, None, 10**9)
    features, actions = problem.base.features, problem.base.actions
    large = Tree.stump(0, 0.5, 2, 0, features, actions)
    simple = Tree.leaf(1, features, actions)
    winner = racer.simplest(large, [simple], 32, tolerance)
    assert winner.is_new == wins
    assert winner.tree == (simple if wins else large)
    assert winner.gain == pytest.approx(-1.0 if wins else 0.0, abs=0.3)


def test_a_sum_of_one_feature_is_a_plain_test():
    policy = LinearPolicy(np.array([[1.0, 0, 0], [-1.0, 0, 0]]), np.zeros(2), Actions("discrete", ("v", "w")))
    tree = with_named_sums(linear_tree(policy, FEATURES, X))
    assert tree.n_coefficients == 0
    assert tree.features.n == 3
    assert (tree.predict(X) == policy.predict(X)).all()


def test_a_grown_tree_acts_as_before():
    actions = Actions("box", ("push",), low=[-1], high=[1])
    tree = linear_tree(LinearPolicy(np.array([[0.5, -0.2, 0.0]]), np.array([0.1]), actions), FEATURES, X)
    for _ in range(3):
        larger = with_random_split(tree, X, RNG, max_depth=9)
        assert larger.n_leaves == tree.n_leaves + 1
        np.testing.assert_array_equal(larger.predict(X), tree.predict(X))
        tree = larger


def test_splits_that_give_way_to_a_branch():
    shape = Split(0, 0.0, Split(1, 1.0, 0, 1), Split(2, 2.0, 2, Split(0, 3.0, 0, 1)))
    tree = build_tree(shape, FEATURES, Actions("discrete", ("x", "y", "z")))
    ways = ways_to_close(tree)
    assert len(ways) == 8
    first, second, third = (int(np.flatnonzero((tree.feature == c) & (tree.threshold == t))[0])
                            for c, t in ((0, 0.0), (1, 1.0), (0, 3.0)))  # fmt: skip
    closed = without_splits(tree, {second: RIGHT, third: LEFT})
    assert shape_of(closed) == Split(0, 0.0, 1, Split(2, 2.0, 2, 0))
    assert shape_of(without_splits(tree, {first: RIGHT, second: LEFT})) == shape.right
    assert without_splits(tree, {}) == tree
    assert sorted(str(each) for each in trees_without_one_split(tree)) == sorted(
        str(without_splits(tree, {node: side})) for node, side in ways
    )


def test_a_pendulum_needs_more_than_one_linear_leaf():
    settings = direct.Settings(budget=6_000_000, leaves="linear", expert="linear")
    whole = list(direct.solve(problem_of("Pendulum-v1"), settings))
    tree = whole[-1].tree
    assert 2 <= tree.n_leaves <= 4
    assert custard.evaluate(tree, "Pendulum-v1", 200, seed=5).mean > -250  # one linear leaf: about -800
    racing = [one for one in whole if one.message.startswith("racing trees with linear leaves")]
    again = list(direct.solve(problem_of("Pendulum-v1"), settings, racing[len(racing) // 2].state()))[-1]
    assert (again.tree, again.value, again.steps) == (tree, whole[-1].value, whole[-1].steps)


@pytest.mark.parametrize(("max_depth", "leaves"), [(9, 7), (2, 4), (1, 2)])
def test_split_leaves_act_as_before_and_share_the_states(max_depth, leaves):
    tree = Tree.stump(1, 0.5, [0.25], [0.75], FEATURES, Actions("box", ("push",), low=(0.0,), high=(1.0,)))
    larger = with_split_leaves(tree, np.random.default_rng(3), X, 5, max_depth)
    assert (larger.n_leaves, larger.depth <= max_depth) == (leaves, True)
    assert np.array_equal(larger.predict(X), tree.predict(X))
    if leaves == 7:
        visits = np.unique(larger.apply(X), return_counts=True)[1]
        assert len(visits) == 7
        assert visits.max() <= 0.25 * len(X)  # each time the leaf that most states reach was halved


def test_parameters_of_zero_are_the_tree_itself_and_each_moves_something():
    actions = Actions("box", ("u", "v"), low=[-9] * 2, high=[9] * 2)
    vectors = with_random_split(
        linear_tree(LinearPolicy(RNG.normal(size=(2, 3)), np.zeros(2), actions), FEATURES, X), X, RNG, 9
    )
    vectors = replace(vectors, value=RNG.normal(size=vectors.value.shape))
    for tree in (linear_tree(linear_policy(3), FEATURES, X), vectors):
        moved, size = parametrise(tree, X, moves_sums=True)
        np.testing.assert_array_equal(moved(np.zeros(size)).predict(X), tree.predict(X))
        for k in range(size):
            assert (moved(3.0 * np.eye(size)[k]).predict(X) != tree.predict(X)).any()


# -- settings --------------------------------------------------------------------------------------------------------


def test_settings_that_do_not_fit_are_one_line():
    with pytest.raises(custard.CustardError, match="linear leaves need real-valued"):
        custard.learn(Choose, budget=1000, leaves="linear")
    with pytest.raises(custard.CustardError, match="tests"):
        custard.learn(Choose, budget=1000, tests="crooked")
    with pytest.raises(custard.CustardError, match=r"'thresholds_per_feature' is not read here.*max_leaves"):
        custard.learn(Choose, budget=1000, thresholds_per_feature=5)
    with pytest.raises(custard.CustardError, match="a budget or a time, not both"):
        custard.learn(Choose, budget=1000, time="1m")


def test_a_time_becomes_steps_once(tmp_path):
    run = custard.learn(Choose, time=0.5, workers=0, out=tmp_path / "run", tests="axis")
    budget = run.config["settings"]["budget"]
    assert budget == rounded_budget(budget)
    assert run.steps <= budget + 10
    again = custard.learn(Choose, time=0.5, workers=0, out=tmp_path / "run", tests="axis", resume=True)
    assert again.config["settings"]["budget"] == budget


def test_which_environments_are_searched_directly():
    def searches(env, **given):
        return tpi.searches_directly(replace(problem_of(env)), tpi.Settings(**given))

    assert searches(Choose)
    assert not searches(lambda: gym.make("FrozenLake-v1"))  # few states: a table
    assert searches(lambda: gym.make("FrozenLake-v1"), tests="linear")
    assert not searches("CartPole-v1")
    assert searches("CartPole-v1", expert="linear")


def test_episodes_that_become_longer_while_a_tree_is_judged_end_the_judging():
    run = custard.learn(Walk, "direct", budget=3000, seed=1, workers=0, expert="none", max_leaves=4)
    assert run.steps <= 3000 + 30  # an episode has at most thirty steps
    assert np.isfinite(run.value)


class Patience(gym.Env):
    """Action 0 ends the episode with 1; action 1 waits, and earns 2 at the third step."""

    observation_space, action_space = gym.spaces.Box(0, 3, (1,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self.t += 1
        reward = 1.0 if action == 0 else 2.0 * (self.t == 3)
        return np.full(1, self.t, dtype=np.float32), reward, action == 0 or self.t == 3, False, {}


@pytest.mark.parametrize("method", ["direct", "tpi"])
def test_a_discount_decides_what_is_best(method):
    # Waiting earns 2 γ² against 1: it is worth it above γ = 0.71. Waiting twice, then ending, earns γ² alone.
    for gamma, first, value in ((1.0, 1, 2.0), (0.9, 1, 1.62), (0.5, 0, 1.0)):
        run = custard.learn(Patience, method, budget=2000, workers=0, tests="axis", gamma=gamma)
        assert run.tree.act(np.zeros(1)) == first
        assert run.value == pytest.approx(value)
        assert custard.evaluate(run.tree, Patience, 3, gamma=gamma).mean == pytest.approx(value)
    with pytest.raises(custard.CustardError, match="gamma must be above 0"):
        custard.learn(Patience, "direct", gamma=0.0)


@pytest.mark.parametrize(("depth", "leaves"), [(1, None), (2, None), (None, 2), (None, 3), (0, None)])
def test_a_tournament_keeps_the_limits_of_a_tree(depth, leaves):
    tree = custard.learn(
        Choose, seed=1, budget=6000, workers=0, tests="linear", max_depth=depth, max_leaves=leaves
    ).tree
    assert tree.depth <= (99 if depth is None else depth)
    assert tree.n_leaves <= (leaves or 99)
