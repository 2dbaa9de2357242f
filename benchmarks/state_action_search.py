"""The peer of `plan`: search over state-action constraints, on STreeD's optimal cost-sensitive trees (`pystreed`).

Written from the idea of Lipa (2026), none of its code. A node of the search is a set of constraints, "this state takes
this action" or "does not take it". Its bound is the best return of any policy within them. An optimal cost-sensitive
tree is fitted to that policy: a state costs what it loses by the action times how often it is visited, and a forbidden
action costs more than anything else. The tree is a candidate for the best one. Where it and the policy disagree, the
state with the largest visits times (max Q - min Q) is branched on. Nodes that no tree satisfies are dropped, and the
node with the highest bound comes first. `pystreed` is no dependency of custard:

    pip install pystreed scikit-survival        (pystreed imports the latter)
"""

from __future__ import annotations

import heapq
import sys
import time
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from custard.core.mdp import FiniteMDP

__all__ = ["Standing", "require_streed", "search"]

SWEEPS = 60  # of value iteration, before equations are solved
SETTLED = 1e-11  # change of the values, relative to the largest, at which they are known
TIE = 1e-9  # losses below this, relative to the largest value, are none
FORBIDDEN = 10.0  # what forbidden actions cost, in units of the largest cost that all others could add up to


def require_streed() -> None:
    """Import pystreed, so that no measured call has to; exit in one line where it is missing."""
    try:
        import pystreed  # noqa: F401
    except ImportError as error:
        sys.exit(f"the peer's method needs pystreed ({error}): pip install pystreed scikit-survival")


@dataclass(frozen=True)
class Standing:
    """What is known after a while."""

    value: float  # return of the best tree
    bound: float  # no tree returns more
    explored: int  # nodes whose tree was fitted
    seconds: float  # CPU


@dataclass(frozen=True)
class _Policy:
    """The best policy within constraints."""

    bound: float
    allowed: np.ndarray  # [A, S] bool
    choice: np.ndarray  # [S]
    values: np.ndarray  # [S]
    q: np.ndarray  # [A, S]


