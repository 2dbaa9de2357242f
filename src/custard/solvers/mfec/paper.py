"""The paper's MFEC as its appendix writes it: two nearest-neighbour tables, constant rates, one sampled target a step.

    Q_o(s_w, a) <- Q_o(s_w, a) + alpha_o * (target - Q_o(s_w, a))
    Q(o, a)     <- Q(o, a)     + alpha_b * (target - Q(o, a)),        o = s_w \\ s_b
    target = r + gamma * Q_o(s_w', argmax_a' Q(o', a')),   gamma = gamma_b after a base action, gamma_w after a question

What the text leaves open is settled here as `docs/deviations.md` lists: epsilon, capacity, order of updates, weighting
of neighbours, ties.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.core.numba_tools import borrowed
from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp import splits
from custard.ibmdp.kernels import narrowed, project
from custard.ibmdp.splits import Rules
from custard.solvers.common.key_table import Keys, find, insert, make_keys, nearest, restore_keys
from custard.solvers.common.selection import Selection
from custard.solvers.mfec.bounds_table import Lattice, make_lattice, threshold_of
from custard.solvers.mfec.loops import BEGUN, GOES_ON, OVER, TERMINATED, loop
from custard.task.problem import Problem, Snapshot
from custard.tree.extract import extract

__all__ = ["Written", "WrittenPolicy", "make_written", "solve_as_written"]

LOOK_AT = 100  # keys among which neighbours are looked for
FIRST_EPSILON, FALL = 0.5, 222_222  # epsilon falls along a line to 0 after so many transitions, or to its least before

# Entries of `Written.count` and `Written.now`.
OLD_O, OLD_S, OLD_A, HITS, MISSES, QUESTIONS, ACTIONS, EPISODES, LIMITED = range(9)
EPSILON, ALPHA_B, ALPHA_O, GAMMA_B, ZETA, REWARD, RETURN, RETURNS = range(8)


class Written(NamedTuple):
    """Both tables and the step that is still to be learned from."""

    lattice: Lattice
    width: Any  # [n]: for normalising
    bounds: Keys  # [., 2n + 1]: lower, upper (normalised), depth where it matters
    q: Any  # [N, |A_w|]
    full: Keys  # [., 3n + 1]: the base state before those
    q_o: Any  # [N, |A_w|]
    max_queries: int
    count: Any  # int64, see above
    now: Any  # float64, see above
    rng: Any  # [4] uint64
    room: Any  # [3n + 1]: the key looked up


def make_written(rules: Rules, capacity: int, seed: int) -> Written:
    """Empty tables."""
    n, actions = rules.features.n, rules.n_actions
    assert rules.max_queries is not None
    written = Written(
        make_lattice(rules), rules.width,
        make_keys(capacity, 2 * n + 1, neighbours=True), np.zeros((capacity, actions)),
        make_keys(capacity, 3 * n + 1, neighbours=True), np.zeros((capacity, actions)),
        int(rules.max_queries), np.zeros(9, dtype=np.int64), np.zeros(8), streams([seed])[0],
        np.zeros(3 * n + 1),
    )  # fmt: skip
    written.count[OLD_O] = -1
    return written


@njit(cache=True)
def _row(keys, values, key, k, count):
    """The row of a key. A new one starts from the mean of its k nearest; in a full table the nearest stands for it."""
    row = np.int64(find(keys, key))
    if row >= 0:
        count[HITS] += 1
        return row
    count[MISSES] += 1
    full = keys.size[0] == len(keys.key)
    rows, distances = np.empty(1 if full else k, np.int64), np.empty(1 if full else k)
    found = nearest(keys, key, rows, distances, LOOK_AT)
    if full:
        return rows[0]
    row = np.int64(insert(keys, key))
    values[row] = 0.0
    for i in range(found):
        for a in range(values.shape[1]):
            values[row, a] += values[rows[i], a] / found
    return row


@njit(cache=True)
def _keys(w, x, lower, upper, depth):
    """The keys of o and of s_w, both in `room`: they last until the next."""
    n = len(lower)
    full, low = w.room, w.lattice.low
    for c in range(n):
        full[c] = min(max((x[c] - low[c]) / w.width[c], 0.0), 1.0) + 0.0
        full[n + c] = (lower[c] - low[c]) / w.width[c] + 0.0
        full[2 * n + c] = (upper[c] - low[c]) / w.width[c] + 0.0
    full[3 * n] = depth if w.lattice.by_depth else 0.0
    return full[n:], full


@njit(cache=True)
def afforded(lattice, lower, upper, depth, mask):
    """The mask of the IBMDP's actions at some bounds, into `mask`."""
    p = len(lattice.fractions)
    for a in range(len(mask)):
        if a < lattice.n_base:
            mask[a] = True
            continue
        c, j = (a - lattice.n_base) // p, (a - lattice.n_base) % p
        mask[a] = depth < lattice.depth_limit and not np.isnan(threshold_of(lattice, c, j, lower[c], upper[c]))


