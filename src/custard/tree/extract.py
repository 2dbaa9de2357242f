"""Algorithm 1: the decision tree that a policy over bounds is, read off exactly."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.tree.tree import LEAF, Tree

__all__ = ["MAX_NODES", "BoundsPolicy", "extract", "must_act"]

#: Nodes of a tree at the most: a policy that asks for ever doubles them with every question it asks.
MAX_NODES = 100_000

#: policy(bounds [B, 2n] float32, mask [B, n_actions] bool) -> IBMDP actions [B]. It never receives the base state.
BoundsPolicy = Callable[[np.ndarray, np.ndarray], Any]


class Questions(Protocol):
    """What extraction needs to know of an IBMDP: `custard.ibmdp.splits.Rules` has it."""

    features: Features
    actions: Actions
    max_queries: int | None

    @property
    def n_base(self) -> int: ...
    @property
    def n_actions(self) -> int: ...
    @property
    def parameterised(self) -> bool: ...
    def root(self) -> tuple[np.ndarray, np.ndarray]: ...
    def normalised(self, lower: np.ndarray, upper: np.ndarray) -> np.ndarray: ...
    def mask(self, lower: np.ndarray, upper: np.ndarray, depth: Any) -> np.ndarray: ...
    def thresholds(self, lower: np.ndarray, upper: np.ndarray, numbers: np.ndarray, v: Any) -> tuple: ...


def extract(policy: BoundsPolicy, env: Any, *, fallback: Any = None, max_nodes: int = MAX_NODES) -> Tree:
    """The tree of a policy over bounds for an `IBMDP`, a `VectorIBMDP` or its rules; raw, exactly as the policy asks.

    A policy that asks what is not afforded, for longer than `max_queries`, or on a level that could lead to more than
    `max_nodes` nodes, would ask for ever: at that node it is asked once more with base actions only, and a warning and
    `tree.origin["cut"]` tell how many nodes were cut so. If it still does not act, `fallback` is the leaf's action;
    without one this is an error.

    >>> import gymnasium as gym, numpy as np, custard
    >>> env = custard.IBMDP(gym.make("CartPole-v1"), splits=1, low=[-2, -2, -.14, -1.4], high=[2, 2, .14, 1.4])
    >>> def policy(bounds, mask):  # ask whether the pole leans right, then push that way
    ...     lower, upper = bounds[:, 2], bounds[:, 6]
    ...     return np.where(upper - lower == 1, 2 + 2, (lower > 0).astype(int))
    >>> print(custard.extract(policy, env))
    pole_angle ≤ 0?
    ├─ yes: push_left
    └─ no:  push_right
    """
    rules: Questions = getattr(env, "rules", env)
    n_base = rules.n_base
    low, high = rules.root()
    feature, threshold, left, right, value = [], [], [], [], []  # type: ignore[var-annotated]
    lower, upper = low[None], high[None]  # the nodes of the present level: their bounds, lines 8 to 9
    count, depth, cut = 1, 0, 0
    while len(lower):
        mask = rules.mask(lower, upper, np.full(len(lower), depth))
        end = must_act(rules, depth, count, len(lower), max_nodes)
        if end:
            mask[:, n_base:] = False
        numbers, v, leaf_value = _ask(policy, rules, rules.normalised(lower, upper), mask)
        stuck = np.flatnonzero(~mask[np.arange(len(numbers)), numbers])
        cut += int((numbers < n_base).sum()) if end else 0
        if len(stuck):
            cut += len(stuck)
            base_only = mask[stuck]
            base_only[:, n_base:] = False
            again, _, again_value = _ask(policy, rules, rules.normalised(lower[stuck], upper[stuck]), base_only)
            for k, node in enumerate(stuck):
                if again[k] < n_base:
                    numbers[node], leaf_value[node] = again[k], again_value[k]
                elif fallback is not None:
                    numbers[node], leaf_value[node] = 0, fallback
                else:
                    raise CustardError(_stuck(rules, lower[node], upper[node], depth, int(numbers[node])))
        asks = numbers >= n_base
        c, v_p = rules.thresholds(lower[asks], upper[asks], numbers[asks], v[asks])
        rows = np.flatnonzero(asks)
        first = count + 2 * np.arange(len(rows))
        level = len(lower)
        for column, fill in ((feature, LEAF), (threshold, 0.0), (left, LEAF), (right, LEAF)):
            column.append(np.full(level, fill, dtype=np.float64 if fill == 0.0 else np.int64))
        feature[-1][rows], threshold[-1][rows] = c, v_p
        # Level by level the children of one level's inner nodes stand in order: left, right, left, right, …
        left[-1][rows], right[-1][rows] = first, first + 1
        value.append(leaf_value)
        pairs_lower, pairs_upper = np.repeat(lower[rows], 2, axis=0), np.repeat(upper[rows], 2, axis=0)
        even = 2 * np.arange(len(rows))
        pairs_upper[even, c] = np.minimum(pairs_upper[even, c], v_p)
        pairs_lower[even + 1, c] = np.maximum(pairs_lower[even + 1, c], v_p)
        lower, upper = pairs_lower, pairs_upper
        count += 2 * len(rows)
        depth += 1
    if cut:
        warnings.warn(f"the policy would have asked for ever at {cut} node(s): cut there", stacklevel=2)
    arrays = [np.concatenate(column) for column in (feature, threshold, left, right, value)]
    origin = {"cut": cut} if cut else {}
    return Tree(*arrays, features=rules.features, actions=rules.actions, origin=origin)  # type: ignore[misc,arg-type]


def must_act(rules: Questions, depth: int, nodes: int, level: int, max_nodes: int) -> bool:
    """Whether a policy must act now on every node of a level, since it has asked too long or on too many nodes."""
    return depth >= rules.max_queries or nodes + 2 * level > max_nodes  # type: ignore[operator]


def _ask(policy: BoundsPolicy, rules: Questions, bounds: np.ndarray, mask: np.ndarray) -> tuple[Any, Any, Any]:
    """The policy's answers for a batch of nodes: action numbers, v, and what a leaf would hold."""
    answer = policy(bounds, mask.copy())
    size = len(bounds)
    try:
        if rules.parameterised:
            numbers = _whole(answer["choice"]).reshape(size)
            v = np.array(answer["v"], dtype=np.float64).reshape(size)
        else:
            numbers, v = _whole(answer).reshape(size), np.zeros(size)
        if rules.actions.discrete:
            value: np.ndarray = numbers + rules.actions.start
        else:
            value = np.array(answer["base"]).reshape(size, rules.actions.size)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CustardError(f"the policy did not return one IBMDP action for each of {size} bounds: {error}") from error
    if ((numbers < 0) | (numbers >= rules.n_actions)).any():
        raise CustardError(f"the policy returned an action outside 0…{rules.n_actions - 1}")
    if ((v < 0) | (v > 1)).any() or np.isnan(v).any():
        raise CustardError("the policy returned v outside [0, 1]")
    return numbers, v, value


def _whole(answer: Any) -> np.ndarray:
    """Action numbers; a network's values handed over by mistake are not rounded to some."""
    given = np.asarray(answer)
    numbers = given.astype(np.int64)
    if (numbers != given).any():
        raise ValueError("action numbers must be whole")
    return numbers


def _stuck(rules: Questions, lower: np.ndarray, upper: np.ndarray, depth: int, number: int) -> str:
    where = ", ".join(
        f"{name} in [{lo:g}, {hi:g}]" for name, lo, hi in zip(rules.features.names[:4], lower, upper, strict=False)
    )
    return (
        f"the policy asks for ever: at depth {depth} ({where}{', …' if rules.features.n > 4 else ''}) it takes action "
        f"{number}, which is not afforded there. Apply the mask, or pass fallback= an action for such leaves."
    )
