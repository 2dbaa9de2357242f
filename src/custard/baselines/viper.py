"""VIPER (Bastani et al. 2018): imitate an expert with a decision tree, on the states that the tree itself visits.

DAgger: the expert drives the first batch of rollouts, the latest tree all further ones; every visited state is labelled
with the expert's action and weighted by the loss of the worst action, V(s) - min_a Q(s, a). CART is fitted to all of
them, and the tree that does best on validation rollouts is kept; the value shown is its mean over other rollouts, which
chose nothing. The paper's appendix gives the numbers. With `choose="moet"` this is VIPER+ (Vasic et al. 2019): of trees
with the same return the one that is most like the expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from custard.baselines.dagger import WEIGHTS, Mispredictions, Rollouts, expert_training, state_weights
from custard.core.errors import CustardError, one_of, require_least
from custard.experts.expert import Expert
from custard.experts.kinds import experts
from custard.task.problem import Problem, Snapshot
from custard.task.source import episode_seeds
from custard.tree.export.sklearn import from_sklearn
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]

CRITERIA = ("gini", "entropy", "log_loss")
CHOICES = ("smaller", "moet")

# Where a budget is given, what the expert leaves of it is divided: a share for validation rollouts, planned for this
# many iterations, and a share for the final rollouts of one tree. A share of the budget itself is kept for the rollouts
# that only judge the tree that was chosen.
VALIDATION_SHARE, PLANNED_ITERATIONS, FINAL_SHARE, JUDGING_SHARE = 0.5, 20, 0.125, 0.05
MAX_JUDGING_ROLLOUTS = 200


@dataclass(frozen=True)
class Settings:
    """Settings of VIPER; the paper's appendix names the first six."""

    batch_rollouts: int = 10  # rollouts per iteration
    max_samples: int = 200_000  # states a tree is fitted to, at most; drawn at random if there are more
    iterations: int = 300  # at most
    train_share: float = 0.8  # share of the states for fitting; the rest measures agreement with the expert
    test_rollouts: int = 50  # validation rollouts per tree
    max_leaves: int | None = None  # leaf limit (the depth limit is the problem's)
    patience: int | None = 40  # iterations without a better tree before stopping; None: never stop
    final_rollouts: int = 500  # rollouts for a tree that did about as well as the best; 0: none
    slack: float = 0.002  # how far below the best validation return a tree still gets those, as a share of it
    choose: str = "smaller"  # of equal returns, fewest leaves; "moet": fewest mispredictions, no final_rollouts
    weights: str = "auto"  # "q": V - min Q; "policy": the same of log-probabilities; "none"; "auto": the first possible
    resample: bool = False  # draw states by weight instead of weighting them in CART
    criterion: str = "gini"  # CART's impurity: gini, entropy or log_loss
    min_leaf: int = 1  # states in a leaf, at least
    variants: bool = True  # also fit by the other impurity and to states drawn by weight; validation chooses
    leaf_ladder: bool = False  # also fit trees of 2, 4, 8, … leaves; validation chooses
    expert: str | Callable[..., Any] = "dqn"  # "dqn", "linear", "bi", a file or a function (`custard.experts.kinds`)
    expert_preset: str = "tuned"  # preset of the DQN expert
    expert_settings: dict[str, Any] = field(default_factory=dict)  # settings of the DQN expert over its preset's
    expert_out: str | None = None  # file in which to save the trained DQN expert (.npz)
    normalise: str | None = None  # file of VecNormalize statistics of a Stable-Baselines3 expert
    ties: str = "random"  # how backward induction chooses among equally good actions: first, random or downstream
    budget: int | None = None  # environment steps, the expert's included; None: no limit

    def __post_init__(self) -> None:
        if not 0.0 < self.train_share <= 1.0:
            raise CustardError(f"train_share={self.train_share} must lie in (0, 1]")
        require_least(self, 1, "batch_rollouts", "max_samples", "iterations", "test_rollouts")
        if self.max_leaves is not None and self.max_leaves < 2:
            raise CustardError(f"max_leaves={self.max_leaves} must be at least 2, or None")
        if self.choose not in CHOICES:
            raise CustardError(one_of("choice", self.choose, CHOICES))
        if self.weights not in WEIGHTS:
            raise CustardError(one_of("weighting", self.weights, WEIGHTS))
        if self.criterion not in CRITERIA:
            raise CustardError(one_of("criterion", self.criterion, CRITERIA))


_PAPER = {"patience": None, "final_rollouts": 0, "variants": False, "expert_preset": "paper"}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {
        "": {},
        # Rollouts of the compiled environment are cheap, and a tree that falls once in a thousand is not good enough.
        "CartPole": {"test_rollouts": 200, "final_rollouts": 5000},
        "PotholeWorld": {"ties": "downstream", "iterations": 60, "patience": 20, "leaf_ladder": True},
    },
    "paper": {"": _PAPER, "PotholeWorld": {"ties": "downstream"}},
}