@njit(cache=True)
def _greedy(q, mask):
    best = -1
    for a in range(len(q)):
        if mask[a] and (best < 0 or q[a] > q[best]):
            best = a
    return best


@njit(cache=True)
def _learn(w, target):
    o, s, a = w.count[OLD_O], w.count[OLD_S], w.count[OLD_A]
    w.q_o[s, a] += w.now[ALPHA_O] * (target - w.q_o[s, a])
    w.q[o, a] += w.now[ALPHA_B] * (target - w.q[o, a])


@njit(cache=True)
def decide(w, x, k):
    """Traverse the tree from the root, epsilon-greedily and learning from every step, until a base action is chosen."""
    lattice, count, now = w.lattice, w.count, w.now
    base, p = lattice.n_base, len(lattice.fractions)
    lower, upper = lattice.low.copy(), lattice.high.copy()
    mask = np.empty(w.q.shape[1], np.bool_)
    depth = 0
    while True:
        key, full = _keys(w, x, lower, upper, depth)
        o, s = _row(w.bounds, w.q, key, k, count), _row(w.full, w.q_o, full, k, count)
        afforded(lattice, lower, upper, depth, mask)
        best = _greedy(w.q[o], mask)
        if count[OLD_O] >= 0:  # the step that led here
            asked = count[OLD_A] >= base
            reward, gamma = (now[ZETA], lattice.gamma_w) if asked else (now[REWARD], now[GAMMA_B])
            _learn(w, reward + gamma * w.q_o[s, best])
        a = best
        transitions = count[QUESTIONS] + count[ACTIONS]
        if uniform(w.rng, 0.0, 1.0) < max(now[EPSILON], FIRST_EPSILON * (1.0 - transitions / FALL)):
            a = int(uniform(w.rng, 0.0, 1.0) * mask.sum())
            for b in range(len(mask)):
                if mask[b]:
                    if a == 0:
                        a = b
                        break
                    a -= 1
        if depth >= w.max_queries:  # asked for too long: act, and count it
            count[LIMITED] += 1
            a = _greedy(w.q[o, :base], mask)
        count[OLD_O], count[OLD_S], count[OLD_A] = o, s, a
        if a < base:
            return a
        count[QUESTIONS] += 1
        c = (a - base) // p
        v_p = project(lower[c], upper[c], lattice.fractions[(a - base) % p])
        lower[c], upper[c] = narrowed(lower[c], upper[c], v_p, x[c] <= v_p)
        depth += 1


@njit(cache=True)
def record(w, reward):
    """The reward of the base action that `decide` chose."""
    w.now[REWARD] = reward
    w.now[RETURN] += reward
    w.count[ACTIONS] += 1


@njit(cache=True)
def sweep(w, x, terminal, k):
    """Learn from an episode's last step; where it did not terminate, what would have followed is looked up."""
    count, now = w.count, w.now
    target = now[REWARD]
    if not terminal:
        key, full = _keys(w, x, w.lattice.low, w.lattice.high, 0)
        o, s = _row(w.bounds, w.q, key, k, count), _row(w.full, w.q_o, full, k, count)
        mask = np.empty(w.q.shape[1], np.bool_)
        afforded(w.lattice, w.lattice.low, w.lattice.high, 0, mask)
        target += now[GAMMA_B] * w.q_o[s, _greedy(w.q[o], mask)]
    _learn(w, target)
    count[OLD_O] = -1
    count[EPISODES] += 1
    now[RETURNS] += now[RETURN]
    now[RETURN] = 0.0


@njit(cache=True)
def turn(held, x, news, k):
    """One turn of the same loop for environments that Python steps: see `custard.solvers.mfec.episodes.turn`."""
    w = borrowed(held.all)
    if news[1] != BEGUN:
        record(w, news[0])
        if news[1] != GOES_ON:
            sweep(w, x, news[1] == TERMINATED, k)
            return OVER
    return decide(w, x, k)


@njit(cache=True)
def run_native(w, world, params, limit, limit_ends, state, env_rng, elapsed, x, steps, k):
    """Episodes in a native environment, all compiled."""
    w, params, state, env_rng, x = borrowed((w, params, state, env_rng, x))
    for _ in range(steps):
        action = decide(w, x, k)
        reward, terminal = advance(world, params, state, action, env_rng)
        observe(world, state, x)
        elapsed[0] += 1
        record(w, reward)
        if terminal or elapsed[0] >= limit:
            sweep(w, x, terminal or limit_ends, k)
            begin(world, state, env_rng)
            observe(world, state, x)
            elapsed[0] = 0


