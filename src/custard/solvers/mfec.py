"""CUSTARD (MFEC): episodic control with a table over bounds that is the tree, and an omniscient table that teaches it.

Two tables, as in the paper's section "Training Procedure" and its appendix:

* Q(o, a) over bounds o = s_w \\ s_b and all actions of the IBMDP. It is the policy; it never sees a base state.
* Q_o(s_w, a), omniscient. A base action's value does not depend on the bounds, so it is kept by base state; a
  question's value is had by walking the greedy tree from its answer (zeta for each question, then Q_o at the leaf).

What differs from the paper is listed in `docs/deviations.md`; `docs/mfec.md` explains each setting.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.envs.native import NativeVectorEnv, advance, begin, observe
from custard.envs.pcg64 import streams, uniform
from custard.errors import CustardError
from custard.features import Features
from custard.ibmdp.splits import Rules
from custard.solvers.api import Problem, Snapshot
from custard.solvers.bounds_table import (
    Lattice,
    Nodes,
    TablePolicy,
    grow,
    learn_all_actions,
    make_lattice,
    make_nodes,
    rate,
    root_node,
    walk,
)
from custard.solvers.selection import Selection
from custard.solvers.tables import Keys, find, insert, make_keys, nearest
from custard.spaces import estimate_bounds
from custard.tree.extract import extract

__all__ = ["PRESETS", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Settings of CUSTARD (MFEC). The defaults are the preset "tuned" and suit any environment."""

    budget: int = 5_000_000  # environment steps, those for judging trees included
    splits: int | None = None  # p: thresholds a feature; None: 1 for binary features only, else by their number
    zeta: float = -0.01  # reward of a question
    gamma_b: float | None = None  # discount of a base action; None: 1 for episodes of up to 100 steps, else 0.99
    gamma_w: float = 1.0  # discount of a question
    alpha_b: float = 0.0  # least learning rate of Q
    alpha_o: float = 0.02  # least learning rate of Q_o
    kappa: float = 4.0  # rates are kappa / (n - 1 + kappa) at the n-th visit, until the least rate is reached
    k: int = 5  # neighbours that stand in for a base state never seen
    cells: int = 4096  # base states of continuous features are told apart on a grid of about this many cells
    epsilon: float = 0.3  # share of random actions: of questions while learning, of base actions in exploring episodes
    explore: float = 0.2  # share of episodes that explore
    cycle: int = 20_000  # environment steps of the first cycle; every second one is twice as long
    patience: int = 4  # cycles without a better tree before stopping
    expand: int = 16  # states an answer must have seen before it becomes a node
    capacity: int = 50_000  # nodes and base states kept at most
    low: Any = None
    high: Any = None


PRESETS: dict[str, dict[str, dict[str, Any]]] = {"tuned": {}}

# Entries of `Memory.count` and `Memory.now`.
LENGTH, EPISODE, HITS, MISSES, QUESTIONS, ACTIONS, EXPLORING, EPISODES, LEARNING = range(9)
MU, EPSILON, SHARE, KAPPA, ALPHA_B, ALPHA_O, GAMMA_B, RETURN, RETURNS, EXPAND = range(10)
HORIZON = 4096  # base steps after which an episode that goes on is learned from


class Memory(NamedTuple):
    """Everything that is learned, as arrays; S base states, B base actions."""

    lattice: Lattice
    nodes: Nodes  # Q(o, a)
    grid: Any  # [3, n] low, width and cells a feature (0 cells: told apart exactly)
    states: Keys  # base states, normalised, on the grid
    q_o: Any  # [S, B] value of a base action if the tree is followed (with probability 1 - mu) afterwards
    q_star: Any  # [S, B] value of a base action if the best one is taken afterwards
    tried: Any  # [S, B] int32
    seen: Any  # [S] int64: the last episode each base state was met in
    priority: Any  # [B] which of equally good base actions is preferred, anew in each cycle
    row: Any  # [HORIZON] int32: base states of the present episode
    action: Any  # [HORIZON] int32: base actions taken
    leaf: Any  # [HORIZON] int32: base actions of the tree
    reward: Any  # [HORIZON]
    count: Any  # [9] int64, see above
    now: Any  # [10] float64: rates and schedules, see above
    rng: Any  # [4] uint64


