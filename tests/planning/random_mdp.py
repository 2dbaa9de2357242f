"""Random finite MDPs: small, seeded, with factored states."""

from __future__ import annotations

import numpy as np

from custard.core.actions import Actions, numbered
from custard.core.errors import CustardError
from custard.core.features import BINARY, INTEGER, Features
from custard.core.mdp import FiniteMDP

__all__ = ["random_mdp"]


def random_mdp(
    n_features: int,
    n_actions: int,
    seed: int,
    *,
    values: int = 2,
    gamma: float = 0.95,
    branching: int = 2,
    ending: float = 0.1,
    starts: int = 3,
    deterministic: bool = False,
    horizon: int | None = None,
) -> FiniteMDP:
    """One state for each combination of `values` whole numbers a feature, and a terminal state.

    Each (state, action) leads to `branching` random states (one, if `deterministic`) and with probability `ending` to
    the terminal state, so that every policy terminates unless `ending` is 0. Rewards are small whole numbers, so that
    ties are common. Episodes start in one of `starts` states.

    >>> random_mdp(3, 2, seed=0).n_states
    9
    """
    if n_features < 1 or n_actions < 1 or values < 2 or not 0 <= ending <= 1:
        raise CustardError("random_mdp needs at least one feature, one action and two values, and ending in [0, 1]")
    rng = np.random.default_rng(seed)
    count = values**n_features
    x = np.stack(np.unravel_index(np.arange(count), (values,) * n_features), axis=1).astype(np.float64)
    entries = []
    for action in range(n_actions):
        for state in range(count):
            successors = rng.choice(count, size=1 if deterministic else branching)
            weights = rng.dirichlet(np.ones(len(successors))) * (1.0 - ending)
            entries += [(action, state, s, w) for s, w in zip(successors.tolist(), weights.tolist(), strict=True)]
            entries.append((action, state, count, ending))
        entries.append((action, count, count, 1.0))
    rewards = np.vstack([rng.integers(-2, 3, size=(count, n_actions)).astype(np.float64), np.zeros((1, n_actions))])
    start = np.zeros(count + 1)
    start[rng.choice(count, size=min(starts, count), replace=False)] = 1.0 / min(starts, count)
    kind = BINARY if values == 2 else INTEGER
    return FiniteMDP.from_entries(
        np.array(entries),
        rewards,
        terminal=np.arange(count + 1) == count,
        start=start,
        gamma=gamma,
        x=np.vstack([x, np.zeros((1, n_features))]),
        features=Features(numbered("x", n_features), np.zeros(n_features), np.full(n_features, values - 1.0),
                          (kind,) * n_features),
        actions=Actions("discrete", numbered("a", n_actions)),
        horizon=horizon,
    )  # fmt: skip
