"""Q over bounds: the table that is the policy, with the base actions' values on both sides of every split, compiled.

A row is a node of the tree, o = s_w \\ s_b, found by its bounds (and its depth, where a depth limit makes that matter).
Nothing here depends on a base state except through the side of a threshold it falls on, so a tree can be read off
exactly. Thresholds and masks are those of `custard.ibmdp`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from custard.core.numba_tools import njit
from custard.ibmdp.kernels import narrowed, threshold_of
from custard.ibmdp.splits import Rules
from custard.solvers.common.key_table import NONE, Keys, find, insert, make_keys, restore_keys
from custard.solvers.common.level_policy import LevelPolicy

__all__ = [
    "BoundsTable",
    "child_node",
    "greedy_base_action",
    "keep_most_visited_nodes",
    "learning_rate",
    "make_bounds_table",
    "root_node",
    "table_policy",
    "update_node",
]


class BoundsTable(NamedTuple):
    """Rows of Q over bounds: N nodes, M = n * p splits, B base actions. Side 0 of a split is left, 1 is right."""

    keys: Keys  # lower [n], upper [n], depth (0 without a depth limit)
    q: Any  # [N, B + M] Q(o, a); -inf where a split is masked
    visits: Any  # [N] int32
    greedy: Any  # [N] int32: argmax_a Q(o, a) among afforded actions
    explored_split: Any  # [N] int32: the random split that the node tries for a stretch of visits, or NONE
    threshold: Any  # [N, M] of each split; NaN where it is masked
    child: Any  # [N, M, 2] int32: the node on each side, or NONE while that side is only a leaf
    child_q: Any  # [N, M, 2, B] Q(child, b) of base actions
    child_visits: Any  # [N, M, 2] int32
    child_action: Any  # [N, M, 2] int32: argmax_b Q(child, b), the action of a leaf there


def make_bounds_table(capacity: int, rules: Rules) -> BoundsTable:
    """Return an empty table for at most `capacity` nodes."""
    n, n_splits, base = rules.features.n, rules.n_actions - rules.n_base, rules.n_base
    return BoundsTable(
        keys=make_keys(capacity, 2 * n + 1),
        q=np.zeros((capacity, base + n_splits)),
        visits=np.zeros(capacity, dtype=np.int32),
        greedy=np.zeros(capacity, dtype=np.int32),
        explored_split=np.full(capacity, NONE, dtype=np.int32),
        threshold=np.zeros((capacity, n_splits)),
        child=np.full((capacity, n_splits, 2), NONE, dtype=np.int32),
        child_q=np.zeros((capacity, n_splits, 2, base)),
        child_visits=np.zeros((capacity, n_splits, 2), dtype=np.int32),
        child_action=np.zeros((capacity, n_splits, 2), dtype=np.int32),
    )


def keep_most_visited_nodes(table: BoundsTable, max_nodes: int, max_visits: int) -> None:
    """Keep at most `max_nodes` nodes, in their order, whose visits count for at most `max_visits` from now on."""
    size = int(table.keys.size[0])
    rows = np.sort(np.argsort(-table.visits[:size], kind="stable")[:max_nodes])
    new_row = np.full(size + 1, NONE, dtype=np.int32)  # its last entry is where NONE itself leads
    new_row[rows] = np.arange(len(rows))
    keys = table.keys.key[rows]
    for name in BoundsTable._fields:
        if name != "keys":
            array = getattr(table, name)
            array[: len(rows)] = array[rows]
    child = table.child[: len(rows)]
    child[...] = new_row[child]
    np.minimum(table.visits, max_visits, out=table.visits)
    np.minimum(table.child_visits, max_visits, out=table.child_visits)
    restore_keys(table.keys, keys)


# -- nodes ----------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _add_node(table, rules, key):
    """Add a node that has not been visited; return its row, or NONE if the table is full."""
    o = insert(table.keys, key)
    if o < 0:
        return o
    n, p, base = len(rules.low), len(rules.fractions), rules.n_base
    table.visits[o] = 0
    table.greedy[o] = 0
    table.q[o] = 0.0
    table.child[o] = NONE
    table.child_q[o] = 0.0
    table.child_visits[o] = 0
    table.child_action[o] = 0
    may_split = key[2 * n] < rules.depth_limit if rules.has_depth_limit else True
    for c in range(n):
        for j in range(p):
            v_p = threshold_of(rules, c, j, key[c], key[n + c]) if may_split else np.nan
            table.threshold[o, c * p + j] = v_p
            if np.isnan(v_p):
                table.q[o, base + c * p + j] = -np.inf
    return o


@njit(cache=True, inline="always")
def root_node(table, rules):
    """Return the row of the node with the widest bounds: always 0."""
    if table.keys.size[0] > 0:
        return 0
    n = len(rules.low)
    key = np.zeros(2 * n + 1)
    for c in range(n):
        key[c] = rules.low[c] + 0.0
        key[n + c] = rules.high[c] + 0.0
    return _add_node(table, rules, key)


@njit(cache=True)
def child_node(table, rules, o, m, side):
    """Return the node on one side of node o's split m, added from that leaf's values if need be; NONE if full."""
    child = table.child[o, m, side]
    if child >= 0:
        return child
    n, c = len(rules.low), rules.feature[m]
    key = table.keys.key[o].copy()
    v_p = table.threshold[o, m] + 0.0
    key[c], key[n + c] = narrowed(key[c], key[n + c], v_p, side == 0)
    if rules.has_depth_limit:
        key[2 * n] += 1.0
    row = find(table.keys, key)
    if row < 0:
        row = _add_node(table, rules, key)
        if row < 0:
            return row
        table.greedy[row] = table.child_action[o, m, side]
        for b in range(rules.n_base):
            table.q[row, b] = table.child_q[o, m, side, b]
    table.child[o, m, side] = row
    return row


@njit(cache=True, inline="always")
def greedy_base_action(table, rules, o, x):
    """Follow the greedy tree from node o with a base state x [n] and return the base action of the leaf it reaches."""
    base, feature = rules.n_base, rules.feature
    while True:
        a = table.greedy[o]
        if a < base:
            return a
        m = a - base
        side = 0 if x[feature[m]] <= table.threshold[o, m] else 1
        child = table.child[o, m, side]
        if child < 0 or table.visits[child] == 0:
            return table.child_action[o, m, side]
        o = child


# -- learning -------------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def learning_rate(visits, kappa, minimum):
    """Return kappa / (visits - 1 + kappa), at least `minimum`: 1 at first; kappa = 1 averages, more forgets faster.

    kappa = 0 means the constant rate `minimum`.
    """
    return max(minimum, kappa / (visits - 1.0 + kappa)) if kappa > 0.0 else minimum


@njit(cache=True, error_model="numpy", inline="always")
def update_node(table, rules, o, x, q_o, zeta, kappa, alpha_b, only_action):
    """Move Q(o, a) for every afforded action a toward its value in one base state.

    table, rules: `BoundsTable` and `CompiledRules`
    o: the node's row
    x [n]: the base state
    q_o [B]: Q_o of its base actions
    zeta, kappa, alpha_b: the reward of a split; `learning_rate`'s kappa and minimum
    only_action: the only action that learns, for comparison; NONE for all

    Because all actions learn at once they are compared on the same states. A base action's target is its q_o. A
    split's target is zeta plus what following the greedy tree on the state's side is worth, computed before this state
    is learned on that side, so that no leaf is judged on the states it was fitted to.
    """
    # Most of the time goes into this loop: arrays are named once and indexed in full, which spares views and look-ups.
    base, feature, gamma = rules.n_base, rules.feature, rules.gamma_w
    q, visits, greedy, threshold, child = table.q, table.visits, table.greedy, table.threshold, table.child
    child_q, child_visits, child_action = table.child_q, table.child_visits, table.child_action
    visits[o] += 1
    alpha = learning_rate(visits[o], kappa, alpha_b)
    best_base_action = 0
    for b in range(base):
        if only_action < 0 or only_action == b:
            q[o, b] += alpha * (q_o[b] - q[o, b])
        if q[o, b] > q[o, best_base_action]:
            best_base_action = b
    best_action = best_base_action
    for m in range(threshold.shape[1]):
        v_p = threshold[o, m]
        if v_p != v_p:  # NaN: masked
            continue
        if only_action < 0 or only_action == base + m:
            side = 0 if x[feature[m]] <= v_p else 1
            target, discount = zeta, gamma
            node, split, node_side = o, m, side
            while True:  # `greedy_base_action`, from this side on
                below = child[node, split, node_side]
                if below < 0 or visits[below] == 0:
                    action = child_action[node, split, node_side]
                    break
                node = below
                action = greedy[node]
                if action < base:
                    break
                split = action - base
                node_side = 0 if x[feature[split]] <= threshold[node, split] else 1
                target += discount * zeta
                discount *= gamma
            target += discount * q_o[action]
            below = child[o, m, side]
            if below < 0 or visits[below] == 0:  # this side is still a leaf
                child_visits[o, m, side] += 1
                child_alpha = learning_rate(child_visits[o, m, side], kappa, alpha_b)
                leaf_action = 0
                for b in range(base):
                    child_q[o, m, side, b] += child_alpha * (q_o[b] - child_q[o, m, side, b])
                    if child_q[o, m, side, b] > child_q[o, m, side, leaf_action]:
                        leaf_action = b
                child_action[o, m, side] = leaf_action
            if child_visits[o, m, 1 - side] == 0:  # a side never reached would act as this node does as a leaf
                child_action[o, m, 1 - side] = best_base_action
            q[o, base + m] += alpha * (target - q[o, base + m])
        if q[o, base + m] > q[o, best_action]:
            best_action = base + m
    greedy[o] = best_action


# -- extraction -----------------------------------------------------------------------------------------------------


def table_policy(
    table: BoundsTable, rules: Rules, noise: float = 0.0, rng: np.random.Generator | None = None
) -> LevelPolicy:
    """Return the greedy policy over bounds for `custard.extract`.

    With `noise` each node's values are perturbed first, by that many times their own spread: the tree is then a sample
    of those that look nearly as good.
    """
    base = rules.n_base
    sampled: dict[int, int] = {}  # a node met again on a level takes the same action again

    def greedy_or_sampled(o: int) -> int:
        if rng is None:
            return int(table.greedy[o])
        if o not in sampled:
            q = table.q[o]
            spread = np.std(q[np.isfinite(q)])
            sampled[o] = int(np.argmax(q + noise * spread * rng.gumbel(size=len(q))))
        return sampled[o]

    def decide(node: tuple[int, int], lower: Any, upper: Any, depth: int, mask: np.ndarray) -> tuple[int, Any]:
        o, leaf_action = node  # its row, or NONE, and its action as a leaf
        if o < 0 or table.visits[o] == 0:
            return leaf_action, ()
        a = greedy_or_sampled(o)
        if a < base or not mask[a]:
            return a if a < base else int(np.argmax(table.q[o, :base])), ()
        return a, tuple(zip(table.child[o, a - base].tolist(), table.child_action[o, a - base].tolist(), strict=True))

    return LevelPolicy(rules, (0, 0), decide)
