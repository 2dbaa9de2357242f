"""Experts computed by backward induction: on the exact model, or on a grid of states."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.experts.expert import Expert, from_q_function
from custard.planning import grid
from custard.planning.model import model_of
from custard.planning.solve import backward_induction
from custard.task.problem import Problem

__all__ = ["by_backward_induction"]

ENDLESS_LOSS_Q_GAP = 100.0  # how far below all others the Q-value of an action is put that may lose for ever (-inf)


def by_backward_induction(problem: Problem, ties: str, seed: int) -> Expert:
    """Return the best expert: on a grid where states are real and the environment has one, else on its exact model.

    PotholeWorld's model is a fine grid of positions.
    """
    on_grid = grid.q_function(problem.source) if problem.is_compiled else None
    if on_grid is not None:
        return from_q_function(on_grid, problem.base.actions.n, "backward induction on a grid")
    mdp = model_of(problem.source, problem.base)
    action, _, q = backward_induction(mdp, ties, seed)
    lowest = np.where(np.isneginf(q), np.inf, q).min()
    q = np.where(np.isneginf(q), lowest - ENDLESS_LOSS_Q_GAP, q)  # VIPER's weights must stay finite
    state_of = _nearest_state_lookup(mdp) if mdp.x.shape[1] == 1 else _exact_state_lookup(mdp)
    return Expert(f"backward induction, ties {ties}", lambda x: action[state_of(x)], lambda x: q[state_of(x)])


def _exact_state_lookup(mdp: FiniteMDP) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from feature vectors [B, n] to state numbers [B]."""
    index: dict[bytes, int] = {}
    for state in np.flatnonzero(~mdp.terminal).tolist():
        key = mdp.x[state].tobytes()
        if key in index:
            raise CustardError(
                f"states {index[key]} and {state} have the same features: no expert over features exists"
            )
        index[key] = state

    def find(x: np.ndarray) -> np.ndarray:
        try:
            return np.array([index[row.tobytes()] for row in np.asarray(x, dtype=np.float64)], dtype=np.int64)
        except KeyError:
            raise CustardError("the environment reached a state its exact model does not hold") from None

    return find


def _nearest_state_lookup(mdp: FiniteMDP) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from values of a single feature [B, 1] to the numbers of the nearest states [B]."""
    states = np.flatnonzero(~mdp.terminal)
    states = states[np.argsort(mdp.x[states, 0], kind="stable")]
    values = mdp.x[states, 0]
    between = values[:-1] + np.diff(values) / 2
    return lambda x: states[np.searchsorted(between, np.asarray(x)[:, 0])]
