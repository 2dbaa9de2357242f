"""FiniteMDP: an exact, sparse model of a base MDP, with the features its trees ask about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features

__all__ = ["FiniteMDP"]


@dataclass(frozen=True, eq=False)
class FiniteMDP:
    """S states, A actions, transitions[a][s, s'] = T(s, a, s'), rewards[s, a] = E[r | s, a].

    Terminal states are absorbing and worth nothing; an episode ends on entering one, and after `horizon` steps if
    one is given. A return is the sum of rewards, discounted by `gamma` per step.
    """

    transitions: tuple[sparse.csr_array, ...]  # A times [S, S]
    rewards: np.ndarray  # [S, A]
    terminal: np.ndarray  # [S] bool
    start: np.ndarray  # [S], sums to one
    gamma: float
    x: np.ndarray  # [S, n], the feature vector of each state
    features: Features
    actions: Actions
    horizon: int | None = None  # steps after which an episode is cut

    def __post_init__(self) -> None:
        count, n_actions = self.rewards.shape
        if len(self.transitions) != n_actions or self.actions.n != n_actions:
            raise CustardError(
                f"a finite MDP with {n_actions} columns of rewards needs as many transition matrices and action names"
            )
        if self.x.shape != (count, self.features.n):
            raise CustardError(
                f"the feature matrix is {self.x.shape}, but there are {count} states × {self.features.n}"
            )
        if self.terminal.shape != (count,) or self.start.shape != (count,):
            raise CustardError(f"terminal and start need one entry for each of the {count} states")
        if (self.start < 0).any() or abs(self.start.sum() - 1.0) > 1e-9:
            raise CustardError(f"the start distribution sums to {self.start.sum():g} instead of 1")
        if not 0.0 <= self.gamma <= 1.0:
            raise CustardError(f"gamma={self.gamma!r} must lie in [0, 1]")
        if self.horizon is not None and (int(self.horizon) != self.horizon or self.horizon < 1):
            raise CustardError(f"horizon={self.horizon!r} must be a whole number of at least 1, or None")
        if not self.actions.discrete:
            raise CustardError(f"a finite MDP needs discrete actions, not {self.actions.kind} ones")
        if not np.isfinite(self.rewards).all():
            raise CustardError("rewards must be finite numbers")
        if not np.isfinite(self.x).all():
            state, feature = np.argwhere(~np.isfinite(self.x))[0]
            raise CustardError(f"state {state} lacks a number for feature {self.features.names[feature]!r}")
        if self.start[self.terminal].sum() >= 1.0 - 1e-12:
            raise CustardError("every start state is terminal: there is nothing to decide")
        for action, matrix in enumerate(self.transitions):
            if matrix.shape != (count, count):
                raise CustardError(f"transitions[{action}] is {matrix.shape}, but there are {count} states")
            if not (matrix.data >= 0).all():
                bad = sparse.coo_array(matrix)
                k = int(np.flatnonzero(~(bad.data >= 0))[0])
                where = f"row {bad.coords[0][k]}, column {bad.coords[1][k]}"
                raise CustardError(f"transitions[{action}] holds the probability {bad.data[k]:g} in {where}")
            sums = np.asarray(matrix.sum(axis=1)).reshape(-1)
            wrong = np.flatnonzero(np.abs(sums - 1.0) > 1e-9)
            if len(wrong):
                raise CustardError(f"transitions[{action}] row {wrong[0]} sums to {sums[wrong[0]]:g} instead of 1")

    @property
    def n_states(self) -> int:
        """The number of states S."""
        return len(self.terminal)

    @classmethod
    def from_entries(cls, entries: np.ndarray, rewards: np.ndarray, **rest: Any) -> FiniteMDP:
        """Build from rows (action, state, next state, probability); repeated ones add up, zeros are dropped."""
        count, n_actions = rewards.shape
        index = entries[:, :3].astype(np.int64)
        matrices = []
        for action in range(n_actions):
            own = index[:, 0] == action
            cells = (index[own, 1], index[own, 2])
            matrix = sparse.csr_array(sparse.coo_array((entries[own, 3], cells), shape=(count, count)))
            matrix.eliminate_zeros()
            matrices.append(matrix)
        return cls(transitions=tuple(matrices), rewards=rewards, **rest)

    def policy_model(self, choice: np.ndarray) -> tuple[sparse.csr_array, np.ndarray]:
        """Return a policy's transitions [S, S] and rewards [S], choice[s] in 0…A-1; terminal rows are empty."""
        total: sparse.csr_array | None = None
        for action in np.unique(choice):
            chosen = sparse.diags_array(((choice == action) & ~self.terminal).astype(float))
            part = sparse.csr_array(chosen @ self.transitions[action])
            total = part if total is None else total + part
        assert total is not None
        reward = np.where(self.terminal, 0.0, self.rewards[np.arange(self.n_states), choice])
        return total, reward
