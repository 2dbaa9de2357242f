"""VIPER (Bastani et al. 2018): imitate an expert with a decision tree, on the states that the tree itself visits.

DAgger: the expert drives the first batch of rollouts, the latest tree all further ones; every visited state is labelled
with the expert's action and weighted by the loss of the worst action, V(s) - min_a Q(s, a). CART is fitted to all of
them, and the tree that does best on validation rollouts is kept; the value shown is its mean over other rollouts, which
chose nothing. The paper's appendix gives the numbers. With `choose="moet"` this is VIPER+ (Vasic et al. 2019): of trees
with the same return the one that is most like the expert.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from custard.baselines.dagger import (
    STATE_WEIGHTINGS,
    LabelledStates,
    Mispredictions,
    Rollouts,
    expert_or_stored,
    state_weights,
    stored_expert,
    stored_tree,
    tree_stored,
)
from custard.core.errors import CustardError, one_of, require_least
from custard.experts.expert import Expert
from custard.task.problem import Problem, Snapshot
from custard.task.source import episode_seeds
from custard.tree.export.sklearn import from_sklearn
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]

CART_CRITERIA = ("gini", "entropy", "log_loss")
TREE_CHOICE_RULES = ("smaller", "moet")

VALIDATION_BUDGET_SHARE, PLANNED_VALIDATED_ITERATIONS = 0.5, 20  # of what the expert leaves of a budget
FINAL_ROLLOUTS_BUDGET_SHARE = 0.125  # of what the expert leaves, for the final rollouts of one tree
JUDGING_BUDGET_SHARE = 0.05  # of the budget, for rollouts that only judge the tree that was chosen
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
    final_slack: float = 0.002  # how far below the best validation return a tree still gets those, as a share of it
    choose: str = "smaller"  # of equal returns, fewest leaves; "moet": fewest mispredictions, no final_rollouts
    weights: str = "auto"  # "q": V - min Q; "policy": the same of log-probabilities; "none"; "auto": the first possible
    resample: bool = False  # draw states by weight instead of weighting them in CART
    criterion: str = "gini"  # CART's impurity: gini, entropy or log_loss
    min_leaf: int = 1  # states in a leaf, at least
    fit_variants: bool = True  # also fit by the other impurity and to states drawn by weight; validation chooses
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
        if self.choose not in TREE_CHOICE_RULES:
            raise CustardError(one_of("choice", self.choose, TREE_CHOICE_RULES))
        if self.weights not in STATE_WEIGHTINGS:
            raise CustardError(one_of("weighting", self.weights, STATE_WEIGHTINGS))
        if self.criterion not in CART_CRITERIA:
            raise CustardError(one_of("criterion", self.criterion, CART_CRITERIA))


_PAPER_SETTINGS = {"patience": None, "final_rollouts": 0, "fit_variants": False, "expert_preset": "paper"}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {
        "": {},
        # Rollouts of the compiled environment are cheap, and a tree that falls once in a thousand is not good enough.
        "CartPole": {"test_rollouts": 200, "final_rollouts": 5000},
        "PotholeWorld": {"ties": "downstream", "iterations": 60, "patience": 20, "leaf_ladder": True},
    },
    "paper": {"": _PAPER_SETTINGS, "PotholeWorld": {"ties": "downstream"}},
}


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Train or load the expert, then imitate it; yield at every check of the expert and every iteration."""
    problem.require_discrete_actions("VIPER")
    steps, expert = 0, None
    stored = None if state is None else state["viper.expert"]
    for item in expert_or_stored(problem, settings, problem.seeds("expert")["expert"], stored):
        if isinstance(item, Expert):
            expert = item
        else:
            steps = item.steps
            if state is None:  # a resumed run has a tree already
                yield item
    assert expert is not None
    imitation = _Imitation(problem, settings, expert, steps)
    if state is not None:
        imitation.restore(state)
    while not imitation.is_over:
        imitation.iterate()
        yield imitation.snapshot()
    imitation.judge_at_the_end()
    yield imitation.final_snapshot()


