"""CUSTARD (MFEC): episodic control with a table over bounds that is the tree, and an omniscient table that teaches it.

Two tables, as in the paper's section "Training Procedure" and its appendix:

* Q(o, a) over bounds o = s_w \\ s_b and all actions of the IBMDP (`custard.solvers.bounds_table`). It is the policy,
  and it never sees a base state.
* Q_o(s_w, a), omniscient. The value of a base action does not depend on the bounds, so it is kept by base state s_b;
  the value of a question is had by walking the greedy tree from its answer: zeta a question, then Q_o at the leaf.

Learning goes in cycles. Each begins with an empty Q and ends with a tree that is judged on rollouts; the best is kept.
`docs/mfec.md` explains each setting, `docs/deviations.md` lists what differs from the paper.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit

from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import uniform
from custard.errors import CustardError
from custard.features import Features
from custard.ibmdp.splits import Rules
from custard.solvers.api import Problem, Snapshot
from custard.solvers.bounds_table import TablePolicy, grow, learn_all_actions, rate, root_node, walk
from custard.solvers.loops import Foreign, Native
from custard.solvers.memory import (
    ACTIONS,
    ALPHA_B,
    ALPHA_O,
    DARING,
    EPISODE,
    EPISODES,
    EPSILON,
    EXPAND,
    EXPLORING,
    FOLLOWING,
    GAMMA_B,
    GUIDED,
    HITS,
    HORIZON,
    KAPPA,
    KIND,
    LAMBDA,
    LEARNING,
    LENGTH,
    MISSES,
    MU,
    PATIENT,
    RETURN,
    RETURNS,
    SHARE,
    STILL,
    UNDECIDED,
    VISITS,
    ZETA,
    Memory,
    make_memory,
    new_cycle,
)  # fmt: skip
from custard.solvers.selection import Selection
from custard.solvers.tables import find, insert, nearest
from custard.spaces import estimate_bounds
from custard.tree.extract import extract

__all__ = ["PRESETS", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Settings of CUSTARD (MFEC). The defaults are the preset "tuned" and are meant for any environment."""

    budget: int = 20_000_000  # environment steps, those for judging trees included
    splits: int | None = None  # p, thresholds a feature; None: as many as whole numbers need, 7 for real features
    zeta: float = -0.01  # the reward of a question
    gamma_b: float | None = None  # discount of a base action; None: 0.99 under a time limit, else 1
    gamma_w: float = 1.0  # discount of a question
    alpha_b: float = 0.0  # least learning rate of Q
    alpha_o: float = 0.02  # least learning rate of Q_o
    kappa: float = 4.0  # the rate at the n-th visit is kappa / (n - 1 + kappa), until the least rate is reached
    trace: float = 1.0  # lambda: how much of what happened after an action counts beside what was expected to
    k: int = 5  # neighbours that stand in for a base state never seen
    cells: int = 4096  # base states with real features are told apart on a grid of about this many cells
    epsilon: float = 0.3  # share of random questions while learning, and of random actions in exploring episodes
    explore: float = 0.2  # share of exploring episodes
    cycle: int = 20_000  # environment steps of the first cycle; every second one is twice as long
    patience: int = 4  # cycles without a better tree before stopping
    expand: int = 16  # states an answer must have seen before it becomes a node
    samples: int = 16  # trees drawn near the greedy one, to be judged beside it
    capacity: int = 50_000  # nodes and base states kept at most
    low: Any = None
    high: Any = None


PRESETS: dict[str, dict[str, dict[str, Any]]] = {"tuned": {}}


# -- the omniscient Q_o ---------------------------------------------------------------------------------------------


