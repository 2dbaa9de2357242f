"""The paper's MFEC as its appendix has it: two nearest-neighbour tables, constant rates, one sampled target per step.

    Q_o(s_w, a) <- Q_o(s_w, a) + alpha_o * (target - Q_o(s_w, a))
    Q(o, a)     <- Q(o, a)     + alpha_b * (target - Q(o, a)),        o = s_w \\ s_b
    target = r + gamma * Q_o(s_w', argmax_a' Q(o', a')),   gamma = gamma_b after a base action, gamma_w after a split

What the text leaves open is settled here as `docs/explanation/deviations.md` lists: epsilon, capacity, order of
updates, weighting of neighbours, ties.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.core.errors import require_least, require_shares
from custard.core.numba_tools import without_refcounts
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.kernels import (
    CompiledRules,
    best_afforded,
    compiled_rules,
    narrowed,
    project,
    random_afforded,
    threshold_of,
)
from custard.ibmdp.splits import Rules
from custard.solvers.common.bounds_survey import fill_missing_bounds
from custard.solvers.common.checkpoint import copied, refill
from custard.solvers.common.key_table import Keys, find, insert, make_keys, nearest, restore_keys
from custard.solvers.common.level_policy import LevelPolicy
from custard.solvers.common.selection import LEARNING_BUDGET_SHARE, Selection
from custard.solvers.mfec.runners import CONTINUES, EPISODE_OVER, STARTED, TERMINATED, default_budget, run_episodes
from custard.task.compiled_episodes import start_episode, step_episode
from custard.task.problem import Problem, Snapshot
from custard.task.runners import make_episodes
from custard.tree.extract import extract

__all__ = ["PRESET", "PaperSettings", "PaperTables", "make_paper_tables", "paper_policy", "solve"]


@dataclass(frozen=True)
class PaperSettings:
    """Settings of MFEC in the form of the paper's appendix."""

    budget: int | None = None  # environment steps, judging included; None: 10 or 20 million, a tenth where Python steps
    splits: int = 3  # p, thresholds per feature
    zeta: float = -0.01  # the reward of a split
    gamma_b: float = 1.0  # discount of a base action
    gamma_w: float = 1.0  # discount of a split
    alpha_b: float = 0.01  # learning rate of Q
    alpha_o: float = 0.3  # learning rate of Q_o
    k: int = 9  # neighbours that stand in for a key never seen
    epsilon: float = 0.05  # minimum share of random actions
    capacity: int = 500_000  # keys kept in each table
    keep: bool = False  # return the best tree judged; False: the last one
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: a time limit is a termination
    mask: bool = True  # mask splits that separate nothing; False: they only cost zeta
    low: Any = None  # lower bounds of the features, where the environment's own do not suit
    high: Any = None  # upper bounds of the features

    def __post_init__(self) -> None:
        require_least(self, 1, "k", "capacity")
        require_shares(self, "alpha_b", "alpha_o", "epsilon")