class _Imitation:
    """Imitates an expert iteration by iteration, and keeps the best tree."""

    def __init__(self, problem: Problem, settings: Settings, expert: Expert, expert_steps: int) -> None:
        """`expert_steps` are the environment steps that the expert's training took."""
        self.problem, self.settings, self.expert = problem, settings, expert
        self.expert_bytes = stored_expert(expert)
        self.weigh = state_weights(expert, settings.weights)
        self.budget = (1.0 - JUDGING_BUDGET_SHARE) * (settings.budget or np.inf)  # for choosing
        expert_steps += problem.probe_steps
        self.rollouts = Rollouts(problem, expert_steps, problem.episode_cap(self.budget), self.budget)
        self.expert_steps = expert_steps
        seeds = problem.seeds("rollouts", "validation", "final", "judging", "fit")
        self.rng = np.random.default_rng(seeds["fit"])
        self.batch = int(min(settings.batch_rollouts, max(2, self.budget / 2000)))
        self.batch_seeds = episode_seeds(seeds["rollouts"], settings.iterations * self.batch)
        self.validation_seeds = episode_seeds(seeds["validation"], settings.test_rollouts)
        self.is_moet = settings.choose == "moet"
        self.final_seeds = episode_seeds(seeds["final"], 0 if self.is_moet else settings.final_rollouts)
        self.judging_seeds = episode_seeds(seeds["judging"], MAX_JUDGING_ROLLOUTS)
        self.states = LabelledStates(problem.base.features.n)
        self.latest: Tree | None = None
        self.agreement = float("nan")  # of the latest tree with the expert, on held-out states
        self.best: Tree | None = None
        self.best_return = self.best_validation_return = -np.inf
        self.best_rank = (-np.inf, -np.inf, -np.inf)  # return, mispredictions, leaves; the last two negative
        self.judged_tree: Tree | None = None
        self.judged_returns = np.zeros(0)
        self.iterations = self.iterations_without_progress = 0

    @property
    def is_over(self) -> bool:
        """Whether no iterations, no patience or no budget is left."""
        s = self.settings
        has_waited = s.patience is not None and self.iterations_without_progress >= s.patience
        is_budget_used = self.rollouts.steps >= self.budget
        return self.iterations > 0 and (self.iterations == s.iterations or has_waited or is_budget_used)

    def iterate(self) -> None:
        """Visit states with the latest tree, fit trees to all states so far, and keep the best tree."""
        driver = self.expert if self.latest is None else self.latest
        x = self.rollouts.visited_states(driver, self.batch_seeds[self.iterations * self.batch :][: self.batch])
        self.states.add(x, self.expert.act(x), self.weigh(x))
        trees, self.agreement = _fit_cart_trees(self.problem, self.settings, self.states, self.rng)
        self.latest = trees[0]
        if self.iterations == 0:
            affordable = (self.budget - self.rollouts.steps) / (len(x) / self.batch)  # rollouts as long as these
            for_validation = VALIDATION_BUDGET_SHARE * affordable / (PLANNED_VALIDATED_ITERATIONS * len(trees))
            self.validation_seeds = _first_seeds(self.validation_seeds, for_validation)
            self.final_seeds = _first_seeds(self.final_seeds, FINAL_ROLLOUTS_BUDGET_SHARE * affordable)
        self.iterations += 1
        self.iterations_without_progress += 1
        for tree in trees:
            has_budget = self.best is None or self.rollouts.steps < self.budget
            if not has_budget or not self._validate_within_budget(tree):
                break
        if self.best is not None and self.best is not self.judged_tree:
            seeds = self.judging_seeds[: len(self.validation_seeds)]
            self.judged_tree, self.judged_returns = self.best, self.rollouts.returns(self.best, seeds)

    def _validate_within_budget(self, tree: Tree) -> bool:
        """Keep a tree if it does best on validation rollouts; return whether the budget allowed them."""
        watched = Mispredictions(tree, self.expert)
        policy = watched if self.is_moet else tree
        mean = self.rollouts.mean_return(policy, self.validation_seeds, is_needed=self.best is None)
        if mean is None:
            return False
        if mean < self.best_validation_return - self.settings.final_slack * abs(self.best_validation_return):
            return True
        self.best_validation_return = max(self.best_validation_return, mean)
        if len(self.final_seeds):  # the highest of many means of few rollouts is too good to be true
            longer_mean = self.rollouts.mean_return(tree, self.final_seeds)
            mean = mean if longer_mean is None else longer_mean
        rank = (round(mean, 9), -watched.share, -tree.n_leaves)
        if self.best is None or rank > self.best_rank:
            self.best, self.best_return, self.best_rank = tree, mean, rank
            self.iterations_without_progress = 0
        return True

    def judge_at_the_end(self) -> None:
        """Judge the best tree on all judging rollouts that the rest of the budget allows."""
        self.rollouts.budget = self.settings.budget or np.inf
        if self.best is not None:
            more = self.rollouts.returns(self.best, self.judging_seeds[len(self.judged_returns) :])
            self.judged_returns = np.concatenate([self.judged_returns, more])

    def snapshot(self) -> Snapshot:
        """Return where the run stands after an iteration."""
        s, steps = self.settings, self.rollouts.steps
        metrics: dict[str, float] = {
            "iteration": self.iterations - 1, "samples": len(self.states.x), "agreement": self.agreement,
            "validation": self.best_validation_return,
        }  # fmt: skip
        if self.is_moet:
            metrics["mispredictions"] = -self.best_rank[1]
        patience_left = (s.patience or np.inf) - self.iterations_without_progress
        iterations_left = min(s.iterations - self.iterations, patience_left)
        end_without_progress = steps + iterations_left * (steps - self.expert_steps) / self.iterations
        return self._snapshot(metrics, f"expert: {self.expert.name}", end_without_progress)

    def final_snapshot(self) -> Snapshot:
        """Return where the run ended."""
        message = f"{self.iterations} iterations, expert: {self.expert.name}"
        return self._snapshot({"iteration": self.iterations - 1}, message, None, ended=True)

    def _snapshot(
        self, metrics: dict[str, float], message: str, end_without_progress: float | None, ended: bool = False
    ) -> Snapshot:
        """Return a snapshot whose value is the mean of the judging returns, or else the mean that chose the tree."""
        judged, value = self.judged_returns, self.best_return
        if len(judged):
            value = float(judged.mean())
            error = float(judged.std(ddof=1)) / np.sqrt(len(judged)) if len(judged) > 1 else np.nan
            metrics |= {"judged": float(len(judged)), "error": float(error)}
        kept = self.state() if self.best is not None else None
        return Snapshot(
            self.rollouts.steps, self.best, value, self.settings.budget, metrics, message=message,
            end_without_progress=end_without_progress, state=None if kept is None else lambda: kept, ended=ended,
        )  # fmt: skip

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray]:
        """Return all that is needed to go on after an iteration."""
        assert self.best is not None
        assert self.latest is not None
        generator = json.dumps(self.rng.bit_generator.state).encode()
        return {
            "viper.expert": self.expert_bytes, "viper.x": self.states.x, "viper.action": self.states.action,
            "viper.weight": self.states.weight, "viper.latest": stored_tree(self.latest),
            "viper.best": stored_tree(self.best), "viper.judged": self.judged_returns,
            "viper.counts": np.array([
                self.rollouts.steps, self.expert_steps, self.iterations, self.iterations_without_progress,
                len(self.validation_seeds), len(self.final_seeds), int(self.judged_tree is self.best),
            ]),
            "viper.numbers": np.array(
                [self.agreement, self.best_return, self.best_validation_return, *self.best_rank], dtype=np.float64
            ),
            "viper.generator": np.frombuffer(generator, dtype=np.uint8),
        }  # fmt: skip

    def restore(self, data: dict[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        self.states.add(data["viper.x"], data["viper.action"], data["viper.weight"])
        self.latest, self.best = tree_stored(data["viper.latest"]), tree_stored(data["viper.best"])
        counts = [int(number) for number in data["viper.counts"]]
        self.rollouts.steps, self.expert_steps, self.iterations, self.iterations_without_progress = counts[:4]
        self.validation_seeds, self.final_seeds = self.validation_seeds[: counts[4]], self.final_seeds[: counts[5]]
        self.judged_tree, self.judged_returns = self.best if counts[6] else None, data["viper.judged"]
        self.agreement, self.best_return, self.best_validation_return, *rank = data["viper.numbers"].tolist()
        self.best_rank = (rank[0], rank[1], rank[2])
        self.rng.bit_generator.state = json.loads(data["viper.generator"].tobytes())


def _first_seeds(seeds: np.ndarray, count: float) -> np.ndarray:
    """Return the first `count` seeds, at least two."""
    return seeds[: max(2, int(min(count, len(seeds))))]


def _fit_cart_trees(
    problem: Problem, settings: Settings, states: LabelledStates, rng: np.random.Generator
) -> tuple[list[Tree], float]:
    """Fit CART trees; return them, and how often the first one agrees with the expert on held-out states."""
    from sklearn.tree import DecisionTreeClassifier

    features, actions = problem.base.features, problem.base.actions
    x, action, weight = states.x, states.action, states.weight
    index = np.arange(len(x))
    if len(x) > settings.max_samples:
        index = rng.choice(len(x), size=settings.max_samples, replace=False)
    else:
        rng.shuffle(index)
    cut = max(1, round(settings.train_share * len(index)))
    train, held_out = index[:cut], index[cut:] if cut < len(index) else index
    condense = _drop_rows_between_same_actions if x.shape[1] == 1 and settings.min_leaf == 1 else lambda *rows: rows
    weighted = drawn_by_weight = condense(x[train], action[train], weight[train])
    if settings.resample or settings.fit_variants:
        drawn = rng.choice(train, size=len(train), p=weight[train] / weight[train].sum())
        drawn_by_weight = condense(x[drawn], action[drawn], np.ones(len(drawn)))
    main, variant = (drawn_by_weight, weighted) if settings.resample else (weighted, drawn_by_weight)
    other_criterion = "entropy" if settings.criterion == "gini" else "gini"
    fits = [(settings.criterion, settings.max_leaves, *main)]
    if settings.fit_variants:
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


def _drop_rows_between_same_actions(
    x: np.ndarray, action: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return fewer rows of one feature to which CART fits the same tree.

    It only ever splits between neighbours with different actions (Fayyad and Irani 1992; an expert has one action per
    state), so of a run with the same action the two at either end suffice. The second carries the weight of all in
    between.

    >>> x, action = np.arange(8.0)[:, None], np.array([0, 0, 0, 0, 0, 0, 1, 1])
    >>> [part.tolist() for part in _drop_rows_between_same_actions(x, action, np.ones(8))]
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