@njit(cache=True)
def state_row(memory, x, k):
    """The row of a base state in Q_o. One never seen starts from the mean of its k nearest neighbours."""
    n = len(x)
    key = np.empty(n)
    for c in range(n):
        z = x[c]
        width = memory.grid[1, c]
        if width > 0.0:
            z = memory.grid[0, c] + (np.floor((z - memory.grid[0, c]) / width) + 0.5) * width
        key[c] = z / memory.scale[c] + 0.0
    row = np.int64(find(memory.states, key))
    if row >= 0:
        memory.count[HITS] += 1
        return row
    memory.count[MISSES] += 1
    rows = np.empty(k, np.int64)
    distances = np.empty(k)
    found = nearest(memory.states, key, rows, distances)
    row = np.int64(insert(memory.states, key))
    if row < 0:  # the table is full: the nearest base state stands for this one
        return rows[0]
    for b in range(memory.q_o.shape[1]):
        star, own = 0.0, 0.0
        for i in range(found):
            star += memory.q_star[rows[i], b] / found
            own += memory.q_o[rows[i], b] / found
        memory.q_star[row, b] = star
        memory.q_o[row, b] = own
    return row


@njit(cache=True)
def sweep(memory, x, terminal, over, k):
    """Learn Q_o backward through an episode, or the part of it that has been recorded; x is the state after it.

    The target is r + gamma_b * Q_o(s_b', b'), where b' is what the behaviour does next: the tree's action with
    probability 1 - mu, and the guide's (or, without a guide, the best) with probability mu.
    """
    count, now = memory.count, memory.now
    gamma, mu = now[GAMMA_B], now[MU]
    v_star, g = 0.0, 0.0
    if not terminal:
        row = state_row(memory, x, k)
        leaf, _ = walk(memory.nodes, memory.lattice, root_node(memory.nodes, memory.lattice), x)
        v_star = memory.q_star[row].max()
        g = _value(memory.q_o[row], mu, _advice(memory, x), leaf)
    for t in range(count[LENGTH] - 1, -1, -1):
        row, a, r = memory.row[t], memory.action[t], memory.reward[t]
        memory.learned[row, a] += 1
        alpha = rate(memory.learned[row, a], now[KAPPA], now[ALPHA_O])
        memory.q_star[row, a] += alpha * (r + gamma * v_star - memory.q_star[row, a])
        memory.followed[row, a] += 1
        alpha = rate(memory.followed[row, a], now[KAPPA], now[ALPHA_O])
        g = r + gamma * g
        memory.q_o[row, a] += alpha * (g - memory.q_o[row, a])
        v_star = memory.q_star[row].max()
        v_o = _value(memory.q_o[row], mu, memory.advice[t], memory.leaf[t])
        g = v_o if memory.strayed[t] else (1.0 - now[LAMBDA]) * v_o + now[LAMBDA] * g
    count[LENGTH] = 0
    if over:
        count[EPISODE] += 1
        if count[KIND] == FOLLOWING:
            count[EPISODES] += 1
            now[RETURNS] += now[RETURN]
        now[RETURN] = 0.0
        count[STILL] = 0
        count[KIND] = UNDECIDED


@njit(cache=True)
def _value(q, mu, advice, leaf):
    return mu * (q.max() if advice < 0 else q[advice]) + (1.0 - mu) * q[leaf]


@njit(cache=True)
def _advice(memory, x):
    """The guide's action, or -1 without a guide."""
    if memory.count[GUIDED] == 0:
        return -1
    guide = memory.guide
    node = 0
    while guide.feature[node] >= 0:
        node = guide.left[node] if x[guide.feature[node]] <= guide.threshold[node] else guide.right[node]
    return guide.value[node]


# -- Q over bounds --------------------------------------------------------------------------------------------------


