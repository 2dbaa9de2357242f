"""The best tree from fixed starts, with a proof: for environments that leave nothing to chance, model or no model.

A compiled environment is stepped as it is; a finite MDP with a single outcome per action is stepped by its table. Trees
ask about a grid of thresholds, `trace_search` looks through their traces, and the certificate says what that proves:
which starts, how many steps, which thresholds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError, require_whole
from custard.core.features import Features
from custard.core.mdp import FiniteMDP
from custard.core.spaces import Base, describe
from custard.envs.native import MAX_REWARDS, advance
from custard.envs.pcg64 import streams
from custard.ibmdp.splits import fractions, project
from custard.planning.grid import STATE_BOXES
from custard.planning.incumbents import load_trees
from custard.planning.local_search import MAX_HEAP_DEPTH
from custard.planning.model import model_of
from custard.planning.plans import Plan
from custard.planning.trace_search import TraceSearch
from custard.planning.trace_world import STATE_TABLE, TraceWorld
from custard.task.source import DEFAULT_TIME_LIMIT, Source
from custard.tree.shape import Shape, build_tree, map_leaves, shape_of
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

__all__ = ["FixedStarts", "fixed_starts", "plan_from_starts"]

MAX_WHOLE_NUMBERS = 1000  # of a feature's values up to here every threshold between two is asked about
FIRST_CLIMB_SECONDS = 0.02
SLICE_SECONDS = 0.2  # the search over traces and climbing take turns
IDLE_SHRINK, MIN_CLIMB_SHARE = 0.8, 0.1  # climbing's share of the search's time falls while it finds nothing better


class FixedStarts(NamedTuple):
    """What is planned for."""

    world: TraceWorld
    features: Features
    actions: Actions
    thresholds: list[np.ndarray]
    scope: dict[str, Any]  # what a proof is about, for the certificate


def plan_from_starts(
    source: Source, max_depth: int | None, *, start_seed: int, episodes: int = 1, splits: int = 9, gamma: float = 1.0,
    seconds: float = 60.0, start: str | None = None, seed: int = 0,
) -> Iterator[Plan]:  # fmt: skip
    """Yield better and better trees, and lower and lower bounds, until both meet or time is up.

    source      the environment; nothing in its steps may be left to chance
    max_depth   the largest number of splits on a path
    start_seed  episodes begin as the environment does after reset(seed=start_seed), start_seed + 1, …
    episodes    how many; values are means over them
    splits      thresholds per feature, evenly spaced between its bounds; of whole numbers every threshold counts
    gamma       discount of rewards per step
    seconds     stop after this long
    start       trees to begin from, as files or run directories; their thresholds count too
    seed        of random changes to trees

    >>> from custard.task.source import source
    >>> found = list(plan_from_starts(source("MountainCar-v0"), 1, start_seed=0))[-1]
    >>> found.value, found.optimal, found.tree.depth
    (-101.0, True, 1)
    """
    if max_depth is None or int(max_depth) != max_depth or not 0 <= max_depth <= MAX_HEAP_DEPTH:
        raise CustardError(f"planning from fixed starts needs max_depth, a whole number of 0 to {MAX_HEAP_DEPTH}")
    require_whole(0, start_seed=start_seed)
    require_whole(1, episodes=episodes, splits=splits)
    given = load_trees(start)
    task = fixed_starts(source, start_seed, episodes, splits, gamma, given)
    depth = int(max_depth) if any(len(own) for own in task.thresholds) else 0
    search = TraceSearch(task.world, depth, seed)
    search.compile_first()
    deadline = time.monotonic() + seconds
    search.offer(0)
    for tree in given:
        search.offer(_shape_on(tree, task, depth))
    yield _plan(task, search, int(max_depth), "one action tried")
    search.climb(min(deadline, time.monotonic() + FIRST_CLIMB_SECONDS))
    share, began = 1.0, time.monotonic()
    for steps in search.rounds(deadline, SLICE_SECONDS):
        yield _plan(task, search, int(max_depth), f"traces of {steps} steps")
        if search.is_proved:
            break
        before, now = search.value, time.monotonic()
        search.climb(min(deadline, now + share * (now - began)))
        began = time.monotonic()
        share = 1.0 if search.value > before else max(MIN_CLIMB_SHARE, IDLE_SHRINK * share)
    yield _plan(task, search, int(max_depth), None)


def fixed_starts(
    source: Source, start_seed: int, episodes: int = 1, splits: int = 9, gamma: float = 1.0, trees: Sequence[Tree] = ()
) -> FixedStarts:
    """Return an environment from fixed starts as a world to search, or raise one line that says why it is none."""
    env = source.make()
    base = describe(env)
    if not base.actions.discrete:
        raise CustardError(f"{source.name}: planning from fixed starts takes discrete actions, not {base.actions.kind}")
    if base.features.derived or source.history:
        raise CustardError(f"{source.name}: planning from fixed starts takes an environment's own features alone")
    limit = source.time_limit or DEFAULT_TIME_LIMIT
    if source.make_compiled is not None:
        kind, params, starts = _compiled_world(source, start_seed, episodes)
        most = MAX_REWARDS[kind]
        thresholds = [_grid(base.features, c, STATE_BOXES.get(kind), splits) for c in range(base.features.n)]
    else:
        mdp = model_of(source, base, gamma=gamma)
        limit = min(limit, mdp.horizon or limit)
        kind, params, starts = (
            STATE_TABLE,
            _table(mdp, source.name),
            _table_starts(mdp, env, base, start_seed, episodes),
        )
        most = float(mdp.rewards[~mdp.terminal].max(initial=0.0))
        thresholds = [_between(column) for column in mdp.x[~mdp.terminal].T]
        base = replace(base, features=mdp.features, actions=mdp.actions)
    for tree in trees:
        if tree.is_linear or tree.features.names != base.features.names or tree.actions.names != base.actions.names:
            raise CustardError(
                "a tree to begin from must have constant leaves and ask about the environment's features"
            )
        for c in range(base.features.n):
            thresholds[c] = np.union1d(thresholds[c], tree.threshold[tree.feature == c])
    discounts = gamma ** np.arange(limit + 1.0)
    after = (
        np.cumsum(discounts[:limit][::-1])[::-1] if most > 0 else discounts[:limit]
    )  # below 0: at least one step more
    cuts = np.full((base.features.n, max(1, *(len(own) for own in thresholds))), np.inf)
    for row, own in zip(cuts, thresholds, strict=True):
        row[: len(own)] = own
    world = TraceWorld(
        kind, params, starts, cuts, np.array([len(own) + 1 for own in thresholds]), base.actions.n, discounts,
        np.append(most * after, 0.0),
    )  # fmt: skip
    scope = {
        "start_seed": start_seed, "episodes": episodes, "steps": limit,
        "thresholds": {name: [len(own), *own[:1].tolist(), *own[-1:].tolist()]
                       for name, own in zip(base.features.names, thresholds, strict=True)},
    }  # fmt: skip
    return FixedStarts(world, base.features, base.actions, thresholds, scope)


def _compiled_world(source: Source, start_seed: int, episodes: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Return kind, parameters and start rows of a compiled environment."""
    venv: Any = source.make_vec(episodes)
    venv.reset(seed=start_seed)
    starts = venv.state.copy()
    stream = streams([start_seed])
    before = stream.copy()
    advance(venv.world, venv.params, starts[0].copy(), 0, stream[0])
    if (stream != before).any():
        raise CustardError(
            f"{source.name}: steps are random, but planning from fixed starts needs steps without chance"
        )
    return venv.world, venv.params, starts


