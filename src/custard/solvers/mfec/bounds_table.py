"""Q over bounds: the table that is the policy, with what each question's two answers would be worth, compiled.

A row is a tree node o = s_w \\ s_b, found by its bounds (and its depth, where a depth limit makes that matter). Nothing
here depends on a base state except through the side of a threshold it falls on, so a tree can be read off exactly.
Thresholds and masks are those of `custard.ibmdp`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.ibmdp import splits
from custard.ibmdp.kernels import narrowed, project, separates
from custard.ibmdp.splits import Rules, fractions
from custard.solvers.common.key_table import Keys, find, insert, make_keys

__all__ = [
    "Lattice",
    "Nodes",
    "TablePolicy",
    "grow",
    "learn_node",
    "make_lattice",
    "make_nodes",
    "rate",
    "root_node",
    "threshold_of",
    "walk",
]

NONE = -1


class Lattice(NamedTuple):
    """An IBMDP's rules as compiled code reads them."""

    low: Any  # [n]
    high: Any  # [n]
    integer: Any  # [n] bool
    fractions: Any  # [p]
    feature: Any  # [M] int32: what each question asks about
    n_base: int
    depth_limit: int
    by_depth: bool  # whether depth belongs to the key: there is a depth limit
    mask_useless: bool
    gamma_w: float


class Nodes(NamedTuple):
    """Rows of Q over bounds. M = n * p questions, B base actions."""

    keys: Keys  # lower [n], upper [n], depth (0 without a depth limit)
    q: Any  # [N, B + M] Q(o, a)
    visits: Any  # [N] int32
    trial: Any  # [N] int32: the question being tried for a stretch of visits, or NONE
    best: Any  # [N] int32: argmax_a Q(o, a) among afforded actions
    threshold: Any  # [N, M] of each question; NaN where it is not afforded
    child: Any  # [N, M, 2] int32: the node each answer leads to, or NONE while it is only a leaf
    child_q: Any  # [N, M, 2, B] Q(child, b): the base actions' values behind each answer
    child_visits: Any  # [N, M, 2] int32
    child_best: Any  # [N, M, 2] int32: argmax_b Q(child, b)


def make_lattice(rules: Rules) -> Lattice:
    """The compiled form of an IBMDP's rules."""
    f = rules.features
    return Lattice(
        np.array(f.low), np.array(f.high), f.integer, fractions(int(rules.splits)),
        np.repeat(np.arange(f.n, dtype=np.int32), int(rules.splits)), rules.n_base, rules.depth_limit,
        rules.max_depth is not None, rules.mask_useless, float(rules.gamma_w),
    )  # fmt: skip


def make_nodes(capacity: int, rules: Rules) -> Nodes:
    """An empty table for at most `capacity` nodes."""
    n, questions, base = rules.features.n, rules.n_actions - rules.n_base, rules.n_base
    return Nodes(
        keys=make_keys(capacity, 2 * n + 1),
        q=np.zeros((capacity, base + questions)),
        visits=np.zeros(capacity, dtype=np.int32),
        trial=np.full(capacity, NONE, dtype=np.int32),
        best=np.zeros(capacity, dtype=np.int32),
        threshold=np.zeros((capacity, questions)),
        child=np.full((capacity, questions, 2), NONE, dtype=np.int32),
        child_q=np.zeros((capacity, questions, 2, base)),
        child_visits=np.zeros((capacity, questions, 2), dtype=np.int32),
        child_best=np.zeros((capacity, questions, 2), dtype=np.int32),
    )


@njit(cache=True)
def threshold_of(lattice, c, j, lower, upper):
    """v_p of a feature's j-th question between these bounds; NaN if it is useless there and such are masked."""
    v_p = project(lower, upper, lattice.fractions[j])
    if lattice.mask_useless and not separates(lattice.integer[c], lattice.low[c], lower, upper, v_p):
        return np.nan
    return v_p


