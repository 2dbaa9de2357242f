"""The paper's MFEC: episodic control as Blundell et al. (2016) and Pritzel et al. (2017, NEC) define it, on an IBMDP.

Q and Q_o are memories, one per action, of keys and values. A key is o = s_w \\ s_b for Q and s_w for Q_o. A value is
read from the very key or, if the action was never taken there, as the mean of the k nearest keys of that action's
memory. Nothing is written during an episode. At its end every step is, from the last to the first:

    Q_o(s_w, a) <- Q_o(s_w, a) + alpha_o * (target - Q_o(s_w, a)),    stored with its target if the key is new
    Q(o, a)     <- Q(o, a)     + alpha_b * (target - Q(o, a)),        the same
    target = r_0 + g_0 r_1 + ... + g_0 ... g_(N-1) Q_o(s_w^N, argmax_a Q(o^N, a))

N steps later, g being gamma_b after a base action and gamma_w after a split. N is 1 in the paper's text
(`target="one-step"`), 100 in NEC ("n-step"); MFEC has the whole episode's return ("episode"), for which Q_o has no use
but at a time limit that only cuts an episode. A full memory forgets the key that was written least recently.
`docs/explanation/deviations.md` lists what the texts leave open.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.core.errors import CustardError, one_of, require_least, require_shares
from custard.core.numba_tools import without_refcounts
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.kernels import CompiledRules, compiled_rules, narrowed, project, random_afforded, threshold_of
from custard.ibmdp.splits import Rules
from custard.solvers.common.action_memory import (
    Memory,
    best_actions,
    best_stored,
    better_of,
    estimate,
    make_memory,
    restore_memory,
    write,
)
from custard.solvers.common.bounds_survey import fill_missing_bounds
from custard.solvers.common.checkpoint import copy_arrays, restore_arrays
from custard.solvers.common.level_policy import LevelPolicy
from custard.solvers.common.selection import LEARNING_BUDGET_SHARE, Selection
from custard.solvers.mfec.runners import CONTINUES, EPISODE_OVER, STARTED, TERMINATED, default_budget, run_episodes
from custard.task.compiled_episodes import start_episode, step_episode
from custard.task.problem import Problem, Snapshot
from custard.task.runners import make_episodes
from custard.tree.extract import extract

__all__ = ["PRESET", "TARGETS", "PaperSettings", "PaperTables", "make_paper_tables", "paper_policy", "solve"]

TARGETS = ("one-step", "n-step", "episode")


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
    target: str = "one-step"  # "one-step", "n-step" (NEC) or "episode" (MFEC)
    n_steps: int = 100  # N of n-step targets: transitions of the IBMDP
    epsilon: float = 0.05  # share of random actions at the end
    first_epsilon: float = 0.5  # at the beginning
    epsilon_steps: int = 200_000  # transitions over which it falls
    optimistic: bool = True  # an action taken fewer than k times is tried first; False: the mean of what there is, or 0
    capacity: int = 100_000  # keys kept in each action's memory
    evaluations: int = 20  # how often the policy's tree is extracted
    keep_best: bool = False  # return the best tree judged; False: the last one
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: a time limit is a termination
    mask_useless: bool = True  # mask splits that separate nothing; False: they only cost zeta
    low: Any = None  # bounds of the features, where the environment's own do not suit
    high: Any = None  # upper bounds

    def __post_init__(self) -> None:
        require_least(self, 1, "k", "capacity", "n_steps", "epsilon_steps", "evaluations")
        require_shares(self, "alpha_b", "alpha_o", "epsilon", "first_epsilon")
        if self.target not in TARGETS:
            raise CustardError(one_of("target", self.target, TARGETS))


# No target serves all three worlds: results/readings.md.
PRESET: dict[str, dict[str, Any]] = {
    "CartPole": {"splits": 10, "gamma_b": 0.99, "budget": 2_000_000, "bootstrap_at_limit": False, "target": "n-step",
                 "low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4]},
    "PrereqWorld": {"splits": 1, "alpha_b": 0.1, "alpha_o": 0.7},
    "PotholeWorld": {"splits": 10, "k": 2, "budget": 5_000_000},
}  # fmt: skip

MAX_EPISODE_TRANSITIONS = 1 << 16  # of the IBMDP, after which is learned as at a time limit that cuts the episode
STEP_ARRAYS = "bounds_key", "state_key", "mask", "guess", "guess_value", "action", "reward", "gamma"  # of `PaperTables`
MAX_TREE_NODES = 2000  # where a larger tree would be extracted, it acts instead
WHOLE_EPISODE_STEPS = 2**62  # N of the whole episode's return

RATES = np.dtype([(name, np.float64) for name in (
    "alpha_b", "alpha_o", "gamma_b", "zeta", "epsilon", "first_epsilon", "epsilon_steps")])  # fmt: skip
COUNTERS = np.dtype(
    [
        ("transitions", np.int64),  # of the IBMDP
        ("length", np.int64),  # of them in the present episode
        ("traversals_cut", np.int64),
        ("episode_return", np.float64),
        ("all_episodes", np.int64),
        ("episodes", np.int64),  # since the last snapshot, with the sum of their returns
        ("returns", np.float64),
        ("hits", np.int64),  # values that were read from the very key
        ("misses", np.int64),  # values that are means of neighbours
    ]
)


class PaperTables(NamedTuple):
    """Both memories and the present episode. L transitions, n features, A actions."""

    rules: CompiledRules
    width: Any  # [n]: for normalising
    q: Memory  # keys: lower, upper (normalised), depth where it matters
    q_o: Memory  # keys: the base state before those
    n_steps: int  # N
    optimistic: bool
    max_queries: int
    bounds_key: Any  # [L + 1, 2n + 2]
    state_key: Any  # [L + 1, 3n + 2]
    mask: Any  # [L + 1, A] what is afforded
    guess: Any  # [L + 1] the best of the actions never taken there, -1 if there is none
    guess_value: Any  # [L + 1] its value by its neighbours
    action: Any  # [L] the action taken
    reward: Any  # [L]
    gamma: Any  # [L]
    rates: Any  # [1] RATES
    counters: Any  # [1] COUNTERS
    rng: Any  # [4] uint64


def make_paper_tables(rules: Rules, settings: PaperSettings, seed: int) -> PaperTables:
    """Return empty memories and room for an episode."""
    n, actions, s, length = rules.features.n, rules.n_actions, settings, MAX_EPISODE_TRANSITIONS
    assert rules.max_queries is not None
    return PaperTables(
        rules=compiled_rules(rules),
        width=rules.width,
        q=make_memory(actions, 2 * n + 1, s.capacity),
        q_o=make_memory(actions, 3 * n + 1, s.capacity, nodes=False),
        n_steps={"one-step": 1, "n-step": s.n_steps, "episode": WHOLE_EPISODE_STEPS}[s.target],
        optimistic=s.optimistic,
        max_queries=int(rules.max_queries),
        bounds_key=np.zeros((length + 1, 2 * n + 2)),
        state_key=np.zeros((length + 1, 3 * n + 2)),
        mask=np.zeros((length + 1, actions), np.bool_),
        guess=np.zeros(length + 1, np.int64),
        guess_value=np.zeros(length + 1),
        action=np.zeros(length, np.int64),
        reward=np.zeros(length),
        gamma=np.zeros(length),
        rates=np.array([tuple(getattr(s, name) for name in RATES.names or ())], dtype=RATES),
        counters=np.zeros(1, dtype=COUNTERS).view(np.recarray),
        rng=streams([seed])[0],
    )


# -- episodes -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _write_keys_and_mask(tables, t, x, lower, upper, depth):
    """Write down the keys and affordances of step t."""
    n, rules = len(lower), tables.rules
    bounds_key, state_key, mask = tables.bounds_key[t], tables.state_key[t], tables.mask[t]
    for c in range(n):
        state_key[1 + c] = min(max((x[c] - rules.low[c]) / tables.width[c], 0.0), 1.0) + 0.0
        bounds_key[1 + c] = (lower[c] - rules.low[c]) / tables.width[c] + 0.0
        bounds_key[1 + n + c] = (upper[c] - rules.low[c]) / tables.width[c] + 0.0
    bounds_key[1 + 2 * n] = depth if rules.has_depth_limit else 0.0
    state_key[1 + n :] = bounds_key[1:]
    p = len(rules.fractions)
    for a in range(len(mask)):
        if a < rules.n_base:
            mask[a] = True
            continue
        c, j = (a - rules.n_base) // p, (a - rules.n_base) % p
        mask[a] = depth < rules.depth_limit and not np.isnan(threshold_of(rules, c, j, lower[c], upper[c]))


@njit(cache=True)
def choose_base_action(tables, x, k):
    """Traverse the tree from the root with base state x [n], epsilon-greedily; return the base action it ends with."""
    rules, rates, counters = tables.rules, tables.rates[0], tables.counters[0]
    base, p = rules.n_base, len(rules.fractions)
    lower, upper = rules.low.copy(), rules.high.copy()
    if_unknown = np.inf if tables.optimistic else np.nan
    depth = 0
    while True:
        t = counters.length
        _write_keys_and_mask(tables, t, x, lower, upper, depth)
        if depth >= tables.max_queries:  # act, and count it
            counters.traversals_cut += 1
            tables.mask[t, base:] = False
        share = max(0.0, 1.0 - counters.transitions / rates.epsilon_steps)
        found = best_actions(tables.q, tables.bounds_key[t], tables.mask[t], k, if_unknown)
        a, value, guess, guess_value, count = found
        tables.guess[t], tables.guess_value[t] = guess, guess_value
        counters.misses += count
        counters.hits += tables.mask[t].sum() - count
        a = better_of(a, value, guess, guess_value)
        if uniform(tables.rng, 0.0, 1.0) < rates.epsilon + share * (rates.first_epsilon - rates.epsilon):
            a = random_afforded(tables.rng, tables.mask[t])
        if t == MAX_EPISODE_TRANSITIONS:  # no more room
            learn_from_episode(tables, False, k)
            t = 0
            _write_keys_and_mask(tables, t, x, lower, upper, depth)
            tables.guess[t], tables.guess_value[t] = guess, guess_value
        tables.action[t] = a
        counters.length += 1
        counters.transitions += 1
        if a < base:
            return a
        tables.reward[t], tables.gamma[t] = rates.zeta, rules.gamma_w
        c = (a - base) // p
        v_p = project(lower[c], upper[c], rules.fractions[(a - base) % p])
        lower[c], upper[c] = narrowed(lower[c], upper[c], v_p, x[c] <= v_p)
        depth += 1


@njit(cache=True)
def record_reward(tables, reward):
    """Record the reward of the base action that `choose_base_action` returned."""
    counters = tables.counters[0]
    t = counters.length - 1
    tables.reward[t], tables.gamma[t] = reward, tables.rates[0].gamma_b
    counters.episode_return += reward


@njit(cache=True)
def _bootstrap_value(tables, t, k):
    """Return Q_o(s_w, argmax_a Q(o, a)) at step t; neighbours' means in Q are those of when the step was taken."""
    a, value = best_stored(tables.q, tables.bounds_key[t], tables.mask[t])
    if tables.guess_value[t] < np.inf:
        a = better_of(a, value, tables.guess[t], tables.guess_value[t])
    return estimate(tables.q_o, tables.state_key[t], max(a, 0), k, np.nan)


