"""The parts of tree policy iteration, each alone: comparing, proposing, refining, confirming, keeping a state."""

from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.spaces import describe
from custard.solvers.common.checkpoint import from_arrays, to_arrays
from custard.solvers.common.paired import Candidate, compare, is_perfect, paired_gain, run_candidate
from custard.solvers.tpi import candidates
from custard.solvers.tpi.arena import Arena, SearchState
from custard.solvers.tpi.candidates import ActionValues, TreeSpace
from custard.solvers.tpi.search import Settings, solve
from custard.solvers.tpi.simulate import PythonSimulator
from custard.task.problem import Problem
from custard.task.source import source
from custard.tree.leaf_actions import LeafActions
from custard.tree.shape import Split, tree_of
from tests.solvers.tpi.test_tpi import problem

FEATURES = custard.Features(("a", "b"), -np.ones(2), np.ones(2))
ACTIONS = custard.Actions("discrete", ("left", "right"))
BLANK = custard.Tree.leaf(0, FEATURES, ACTIONS)
SPACE = TreeSpace(BLANK, LeafActions(ACTIONS), depth=2, max_leaves=candidates.DEFAULT_MAX_LEAVES)


def sign_of(x):
    """The best action in states [N, 2]: right, where the first feature is positive."""
    return (x[:, 0] > 0).astype(int)


@dataclass
class Guess:
    """Episodes of ten draws, one point for each in which the tree says `sign_of`."""

    steps: int = 0
    max_step_reward: float = 1.0
    mean_episode_length: float = 10.0
    is_exact: bool = False
    is_compiled: bool = False
    ran: list = field(default_factory=list)

    @property
    def max_return(self):
        return 10.0 * self.max_step_reward

    def returns(self, tree, seeds, noise=0.0):
        self.steps += 10 * len(seeds)
        self.ran.append(len(seeds))
        x = [np.random.default_rng(seed).uniform(-1, 1, (10, 2)) for seed in seeds.tolist()]
        return np.array([float((tree.predict(one) == sign_of(one)).sum()) for one in x])

    def visited_states(self, tree):
        return None


def stump(threshold):
    return custard.Tree.stump(0, threshold, 0, 1, FEATURES, ACTIONS)


def test_paired_comparison_keeps_the_better_tree_and_rejects_bad_ones_soon():
    episodes = Guess()
    incumbent = run_candidate(episodes, stump(0.3), np.arange(200))
    better = compare(episodes, stump(0.1), incumbent)
    assert better.tree.threshold[0] == 0.1
    assert better.beats(incumbent)
    assert better.clearly_beats(incumbent)
    gain, error = paired_gain(better.returns, incumbent.returns)
    assert gain == pytest.approx(better.mean - incumbent.mean)
    assert 0 < error < gain
    before = episodes.steps
    kept = compare(episodes, custard.Tree.stump(0, 0.0, 1, 0, FEATURES, ACTIONS), better)
    assert kept.tree is better.tree
    assert episodes.steps - before < 10 * len(better.seeds)  # not all episodes are run
    assert (better.failures == 0).sum() < len(better.failures)  # those of the first comparison are counted,
    assert (kept.failures >= better.failures).all()
    assert (incumbent.failures == 0).all()  # and what was compared is left as it was


def test_of_a_nearly_perfect_tree_the_failures_come_first():
    episodes = Guess()
    incumbent = run_candidate(episodes, stump(0.002), np.arange(1000))
    failing = incumbent.failing_seeds(episodes.max_return)
    assert 0 < len(failing) < 50
    np.testing.assert_array_equal(incumbent.seeds[incumbent.hardest_first(10.0)][: len(failing)], failing)
    episodes.ran.clear()
    compare(episodes, stump(0.004), incumbent)
    assert episodes.ran == [len(failing)]  # nothing is gained there
    perfect = compare(episodes, stump(0.0), incumbent)
    assert perfect.tree.threshold[0] == 0.0
    assert is_perfect(perfect.mean, episodes.max_return)
    assert not len(run_candidate(episodes, stump(0.5), np.arange(100)).failing_seeds(10.0))  # it fails often


def test_fits_find_the_best_tree_and_refit_branches():
    x = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    q = np.eye(2)[sign_of(x)]
    bad = tree_of(Split(1, 0.0, 0, 0), BLANK)
    trees = list(candidates.fit_trees(SPACE, bad, ActionValues(x, q, np.arange(2)), -1e-3, 40))
    assert (trees[0].predict(x) == sign_of(x)).mean() > 0.95
    assert len(trees) == 4  # two depths, two branches
    assert all(tree.feature[0] == 1 for tree in trees[2:])
    assert not list(candidates.fit_trees(SPACE, bad, ActionValues(x[:1], q[:1], np.arange(2)), -1e-3, 40))
    with pytest.raises(custard.CustardError, match="infinite value for feature 'b'"):
        FEATURES.require_finite(np.array([[0.0, np.inf]]))


def test_ranking_keeps_one_tree_for_each_order_of_features():
    trees = [stump(0.5), stump(0.1), custard.Tree.stump(1, 0.0, 0, 1, FEATURES, ACTIONS)]
    ranked = candidates.rank_trees(Guess(), trees, np.arange(80), np.inf, BLANK)
    assert [tree.feature[0] for tree in ranked] == [0, 1, -1]
    assert ranked[0].threshold[0] == 0.1
    assert candidates.rank_trees(Guess(), trees, np.arange(80), 0, BLANK) == [BLANK]  # no steps are left