@njit(cache=True)
def _new_node(nodes, lattice, key):
    """A node that has not been visited; NONE if the table is full."""
    o = insert(nodes.keys, key)
    if o < 0:
        return o
    n, p, base = len(lattice.low), len(lattice.fractions), lattice.n_base
    nodes.visits[o] = 0
    nodes.best[o] = 0
    nodes.q[o] = 0.0
    nodes.child[o] = NONE
    nodes.child_q[o] = 0.0
    nodes.child_visits[o] = 0
    nodes.child_best[o] = 0
    afforded = key[2 * n] < lattice.depth_limit if lattice.by_depth else True
    for c in range(n):
        for j in range(p):
            v_p = threshold_of(lattice, c, j, key[c], key[n + c]) if afforded else np.nan
            nodes.threshold[o, c * p + j] = v_p
            if np.isnan(v_p):
                nodes.q[o, base + c * p + j] = -np.inf
    return o


@njit(cache=True, inline="always")
def root_node(nodes, lattice):
    """The node of which nothing is known: always row 0."""
    if nodes.keys.size[0] > 0:
        return 0
    n = len(lattice.low)
    key = np.zeros(2 * n + 1)
    for c in range(n):
        key[c] = lattice.low[c] + 0.0
        key[n + c] = lattice.high[c] + 0.0
    return _new_node(nodes, lattice, key)


@njit(cache=True)
def grow(nodes, lattice, o, m, side):
    """The node behind an answer, made if need be from what is known of it as a leaf; NONE if the table is full."""
    there = nodes.child[o, m, side]
    if there >= 0:
        return there
    n, c = len(lattice.low), lattice.feature[m]
    key = nodes.keys.key[o].copy()
    v_p = nodes.threshold[o, m] + 0.0
    key[c], key[n + c] = narrowed(key[c], key[n + c], v_p, side == 0)
    if lattice.by_depth:
        key[2 * n] += 1.0
    row = find(nodes.keys, key)
    if row < 0:
        row = _new_node(nodes, lattice, key)
        if row < 0:
            return row
        nodes.best[row] = nodes.child_best[o, m, side]
        for b in range(lattice.n_base):
            nodes.q[row, b] = nodes.child_q[o, m, side, b]
    nodes.child[o, m, side] = row
    return row


@njit(cache=True, inline="always")
def walk(nodes, lattice, o, x):
    """Follow the greedy tree from node o with a base state: the base action of its leaf and the questions asked."""
    base, feature = lattice.n_base, lattice.feature
    asked = 0
    while True:
        a = nodes.best[o]
        if a < base:
            return a, asked
        m = a - base
        side = 0 if x[feature[m]] <= nodes.threshold[o, m] else 1
        asked += 1
        below = nodes.child[o, m, side]
        if below < 0 or nodes.visits[below] == 0:
            return nodes.child_best[o, m, side], asked
        o = below


@njit(cache=True, error_model="numpy")
def rate(n, kappa, least):
    """kappa / (n - 1 + kappa), at least `least`: 1 for the first visit; kappa = 1 averages, more forgets faster.

    kappa = 0 means the constant rate `least`.
    """
    return max(least, kappa / (n - 1.0 + kappa)) if kappa > 0.0 else least


