"""Experts by name.

| `expert=` | what it is |
|---|---|
| "dqn" | our own DQN, trained first (`custard.experts.dqn`) |
| "linear" | scores linear in the features, by direct search on the return, on all cores (`custard.experts.linear`) |
| "bi" | backward induction on the exact model, or on a grid of states (`custard.experts.backward_induction`) |
| a file `.npz` | a DQN of ours, saved |
| a file `.zip` | a Stable-Baselines3 or sb3-contrib model (DQN, PPO, SAC, …); `VecNormalize` statistics may be given |
| a function | from feature vectors [B, n] to Q-values [B, A], or to actions [B, k] where actions are vectors |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from custard.core.errors import CustardError
from custard.experts import dqn, linear
from custard.experts.backward_induction import by_backward_induction
from custard.experts.direct_search import DirectSearchSettings
from custard.experts.expert import Expert, Progress, from_action_function, from_q_function
from custard.experts.sb3 import load_sb3
from custard.task.problem import Problem

__all__ = ["experts"]

MAX_REMEMBERED_EXPERTS = 8  # trained last

_remembered: dict[tuple[Any, ...], tuple[Progress, Any]] = {}  # with the objects whose ids are in the key, kept alive


def experts(
    problem: Problem,
    given: str | Callable[..., Any],
    training: dqn.Settings,
    seed: int,
    *,
    ties: str = "random",
    normalise: str | None = None,
    out: str | None = None,
) -> Iterator[Progress | Expert]:
    """Yield the progress of the expert's training, if it needs any, then the expert.

    problem: the base MDP
    given: the expert's name, file or function (see above)
    training: settings of a DQN
    seed: of training, and of random ties
    ties: how backward induction chooses among equally good actions: first, random or downstream
    normalise: file of `VecNormalize` statistics of a Stable-Baselines3 model
    out: file in which to save an expert that was trained
    """
    actions = problem.base.actions
    has_vectors = callable(given) or str(given).endswith(".zip")
    if not has_vectors:
        problem.require_discrete_actions(f"the expert {given!r}")
    n_actions = actions.n
    if callable(given):
        yield from_q_function(given, n_actions) if actions.discrete else from_action_function(given, actions.size)
    elif given == "bi":
        yield by_backward_induction(problem, ties, seed)
    elif given in ("dqn", "linear"):
        last = None
        for last in _train_unless_remembered(problem, str(given), training, seed):
            yield last
        if last is None or last.expert is None:
            raise CustardError(f"{training.steps} steps are too few for a {given} expert")
        if out is not None and last.expert.save is not None:
            last.expert.save(out)
        yield last.expert
    elif str(given).endswith(".npz"):
        yield dqn.expert_of(dqn.Network.load(given), n_actions, f"DQN from {Path(given).name}")
    elif str(given).endswith(".zip"):
        yield load_sb3(Path(given), problem, Path(normalise) if normalise else None)
    else:
        raise CustardError(
            f"unknown expert {given!r}: choose dqn, linear, bi, a .npz or .zip file, or a function to Q-values"
        )


def _train_unless_remembered(problem: Problem, kind: str, training: dqn.Settings, seed: int) -> Iterator[Progress]:
    """Train an expert, unless one of the last few was trained alike: trials that differ in the tree alone share it."""
    env_source, features = problem.source, problem.base.features
    task = env_source.spec or env_source, problem.encoder
    key = (
        *map(id, task),
        repr(env_source.kwargs),
        features.low.tobytes(),
        features.high.tobytes(),
        kind,
        training,
        seed,
    )
    if key in _remembered:
        yield _remembered[key][0]
        return
    last = None
    how = DirectSearchSettings(steps=training.steps)
    for last in linear.train(problem, how, seed) if kind == "linear" else dqn.train(problem, training, seed):
        yield last
    if last is not None:
        _remembered[key] = last, task
        if len(_remembered) > MAX_REMEMBERED_EXPERTS:
            del _remembered[next(iter(_remembered))]
