"""The exact model of an environment, where it has one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.core.spaces import Base, describe
from custard.planning.history_model import remembering_model
from custard.task.source import Source

__all__ = ["NoModelError", "from_table", "model_of"]


class NoModelError(CustardError):
    """Nobody can say what an environment's steps lead to."""


def model_of(source: Source, base: Base | None = None, *, gamma: float = 1.0, limit: bool = False) -> FiniteMDP:
    """Return the finite MDP behind an environment: its own `mdp()`, its toy-text table `P`, or PotholeWorld on a grid.

    With `limit` the environment's time limit becomes the horizon, so that values are what rollouts would show.

    >>> import custard
    >>> from custard.task.source import source
    >>> model_of(source("FrozenLake-v1")).n_states
    16
    """
    env = source.make()
    core: Any = env.unwrapped
    try:
        base = base or describe(env)
        if source.without_history is not None:
            inner = model_of(source.without_history, env.get_wrapper_attr("inner"), gamma=gamma)
            mdp = remembering_model(inner, source.history)
        elif callable(getattr(core, "mdp", None)):
            mdp = core.mdp()
            if base.features.origin.get("features") == "custom":
                raise CustardError("the exact model has features of its own: features= is not possible")
            if gamma != 1.0:
                mdp = dataclasses.replace(mdp, gamma=gamma)
        elif type(core).__name__ == "PotholeWorld":
            from custard.planning.pothole import grid_model

            mdp = grid_model(core, gamma=gamma)
        elif isinstance(getattr(core, "P", None), dict):
            mdp = from_table(core, base, gamma)
        else:
            raise NoModelError(
                f"{source.name} has no exact model: that takes a method mdp() or a table P as Gymnasium's toy-text has"
            )
    finally:
        if not source.is_single_instance:
            env.close()
    if base.features.derived and not mdp.features.derived:
        features = mdp.features.with_sums(base.features.derived, base.features.names[base.features.n_raw :])
        mdp = dataclasses.replace(mdp, features=features, x=features.extend(mdp.x))
    return dataclasses.replace(mdp, horizon=source.time_limit) if limit and mdp.horizon is None else mdp


def from_table(env: Any, base: Base, gamma: float = 1.0) -> FiniteMDP:
    """Return the finite MDP of a toy-text table P[s][a] = [(probability, next state, reward, terminated), …].

    A state that is only ever entered with `terminated` is terminal. One that is also entered without gets a terminal
    twin, so that an episode ends exactly where the environment ends it.
    """
    table, count = env.P, len(env.P)
    n_actions = base.actions.n
    rewards = np.zeros((count, n_actions))
    rows = []
    try:
        for state in range(count):
            for action in range(n_actions):
                for probability, after, reward, ended in table[state][action]:
                    rows.append((action, state, int(after), float(probability), bool(ended)))
                    rewards[state, action] += float(probability) * float(reward)
    except (KeyError, TypeError, ValueError) as error:
        raise CustardError(f"the table P of {type(env).__name__} is not Gymnasium's ({error!r})") from None
    data = np.array(rows, dtype=np.float64)
    action, state, after, probability, ended = data.T
    inner = state != after  # staying in an absorbing state says nothing about how it is entered
    final = np.isin(np.arange(count), after[(ended == 1) & inner])
    open_ = np.isin(np.arange(count), after[(ended == 0) & inner])
    start = getattr(env, "initial_state_distrib", None)
    if start is None:
        raise CustardError(f"{type(env).__name__} has a table P but no initial_state_distrib")
    start = np.asarray(start, dtype=np.float64)
    open_ |= start > 0
    twin = np.full(count, -1)
    twin[final & open_] = count + np.arange((final & open_).sum())
    to_twin = (ended == 1) & (twin[after.astype(int)] >= 0)
    after = np.where(to_twin, twin[after.astype(int)], after)
    total = count + int((twin >= 0).sum())
    terminal = np.concatenate([final & ~open_, np.ones(total - count, dtype=bool)])
    keep = ~terminal[state.astype(int)]
    loops = np.array([(a, s, s, 1.0) for a in range(n_actions) for s in np.flatnonzero(terminal)]).reshape(-1, 4)
    entries = np.concatenate([np.stack([action, state, after, probability], axis=1)[keep], loops])
    x = base.encode(np.arange(count), count)
    return FiniteMDP.from_entries(
        entries,
        np.where(terminal[:, None], 0.0, np.vstack([rewards, np.zeros((total - count, n_actions))])),
        terminal=terminal,
        start=np.concatenate([start, np.zeros(total - count)]),
        gamma=gamma,
        x=np.vstack([x, x[twin >= 0]]),
        features=base.features,
        actions=base.actions,
    )