class _Relaxation:
    """Solves the model within constraints."""

    def __init__(self, mdp: FiniteMDP) -> None:
        self.mdp, self.shape = mdp, (mdp.actions.n, mdp.n_states)
        alive = sparse.diags_array((~mdp.terminal).astype(float))
        self.stacked = sparse.csr_array(sparse.vstack([alive @ matrix for matrix in mdp.transitions], format="csr"))
        self.rewards = np.where(mdp.terminal[:, None], 0.0, mdp.rewards).T
        self.rows = np.arange(mdp.n_states)
        self.is_dense = mdp.n_states <= 1000

    def solve(self, allowed: np.ndarray, values: np.ndarray) -> _Policy:
        """Return the best policy within `allowed`, from values that are close to its own."""
        scale = max(1.0, float(np.abs(values).max()))
        q = self.action_values(values, allowed)
        for _ in range(SWEEPS):
            new = q.max(axis=0)
            change = float(np.abs(new - values).max())
            values, q = new, self.action_values(new, allowed)
            if change <= SETTLED * scale:
                break
        else:
            choice = q.argmax(axis=0)
            while True:
                values = self.evaluate(choice)
                q = self.action_values(values, allowed)
                better = q.max(axis=0) > q[choice, self.rows] + TIE * scale
                if not better.any():
                    break
                choice = np.where(better, q.argmax(axis=0), choice)
        return _Policy(float(self.mdp.start @ q.max(axis=0)), allowed, q.argmax(axis=0), q.max(axis=0), q)

    def action_values(self, values: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """Return Q [A, S], minus infinity where an action is not allowed."""
        q = self.rewards + self.mdp.gamma * (self.stacked @ values).reshape(self.shape)
        return np.where(allowed, q, -np.inf)

    def system(self, choice: np.ndarray) -> np.ndarray | sparse.csc_array:
        """Return I - gamma P of a policy."""
        moves = self.stacked[choice * self.shape[1] + self.rows]
        if self.is_dense:
            return np.eye(self.shape[1]) - self.mdp.gamma * moves.toarray()
        return sparse.csc_array(sparse.eye_array(self.shape[1]) - self.mdp.gamma * moves)

    def evaluate(self, choice: np.ndarray) -> np.ndarray:
        """Return the values of a policy, [S]."""
        return self._solved(self.system(choice), self.rewards[choice, self.rows])

    def visits(self, choice: np.ndarray) -> np.ndarray:
        """Return how often each state is visited (discounted), [S]."""
        return np.maximum(self._solved(self.system(choice).T, self.mdp.start), 0.0)

    def _solved(self, system: np.ndarray | sparse.csc_array, right: np.ndarray) -> np.ndarray:
        if self.is_dense:
            return np.linalg.solve(system, right)
        return np.atleast_1d(sparse.linalg.spsolve(sparse.csc_array(system), right))


class _Fit:
    """Fits trees of one depth by STreeD, over every threshold between neighbouring values."""

    def __init__(self, mdp: FiniteMDP, depth: int, deadline: float) -> None:
        from pystreed import cstreed

        columns = [mdp.x[:, c] <= value for c in range(mdp.x.shape[1]) for value in np.unique(mdp.x[:, c])[:-1]]
        self.binary = np.array(columns).T.astype(np.intc)
        self.deadline, self.n_actions = deadline, mdp.actions.n
        self.streed, self.given = cstreed, cstreed.ParameterHandler()
        self.given.optimization_task = "instance-cost-sensitive"
        self.given.max_depth, self.given.max_num_nodes = depth, 2**depth - 1
        self.given.num_extra_cols = mdp.actions.n
        self.given.feature_ordering = "gini"
        self.given.verbose = False

    def __call__(self, cost: np.ndarray) -> tuple[np.ndarray, float, bool]:
        """Return the action of each state [S] by the best tree, its cost, and whether it is proved the best."""
        rows = np.flatnonzero(cost.max(axis=1) > 0.0)
        if len(rows) == 0:
            return np.zeros(len(cost), dtype=np.int64), 0.0, True
        self.given.time_limit = max(0.01, self.deadline - time.process_time())
        solver = self.streed.initialize_streed_solver(self.given, self.streed.RandomEngine(0))
        vectors = [self.streed.CostVector(row) for row in cost[rows]]
        result = solver._solve(self.binary[rows], cost[rows].argmin(axis=1).astype(np.intc), vectors)
        none = [self.streed.CostVector(np.zeros(self.n_actions))] * len(cost)
        actions = np.asarray(solver._predict(result, self.binary, none)).astype(np.int64)
        return actions, float(cost[np.arange(len(cost)), actions].sum()), bool(result.is_optimal())


def search(mdp: FiniteMDP, depth: int, seconds: float, gap: float) -> Standing:
    """Search until the bound is within `gap` of the best tree's return, or time is up.

    mdp      discounted, without a horizon
    depth    the largest number of splits on a path
    seconds  CPU seconds after which the search ends
    gap      between return and bound at which the best tree counts as proved
    """
    began = time.process_time()
    deadline = began + seconds
    relaxation, fit = _Relaxation(mdp), _Fit(mdp, depth, deadline)
    root = relaxation.solve(np.ones(relaxation.shape, dtype=bool), np.zeros(mdp.n_states))
    small = TIE * max(1.0, float(np.abs(root.values).max()))
    best, explored = -np.inf, 0
    waiting = [(-root.bound, 0, root)]
    pushed = 1
    while waiting and -waiting[0][0] > best + gap and time.process_time() < deadline:
        _, _, node = heapq.heappop(waiting)
        visits = relaxation.visits(node.choice)
        regret = np.where(node.allowed, node.values - node.q, 0.0)
        cost = np.where(regret > small, visits * regret, 0.0)
        forbidden = FORBIDDEN * max(1.0, float(cost.max(axis=0).sum()))
        actions, total, is_best = fit(np.where(node.allowed, cost, forbidden).T)
        explored += 1
        best = max(best, float(mdp.start @ relaxation.evaluate(actions)))
        if not is_best:  # out of time
            heapq.heappush(waiting, (-node.bound, pushed, node))
            break
        if total >= forbidden:
            continue  # no tree satisfies the constraints
        differs = (cost[actions, relaxation.rows] > 0.0) & node.allowed[actions, relaxation.rows]
        if not differs.any():
            continue  # the tree attains the bound
        spread = node.values - np.where(node.allowed, node.q, np.inf).min(axis=0)
        state = int(np.where(differs, visits * spread, -1.0).argmax())
        action = int(node.choice[state])
        for takes in (True, False):
            allowed = node.allowed.copy()
            allowed[:, state] &= (np.arange(mdp.actions.n) == action) == takes
            child = relaxation.solve(allowed, node.values)
            if child.bound > best + gap:
                heapq.heappush(waiting, (-min(child.bound, node.bound), pushed, child))
                pushed += 1
    bound = max(best, -waiting[0][0] if waiting else best)
    return Standing(best, bound, explored, time.process_time() - began)