@njit(cache=True)
def state_row(memory, x, k):
    """The row of a base state in Q_o. A new one starts from the mean of its k nearest neighbours."""
    n = len(x)
    key = np.empty(n)
    for c in range(n):
        z = (x[c] - memory.grid[0, c]) / memory.grid[1, c]
        cells = memory.grid[2, c]
        if cells > 0:
            z = (min(max(np.floor(z * cells), 0.0), cells - 1.0) + 0.5) / cells
        key[c] = z + 0.0
    row = find(memory.states, key)
    if row >= 0:
        memory.count[HITS] += 1
        return np.int64(row)
    memory.count[MISSES] += 1
    rows = np.empty(k, np.int64)
    distances = np.empty(k)
    found = nearest(memory.states, key, rows, distances)
    row = insert(memory.states, key)
    if row < 0:  # the table is full: the nearest base state stands for this one
        return rows[0]
    memory.tried[row] = 0
    memory.seen[row] = -1
    for b in range(memory.q_o.shape[1]):
        star, own = 0.0, 0.0
        for i in range(found):
            star += memory.q_star[rows[i], b] / found
            own += memory.q_o[rows[i], b] / found
        memory.q_star[row, b] = star
        memory.q_o[row, b] = own
    return row


@njit(cache=True)
def _best_action(q, priority):
    """The best base action; among equally good ones the one preferred in this cycle."""
    best = 0
    for b in range(1, len(q)):
        if q[b] > q[best] + 1e-9 or (q[b] > q[best] - 1e-9 and priority[b] > priority[best]):
            best = b
    return best


@njit(cache=True)
def decide(memory, x, k):
    """Learn about the tree in one base state and choose a base action there."""
    nodes, lattice, rng, count = memory.nodes, memory.lattice, memory.rng, memory.count
    row = state_row(memory, x, k)
    if count[LENGTH] == 0 and memory.now[RETURN] == 0.0 and count[EXPLORING] < 0:
        count[EXPLORING] = 1 if uniform(rng, 0.0, 1.0) < memory.now[SHARE] else 0
    exploring = count[EXPLORING] == 1
    if not exploring and count[LEARNING] == 1 and memory.seen[row] != count[EPISODE]:
        learn_tree(memory, x, row)
    memory.seen[row] = count[EPISODE]
    leaf, _ = walk(nodes, lattice, root_node(nodes, lattice), x)
    action = leaf
    if exploring and uniform(rng, 0.0, 1.0) < memory.now[EPSILON]:
        action = 0
        ties = 1
        for b in range(1, lattice.n_base):  # the least tried
            if memory.tried[row, b] < memory.tried[row, action]:
                action, ties = b, 1
            elif memory.tried[row, b] == memory.tried[row, action]:
                ties += 1
                if uniform(rng, 0.0, 1.0) * ties < 1.0:
                    action = b
    elif memory.now[MU] > 0.0 and uniform(rng, 0.0, 1.0) < memory.now[MU]:
        action = _best_action(memory.q_star[row], memory.priority)
    t = count[LENGTH]
    memory.row[t], memory.action[t], memory.leaf[t] = row, action, leaf
    return action