@njit(cache=True)
def learn_tree(memory, x, row):
    """Descend from the root with one base state, epsilon-greedily, learning every action of every node on the way."""
    nodes, lattice, rng, now = memory.nodes, memory.lattice, memory.rng, memory.now
    base, p = lattice.n_base, len(lattice.fractions)
    questions = nodes.threshold.shape[1]
    o = np.int64(root_node(nodes, lattice))
    while o >= 0:
        memory.count[VISITS] += 1
        learn_all_actions(nodes, lattice, o, x, memory.q_o[row], now[ZETA], now[KAPPA], now[ALPHA_B])
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
def decide(memory, x, k):
    """Learn about the tree in one base state and choose the base action to take there."""
    nodes, lattice, rng, count, now = memory.nodes, memory.lattice, memory.rng, memory.count, memory.now
    row = state_row(memory, x, k)
    if count[KIND] == UNDECIDED:
        count[KIND] = EXPLORING if uniform(rng, 0.0, 1.0) < now[SHARE] else FOLLOWING
        now[DARING] = uniform(rng, 0.0, 1.0) ** 3  # from a stray action now and then to nothing else
    # A tree must serve the states it leads to, not those that random actions lead to; each once an episode, so that
    # waiting in one state does not drown the others.
    if count[KIND] == FOLLOWING and count[LEARNING] == 1 and memory.seen[row] != count[EPISODE]:
        learn_tree(memory, x, row)
        for c in range(len(x)):
            memory.moments[0, c] += 1.0
            memory.moments[1, c] += x[c]
            memory.moments[2, c] += x[c] * x[c]
    memory.seen[row] = count[EPISODE]
    still = True
    for c in range(len(x)):
        still = still and memory.last[c] == x[c]
        memory.last[c] = x[c]
    count[STILL] = count[STILL] + 1 if still else 0
    leaf, _ = walk(nodes, lattice, root_node(nodes, lattice), x)
    advice = _advice(memory, x)
    meant = np.int64(leaf)
    if now[MU] > 0.0 and uniform(rng, 0.0, 1.0) < now[MU]:
        meant = np.int64(advice) if advice >= 0 else _preferred(memory.q_star[row], memory.priority)
    action = meant
    if count[KIND] == EXPLORING and uniform(rng, 0.0, 1.0) < now[DARING]:
        action = _least_tried(memory.tried[row], rng)
    memory.tried[row, action] += 1
    t = count[LENGTH]
    memory.row[t], memory.action[t], memory.leaf[t], memory.advice[t] = row, action, leaf, advice
    memory.strayed[t] = action != meant
    return action


@njit(cache=True)
def _preferred(q, priority):
    """The best base action; among equally good ones the one this cycle prefers."""
    best = 0
    for b in range(1, len(q)):
        if q[b] > q[best] + 1e-9 or (q[b] > q[best] - 1e-9 and priority[b] > priority[best]):
            best = b
    return best


@njit(cache=True)
def _least_tried(tried, rng):
    action, ties = 0, 1
    for b in range(1, len(tried)):
        if tried[b] < tried[action]:
            action, ties = b, 1
        elif tried[b] == tried[action]:
            ties += 1
            if uniform(rng, 0.0, 1.0) * ties < 1.0:
                action = b
    return action


@njit(cache=True)
def record(memory, reward):
    """The reward of the action that `decide` chose."""
    memory.reward[memory.count[LENGTH]] = reward
    memory.count[LENGTH] += 1
    memory.count[ACTIONS] += 1
    memory.now[RETURN] += reward


@njit(cache=True)
def run_native(memory, world, params, limit, state, env_rng, elapsed, x, steps, k):
    """Episodes in a native environment, all compiled; `custard.solvers.loops.Foreign` is the same in Python."""
    for _ in range(steps):
        action = decide(memory, x, k)
        reward, terminal = advance(world, params, state, action, env_rng)
        observe(world, state, x)
        elapsed[0] += 1
        record(memory, reward)
        over = terminal or elapsed[0] >= limit or memory.count[STILL] >= PATIENT
        if over or memory.count[LENGTH] == HORIZON:
            sweep(memory, x, terminal, over, k)
        if over:
            begin(world, state, env_rng)
            observe(world, state, x)
            elapsed[0] = 0


# -- cycles ---------------------------------------------------------------------------------------------------------

STEPS, CYCLE, DONE, JUDGED, FOUND, WAITED, IMPROVED, DRAWS = range(8)


