"""VIPER (Bastani et al. 2018): imitate an expert with a decision tree, on the states the tree itself meets.

DAgger: the expert drives the first batch of rollouts, the latest tree all further ones; every state met is labelled
with the expert's action and weighted by what the worst action would lose, V(s) - min_a Q(s, a). CART is fitted to all
of them, and the tree that does best on validation rollouts is kept. The paper's appendix gives the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from custard.core.errors import CustardError, one_of, require_least
from custard.experts import dqn
from custard.experts.experts import Expert, experts
from custard.task.evaluate import rollouts
from custard.task.problem import Problem, Snapshot
from custard.task.source import episode_seeds
from custard.tree.export.sklearn import from_sklearn
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]

WEIGHTS = ("auto", "q", "policy", "none")

#: Where a budget is given, shares of what the expert left of it: for validation, in so many iterations; for a tree that
#: did as well as the best.
TESTING, ITERATIONS, FINAL = 0.5, 20, 0.125


@dataclass(frozen=True)
class Settings:
    """Settings of VIPER; the paper's appendix names the first six."""

    batch_rollouts: int = 10  # rollouts in an iteration
    max_samples: int = 200_000  # states a tree is fitted to; a random choice of all if there are more
    iterations: int = 300  # at most
    train_share: float = 0.8  # of the states for fitting; the rest measures agreement with the expert
    test_rollouts: int = 50  # validation rollouts of each tree
    max_leaves: int | None = None  # leaf limit (the depth limit is the problem's own)
    patience: int | None = 40  # stop after so many iterations without a better tree; None: never
    final_rollouts: int = 500  # further rollouts for a tree that did as well as the best; 0: none
    slack: float = 0.002  # how far below the best validation return, as a share of it, a tree still gets those
    weights: str = "auto"  # "q": V - min Q; "policy": the same of log-probabilities; "none"; "auto": the first possible
    resample: bool = False  # draw states by weight instead of weighting them in CART
    criterion: str = "gini"  # CART's impurity: gini, entropy or log_loss
    min_leaf: int = 1  # states in a leaf, at least
    variants: bool = True  # also fit by the other impurity and to states drawn by weight; validation chooses
    leaf_ladder: bool = False  # also fit trees of 2, 4, 8, … leaves; validation chooses
    expert: str | Callable[..., Any] = (
        "dqn"  # "dqn", "bi", a file (.npz ours, .zip Stable-Baselines3) or a function to Q-values
    )
    expert_preset: str = "tuned"  # preset of the DQN expert
    expert_settings: dict[str, Any] = field(default_factory=dict)  # settings of the DQN expert over its preset's
    expert_out: str | None = None  # file to save the trained DQN expert in (.npz)
    normalise: str | None = None  # file of VecNormalize statistics that belongs to a Stable-Baselines3 expert
    ties: str = "random"  # backward induction's rule: first, random or downstream
    budget: int | None = None  # environment steps in all, the expert's included

    def __post_init__(self) -> None:
        if not 0.0 < self.train_share <= 1.0:
            raise CustardError(f"train_share={self.train_share} must lie in (0, 1]")
        require_least(self, 1, "batch_rollouts", "max_samples", "iterations", "test_rollouts")
        if self.max_leaves is not None and self.max_leaves < 2:
            raise CustardError(f"max_leaves={self.max_leaves} must be at least 2, or None")
        if self.weights not in WEIGHTS:
            raise CustardError(one_of("weighting", self.weights, WEIGHTS))
        if self.criterion not in ("gini", "entropy", "log_loss"):
            raise CustardError(one_of("criterion", self.criterion, ("gini", "entropy", "log_loss")))


_PAPER = {"patience": None, "final_rollouts": 0, "variants": False, "expert_preset": "paper"}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {
        "": {},
        # Rollouts of the compiled environment cost little, and a tree that falls once in a thousand is not good enough.
        "CartPole": {"test_rollouts": 200, "final_rollouts": 5000},
        "PotholeWorld": {"ties": "downstream", "iterations": 60, "patience": 20, "leaf_ladder": True},
    },
    "paper": {"": _PAPER, "PotholeWorld": {"ties": "downstream"}},
}


