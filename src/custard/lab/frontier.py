"""Find the best tree for each number of leaves, in one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from custard.core.errors import CustardError
from custard.core.spaces import describe
from custard.lab.learn import learn
from custard.planning.yardstick import best_return
from custard.task.evaluate import Evaluation, evaluate
from custard.task.history import with_history
from custard.task.problem import Problem, final_seed
from custard.task.source import Source, source
from custard.tree.tree import Tree

__all__ = ["Point", "frontier"]


@dataclass(frozen=True)
class Point:
    """The best tree with at most this many leaves."""

    leaves: int
    nodes: int
    depth: int
    mean: float  # over fresh episodes, the same for all points
    ci95: tuple[float, float]
    gap: float | None  # to the best return any tree could have, or to the expert's; None where neither is known
    tree: Tree = dataclasses.field(repr=False)
    steps: int = 0  # environment steps it took to find
    seconds: float = 0.0


def frontier(
    env: Any,
    *,
    max_leaves: int = 16,
    seed: int = 0,
    budget: int | None = None,
    episodes: int = 1000,
    progress: bool = False,
    **learn_kwargs: Any,
) -> list[Point]:
    """Return the best tree found for each number of leaves up to a limit, smallest first.

    There is one run of tree policy iteration per number of leaves, with `budget` environment steps each and
    `learn_kwargs` as in `custard.learn` (`max_depth`, `env_kwargs`, …). Trees are evaluated on `episodes` fresh
    episodes; a tree that is no better than a smaller one is left out. `gap` is the distance to the best possible return
    where it is proved, otherwise to the return of the expert given (a file, or a function from feature vectors to
    Q-values).

    >>> points = frontier("custard/PrereqWorld-v0", max_leaves=6, budget=500_000, env_kwargs={"m": 4}, episodes=10)
    >>> [(point.leaves, point.mean, point.gap) for point in points if point.mean > -3]
    [(3, -2.0, 0.0)]
    """
    if max_leaves < 1:
        raise CustardError(f"max_leaves={max_leaves} must be at least 1")
    if learn_kwargs.get("method", "tpi") not in (None, "tpi"):
        raise CustardError("a frontier is found by tree policy iteration: leave method out")
    learn_kwargs.pop("method", None)
    kwargs: Mapping[str, Any] = learn_kwargs.pop("env_kwargs", None) or {}
    env_source = source(env, kwargs)
    history = learn_kwargs.get("history") or 0
    shown = with_history(env_source, history, learn_kwargs.get("features"), learn_kwargs.get("feature_names"))
    proved = best_return(shown, learn_kwargs.get("max_depth"))
    best = proved
    if proved is None:
        best = _expert_return(shown, learn_kwargs.get("expert"), episodes, final_seed(seed))
    points: list[Point] = []
    leaves = 1
    while leaves <= max_leaves:
        run = learn(
            env_source, "tpi", seed=seed, budget=budget, progress=progress, max_leaves=leaves, **learn_kwargs
        )  # fmt: skip
        if run.message == "interrupted":
            raise KeyboardInterrupt
        judged = evaluate(run.tree, env_source, episodes, final_seed(seed), features=learn_kwargs.get("features"))
        if not points or judged.mean > points[-1].mean:
            points = [point for point in points if point.leaves < run.tree.n_leaves]  # a later run may do with as few
            points.append(_point(run.tree, judged, best, run.steps, run.seconds))
        if proved is not None and judged.mean >= proved - 1e-9 * max(1.0, abs(proved)):
            break  # nothing is better
        leaves += 1
    return points


def _point(tree: Tree, judged: Evaluation, best: float | None, steps: int, seconds: float) -> Point:
    gap = None if best is None else best - judged.mean
    return Point(tree.n_leaves, tree.n_nodes, tree.depth, judged.mean, judged.ci95, gap, tree, steps, seconds)


def _expert_return(env_source: Source, expert: Any, episodes: int, seed: int) -> float | None:
    """Return the mean return of an expert given as a file or a function; None for one that is still to be trained."""
    if expert in (None, "dqn", "none"):
        return None
    from custard.experts.dqn import Settings
    from custard.experts.kinds import experts

    venv = env_source.make_vec(1)
    problem = Problem(env_source, describe(venv), seed)
    found: Any
    *_, found = experts(problem, expert, Settings(), seed)
    return evaluate(lambda x: found.act(x) + problem.base.actions.start, env_source, episodes, seed).mean