def _table(mdp: FiniteMDP, name: str) -> np.ndarray:
    """Return a deterministic model as the parameters of a `STATE_TABLE`."""
    count, n_actions = mdp.rewards.shape
    table = np.zeros((count, 2 * n_actions + 1 + mdp.features.n))
    for action, matrix in enumerate(mdp.transitions):
        if (np.diff(matrix.indptr) != 1).any():
            state = int(np.flatnonzero(np.diff(matrix.indptr) != 1)[0])
            raise CustardError(
                f"{name}: action {mdp.actions.names[action]!r} has several outcomes in state {state}, but planning "
                "from fixed starts needs steps without chance"
            )
        table[:, action] = matrix.indices
    table[:, n_actions : 2 * n_actions] = mdp.rewards
    table[:, 2 * n_actions] = mdp.terminal
    table[:, 2 * n_actions + 1 :] = mdp.x
    return table


def _table_starts(mdp: FiniteMDP, env: Any, base: Base, start_seed: int, episodes: int) -> np.ndarray:
    """Return the states that an environment begins in, [episodes, 1]."""
    places = np.flatnonzero(mdp.start > 0)
    rows = []
    for k in range(episodes):
        observation, _ = env.reset(seed=start_seed + k)
        x = base.observe(observation)
        same = places[(mdp.x[places] == x).all(axis=1)]
        if len(same) != 1:
            raise CustardError(f"the start of seed {start_seed + k} could be {len(same)} states of the model, not one")
        rows.append(float(same[0]))
    return np.array(rows)[:, None]