def solve(problem: Problem, settings: Settings, state: Any = None) -> Iterator[Snapshot]:
    """Train or load the expert, then imitate it; yield at every check of the expert and every iteration."""
    problem.require_discrete_actions("VIPER")
    seeds = problem.seeds("expert", "rollouts", "validation", "final", "judging", "fit")
    steps, expert = 0, None
    for item in experts(
        problem, settings.expert, expert_training(problem, settings), seeds["expert"], ties=settings.ties,
        normalise=settings.normalise, out=settings.expert_out,
    ):  # fmt: skip
        if isinstance(item, Expert):
            expert = item
        else:
            steps, metrics = item.steps, {"expert": item.value}
            message = "training the expert"
            yield Snapshot(steps, None, float("nan"), settings.budget, metrics, message=message, slow_until=np.inf)
    assert expert is not None
    weigh = state_weights(expert, settings.weights)
    budget = (1.0 - JUDGING_SHARE) * (settings.budget or np.inf)  # for choosing
    runner = Rollouts(problem, steps + problem.probe_steps, problem.episode_cap(budget), budget)
    rng = np.random.default_rng(seeds["fit"])
    batch = int(min(settings.batch_rollouts, max(2, budget / 2000)))
    batch_seeds = episode_seeds(seeds["rollouts"], settings.iterations * batch)
    test_seeds = episode_seeds(seeds["validation"], settings.test_rollouts)
    is_moet = settings.choose == "moet"
    final_seeds = episode_seeds(seeds["final"], 0 if is_moet else settings.final_rollouts)
    judging_seeds, judged_tree, judged = episode_seeds(seeds["judging"], MAX_JUDGING_ROLLOUTS), None, np.zeros(0)
    x, action, weight = np.zeros((0, problem.base.features.n)), np.zeros(0, dtype=np.int64), np.zeros(0)
    best, best_return, best_test_return = None, -np.inf, -np.inf
    best_rank = (-np.inf, -np.inf, -np.inf)  # return, mispredictions if they count, leaves; the last two negative
    latest: Tree | None = None
    iterations_without_progress = 0
    expert_steps = runner.steps
    for iteration in range(settings.iterations):
        visited = runner.visited_states(expert if latest is None else latest, batch_seeds[iteration * batch :][:batch])
        x = np.concatenate([x, visited])
        action = np.concatenate([action, expert.act(visited)])
        weight = np.concatenate([weight, weigh(visited)])
        trees, agreement = _fit(problem, settings, x, action, weight, rng)
        latest = trees[0]
        if iteration == 0:
            affordable = (budget - runner.steps) / (len(visited) / batch)  # rollouts as long as these
            test_seeds = _first(test_seeds, VALIDATION_SHARE * affordable / (PLANNED_ITERATIONS * len(trees)))
            final_seeds = _first(final_seeds, FINAL_SHARE * affordable)
        iterations_without_progress += 1
        for tree in trees:
            if best is not None and runner.steps >= budget:
                break
            watched = Mispredictions(tree, expert)
            mean = runner.mean_return(watched if is_moet else tree, test_seeds, is_needed=best is None)
            if mean is None:  # the budget is used
                break
            if mean < best_test_return - settings.slack * abs(best_test_return):
                continue
            best_test_return = max(best_test_return, mean)
            if len(final_seeds):  # the highest of many means of few rollouts is too good to be true
                longer = runner.mean_return(tree, final_seeds)
                mean = mean if longer is None else longer
            rank = (round(mean, 9), -watched.share, -tree.n_leaves)
            if best is None or rank > best_rank:
                best, best_return, best_rank, iterations_without_progress = tree, mean, rank, 0
        if best is not None and best is not judged_tree:
            judged_tree, judged = best, runner.returns(best, judging_seeds[: len(test_seeds)])
        metrics = {"iteration": iteration, "samples": len(x), "agreement": agreement, "validation": best_test_return}
        if is_moet:
            metrics["mispredictions"] = -best_rank[1]
        value, facts = _value(judged, best_return)
        message = f"expert: {expert.name}"
        iterations = min(
            settings.iterations - iteration - 1, (settings.patience or np.inf) - iterations_without_progress
        )
        quiet_end = runner.steps + iterations * (runner.steps - expert_steps) / (iteration + 1)
        yield Snapshot(
            runner.steps, best, value, settings.budget, {**metrics, **facts}, message=message, quiet_end=quiet_end
        )
        if settings.patience is not None and iterations_without_progress >= settings.patience:
            break
        if runner.steps >= budget:
            break
    runner.budget = settings.budget or np.inf
    if best is not None:
        judged = np.concatenate([judged, runner.returns(best, judging_seeds[len(judged) :])])
    value, facts = _value(judged, best_return)
    message = f"{iteration + 1} iterations, expert: {expert.name}"
    yield Snapshot(runner.steps, best, value, settings.budget, {"iteration": iteration, **facts}, message=message)