PRESET: dict[str, dict[str, Any]] = {
    "CartPole": {"splits": 10, "gamma_b": 0.99, "budget": 2_000_000, "bootstrap_at_limit": False,
                 "low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4]},
    "PrereqWorld": {"splits": 1, "alpha_b": 0.1, "alpha_o": 0.7},
    "PotholeWorld": {"splits": 10, "k": 2, "budget": 5_000_000},
}  # fmt: skip

MAX_NEIGHBOUR_CANDIDATES = 100  # keys among which neighbours are looked for
FIRST_EPSILON = 0.5
EPSILON_STEPS = 222_222  # transitions over which epsilon falls linearly from the first to 0, or to its minimum before

PENDING = np.dtype(
    [
        ("bounds_row", np.int64),  # the step that is still to be learned from: where it was taken (-1: there is none),
        ("state_row", np.int64),
        ("action", np.int64),  # its action,
        ("reward", np.float64),  # and, of a base action, its reward
    ]
)
RATES = np.dtype([(name, np.float64) for name in ("epsilon", "alpha_b", "alpha_o", "gamma_b", "zeta")])
COUNTERS = np.dtype(
    [
        ("splits", np.int64),
        ("base_actions", np.int64),
        ("traversals_cut", np.int64),
        ("episode_return", np.float64),
        ("episodes", np.int64),  # since the last snapshot, with the sum of their returns
        ("returns", np.float64),
        ("hits", np.int64),  # keys that were found
        ("misses", np.int64),  # keys that were new
    ]
)


class PaperTables(NamedTuple):
    """Both tables and the step that is still to be learned from. N keys, n features."""

    rules: CompiledRules
    width: Any  # [n]: for normalising
    bounds: Keys  # [N, 2n + 1]: lower, upper (normalised), depth where it matters
    q: Any  # [N, |A_w|] Q(o, a)
    states: Keys  # [N, 3n + 1]: the base state before those
    q_o: Any  # [N, |A_w|] Q_o(s_w, a)
    max_queries: int
    pending: Any  # [1] PENDING
    rates: Any  # [1] RATES
    counters: Any  # [1] COUNTERS
    rng: Any  # [4] uint64
    key: Any  # [3n + 1]: scratch space for the key that is looked up


def make_paper_tables(rules: Rules, settings: PaperSettings, seed: int) -> PaperTables:
    """Return empty tables."""
    n, actions, capacity, s = rules.features.n, rules.n_actions, settings.capacity, settings
    assert rules.max_queries is not None
    return PaperTables(
        rules=compiled_rules(rules),
        width=rules.width,
        bounds=make_keys(capacity, 2 * n + 1, neighbours=True),
        q=np.zeros((capacity, actions)),
        states=make_keys(capacity, 3 * n + 1, neighbours=True),
        q_o=np.zeros((capacity, actions)),
        max_queries=int(rules.max_queries),
        pending=np.array([(-1, 0, 0, 0.0)], dtype=PENDING),
        rates=np.array([(s.epsilon, s.alpha_b, s.alpha_o, s.gamma_b, s.zeta)], dtype=RATES),
        counters=np.zeros(1, dtype=COUNTERS).view(np.recarray),
        rng=streams([seed])[0],
        key=np.zeros(3 * n + 1),
    )


# -- look-ups -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _row(keys, values, key, k, counters):
    """Return the row of a key. A new one starts from the mean of its k nearest; in a full table it is the nearest."""
    row = np.int64(find(keys, key))
    if row >= 0:
        counters.hits += 1
        return row
    counters.misses += 1
    is_full = keys.size[0] == len(keys.key)
    rows, distances = np.empty(1 if is_full else k, np.int64), np.empty(1 if is_full else k)
    found = nearest(keys, key, rows, distances, MAX_NEIGHBOUR_CANDIDATES)
    if is_full:
        return rows[0]
    row = np.int64(insert(keys, key))
    values[row] = 0.0
    for i in range(found):
        for a in range(values.shape[1]):
            values[row, a] += values[rows[i], a] / found
    return row


@njit(cache=True)
def _keys_of(tables, x, lower, upper, depth):
    """Return the keys of o and of s_w, both in scratch space: they last until the next call."""
    n = len(lower)
    key, low = tables.key, tables.rules.low
    for c in range(n):
        key[c] = min(max((x[c] - low[c]) / tables.width[c], 0.0), 1.0) + 0.0
        key[n + c] = (lower[c] - low[c]) / tables.width[c] + 0.0
        key[2 * n + c] = (upper[c] - low[c]) / tables.width[c] + 0.0
    key[3 * n] = depth if tables.rules.has_depth_limit else 0.0
    return key[n:], key


@njit(cache=True)
def _rows_of(tables, x, lower, upper, depth, k):
    """Return the rows of o in Q and of s_w in Q_o, for base state x [n] and bounds [n], [n] at a depth."""
    bounds_key, state_key = _keys_of(tables, x, lower, upper, depth)
    counters = tables.counters[0]
    o = _row(tables.bounds, tables.q, bounds_key, k, counters)
    return o, _row(tables.states, tables.q_o, state_key, k, counters)


@njit(cache=True)
def _fill_mask(rules, lower, upper, depth, mask):
    """Write the affordances at some bounds into `mask` [n_actions]."""
    p = len(rules.fractions)
    for a in range(len(mask)):
        if a < rules.n_base:
            mask[a] = True
            continue
        c, j = (a - rules.n_base) // p, (a - rules.n_base) % p
        mask[a] = depth < rules.depth_limit and not np.isnan(threshold_of(rules, c, j, lower[c], upper[c]))


# -- learning -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _update(tables, target):
    """Move Q_o and Q of the pending step toward its target."""
    pending, rates = tables.pending[0], tables.rates[0]
    o, s, a = pending.bounds_row, pending.state_row, pending.action
    tables.q_o[s, a] += rates.alpha_o * (target - tables.q_o[s, a])
    tables.q[o, a] += rates.alpha_b * (target - tables.q[o, a])


@njit(cache=True)
def choose_base_action(tables, x, k):
    """Traverse the tree from the root with base state x [n], epsilon-greedily and learning from every step, until a
    base action is chosen; return it."""
    rules, pending, rates, counters = tables.rules, tables.pending[0], tables.rates[0], tables.counters[0]
    base, p = rules.n_base, len(rules.fractions)
    lower, upper = rules.low.copy(), rules.high.copy()
    mask = np.empty(tables.q.shape[1], np.bool_)
    depth = 0
    while True:
        o, s = _rows_of(tables, x, lower, upper, depth, k)
        _fill_mask(rules, lower, upper, depth, mask)
        a = best_afforded(tables.q[o], mask)
        if pending.bounds_row >= 0:  # the step that led here
            was_split = pending.action >= base
            reward, gamma = (rates.zeta, rules.gamma_w) if was_split else (pending.reward, rates.gamma_b)
            _update(tables, reward + gamma * tables.q_o[s, a])
        transitions = counters.splits + counters.base_actions
        if uniform(tables.rng, 0.0, 1.0) < max(rates.epsilon, FIRST_EPSILON * (1.0 - transitions / EPSILON_STEPS)):
            a = random_afforded(tables.rng, mask)
        if depth >= tables.max_queries:  # act, and count it
            counters.traversals_cut += 1
            a = best_afforded(tables.q[o, :base], mask)
        pending.bounds_row, pending.state_row, pending.action = o, s, a
        if a < base:
            return a
        counters.splits += 1
        c = (a - base) // p
        v_p = project(lower[c], upper[c], rules.fractions[(a - base) % p])
        lower[c], upper[c] = narrowed(lower[c], upper[c], v_p, x[c] <= v_p)
        depth += 1


@njit(cache=True)
def record_reward(tables, reward):
    """Record the reward of the base action that `choose_base_action` returned."""
    counters = tables.counters[0]
    tables.pending[0].reward = reward
    counters.episode_return += reward
    counters.base_actions += 1


@njit(cache=True)
def end_episode(tables, x, terminated, k):
    """Learn from an episode's last step; where it did not terminate, the target looks up what would have followed."""
    counters, pending, rules = tables.counters[0], tables.pending[0], tables.rules
    target = pending.reward
    if not terminated:
        o, s = _rows_of(tables, x, rules.low, rules.high, 0, k)
        mask = np.empty(tables.q.shape[1], np.bool_)
        _fill_mask(rules, rules.low, rules.high, 0, mask)
        target += tables.rates[0].gamma_b * tables.q_o[s, best_afforded(tables.q[o], mask)]
    _update(tables, target)
    pending.bounds_row = -1
    counters.episodes += 1
    counters.returns += counters.episode_return
    counters.episode_return = 0.0


@njit(cache=True)
def next_action(held, x, last_step, k):
    """Take one turn of the loop for an environment that Python steps: see `episodes.next_action`."""
    tables = without_refcounts(held.values)
    reward, status = last_step[0], last_step[1]
    if status != STARTED:
        record_reward(tables, reward)
        if status != CONTINUES:
            end_episode(tables, x, status == TERMINATED, k)
            return EPISODE_OVER
    return choose_base_action(tables, x, k)


@njit(cache=True)
def run_compiled(tables, episodes, steps, k):
    """Learn from episodes in a compiled environment: see `episodes.run_compiled`."""
    tables, episodes = without_refcounts((tables, episodes))
    x = episodes.x[0]
    for _ in range(steps):
        action = choose_base_action(tables, x, k)
        reward, terminated, done = step_episode(episodes, 0, action)
        record_reward(tables, reward)
        if done:
            end_episode(tables, x, terminated, k)
            start_episode(episodes, 0)


# -- runs -----------------------------------------------------------------------------------------------------------


def paper_policy(tables: PaperTables, rules: Rules, k: int) -> LevelPolicy:
    """Return the greedy policy over bounds for `custard.extract`.

    A node never visited takes the action of its k nearest neighbours.
    """

    def decide(_: None, lower: np.ndarray, upper: np.ndarray, depth: int, mask: np.ndarray) -> tuple[int, Any]:
        key, _state_key = _keys_of(tables, lower, lower, upper, depth)
        row = int(find(tables.bounds, key))
        if row >= 0:
            return int(np.argmax(np.where(mask, tables.q[row], -np.inf))), (None, None)
        rows, distances = np.empty(k, dtype=np.int64), np.empty(k)
        found = int(nearest(tables.bounds, key, rows, distances))
        return int(np.argmax(tables.q[rows[:found], : rules.n_base].mean(axis=0))) if found else 0, ()

    return LevelPolicy(rules, None, decide)


def solve(problem: Problem, settings: PaperSettings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn for the whole budget; yields the last policy's tree, with `keep` the best one, twenty times."""
    s, budget = settings, settings.budget or default_budget(problem)
    learning_budget = int(LEARNING_BUDGET_SHARE * budget)
    features, steps = fill_missing_bounds(problem, budget)
    rules = Rules(features, problem.base.actions, s.splits, s.zeta, s.gamma_b, s.gamma_w, problem.max_depth, s.mask)
    seeds = problem.seeds("learner", "environment")
    tables = make_paper_tables(rules, s, seeds["learner"])
    episodes = make_episodes(
        problem, seeds["environment"], max_steps=problem.episode_cap(budget), limit_terminates=not s.bootstrap_at_limit
    )
    selection = Selection(problem, budget=budget)
    if state is not None:
        steps = int(state["steps"])
        _load(tables, state)
        refill(episodes.arrays(), state)
        selection.restore(state)
    message = ""
    while not message:
        n_next = max(1, min(budget // 20, learning_budget - steps))
        steps += run_episodes(episodes, run_compiled, next_action, tables, n_next, s.k)
        final, steps_before = extract(paper_policy(tables, rules, s.k), rules), selection.steps
        if s.keep or steps >= learning_budget:
            selection.spent = steps - selection.steps
            selection.judge(final, s.keep)
            steps += selection.steps - steps_before
        message = "budget used" if steps >= learning_budget else ""
        counters, best = tables.counters[0], selection.best
        lookups = max(1, int(counters.hits + counters.misses))
        metrics = {
            "return": counters.returns / max(1, counters.episodes), "tree_return": selection.last_mean,
            "depth": final.depth, "leaves": final.n_leaves, "nodes": int(tables.bounds.size[0]),
            "states": int(tables.states.size[0]), "hit_rate": counters.hits / lookups,
            "unseen": counters.misses / lookups, "traversal_limit": int(counters.traversals_cut),
        }  # fmt: skip
        counters.returns, counters.episodes = 0.0, 0
        kept = {**_save(tables), **copied(episodes.arrays()), **selection.state(), "steps": np.array(steps)}
        yield Snapshot(
            steps, best.tree if best else final, best.mean if best else float("nan"), budget, metrics, final, message,
            lambda kept=kept: kept,  # type: ignore[misc]
        )  # fmt: skip


def _save(tables: PaperTables) -> dict[str, np.ndarray]:
    """Return copies of the parts in use, by name."""
    data = {f"tables.{name}": getattr(tables, name).copy() for name in ("pending", "counters", "rng")}
    for keys, values in (("bounds", "q"), ("states", "q_o")):
        table = getattr(tables, keys)
        data[f"{keys}.keys"] = table.key[: int(table.size[0])].copy()
        data[f"{keys}.{values}"] = getattr(tables, values)[: int(table.size[0])].copy()
    return data


def _load(tables: PaperTables, data: dict[str, np.ndarray]) -> None:
    """Fill empty tables with what `_save` returned."""
    for name in ("pending", "counters", "rng"):
        getattr(tables, name)[...] = data[f"tables.{name}"]
    for keys, values in (("bounds", "q"), ("states", "q_o")):
        restore_keys(getattr(tables, keys), data[f"{keys}.keys"])
        getattr(tables, values)[: len(data[f"{keys}.keys"])] = data[f"{keys}.{values}"]