@njit(cache=True)
def learn_tree(memory, x, row):
    """Descend epsilon-greedily from the root, learning about every action at every node on the way."""
    nodes, lattice, rng, now = memory.nodes, memory.lattice, memory.rng, memory.now
    base, p = lattice.n_base, len(lattice.fractions)
    questions = nodes.threshold.shape[1]
    o = np.int64(root_node(nodes, lattice))
    while o >= 0:
        memory.count[QUESTIONS] += 1
        learn_all_actions(nodes, lattice, o, x, memory.q_o[row], now[KAPPA], now[ALPHA_B])
        a = np.int64(nodes.best[o])
        if uniform(rng, 0.0, 1.0) < now[EPSILON]:
            a = base + int(uniform(rng, 0.0, 1.0) * questions)
        if a < base or np.isnan(nodes.threshold[o, a - base]):
            return
        m = a - base
        side = 0 if x[m // p] <= nodes.threshold[o, m] else 1
        if nodes.child[o, m, side] < 0 and nodes.child_visits[o, m, side] < now[EXPAND]:
            return
        o = np.int64(grow(nodes, lattice, o, m, side))


@njit(cache=True)
def record(memory, reward):
    """The reward of the action that `decide` chose."""
    memory.reward[memory.count[LENGTH]] = reward
    memory.count[LENGTH] += 1
    memory.count[ACTIONS] += 1
    memory.now[RETURN] += reward


@njit(cache=True)
def sweep(memory, x, terminal, over, k):
    """Learn Q_o backward through the episode (or the part of it that is over); x is the state after it."""
    count, now = memory.count, memory.now
    gamma, mu = now[GAMMA_B], now[MU]
    v_star, v_o = 0.0, 0.0
    if not terminal:
        row = state_row(memory, x, k)
        leaf, _ = walk(memory.nodes, memory.lattice, root_node(memory.nodes, memory.lattice), x)
        v_star = memory.q_star[row].max()
        v_o = mu * memory.q_o[row].max() + (1.0 - mu) * memory.q_o[row, leaf]
    for t in range(count[LENGTH] - 1, -1, -1):
        row, a, r = memory.row[t], memory.action[t], memory.reward[t]
        memory.tried[row, a] += 1
        alpha = rate(memory.tried[row, a], now[KAPPA], now[ALPHA_O])
        memory.q_star[row, a] += alpha * (r + gamma * v_star - memory.q_star[row, a])
        memory.q_o[row, a] += alpha * (r + gamma * v_o - memory.q_o[row, a])
        v_star = memory.q_star[row].max()
        v_o = mu * memory.q_o[row].max() + (1.0 - mu) * memory.q_o[row, memory.leaf[t]]
    count[LENGTH] = 0
    if over:
        count[EPISODE] += 1
        if count[EXPLORING] == 0:
            count[EPISODES] += 1
            now[RETURNS] += now[RETURN]
        now[RETURN] = 0.0
        count[EXPLORING] = -1


@njit(cache=True)
def run_native(memory, world, params, limit, state, env_rng, elapsed, x, steps, k):
    """The whole loop, compiled, over a native environment."""
    for _ in range(steps):
        action = decide(memory, x, k)
        reward, terminal = advance(world, params, state, action, env_rng)
        observe(world, state, x)
        elapsed[0] += 1
        record(memory, reward)
        over = terminal or elapsed[0] >= limit
        if over or memory.count[LENGTH] == HORIZON:
            sweep(memory, x, terminal, over, k)
        if over:
            begin(world, state, env_rng)
            observe(world, state, x)
            elapsed[0] = 0


class Native:
    """A native environment, stepped inside the compiled loop."""

    def __init__(self, venv: NativeVectorEnv, seed: int) -> None:
        venv.reset(seed=seed)
        assert venv.rng is not None
        self.world, self.params, self.limit = venv.world, venv.params, venv.limit
        self.state, self.rng, self.x = venv.state[0], venv.rng[0], venv.x[0]
        self.elapsed = np.zeros(1, dtype=np.int64)

    def run(self, memory: Memory, steps: int, k: int) -> int:
        """Learn for a number of environment steps."""
        run_native(memory, self.world, self.params, self.limit, self.state, self.rng, self.elapsed, self.x, steps, k)
        return steps

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps."""
        return {"env.state": self.state, "env.rng": self.rng, "env.x": self.x, "env.elapsed": self.elapsed}


class Foreign:
    """Any Gymnasium environment: whole episodes, each with its own seed, stepped in Python."""

    def __init__(self, problem: Problem, seed: int, limit: int) -> None:
        self.env, self.base, self.limit = problem.source.make(), problem.base, limit
        self.seed = np.array([seed, 0], dtype=np.int64)

    def run(self, memory: Memory, steps: int, k: int) -> int:
        """Learn from whole episodes until at least so many environment steps are done."""
        done = 0
        while done < steps:
            seed = int(np.random.SeedSequence([int(self.seed[0]), int(self.seed[1])]).generate_state(1)[0])
            self.seed[1] += 1
            observation, _ = self.env.reset(seed=seed)
            x = self.base.observe(observation)
            length, over = 0, False
            while not over:
                action = decide(memory, x, k)
                observation, reward, terminal, truncated, _ = self.env.step(int(action) + self.base.actions.start)
                x = self.base.observe(observation)
                record(memory, float(reward))
                length += 1
                over = bool(terminal or truncated or length >= self.limit)
                if over or memory.count[LENGTH] == HORIZON:
                    sweep(memory, x, bool(terminal), over, k)
            done += length
        return done

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps."""
        return {"env.seed": self.seed}


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Cycles of learning, each with a fresh table over bounds; the best extracted tree is kept."""
    if not problem.base.actions.discrete:
        raise CustardError("mfec needs discrete actions")
    seeds = problem.seeds("learner", "environment", "bounds")
    features = bounded(problem, seeds["bounds"])
    gamma_b = settings.gamma_b if settings.gamma_b is not None else (0.99 if problem.source.limit else 1.0)
    rules = Rules(
        features, problem.base.actions, settings.splits or default_splits(features), settings.zeta, gamma_b,
        settings.gamma_w, problem.max_depth,
    )  # fmt: skip
    memory = make_memory(rules, settings, seeds["learner"])
    memory.now[GAMMA_B] = gamma_b
    if problem.source.native is not None:
        env: Any = Native(problem.source.vector(1), seeds["environment"])  # type: ignore[arg-type]
    else:
        env = Foreign(problem, seeds["environment"], problem.source.limit or 10_000)
    selection = Selection(problem)
    steps, cycle, waited = 0, 0, 0
    message = ""
    while not message:
        length = settings.cycle * 2 ** (cycle // 2)
        if cycle:
            new_cycle(memory)
        start, before = steps, selection.improved
        done, judged = 0, 0
        while done < length:
            tau = done / length
            schedule(memory, settings, tau, cycle)
            used = env.run(memory, max(1, min(length // 40, length - done)), settings.k)
            done += used
            steps += used
            final = None
            if done >= length or (tau > 0.4 and tau * 10 > judged):
                judged = int(tau * 10) + 1
                final = extract(TablePolicy(memory.nodes, rules), rules)
                spent = selection.steps
                selection.show(final)
                steps += selection.steps - spent
                best = selection.best
                yield Snapshot(
                    steps,
                    best.tree if best else None,
                    best.mean if best else float("nan"),
                    settings.budget,
                    {
                        "cycle": cycle,
                        "return": _returns(memory),
                        "final": selection.last,
                        "depth": final.depth,
                        "leaves": final.n_leaves,
                        "nodes": int(memory.nodes.keys.size[0]),
                        "states": int(memory.states.size[0]),
                    },
                    final,
                )
            if steps >= settings.budget:
                message = "budget used"
                break
        waited = 0 if selection.improved > before else waited + 1
        cycle += 1
        if waited >= settings.patience:
            message = "no better tree found"
    best = selection.best
    yield Snapshot(steps, best.tree, best.mean, settings.budget, {}, final, message)


def _returns(memory):
    value = memory.now[RETURNS] / max(1, memory.count[EPISODES])
    memory.now[RETURNS] = 0
    memory.count[EPISODES] = 0
    return value


def schedule(memory: Memory, settings: Settings, tau: float, cycle: int) -> None:
    """Rates and exploration at the share tau of a cycle."""
    warm = 0.2 if cycle == 0 else 0.02
    memory.count[LEARNING] = tau >= warm
    memory.now[MU] = max(0.0, 1.0 - (tau - warm) / (0.6 - warm)) if tau >= warm else 1.0
    memory.now[SHARE] = settings.explore if tau >= warm else 1.0


def new_cycle(memory: Memory) -> None:
    """Forget the tree, keep what is known of base states."""
    nodes = memory.nodes
    nodes.keys.size[0] = 0
    nodes.keys.index[:] = -1
    size = int(memory.states.size[0])
    memory.q_o[:size] = memory.q_star[:size]
    for b in range(len(memory.priority)):
        memory.priority[b] = uniform(memory.rng, 0.0, 1.0)


def bounded(problem: Problem, seed: int) -> Features:
    """The features with finite bounds, estimated where there are none."""
    features = problem.base.features
    if not features.unbounded.any():
        return features
    env = problem.source.make()
    return estimate_bounds(env, problem.base, seed=seed)


def default_splits(features: Features) -> int:
    """p: 1 if every feature is binary, 3 otherwise (integers of a small range need no more than that)."""
    return 1 if (features.integer & (features.high - features.low <= 1)).all() else 3


def make_memory(rules: Rules, settings: Settings, seed: int) -> Memory:
    """Empty tables."""
    features, base = rules.features, rules.n_base
    real = ~features.integer
    grid = np.stack([features.low, rules.width, np.zeros(features.n)])
    if real.any():
        grid[2, real] = np.ceil(settings.cells ** (1.0 / real.sum()))
    capacity = settings.capacity
    memory = Memory(
        lattice=make_lattice(rules), nodes=make_nodes(capacity, rules), grid=grid,
        states=make_keys(capacity, features.n), q_o=np.zeros((capacity, base)), q_star=np.zeros((capacity, base)),
        tried=np.zeros((capacity, base), dtype=np.int32), seen=np.full(capacity, -1, dtype=np.int64),
        priority=np.zeros(base), row=np.zeros(HORIZON, dtype=np.int32), action=np.zeros(HORIZON, dtype=np.int32),
        leaf=np.zeros(HORIZON, dtype=np.int32), reward=np.zeros(HORIZON), count=np.zeros(9, dtype=np.int64),
        now=np.zeros(10), rng=streams([seed])[0],
    )  # fmt: skip
    memory.count[EXPLORING] = -1
    memory.now[[EPSILON, KAPPA, ALPHA_B, ALPHA_O, EXPAND]] = (
        settings.epsilon, settings.kappa, settings.alpha_b, settings.alpha_o, settings.expand,
    )  # fmt: skip
    for b in range(base):
        memory.priority[b] = uniform(memory.rng, 0.0, 1.0)
    return memory