@njit(cache=True, error_model="numpy", inline="always")
def learn_node(nodes, lattice, o, x, q_o, zeta, kappa, alpha_b, only):
    """Move Q(o, a) for every afforded a toward its value in one base state, whose base actions are worth q_o [B].

    All actions are so compared on the same states. With `only` >= 0 just that action learns (for comparison).

    A base action's target is q_o itself; a question's is zeta plus what following the greedy tree from the answer is
    worth, priced before this state is learned behind that answer, so that no leaf is judged on the states it was
    fitted to.
    """
    # This loop is where the time goes: arrays are named once and indexed in full, which spares views and look-ups.
    base, feature, gamma = lattice.n_base, lattice.feature, lattice.gamma_w
    q, visits, best, threshold, child = nodes.q, nodes.visits, nodes.best, nodes.threshold, nodes.child
    child_q, child_visits, child_best = nodes.child_q, nodes.child_visits, nodes.child_best
    visits[o] += 1
    alpha = rate(visits[o], kappa, alpha_b)
    here = 0  # the leaf this node could be
    for b in range(base):
        if only < 0 or only == b:
            q[o, b] += alpha * (q_o[b] - q[o, b])
        if q[o, b] > q[o, here]:
            here = b
    top = here
    for m in range(threshold.shape[1]):
        v_p = threshold[o, m]
        if v_p != v_p:  # NaN: not afforded
            continue
        if only < 0 or only == base + m:
            side = 0 if x[feature[m]] <= v_p else 1
            target, discount = zeta, gamma
            at, k, s = o, m, side
            while True:  # `walk`, from this answer on
                below = child[at, k, s]
                if below < 0 or visits[below] == 0:
                    action = child_best[at, k, s]
                    break
                at = below
                action = best[at]
                if action < base:
                    break
                k = action - base
                s = 0 if x[feature[k]] <= threshold[at, k] else 1
                target += discount * zeta
                discount *= gamma
            target += discount * q_o[action]
            below = child[o, m, side]
            if below < 0 or visits[below] == 0:  # the answer is still a leaf
                child_visits[o, m, side] += 1
                step = rate(child_visits[o, m, side], kappa, alpha_b)
                leaf = 0
                for b in range(base):
                    child_q[o, m, side, b] += step * (q_o[b] - child_q[o, m, side, b])
                    if child_q[o, m, side, b] > child_q[o, m, side, leaf]:
                        leaf = b
                child_best[o, m, side] = leaf
            if child_visits[o, m, 1 - side] == 0:  # an answer never given would lead to the leaf this node could be
                child_best[o, m, 1 - side] = here
            q[o, base + m] += alpha * (target - q[o, base + m])
        if q[o, base + m] > q[o, top]:
            top = base + m
    best[o] = top


class TablePolicy:
    """The greedy policy over bounds, as `custard.extract` asks for it: level by level, never with a base state.

    Extraction hands over bounds without depth. As it goes level by level, this policy keeps the nodes its own
    questions lead to, and finds each node of the next level among them.

    With `noise` each node's values are perturbed first, by that many times their own spread: the tree is then a draw
    from those that look nearly as good.
    """

    def __init__(self, nodes: Nodes, rules: Rules, noise: float = 0.0, rng: np.random.Generator | None = None) -> None:
        self.nodes, self.rules, self.noise, self.rng = nodes, rules, noise, rng
        self.drawn: dict[int, int] = {}  # a node met again on a level takes the same action again
        self.level: dict[bytes, tuple[int, int]] = {rules.normalised(*rules.root()).tobytes(): (0, 0)}

    def __call__(self, bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """IBMDP actions for nodes, bounds [B, 2n] and mask [B, n_actions]."""
        below: dict[bytes, tuple[int, int]] = {}
        answers = np.zeros(len(bounds), dtype=np.int64)
        for i, row in enumerate(bounds):
            o, leaf = self.level[row.tobytes()]
            answers[i] = self._answer(o, leaf, mask[i], below)
        if below:
            self.level = below
        return answers

    def _answer(self, o: int, leaf: int, mask: np.ndarray, below: dict[bytes, tuple[int, int]]) -> int:
        nodes, base = self.nodes, self.rules.n_base
        if o < 0 or nodes.visits[o] == 0:
            return leaf
        a = self._choice(o)
        if a < base or not mask[a]:
            return a if a < base else int(np.argmax(nodes.q[o, :base]))
        n, m = self.rules.features.n, a - base
        c, v_p = m // self.rules.per_feature, nodes.threshold[o, m]
        for side in (0, 1):
            lower, upper = nodes.keys.key[o, :n].copy(), nodes.keys.key[o, n : 2 * n].copy()
            lower[c], upper[c] = splits.narrowed(lower[c], upper[c], v_p, side == 0)
            child = int(nodes.child[o, m, side]), int(nodes.child_best[o, m, side])
            below[self.rules.normalised(lower, upper).tobytes()] = child
        return a

    def _choice(self, o: int) -> int:
        if self.noise == 0.0 or self.rng is None:
            return int(self.nodes.best[o])
        if o not in self.drawn:
            q = self.nodes.q[o]
            spread = np.std(q[np.isfinite(q)])
            self.drawn[o] = int(np.argmax(q + self.noise * spread * self.rng.gumbel(size=len(q))))
        return self.drawn[o]
