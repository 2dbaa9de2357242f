"""An expert for tree policy iteration to begin from: found or trained first, then imitated.

Where an environment is stepped from Python its steps are few, and a network learns what to do in a part of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.actions import Actions
from custard.core.features import Features
from custard.experts.numbered_actions import with_numbered_actions
from custard.solvers.tpi.limits import survey
from custard.task.evaluate import rollouts
from custard.task.problem import Problem, Snapshot
from custard.task.source import episode_seeds
from custard.tree.fit import fit_tree
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.tpi.search import Search

__all__ = ["greedy_tree", "imitations", "longest", "with_expert"]

LEAST = 50_000  # steps of a budget for which an expert is trained unasked
TRAINING = 300_000  # steps of its training at the most, where environments are stepped from Python
JUDGING = 0.4  # steps of its checks for one of training
ROUNDS = 10  # of fits to the states of the expert and of all trees before
MOST = 20_000  # states in a fit
EPISODES = 20  # of the expert, and of each tree, at the most


def with_expert(search: Search) -> Iterator[Snapshot]:
    """Give a search the expert to begin from, if there is to be one; yields while that is trained."""
    from custard.experts.expert import Expert
    from custard.experts.kinds import experts

    given = search.settings.expert or ("dqn" if _unasked(search) else "none")
    if given == "none":
        return
    if not search.compiled and not search.surveyed:
        survey(search)
    if given == "dqn":
        search.advised, search.as_advised = with_numbered_actions(search.problem, search.blank)
    before = search.real.steps
    for item in experts(search.advised, given, _training(search), search.seed):
        if isinstance(item, Expert):
            search.expert = item
        else:
            search.real.steps = before + item.steps
            facts, message = {"expert": item.value}, "training an expert"
            yield Snapshot(search.real.steps, None, np.nan, search.budget, facts, message=message)


def _unasked(search: Search) -> bool:
    """Whether to train an expert although none was asked for: where steps are few, unless episodes never end."""
    if search.compiled or search.table is not None:
        return False
    if search.budget < LEAST:
        warnings.warn(
            f"with budgets below {LEAST:,} steps no expert is trained to begin from, which often makes better trees: "
            'expert="dqn" trains one all the same',
            stacklevel=2,
        )
        return False
    survey(search)
    if search.time_limit is None and search.real.length >= search.real.limit:
        return False
    if find_spec("jax") and find_spec("optax"):
        return True
    warnings.warn(
        "an expert to begin from would make better trees here, and is trained by itself with the extra "
        '"neural": pip install "custard-rl[neural]"',
        stacklevel=2,
    )
    return False


def _training(search: Search) -> Any:
    """How a DQN expert is trained; its checks come to about a third more steps."""
    from custard.experts import dqn
    from custard.task.settings import settings_for

    how: dict[str, Any] = {"checks": 8, "check_rollouts": 20, "standardise": True, "check_steps": longest(search)}
    if not search.compiled:  # steps are dearer than updates
        how |= {"steps_per_update": 1.0, "check_rollouts": 10, "steps": min(TRAINING, search.budget // 3)}
        how |= {"judging": JUDGING}
    elif search.settings.budget is not None:  # else far too many to train a network in
        how |= {"steps": search.budget // 3}
    return settings_for(dqn, search.problem.preset, "tuned", how)


def longest(search: Search) -> int | None:
    """Steps of an episode of the expert and its imitations, where the environment has no time limit."""
    return None if search.compiled or search.time_limit is not None else search.problem.longest(search.budget)


def imitations(
    problem: Problem,
    expert: Any,
    depth: int,
    max_leaves: int | None,
    cuts: int,
    seed: int,
    max_steps: int | None = None,
    episodes: int = EPISODES,
) -> Iterator[tuple[Tree, float, int]]:
    """Trees that imitate an expert on its own states, then also on the states the trees went to (DAgger).

    Two a round: one fitted to what the expert says actions are worth, and a greedy one (CART) to what it does, where a
    state counts as much as the second-best action loses. With each come its mean return and the steps used.
    """
    rng = np.random.default_rng(seed)
    features, actions = problem.base.features, problem.base.actions
    worth = expert.q or expert.log_policy

    def followed(act: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, float, int]:
        met: list[np.ndarray] = []
        seeds = episode_seeds(int(rng.integers(2**31)), episodes)
        returns, lengths, _ = rollouts(
            lambda x: met.append(x.copy()) or act(x),  # type: ignore[func-returns-value]
            problem.source, seeds, features=problem.encoder, max_steps=max_steps,
        )  # fmt: skip
        return np.concatenate(met), float(returns.mean()), int(lengths.sum())

    x, _, owed = followed(lambda x: expert.act(x) + actions.start)
    for _ in range(ROUNDS):
        some = x[rng.permutation(len(x))[:MOST]]
        value = worth(some)
        value = value - value.max(axis=1, keepdims=True)
        fitted = fit_tree(some, value, features, actions, max_depth=depth, max_leaves=max_leaves, cuts=cuts).tree
        for tree in (fitted, greedy_tree(some, value, features, actions, depth, max_leaves)):
            met, mean, used = followed(tree.predict)
            x = np.concatenate([x, met])
            yield tree, mean, used + owed
            owed = 0


def greedy_tree(
    x: np.ndarray, value: np.ndarray, features: Features, actions: Actions, depth: int, max_leaves: int | None
) -> Tree:
    """A tree by scikit-learn that takes the best actions where others lose most."""
    from sklearn.tree import DecisionTreeClassifier

    from custard.tree.export.sklearn import from_sklearn

    best = value.argmax(axis=1)
    lost = value.max(axis=1) - np.partition(value, -2, axis=1)[:, -2] if actions.n > 1 else np.zeros(len(x))
    if depth == 0 or max_leaves == 1:
        return Tree.leaf(int(value.sum(axis=0).argmax()) + actions.start, features, actions)
    cart = DecisionTreeClassifier(max_depth=depth, max_leaf_nodes=max_leaves, random_state=0)
    cart.fit(x, best + actions.start, sample_weight=lost + 1e-12)
    return from_sklearn(cart, features, actions)