def _grid(features: Features, c: int, box: np.ndarray | None, splits: int) -> np.ndarray:
    """Return a feature's thresholds: between whole numbers, or evenly spaced between its bounds."""
    low, high = (features.low[c], features.high[c]) if box is None else (box[0][c], box[1][c])
    if not (np.isfinite(low) and np.isfinite(high)) or (features.unbounded[c] and box is None):
        raise CustardError(f"planning from fixed starts needs bounds of feature {features.names[c]!r}")
    if features.integer[c] and high - low <= MAX_WHOLE_NUMBERS:
        return np.arange(np.ceil(low), np.floor(high)) + 0.5
    return np.asarray(project(low, high, fractions(splits)))


def _between(column: np.ndarray) -> np.ndarray:
    """Return one threshold between each two neighbouring values."""
    values = np.unique(column)
    middle = values[:-1] + (values[1:] - values[:-1]) / 2
    return np.where((values[:-1] <= middle) & (middle < values[1:]), middle, values[:-1])


def _shape_on(tree: Tree, task: FixedStarts, depth: int) -> Shape:
    """Return a tree as a shape whose leaves are action numbers."""
    if tree.depth > depth:
        raise CustardError(f"a tree to begin from has depth {tree.depth}, more than max_depth={depth}")
    return map_leaves(shape_of(tree), lambda action: int(action) - task.actions.start)


def _plan(task: FixedStarts, search: TraceSearch, max_depth: int, message: str | None) -> Plan:
    """Return where the search stands; without a message the verdict."""
    episodes = len(task.world.starts)
    value, bound = search.value / episodes, max(search.bound, search.value) / episodes
    limit = f"depth ≤ {max_depth} over these thresholds"
    if message is None and search.is_proved:
        message = f"proved: no tree of {limit} returns more from these starts"
    elif message is None:
        message = f"not proved: no tree of {limit} returns more than {bound:.6g} (gap {bound - value:.6g})"
    shape = map_leaves(search.shape, lambda action: action + task.actions.start)
    tree = simplify(build_tree(shape, task.features, task.actions)).with_origin(certificate={
        "value": value, "bound": bound, "optimum": None, "tolerance": search.tolerance, "max_depth": max_depth,
        "proved": search.is_proved, "fewest_leaves": False, "zeta": 0.0, "gamma": float(task.world.discounts[1]),
        "horizon": len(task.world.rest) - 1, "how": "search over traces", "scope": task.scope,
    })  # fmt: skip
    most = float(task.world.rest[0])
    return Plan(tree, value, bound, most, search.is_proved, False, search.traces, message)
