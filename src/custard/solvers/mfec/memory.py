"""What MFEC remembers, as plain arrays: made empty, begun anew, saved and restored."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.splits import Rules
from custard.solvers.common.key_table import Keys, make_keys, restore_keys
from custard.solvers.mfec.bounds_table import NONE, Lattice, Nodes, make_lattice, make_nodes
from custard.tree.tree import Tree

__all__ = ["Guide", "Memory", "guide_of", "load", "make_memory", "new_cycle", "save"]

PATIENT = 32  # base steps without any change after which an episode is given up
KEPT = 1024  # visits that count at most when a cycle goes on with the nodes of the last one
DRAWS = 2  # random questions drawn, of which the best is asked
OUTCOMES = 16  # what followed an action is remembered that many times
HORIZON = 4096  # base steps after which an episode that still goes on is learned from

# Entries of `Memory.count` …
LENGTH, EPISODE, HITS, MISSES, VISITS, ACTIONS, KIND, EPISODES, LEARNING, GUIDED, STILL, ALL, STRETCH, FIRST = range(14)
# … and of `Memory.now`.
MU, EPSILON, SHARE, KAPPA, ALPHA_B, ALPHA_O, GAMMA_B, ZETA, EXPAND, RETURN, RETURNS, DARING, LAMBDA, REWARDS = range(14)
UNDECIDED, FOLLOWING, EXPLORING, DISCOVERING = -1, 0, 1, 2  # kinds of episode


class Guide(NamedTuple):
    """A tree whose actions are followed while another one is learned."""

    feature: Any
    threshold: Any
    left: Any
    right: Any
    value: Any  # base actions counted from 0


class Memory(NamedTuple):
    """All that is learned. S base states, B base actions, n features."""

    lattice: Lattice
    nodes: Nodes  # Q(o, a): the policy over bounds
    guide: Guide
    grid: Any  # [2, n]: origin and width of the cells that tell real features apart (width 0: told apart exactly)
    scale: Any  # [n]: by what features are divided for distances between base states
    states: Keys  # base states
    q_o: Any  # [S, B] Q_o(s_b, b): take b, then do as the behaviour being learned about does
    q_star: Any  # [S, B] the same, but always doing what is best afterwards
    v_o: Any  # [S] what the behaviour is worth
    v_star: Any  # [S] what the best action is worth
    gain: Any  # [S, B] the mean reward of each base action
    after: Any  # [S, B, OUTCOMES] int32: the base states it led to last (NONE: the episode's end)
    point: Any  # [S, n]: the base state last met there
    when: Any  # [S] int32: and at which step of its episode
    tried: Any  # [S, B] int32: how often each base action was taken,
    learned: Any  # [S, B] int32: how often q_star was learned from that,
    followed: Any  # [S, B] int32: and q_o in this cycle
    last: Any  # [n]: the last base state
    key: Any  # [n]: room for a key
    seen: Any  # [S] int64: the last episode each base state was met in
    priority: Any  # [B]: which of equally good base actions is preferred, drawn anew in each cycle
    moments: Any  # [3, n]: count, sum and sum of squares of the base states the tree was learned in
    row: Any  # [HORIZON] int32: the present episode's base states,
    action: Any  # [HORIZON] int32: the base actions taken,
    leaf: Any  # [HORIZON] int32: the tree's,
    advice: Any  # [HORIZON] int32: the guide's (-1 where the best is meant),
    strayed: Any  # [HORIZON] bool: whether the action was taken to explore only,
    reward: Any  # [HORIZON]: and the rewards
    count: Any  # [14] int64: see the names above
    now: Any  # [14] float64: rates, schedules, returns; see the names above
    rng: Any  # [4] uint64


def make_memory(rules: Rules, grid: np.ndarray, scale: np.ndarray, capacity: int, seed: int) -> Memory:
    """Empty tables for at most `capacity` nodes and as many base states."""
    n, base = rules.features.n, rules.n_base
    steps = [np.zeros(HORIZON, dtype=np.int32) for _ in range(4)]
    memory = Memory(
        lattice=make_lattice(rules),
        nodes=make_nodes(capacity, rules),
        guide=guide_of(Tree.leaf(rules.actions.start, rules.features, rules.actions)),
        grid=grid,
        scale=scale,
        states=make_keys(capacity, n, neighbours=True),
        q_o=np.zeros((capacity, base)),
        q_star=np.zeros((capacity, base)),
        v_o=np.zeros(capacity),
        v_star=np.zeros(capacity),
        gain=np.zeros((capacity, base)),
        after=np.zeros((capacity, base, OUTCOMES), dtype=np.int32),
        point=np.zeros((capacity, n)),
        when=np.zeros(capacity, dtype=np.int32),
        tried=np.zeros((capacity, base), dtype=np.int32),
        learned=np.zeros((capacity, base), dtype=np.int32),
        followed=np.zeros((capacity, base), dtype=np.int32),
        last=np.zeros(n),
        key=np.zeros(n),
        seen=np.full(capacity, -1, dtype=np.int64),
        priority=np.zeros(base),
        moments=np.zeros((3, n)),
        row=steps[0],
        action=steps[1],
        leaf=steps[2],
        advice=steps[3],
        strayed=np.zeros(HORIZON, dtype=np.bool_),
        reward=np.zeros(HORIZON),
        count=np.zeros(14, dtype=np.int64),
        now=np.zeros(14),
        rng=streams([seed])[0],
    )
    memory.count[KIND] = UNDECIDED
    return memory


def guide_of(tree: Tree) -> Guide:
    """A tree as compiled code follows it."""
    return Guide(
        tree.feature.copy(), tree.threshold.copy(), tree.children_left.copy(), tree.children_right.copy(),
        tree.value - tree.actions.start,
    )  # fmt: skip


def new_cycle(memory: Memory, rules: Rules, guide: Tree | None) -> Memory:
    """Forget the tree, keep what is known of base states. With a guide its actions are followed at first.

    Under a depth limit the nodes are kept where the bounds are: thresholds are many then, and one cycle is too short
    to try them all.
    """
    nodes, lattice = memory.nodes, make_lattice(rules)
    same = np.array_equal(memory.lattice.low, lattice.low) and np.array_equal(memory.lattice.high, lattice.high)
    _keep_nodes(nodes, len(nodes.visits) // 2 if lattice.by_depth and same else 0)
    memory.moments[:] = 0.0
    size = int(memory.states.size[0])
    memory.count[GUIDED] = guide is not None
    if guide is None:
        known = memory.learned[:size] > 0
        memory.q_o[:size][known] = memory.q_star[:size][known]
        memory.followed[:size] = memory.learned[:size]
    else:  # another behaviour: what is known of the last one is no more than a start
        memory.followed[:size] = np.minimum(memory.followed[:size], 4)
    for b in range(len(memory.priority)):
        memory.priority[b] = uniform(memory.rng, 0.0, 1.0)
    memory = memory._replace(lattice=lattice)
    return memory if guide is None else memory._replace(guide=guide_of(guide))


def _keep_nodes(nodes: Nodes, most: int) -> None:
    """Keep the most visited nodes, at most so many, in their order; their visits count for at most KEPT."""
    size = int(nodes.keys.size[0])
    rows = np.sort(np.argsort(-nodes.visits[:size], kind="stable")[:most])
    moved = np.full(size + 1, NONE, dtype=np.int32)  # its last entry is where NONE itself leads
    moved[rows] = np.arange(len(rows))
    keys = nodes.keys.key[rows]
    for name in Nodes._fields:
        if name != "keys":
            array = getattr(nodes, name)
            array[: len(rows)] = array[rows]
    child = nodes.child[: len(rows)]
    child[...] = moved[child]
    np.minimum(nodes.visits, KEPT, out=nodes.visits)
    np.minimum(nodes.child_visits, KEPT, out=nodes.child_visits)
    restore_keys(nodes.keys, keys)


_ROWS = ("q_o", "q_star", "v_o", "v_star", "gain", "after", "point", "when", "tried", "learned", "followed", "seen")
_WHOLE = (
    "last",
    "grid",
    "scale",
    "priority",
    "moments",
    "row",
    "action",
    "leaf",
    "advice",
    "strayed",
    "reward",
    "count",
    "now",
    "rng",
)


def save(memory: Memory) -> dict[str, np.ndarray]:
    """The parts in use, copied."""
    nodes, size, states = memory.nodes, int(memory.nodes.keys.size[0]), int(memory.states.size[0])
    data = {f"memory.{name}": getattr(memory, name).copy() for name in _WHOLE}
    data |= {f"memory.{name}": getattr(memory, name)[:states].copy() for name in _ROWS}
    data |= {f"nodes.{name}": getattr(nodes, name)[:size].copy() for name in Nodes._fields if name != "keys"}
    data |= {f"guide.{name}": getattr(memory.guide, name).copy() for name in Guide._fields}
    for label, keys in (("nodes", nodes.keys), ("states", memory.states)):
        data[f"{label}.key"] = keys.key[: int(keys.size[0])].copy()
    return data


def load(memory: Memory, data: dict[str, np.ndarray]) -> Memory:
    """Fill empty tables with what `save` returned."""
    states, size = len(data["states.key"]), len(data["nodes.key"])
    for name in _WHOLE:
        getattr(memory, name)[...] = data[f"memory.{name}"]
    for name in _ROWS:
        getattr(memory, name)[:states] = data[f"memory.{name}"]
    for name in Nodes._fields:
        if name != "keys":
            getattr(memory.nodes, name)[:size] = data[f"nodes.{name}"]
    restore_keys(memory.nodes.keys, data["nodes.key"])
    restore_keys(memory.states, data["states.key"])
    return memory._replace(guide=Guide(*(data[f"guide.{name}"] for name in Guide._fields)))