def solve(problem: Problem, settings: Settings, state: Any = None) -> Iterator[Snapshot]:
    """Train or load the expert, then VIPER; yields at every check of the expert and every tree."""
    problem.require_discrete_actions("VIPER")
    seeds = problem.seeds("expert", "rollouts", "validation", "final", "fit")
    steps, expert = 0, None
    for item in experts(
        problem, settings.expert, _training(problem, settings), seeds["expert"], ties=settings.ties,
        normalise=settings.normalise, out=settings.expert_out,
    ):  # fmt: skip
        if isinstance(item, Expert):
            expert = item
        else:
            steps = item.steps
            yield Snapshot(
                steps, None, float("nan"), settings.budget, {"expert": item.value}, message="training the expert"
            )
    assert expert is not None
    weigh = _weighing(expert, settings.weights)
    budget = settings.budget or np.inf
    runner = _Runner(problem, steps + problem.looked, problem.longest(budget))
    rng = np.random.default_rng(seeds["fit"])
    size = int(min(settings.batch_rollouts, max(2, budget / 2000)))
    drive_seeds = episode_seeds(seeds["rollouts"], settings.iterations * size)
    test_seeds = episode_seeds(seeds["validation"], settings.test_rollouts)
    final_seeds = episode_seeds(seeds["final"], settings.final_rollouts)
    x, action, weight = np.zeros((0, problem.base.features.n)), np.zeros(0, dtype=np.int64), np.zeros(0)
    best, value, screen = None, -np.inf, -np.inf  # the best tree, its mean return, and the best on validation rollouts
    tree: Tree | None = None
    since = 0
    for iteration in range(settings.iterations):
        batch = drive_seeds[iteration * size :][:size]
        seen = runner.states(expert if tree is None else tree, batch)
        x = np.concatenate([x, seen])
        action = np.concatenate([action, expert.act(seen)])
        weight = np.concatenate([weight, weigh(seen)])
        fresh, agreement = _fit(problem, settings, x, action, weight, rng)
        tree = fresh[0]
        if iteration == 0:
            affordable = (budget - runner.steps) / (len(seen) / size)  # rollouts as long as these
            test_seeds = _some(test_seeds, TESTING * affordable / (ITERATIONS * len(fresh)))
            final_seeds = _some(final_seeds, FINAL * affordable)
        since += 1
        for candidate in fresh:
            if best is not None and runner.steps >= budget:
                break
            mean = runner.mean(candidate, test_seeds)
            if mean < screen - settings.slack * abs(screen):
                continue
            screen = max(screen, mean)
            if len(final_seeds):  # a mean of few rollouts that is the highest of many is too good to be true
                mean = runner.mean(candidate, final_seeds)
            if best is None or (round(mean, 9), -candidate.n_leaves) > (round(value, 9), -best.n_leaves):
                best, value, since = candidate, mean, 0
        metrics = {"iteration": iteration, "samples": len(x), "agreement": agreement, "validation": screen}
        yield Snapshot(runner.steps, best, value, settings.budget, metrics, message=f"expert: {expert.name}")
        if settings.patience is not None and since >= settings.patience:
            break
        if runner.steps >= budget:
            break
    message = f"{iteration + 1} iterations, expert: {expert.name}"
    yield Snapshot(runner.steps, best, value, settings.budget, {"iteration": iteration}, message=message)


def _some(seeds: np.ndarray, count: float) -> np.ndarray:
    """The first `count` seeds, two at least."""
    return seeds[: max(2, int(min(count, len(seeds))))]


class _Runner:
    """Rolls policies out and counts the environment steps."""

    def __init__(self, problem: Problem, steps: int, longest: int) -> None:
        self.problem, self.steps, self.longest = problem, steps, longest

    def states(self, policy: Expert | Tree, seeds: np.ndarray) -> np.ndarray:
        """The states a policy meets."""
        seen: list[np.ndarray] = []
        start = self.problem.base.actions.start
        act = policy.predict if isinstance(policy, Tree) else lambda x: policy.act(x) + start

        def recorded(x: np.ndarray) -> np.ndarray:
            seen.append(x.copy())
            return act(x)

        self._run(recorded, seeds)
        return np.concatenate(seen)

    def mean(self, tree: Tree, seeds: np.ndarray) -> float:
        """The mean return of a tree."""
        return float(self._run(tree.predict, seeds).mean())

    def _run(self, policy: Any, seeds: np.ndarray) -> np.ndarray:
        where, features = self.problem.source, self.problem.encoder
        returns, lengths, _ = rollouts(policy, where, seeds, features=features, max_steps=self.longest)
        self.steps += int(lengths.sum())
        return returns


