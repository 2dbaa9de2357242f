"""Episodes of base actions for the neural solvers: a tree that is followed, with exploration, compiled.

Some episodes follow the tree as it is: their states are those a tree must serve. The others explore, each with its own
share of random actions; half of them stray from the tree, half from what the critic likes best.
`Native` steps native environments inside the compiled loop, `Foreign` any Gymnasium environment by whole episodes, each
with a seed of its own, so that a run can be resumed.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import uniform
from custard.nn.networks import encode_row, forward_row
from custard.task.problem import Problem
from custard.task.source import DEFAULT_LIMIT
from custard.tree.compiled import leaf_of
from custard.tree.tree import Tree

__all__ = ["Actor", "Foreign", "Native", "tree_actions", "tree_arrays"]

UNDECIDED, FOLLOWING, STRAYING, DISCOVERING = range(4)  # kinds of episode
KIND, STILL, ELAPSED = range(3)  # entries of `Actor.number`
SHARE, DARING = range(2)  # entries of `Actor.now`: share of exploring episodes, share of random actions in this one
PATIENT = 32  # steps without any change after which an episode is given up


class Actor(NamedTuple):
    """What chooses base actions."""

    tree: Any  # feature, threshold, children_left, children_right, action
    critic: Any  # weights of a network over encoded base states, or an empty tuple
    scaling: Any  # [2, n]: what is subtracted from base states, and what they are divided by
    frequencies: int
    inputs: np.ndarray  # room for the critic's input
    room: np.ndarray  # room for its layers
    rng: np.ndarray  # [4] a random stream
    number: np.ndarray  # [3] int64
    now: np.ndarray  # [2] float64
    last: np.ndarray  # [n] the base state before
    n_base: int


def tree_arrays(tree: Tree) -> tuple[np.ndarray, ...]:
    """A tree as compiled loops take it; leaves hold action numbers from 0."""
    value = (np.asarray(tree.value) - tree.actions.start).astype(np.int64)
    parts = (tree.feature, tree.children_left, tree.children_right)
    feature, left, right = (np.asarray(part, dtype=np.int64) for part in parts)
    return feature, np.asarray(tree.threshold, dtype=np.float64), left, right, value


@njit(cache=True)
def tree_actions(tree, x):
    """The tree's action numbers for base states [B, n]."""
    out = np.empty(len(x), dtype=np.int32)
    for i in range(len(x)):
        out[i] = tree[4][leaf_of(tree, x[i])]
    return out


@njit(cache=True)
def decide(actor, x):
    """The base action to take in a base state."""
    rng, count, now = actor.rng, actor.number, actor.now
    if count[KIND] == UNDECIDED:
        exploring = STRAYING if uniform(rng, 0.0, 1.0) < 0.5 else DISCOVERING
        count[KIND] = exploring if uniform(rng, 0.0, 1.0) < now[SHARE] else FOLLOWING
        now[DARING] = uniform(rng, 0.0, 1.0) ** 2  # from a stray action now and then to nothing else
    still = True
    for c in range(len(x)):
        still = still and actor.last[c] == x[c]
        actor.last[c] = x[c]
    count[STILL] = count[STILL] + 1 if still else 0
    if count[KIND] != FOLLOWING and uniform(rng, 0.0, 1.0) < now[DARING]:
        return int(uniform(rng, 0.0, 1.0) * actor.n_base)
    if count[KIND] == DISCOVERING:
        z = (x - actor.scaling[0]) / actor.scaling[1]
        encode_row(z, actor.frequencies, actor.inputs)
        return int(np.argmax(forward_row(actor.critic, actor.inputs, actor.room, True)[1:]))
    return actor.tree[4][leaf_of(actor.tree, x)]


@njit(cache=True)
def over(actor, terminal, limit):
    """Count a step; whether the episode is over."""
    count = actor.number
    count[ELAPSED] += 1
    ended = terminal or count[ELAPSED] >= limit or count[STILL] >= PATIENT
    if ended:
        count[KIND] = UNDECIDED
        count[ELAPSED] = 0
        count[STILL] = 0
    return ended


@njit(cache=True)
def _run_native(
    actor, world, params, limit, limit_ends, state, env_rng, x, xs, actions, rewards, afters, ended, followed
):  # fmt: skip
    for t in range(len(xs)):
        xs[t] = x
        actions[t] = decide(actor, x)
        followed[t] = actor.number[KIND] == FOLLOWING and actor.number[STILL] == 0
        rewards[t], ended[t] = advance(world, params, state, actions[t], env_rng)
        ended[t] = ended[t] or (limit_ends and actor.number[ELAPSED] + 1 >= limit)
        observe(world, state, x)
        afters[t] = x
        if over(actor, ended[t], limit):
            begin(world, state, env_rng)
            observe(world, state, x)


class Native:
    """A native environment."""

    def __init__(self, problem: Problem, seed: int, limit_ends: bool) -> None:
        venv: Any = problem.source.vector(1)
        venv.reset(seed=seed)
        limit = min(venv.limit, DEFAULT_LIMIT) if problem.source.limit is None else venv.limit
        self.fixed = (venv.world, venv.params, limit, limit_ends and problem.source.limit is not None)
        self.state, self.rng, self.x = venv.state[0], venv.rng[0], venv.x[0]

    def run(self, actor: Actor, steps: int) -> dict[str, np.ndarray]:
        """Transitions of so many steps."""
        n = len(self.x)
        rows: dict[str, Any] = {
            "x": np.empty((steps, n)), "action": np.empty(steps, dtype=np.int32), "reward": np.empty(steps),
            "after": np.empty((steps, n)), "ended": np.empty(steps, dtype=bool),
            "followed": np.empty(steps, dtype=bool),
        }  # fmt: skip
        run: Any = _run_native
        run(actor, *self.fixed, self.state, self.rng, self.x, *rows.values())
        return rows

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: these very arrays."""
        return {"env.state": self.state, "env.rng": self.rng, "env.x": self.x}


class Foreign:
    """Any Gymnasium environment."""

    def __init__(self, problem: Problem, seed: int, limit_ends: bool, longest: int) -> None:
        self.env, self.base = problem.source.make(), problem.base
        self.limit, self.limit_ends = longest, limit_ends
        self.number = np.array([seed, 0], dtype=np.int64)  # the run's seed, and how many episodes there were

    def run(self, actor: Actor, steps: int) -> dict[str, np.ndarray]:
        """Transitions of whole episodes, of at least so many steps."""
        rows: list[tuple[Any, ...]] = []
        while len(rows) < steps:
            self._episode(actor, rows)
        names = ("x", "action", "reward", "after", "ended", "followed")
        columns = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
        columns["action"] = columns["action"].astype(np.int32)
        return columns

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: these very arrays."""
        return {"env.number": self.number}

    def _episode(self, actor: Actor, rows: list[tuple[Any, ...]]) -> None:
        seed = int(np.random.SeedSequence(self.number.tolist()).generate_state(1)[0])
        self.number[1] += 1
        start, ended = self.base.actions.start, False
        observation, _ = self.env.reset(seed=seed)
        x = self.base.observe(observation)
        while not ended:
            action = int(decide(actor, x))
            followed = actor.number[KIND] == FOLLOWING and actor.number[STILL] == 0
            observation, reward, terminal, truncated, _ = self.env.step(action + start)
            after = self.base.observe(observation)
            terminal = bool(terminal or (truncated and self.limit_ends))
            rows.append((x, action, reward, after, terminal, followed))
            ended = over(actor, terminal, 0 if truncated else self.limit)
            x = after