def test_polishing_improves_a_tree_and_remembers_where_it_fails():
    episodes, rng = Guess(), np.random.default_rng(0)
    start = run_candidate(episodes, stump(0.4), np.arange(100))
    x = np.random.default_rng(1).uniform(-1, 1, (200, 2))
    polished, failing = candidates.polish(
        episodes, start, SPACE, x, rng, 200, np.inf, 1000, np.zeros(0, dtype=np.int64)
    )
    assert polished.mean > 9.9 > start.mean
    assert len(failing) <= candidates.MAX_FAILING_SEEDS
    same, _ = candidates.polish(episodes, start, SPACE, x, rng, 200, 0, 1000, failing)
    assert same is start  # no steps are left


def test_failing_seeds_are_remembered_latest_last():
    seeds = candidates.remember_failing_seeds(np.array([1, 2, 3]), np.array([2, 9]))
    np.testing.assert_array_equal(seeds, [1, 3, 2, 9])
    many = candidates.remember_failing_seeds(seeds, np.arange(100, 200))
    assert len(many) == candidates.MAX_FAILING_SEEDS
    assert many[-1] == 199


def test_confirmation_stops_early_for_a_bad_tree():
    episodes = Guess()
    good = candidates.confirm_perfect(episodes, stump(0.0), np.arange(320), 1e-4)
    assert good.is_perfect
    assert good.mean == 10.0
    assert not len(good.failing_seeds)
    episodes.ran.clear()
    bad = candidates.confirm_perfect(episodes, stump(0.2), np.arange(320), 1e-4)
    assert not bad.is_perfect
    assert len(bad.failing_seeds)
    assert episodes.ran == [20]


def test_judging_shrinks_what_wins():
    large = tree_of(Split(0, 0.0, Split(1, 0.3, 0, 0), Split(0, 0.5, 1, 1)), BLANK)
    verdict = candidates.judge(Guess(), large, stump(0.3), BLANK, np.arange(100), np.inf, is_first=False)
    assert verdict.is_better
    assert verdict.is_progress
    assert verdict.tree == stump(0.0)
    assert verdict.returns_vary
    worse = candidates.judge(Guess(), stump(0.5), stump(0.3), BLANK, np.arange(100), np.inf, is_first=False)
    assert not worse.is_better
    assert worse.tree == stump(0.3)


def test_branches_that_no_episode_takes_go_without_a_step():
    task = problem("CartPole-v1")
    simulator = PythonSimulator(task)
    blank = custard.Tree.leaf(0, task.base.features, task.base.actions)
    tree = tree_of(Split(2, 0.0, Split(0, -2.0, 1, 0), Split(0, 2.0, Split(2, 0.3, 1, 0), 0)), blank)
    candidate = run_candidate(simulator, tree, np.arange(5))
    before = simulator.steps
    small = candidates.shrink(simulator, candidate, blank, max_steps=before)  # no steps are left for smaller trees
    assert small.tree.n_leaves == 2
    assert simulator.steps == before
    assert (simulator.returns(small.tree, candidate.seeds) == candidate.returns).all()


def test_a_search_state_as_arrays():
    state = SearchState(BLANK, stump(0.25), 3, 7, best_return=1.5, is_perfect=True, message="budget used")
    state.failing_seeds = np.array([4, 2])
    again = from_arrays(SearchState, to_arrays(state), BLANK)
    assert (again.start, again.best, again.depth, again.max_leaves) == (BLANK, stump(0.25), 3, 7)
    assert (again.best_return, again.is_perfect, again.message) == (1.5, True, "budget used")
    np.testing.assert_array_equal(again.failing_seeds, [4, 2])
    assert len(again.checked_returns) == 0


class Endless(gym.Env):
    """Nothing ever ends an episode."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        return np.zeros(1, dtype=np.float32), float(action), False, False, {}


def test_an_arena_shortens_episodes_that_never_end():
    where = source(Endless)
    task = Problem(where, describe(where.make_vec(1)), 0)
    blank = custard.Tree.leaf(0, task.base.features, task.base.actions)
    arena = Arena(task, 500_000, None, blank, 0)
    with pytest.warns(UserWarning, match="declares no time limit and random episodes do not end"):
        arena.survey()
    assert arena.never_ends
    assert arena.environment.max_episode_steps == 200
    used = arena.environment.steps
    arena.environment.returns(blank, np.arange(2))
    assert arena.environment.steps == used + 400
    again = Arena(task, 500_000, None, blank, 0)
    again.restore(arena.state())
    assert again.environment.steps == arena.environment.steps
    assert again.environment.max_episode_steps == 200


def test_candidates_beat_others_by_return_then_by_size():
    seeds, zeros = np.arange(3), np.zeros(3, dtype=np.int64)
    small = Candidate(BLANK, seeds, np.ones(3), zeros)
    large = Candidate(stump(0.0), seeds, np.ones(3), zeros)
    assert small.beats(large)
    assert not large.beats(small)
    assert Candidate(stump(0.0), seeds, np.full(3, 2.0), zeros).clearly_beats(small)


def test_a_checkpoint_of_an_earlier_version_is_refused():
    with pytest.raises(custard.CustardError, match="earlier version"):
        next(solve(problem("CartPole-v1"), Settings(budget=1000), {"numbers": np.zeros(13)}))