def _value(judged: np.ndarray, chosen_by: float) -> tuple[float, dict[str, float]]:
    """Return what to show of a tree's judging returns: their mean, and its standard error and number as metrics.

    Where the budget allowed none, it is the mean by which the tree was chosen.
    """
    if not len(judged):
        return chosen_by, {}
    error = float(judged.std(ddof=1)) / np.sqrt(len(judged)) if len(judged) > 1 else np.nan
    return float(judged.mean()), {"judged": float(len(judged)), "error": float(error)}


def _first(seeds: np.ndarray, count: float) -> np.ndarray:
    """Return the first `count` seeds, at least two."""
    return seeds[: max(2, int(min(count, len(seeds))))]


def _fit(
    problem: Problem,
    settings: Settings,
    x: np.ndarray,
    action: np.ndarray,
    weight: np.ndarray,
    rng: np.random.Generator,
) -> tuple[list[Tree], float]:
    """Fit CART trees to labelled states; return them, and how often the first agrees with the expert on other states.

    x, action, weight: [N, n], [N] and [N], the states, the expert's actions there, and how much they count
    """
    from sklearn.tree import DecisionTreeClassifier

    features, actions = problem.base.features, problem.base.actions
    index = np.arange(len(x))
    if len(x) > settings.max_samples:
        index = rng.choice(len(x), size=settings.max_samples, replace=False)
    else:
        rng.shuffle(index)
    cut = max(1, round(settings.train_share * len(index)))
    train, held_out = index[:cut], index[cut:] if cut < len(index) else index
    condense = _condense if x.shape[1] == 1 and settings.min_leaf == 1 else lambda *rows: rows
    weighted = drawn = condense(x[train], action[train], weight[train])
    if settings.resample or settings.variants:
        again = rng.choice(train, size=len(train), p=weight[train] / weight[train].sum())
        drawn = condense(x[again], action[again], np.ones(len(again)))
    main, variant = (drawn, weighted) if settings.resample else (weighted, drawn)
    other_criterion = "entropy" if settings.criterion == "gini" else "gini"
    fits = [(settings.criterion, settings.max_leaves, *main)]
    if settings.variants:
        fits += [(other_criterion, settings.max_leaves, *main), (settings.criterion, settings.max_leaves, *variant)]
    if settings.leaf_ladder:
        max_leaves = settings.max_leaves or 1024
        fits += [(settings.criterion, 2**k, *main) for k in range(1, 11) if 2**k < max_leaves]
    trees = []
    if problem.max_depth == 0:
        votes = np.bincount(action[train], weight[train], minlength=actions.n)
        trees.append(Tree.leaf(int(votes.argmax()) + actions.start, features, actions))
        fits = []
    for criterion, leaves, fit_x, fit_action, fit_weight in fits:
        cart = DecisionTreeClassifier(
            criterion=criterion, max_depth=problem.max_depth, max_leaf_nodes=leaves, min_samples_leaf=settings.min_leaf,
            random_state=int(rng.integers(2**31)),
        )  # fmt: skip
        cart.fit(fit_x, fit_action + actions.start, sample_weight=fit_weight)
        trees.append(simplify(from_sklearn(cart, features, actions)))
    agrees = trees[0].predict(x[held_out]) - actions.start == action[held_out]
    return trees, float(np.average(agrees, weights=weight[held_out]))


def _condense(x: np.ndarray, action: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return fewer rows of one feature to which CART fits the same tree.

    It only ever splits between neighbours with different actions (Fayyad and Irani 1992; an expert has one action per
    state), so of a run with the same action the two at either end suffice. The second carries the weight of all in
    between.

    >>> x, action = np.arange(8.0)[:, None], np.array([0, 0, 0, 0, 0, 0, 1, 1])
    >>> [part.tolist() for part in _condense(x, action, np.ones(8))]
    [[[0.0], [1.0], [4.0], [5.0], [6.0], [7.0]], [0, 0, 0, 0, 1, 1], [1.0, 3.0, 1.0, 1.0, 1.0, 1.0]]
    """
    order = np.argsort(x[:, 0])
    x, action, weight = x[order], action[order], weight[order]
    run = np.concatenate([[0], np.cumsum(action[1:] != action[:-1])])
    place = np.arange(len(x))
    starts = np.flatnonzero(np.diff(run, prepend=-1))
    ends = np.append(starts[1:], len(x))
    kept = (place - starts[run] < 2) | (ends[run] - place <= 2)
    return x[kept], action[kept], np.add.reduceat(weight, np.flatnonzero(kept))