def _training(problem: Problem, settings: Settings) -> dqn.Settings:
    """How a DQN expert is trained."""
    from custard.task.settings import settings_for

    chosen = settings_for(dqn, problem.preset, settings.expert_preset, settings.expert_settings, "expert setting")
    if settings.budget is not None:  # at most half of it for training, and an eighth for judging
        steps = max(1, min(chosen.steps, settings.budget // 2))
        few = max(2, min(chosen.check_rollouts, steps // 1000))
        longest = problem.longest(settings.budget)
        judging = settings.budget / steps / 8
        chosen = replace(chosen, steps=steps, check_rollouts=few, check_steps=longest, judging=judging)
    return chosen


def _weighing(expert: Expert, weights: str) -> Any:
    """What a state's weight is: the loss of the worst action, from Q-values or from log-probabilities."""
    if weights == "q" and expert.q is None:
        raise CustardError(
            f"weights='q' needs an expert with Q-values, but {expert.name} has none: choose weights=policy or none"
        )
    if weights == "policy" and expert.log_policy is None:
        raise CustardError(f"weights='policy' needs an expert with action probabilities, but {expert.name} has none")
    values = {"q": expert.q, "policy": expert.log_policy, "none": None, "auto": expert.q or expert.log_policy}[weights]
    if values is None:
        return lambda x: np.ones(len(x))
    return lambda x: np.ptp(values(x), axis=1) + 1e-12  # all weights zero would leave CART nothing to fit


def _fit(
    problem: Problem,
    settings: Settings,
    x: np.ndarray,
    action: np.ndarray,
    weight: np.ndarray,
    rng: np.random.Generator,
) -> tuple[list[Tree], float]:
    """CART trees from labelled states, and the first one's weighted agreement with the expert on held-out states."""
    from sklearn.tree import DecisionTreeClassifier

    index = np.arange(len(x))
    if len(x) > settings.max_samples:
        index = rng.choice(len(x), size=settings.max_samples, replace=False)
    else:
        rng.shuffle(index)
    cut = max(1, round(settings.train_share * len(index)))
    train, held = index[:cut], index[cut:] if cut < len(index) else index
    condense = _condensed if x.shape[1] == 1 and settings.min_leaf == 1 else lambda *rows: rows
    weighted = drawn = condense(x[train], action[train], weight[train])
    if settings.resample or settings.variants:
        again = rng.choice(train, size=len(train), p=weight[train] / weight[train].sum())
        drawn = condense(x[again], action[again], np.ones(len(again)))
    plain, varied = (drawn, weighted) if settings.resample else (weighted, drawn)
    other = "entropy" if settings.criterion == "gini" else "gini"
    fits = [(settings.criterion, settings.max_leaves, *plain)]
    if settings.variants:
        fits += [(other, settings.max_leaves, *plain), (settings.criterion, settings.max_leaves, *varied)]
    if settings.leaf_ladder:
        top = settings.max_leaves or 1024
        fits += [(settings.criterion, 2**k, *plain) for k in range(1, 11) if 2**k < top]
    trees = []
    if problem.max_depth == 0:
        votes = np.bincount(action[train], weight[train], minlength=problem.base.actions.n)
        leaf = int(votes.argmax()) + problem.base.actions.start
        trees.append(Tree.leaf(leaf, problem.base.features, problem.base.actions))
        fits = []
    for criterion, leaves, *rows, importance in fits:
        cart = DecisionTreeClassifier(
            criterion=criterion, max_depth=problem.max_depth, max_leaf_nodes=leaves, min_samples_leaf=settings.min_leaf,
            random_state=int(rng.integers(2**31)),
        )  # fmt: skip
        cart.fit(rows[0], rows[1] + problem.base.actions.start, sample_weight=importance)
        trees.append(simplify(from_sklearn(cart, problem.base.features, problem.base.actions)))
    right = trees[0].predict(x[held]) - problem.base.actions.start == action[held]
    return trees, float(np.average(right, weights=weight[held]))


def _condensed(x: np.ndarray, action: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States of one feature in few rows to which CART fits the same tree.

    It only ever divides between neighbours with different actions (Fayyad and Irani 1992; an expert has one for a
    state), so that of a run with the same action the two at either end are enough. The second carries the weight of all
    in between.

    >>> x, action = np.arange(8.0)[:, None], np.array([0, 0, 0, 0, 0, 0, 1, 1])
    >>> [part.tolist() for part in _condensed(x, action, np.ones(8))]
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