class Learner:
    """One run: the memory, the environment, the selection, and where in the cycles it stands."""

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem, self.settings = problem, settings
        seeds = problem.seeds("learner", "environment", "bounds", "draws")
        self.draws = seeds["draws"]
        seen = survey(problem, seeds["bounds"])
        features = problem.base.features
        self.free = ~features.integer & (features.origin.get("bounds") != "given")  # whose bounds are ours to choose
        unbounded = features.unbounded
        self.widest = replace(
            features,
            low=np.where(unbounded, seen.low, features.low),
            high=np.where(unbounded, seen.high, features.high),
        )
        gamma_b = settings.gamma_b if settings.gamma_b is not None else (0.99 if problem.source.limit else 1.0)
        self.gamma_b = gamma_b
        self.rules = self._rules(self.widest)
        span = np.where(seen.high > seen.low, seen.high - seen.low, 1.0)
        real = ~features.integer
        grid = np.zeros((2, features.n))
        if real.any():
            grid[0, real] = seen.low[real]
            grid[1, real] = span[real] / max(16.0, np.ceil(settings.cells ** (1.0 / real.sum())))
        scale = np.where(real, span, self.rules.width)
        self.memory = make_memory(self.rules, grid, scale, settings.capacity, seeds["learner"])
        if problem.source.native is not None:
            self.env: Any = Native(problem, seeds["environment"], run_native)
        else:
            self.env = Foreign(problem, seeds["environment"], decide, record, sweep)
        self.selection = Selection(problem)
        self.at = np.zeros(8, dtype=np.int64)
        self.at[STEPS] = SURVEY
        self.bounds = np.stack([self.widest.low, self.widest.high])
        self.message = ""
        self.least = settings.budget // 20 // (1 if problem.source.native is not None else 10)
        self._begin_cycle()

    def _rules(self, features: Features) -> Rules:
        s = self.settings
        p = s.splits or default_splits(features)
        return Rules(features, self.problem.base.actions, p, s.zeta, self.gamma_b, s.gamma_w, self.problem.max_depth)

    @property
    def length(self) -> int:
        """Environment steps of the present cycle."""
        return int(self.settings.cycle * 2 ** (self.at[CYCLE] / 2))

    def _begin_cycle(self) -> None:
        best, cycle = self.selection.best, int(self.at[CYCLE])
        if cycle and self.free.any():
            self._choose_bounds()
        guide = best.small if best is not None and cycle % 2 == 1 else None
        self.memory = new_cycle(self.memory, self.rules, guide)
        self.at[[DONE, JUDGED]] = 0
        self.at[IMPROVED] = self.selection.improved

    def _choose_bounds(self) -> None:
        """Bounds of real features between the widest and where the tree's states are: anew in each cycle."""
        count, total, squares = self.memory.moments
        count = np.maximum(count, 1.0)
        mean = total / count
        spread = 3.0 * np.sqrt(np.maximum(squares / count - mean * mean, 0.0))
        close = np.stack([np.maximum(mean - spread, self.widest.low), np.minimum(mean + spread, self.widest.high)])
        wide = np.stack([self.widest.low, self.widest.high])
        share = uniform(self.memory.rng, 0.0, 1.0)
        usable = self.free & (close[1] > close[0]) & (self.memory.moments[0] > 100)
        self.bounds = np.where(usable, close + share * (wide - close), wide)
        self.rules = self._rules(replace(self.widest, low=self.bounds[0], high=self.bounds[1]))

    def advance(self) -> bool:
        """Learn for a fortieth of a cycle; whether a tree was judged."""
        s, at, length = self.settings, self.at, self.length
        tau = at[DONE] / length
        schedule(self.memory, s, tau, int(at[CYCLE]), self.gamma_b)
        used = self.env.run(self.memory, max(1, min(length // 40, length - int(at[DONE]))), s.k)
        at[DONE] += used
        at[STEPS] += used
        end = at[DONE] >= length or at[STEPS] >= s.budget
        if not end and not (tau > 0.4 and tau * 10 > at[JUDGED]):
            return False
        at[JUDGED] = int(tau * 10) + 1
        self._judge(s.samples if end else 0)
        if end:
            self._end_cycle()
        return True

    def _judge(self, samples: int) -> None:
        spent = self.selection.steps
        self.final = extract(TablePolicy(self.memory.nodes, self.rules), self.rules)
        self.selection.show(self.final)
        self.final_value = self.selection.last
        rng = np.random.default_rng([self.draws, int(self.at[DRAWS])])
        self.at[DRAWS] += 1
        for i in range(samples):
            noise = NOISE * 2.0 ** (-(i % 4))
            self.selection.show(extract(TablePolicy(self.memory.nodes, self.rules, noise, rng), self.rules))
        self.at[STEPS] += self.selection.steps - spent

    def _end_cycle(self) -> None:
        at, s = self.at, self.settings
        if self.selection.improved > at[IMPROVED]:
            at[WAITED], at[FOUND] = 0, at[STEPS]
        else:
            at[WAITED] += 1
        done = self.selection.surely_above(self.problem.source.threshold)
        if at[WAITED] >= s.patience and (done or at[STEPS] >= max(1.25 * at[FOUND], self.least)):
            self.message = "reward threshold met, and no better tree found since" if done else "no better tree found"
        elif at[STEPS] >= s.budget:
            self.message = "budget used"
        at[CYCLE] += 1
        self._begin_cycle()

    def snapshot(self, metrics: dict[str, float]) -> Snapshot:
        """Where the run stands."""
        best = self.selection.best
        assert best is not None
        return Snapshot(
            int(self.at[STEPS]), best.tree, best.mean, self.settings.budget, metrics, self.final, self.message
        )


def schedule(memory: Memory, settings: Settings, tau: float, cycle: int, gamma_b: float) -> None:
    """Rates and exploration at the share tau of a cycle."""
    now = memory.now
    warm = 0.2 if cycle == 0 else 0.02
    memory.count[LEARNING] = tau >= warm
    fade = 1.0 - (tau - warm) / (0.6 - warm)
    now[MU] = min(1.0, max(0.0, fade))
    if memory.count[GUIDED]:
        now[MU] = 1.0
    now[SHARE] = settings.explore if tau >= warm else 1.0
    now[ZETA] = settings.zeta * min(1.0, max(0.0, (tau - 0.3) / 0.3))
    now[EPSILON], now[KAPPA], now[ALPHA_B], now[ALPHA_O] = (
        settings.epsilon, settings.kappa, settings.alpha_b, settings.alpha_o,
    )  # fmt: skip
    now[EXPAND], now[GAMMA_B], now[LAMBDA] = settings.expand, gamma_b, settings.trace


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Cycles of learning; the best extracted tree so far after each judgement."""
    if not problem.base.actions.discrete:
        raise CustardError("mfec needs discrete actions")
    learner = Learner(problem, settings)
    while not learner.message:
        if learner.advance():
            m = learner.memory
            yield learner.snapshot(
                {
                    "cycle": int(learner.at[CYCLE]),
                    "return": m.now[RETURNS] / max(1, m.count[EPISODES]),
                    "final": learner.final_value,
                    "depth": learner.final.depth,
                    "leaves": learner.final.n_leaves,
                    "nodes": int(m.nodes.keys.size[0]),
                    "states": int(m.states.size[0]),
                }
            )
            m.now[RETURNS] = m.count[EPISODES] = 0


NOISE = 0.05
SURVEY = 10_000  # random steps that tell where real features lie


def survey(problem: Problem, seed: int) -> Features:
    """Real features with the range seen in random rollouts for bounds."""
    base, features = problem.base, problem.base.features
    real = ~features.integer | features.unbounded
    if not real.any():
        return features
    opened = replace(features, low=np.where(real, -np.inf, features.low), high=np.where(real, np.inf, features.high))
    env = problem.source.make()
    return estimate_bounds(env, replace(base, features=opened), seed=seed, steps=SURVEY)


def default_splits(features: Features) -> int:
    """p: as many as the widest whole-number feature has cuts (10 at the most), at least 7 if there are real ones."""
    cuts = np.where(features.integer, features.high - features.low, 7)
    return int(np.clip(cuts.max(), 1, 10))