class WrittenPolicy:
    """The greedy policy over bounds for `custard.extract`; a node never visited takes its nearest neighbours' action.

    Extraction goes level by level and hands over bounds in single precision: the exact ones are kept beside.
    """

    def __init__(self, written: Written, rules: Rules, k: int) -> None:
        self.w, self.rules, self.k = written, rules, k
        self.depth, self.level = 0, {rules.normalised(*rules.root()).tobytes(): rules.root()}

    def __call__(self, bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """IBMDP actions for nodes, bounds [B, 2n] and mask [B, n_actions]."""
        below: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        answers = np.zeros(len(bounds), dtype=np.int64)
        for i, row in enumerate(bounds):
            lower, upper = self.level[row.tobytes()]
            answers[i] = a = self._answer(lower, upper, mask[i])
            if a >= self.rules.n_base:
                (c,), (v_p,) = self.rules.thresholds(lower[None], upper[None], np.array([a]), np.zeros(1))
                for yes in (True, False):
                    child = lower.copy(), upper.copy()
                    child[0][c], child[1][c] = splits.narrowed(lower[c], upper[c], v_p, yes)
                    below[self.rules.normalised(*child).tobytes()] = child
        self.depth, self.level = self.depth + 1, below or self.level
        return answers

    def _answer(self, lower: np.ndarray, upper: np.ndarray, mask: np.ndarray) -> int:
        w, base = self.w, self.rules.n_base
        key, _ = _keys(w, lower, lower, upper, self.depth)
        row = int(find(w.bounds, key))
        if row >= 0:
            return int(np.argmax(np.where(mask, w.q[row], -np.inf)))
        rows, distances = np.empty(self.k, dtype=np.int64), np.empty(self.k)
        found = int(nearest(w.bounds, key, rows, distances))
        return int(np.argmax(w.q[rows[:found], :base].mean(axis=0))) if found else 0


def solve_as_written(
    problem: Problem, rules: Rules, s: Any, surveyed: int, state: dict[str, np.ndarray] | None
) -> Iterator[Snapshot]:
    """Learn for the whole budget, `surveyed` steps of it used already: the last policy's tree, with `keep` the best."""
    seeds = problem.seeds("learner", "environment")
    w = make_written(rules, s.capacity, seeds["learner"])
    w.now[[EPSILON, ALPHA_B, ALPHA_O, GAMMA_B, ZETA]] = s.epsilon, s.alpha_b, s.alpha_o, rules.gamma_b, rules.zeta
    env: Any = loop(problem, seeds["environment"], run_native, turn, s)
    selection = Selection(problem, budget=s.budget)
    steps = surveyed
    if state is not None:
        steps = int(state["steps"])
        _load(w, state)
        for name, array in env.arrays().items():
            array[...] = state[name]
        selection.restore(state)
    message = ""
    while not message:
        steps += env.run(w, max(1, min(s.budget // 20, s.budget - steps)), s.k)
        final, spent = extract(WrittenPolicy(w, rules, s.k), rules), selection.steps
        if s.keep or steps >= s.budget:
            selection.show(final) if s.keep else selection.replace(final)
            steps += selection.steps - spent
        message = "budget used" if steps >= s.budget else ""
        looked_up = max(1, int(w.count[HITS] + w.count[MISSES]))
        metrics = {
            "return": w.now[RETURNS] / max(1, w.count[EPISODES]), "tree_return": selection.last, "depth": final.depth,
            "leaves": final.n_leaves, "nodes": int(w.bounds.size[0]), "states": int(w.full.size[0]),
            "hit_rate": w.count[HITS] / looked_up, "unseen": w.count[MISSES] / looked_up,
            "traversal_limit": int(w.count[LIMITED]),
        }  # fmt: skip
        w.now[RETURNS], w.count[EPISODES] = 0.0, 0
        best = selection.best
        now = {**_save(w), **{name: array.copy() for name, array in env.arrays().items()}, **selection.state()}
        now["steps"] = np.array(steps)
        yield Snapshot(
            steps, best.tree if best else final, best.mean if best else float("nan"), s.budget, metrics, final, message,
            lambda kept=now: kept,  # type: ignore[misc]
        )  # fmt: skip


def _save(w: Written) -> dict[str, np.ndarray]:
    data = {"written.count": w.count.copy(), "written.now": w.now.copy(), "written.rng": w.rng.copy()}
    for name, keys, values in (("bounds", w.bounds, w.q), ("full", w.full, w.q_o)):
        size = int(keys.size[0])
        data |= {f"{name}.key": keys.key[:size].copy(), f"{name}.q": values[:size].copy()}
    return data


def _load(w: Written, data: dict[str, np.ndarray]) -> None:
    for name, array in (("count", w.count), ("now", w.now), ("rng", w.rng)):
        array[...] = data[f"written.{name}"]
    for name, keys, values in (("bounds", w.bounds, w.q), ("full", w.full, w.q_o)):
        restore_keys(keys, data[f"{name}.key"])
        values[: len(data[f"{name}.q"])] = data[f"{name}.q"]