@njit(cache=True)
def learn_from_episode(tables, terminated, k):
    """Write every step of the episode, from the last to the first, and forget it.

    Where it did not terminate, step T, after the last, tells what would have followed.
    """
    counters, rates, n_steps = tables.counters[0], tables.rates[0], tables.n_steps
    length = counters.length
    rest = 0.0 if terminated else _bootstrap_value(tables, length, k)  # what follows the present step
    for t in range(length - 1, -1, -1):
        if t + n_steps >= length:  # up to the episode's end
            rest = tables.reward[t] + tables.gamma[t] * rest
        else:
            rest = _bootstrap_value(tables, t + n_steps, k)
            for i in range(t + n_steps - 1, t - 1, -1):
                rest = tables.reward[i] + tables.gamma[i] * rest
        write(tables.q_o, tables.state_key[t], tables.action[t], rest, rates.alpha_o)
        write(tables.q, tables.bounds_key[t], tables.action[t], rest, rates.alpha_b)
    counters.length = 0


@njit(cache=True)
def end_episode(tables, x, terminated, k):
    """Learn from an episode that ended in base state x [n]."""
    counters, rules = tables.counters[0], tables.rules
    if not terminated:
        t = counters.length
        _write_keys_and_mask(tables, t, x, rules.low, rules.high, 0)
        found = best_actions(tables.q, tables.bounds_key[t], tables.mask[t], k, -np.inf)
        tables.guess[t], tables.guess_value[t] = found[2], found[3]
    learn_from_episode(tables, terminated, k)
    counters.episodes += 1
    counters.all_episodes += 1
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

    A node where nothing was ever done takes the base action of its nearest neighbours: otherwise a tree might never
    end.
    """
    base = rules.n_base

    def decide(_: None, lower: np.ndarray, upper: np.ndarray, depth: int, mask: np.ndarray) -> tuple[int, Any]:
        _write_keys_and_mask(tables, MAX_EPISODE_TRANSITIONS, lower, lower, upper, depth)
        key = tables.bounds_key[MAX_EPISODE_TRANSITIONS]
        is_known = best_stored(tables.q, key, mask)[0] >= 0
        found = best_actions(tables.q, key, mask if is_known else mask[:base], k, -np.inf)
        greedy = int(better_of(*found[:4]))
        return greedy, (None, None) if greedy >= base else ()

    return LevelPolicy(rules, None, decide)


def solve(problem: Problem, settings: PaperSettings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn for the whole budget; yields the last policy's tree, with `keep_best` the best one, twenty times."""
    s, budget = settings, settings.budget or default_budget(problem)
    learning_budget = int(LEARNING_BUDGET_SHARE * budget)
    features, steps = fill_missing_bounds(problem, budget)
    discounts = s.gamma_b, s.gamma_w
    rules = Rules(features, problem.base.actions, s.splits, s.zeta, *discounts, problem.max_depth, s.mask_useless)
    seeds = problem.seeds("learner", "environment")
    tables = make_paper_tables(rules, s, seeds["learner"])
    episodes = make_episodes(
        problem, seeds["environment"], max_steps=problem.episode_cap(budget), limit_terminates=not s.bootstrap_at_limit
    )
    selection = Selection(problem, budget=budget)
    if state is not None:
        steps = int(state["steps"])
        _load(tables, state)
        restore_arrays(episodes.arrays(), state)
        selection.restore(state)
    message = ""
    while not message:
        n_next = max(1, min(budget // s.evaluations, learning_budget - steps))
        steps += run_episodes(episodes, run_compiled, next_action, tables, n_next, s.k)
        final = extract(paper_policy(tables, rules, s.k), rules, max_nodes=MAX_TREE_NODES)
        steps_before = selection.steps
        if s.keep_best or steps >= learning_budget:
            selection.spent = steps - selection.steps
            selection.judge(final, s.keep_best)
            steps += selection.steps - steps_before
        message = "budget used" if steps >= learning_budget else ""
        counters, best = tables.counters[0], selection.best
        lookups = max(1, int(counters.hits + counters.misses))
        metrics = {
            "return": counters.returns / max(1, counters.episodes), "tree_return": selection.last_mean,
            "depth": final.depth, "leaves": final.n_leaves, "episodes": int(counters.all_episodes),
            "nodes": int(tables.q.size.sum()), "states": int(tables.q_o.size.sum()),
            "hit_rate": counters.hits / lookups, "unseen": counters.misses / lookups,
            "traversal_limit": int(counters.traversals_cut),
        }  # fmt: skip
        counters.returns, counters.episodes = 0.0, 0
        value = selection.show(is_last=bool(message))
        kept = {**_save(tables), **copy_arrays(episodes.arrays()), **selection.state(), "steps": np.array(steps)}
        yield Snapshot(
            steps + selection.shown_steps, best.tree if best else final, value, budget, metrics, final, message,
            lambda kept=kept: kept, ended=bool(message),  # type: ignore[misc]
        )  # fmt: skip


def _arrays_in_use(tables: PaperTables) -> dict[str, np.ndarray]:
    """Return the parts in use that change, by name, but for the memories' keys."""
    parts = {f"tables.{name}": getattr(tables, name) for name in ("counters", "rng")}
    length = int(tables.counters["length"][0])  # an episode goes on across calls where the environment is compiled
    parts |= {f"episode.{name}": getattr(tables, name)[:length] for name in STEP_ARRAYS}
    for name, memory in (("q", tables.q), ("q_o", tables.q_o)):
        size = int(memory.keys.size[0])
        parts |= {f"{name}.{part}": getattr(memory, part)[:size] for part in ("value", "older", "newer")}
        parts |= {f"{name}.{part}": getattr(memory, part) for part in ("oldest", "newest", "size")}
    return parts


def _save(tables: PaperTables) -> dict[str, np.ndarray]:
    """Return copies of the parts in use, by name."""
    keys = {f"{name}.keys": m.keys.key[: int(m.keys.size[0])] for name, m in (("q", tables.q), ("q_o", tables.q_o))}
    return copy_arrays({**_arrays_in_use(tables), **keys})


def _load(tables: PaperTables, data: dict[str, np.ndarray]) -> None:
    """Fill empty memories with what `_save` returned."""
    tables.counters[...] = data["tables.counters"]
    restore_memory(tables.q, data["q.keys"])
    restore_memory(tables.q_o, data["q_o.keys"])
    restore_arrays(_arrays_in_use(tables), data)
