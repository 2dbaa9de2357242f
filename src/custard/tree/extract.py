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


class SplitRules(Protocol):
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
    """Return the tree of a policy over bounds for an `IBMDP`, a `VectorIBMDP` or its rules, exactly as the policy asks.

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
    rules: SplitRules = getattr(env, "rules", env)
    lower, upper = (bound[None] for bound in rules.root())  # the bounds of the present level's nodes, lines 8 to 9
    levels: list[tuple[np.ndarray, ...]] = []
    count, depth, cut = 1, 0, 0
    while len(lower):
        mask = rules.mask(lower, upper, np.full(len(lower), depth))
        is_last = must_act(rules, depth, count, len(lower), max_nodes)
        if is_last:
            mask[:, rules.n_base :] = False
        numbers, v, value = _ask(policy, rules, rules.normalised(lower, upper), mask)
        cut += int((numbers < rules.n_base).sum()) if is_last else 0
        stuck = np.flatnonzero(~mask[np.arange(len(numbers)), numbers])
        if len(stuck):
            cut += len(stuck)
            _act_instead(policy, rules, stuck, lower, upper, mask, depth, numbers, value, fallback)
        arrays, lower, upper = _divide(rules, lower, upper, numbers, v, count)
        levels.append((*arrays, value))
        count += len(lower)
        depth += 1
    if cut:
        warnings.warn(f"the policy would have asked for ever at {cut} node(s): cut there", stacklevel=2)
    columns = [np.concatenate(column) for column in zip(*levels, strict=True)]
    origin = {"cut": cut} if cut else {}
    return Tree(*columns, features=rules.features, actions=rules.actions, origin=origin)  # type: ignore[misc,arg-type]


def must_act(rules: SplitRules, depth: int, nodes: int, level: int, max_nodes: int) -> bool:
    """Return whether a policy must act now on every node of a level.

    rules      of the IBMDP
    depth      splits above the level's nodes
    nodes      of the tree so far, the level included
    level      nodes of the level
    max_nodes  nodes that the tree may have
    """
    return depth >= rules.max_queries or nodes + 2 * level > max_nodes  # type: ignore[operator]


def _divide(
    rules: SplitRules, lower: np.ndarray, upper: np.ndarray, numbers: np.ndarray, v: np.ndarray, count: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """Return a level's feature, threshold, children_left and children_right [B], and its children's bounds.

    rules         of the IBMDP
    lower, upper  [B, n], the bounds of the level's nodes
    numbers       [B], the IBMDP action of each node
    v             [B], the v of each node's action in the parameterised form
    count         nodes of the tree so far: the number of the first child
    """
    rows = np.flatnonzero(numbers >= rules.n_base)
    c, v_p = rules.thresholds(lower[rows], upper[rows], numbers[rows], v[rows])
    feature, left, right = (np.full(len(lower), LEAF, dtype=np.int64) for _ in range(3))
    threshold = np.zeros(len(lower))
    feature[rows], threshold[rows] = c, v_p
    # Level by level the children of one level's inner nodes stand in order: left, right, left, right, …
    left[rows] = count + 2 * np.arange(len(rows))
    right[rows] = left[rows] + 1
    child_lower, child_upper = np.repeat(lower[rows], 2, axis=0), np.repeat(upper[rows], 2, axis=0)
    even = 2 * np.arange(len(rows))
    child_upper[even, c] = np.minimum(child_upper[even, c], v_p)
    child_lower[even + 1, c] = np.maximum(child_lower[even + 1, c], v_p)
    return (feature, threshold, left, right), child_lower, child_upper


def _act_instead(
    policy: BoundsPolicy, rules: SplitRules, stuck: np.ndarray, lower: np.ndarray, upper: np.ndarray,
    mask: np.ndarray, depth: int, numbers: np.ndarray, value: np.ndarray, fallback: Any,
) -> None:  # fmt: skip
    """Ask the policy once more, with base actions only, where it took what is not afforded.

    policy          over bounds
    rules           of the IBMDP
    stuck           nodes of the level where it took what is not afforded
    lower, upper    [B, n], the bounds of the level's nodes
    mask            [B, n_actions]
    depth           of the level
    numbers, value  [B], changed in place where nodes are stuck
    fallback        the action where it still does not act; None makes that an error
    """
    base_only = mask[stuck]
    base_only[:, rules.n_base :] = False
    again, _, again_value = _ask(policy, rules, rules.normalised(lower[stuck], upper[stuck]), base_only)
    for k, node in enumerate(stuck):
        if again[k] < rules.n_base:
            numbers[node], value[node] = again[k], again_value[k]
        elif fallback is not None:
            numbers[node], value[node] = 0, fallback
        else:
            raise CustardError(_endless_message(rules, lower[node], upper[node], depth, int(numbers[node])))


def _ask(policy: BoundsPolicy, rules: SplitRules, bounds: np.ndarray, mask: np.ndarray) -> tuple[Any, Any, Any]:
    """Return the policy's answers for a batch of nodes: action numbers, v, and what a leaf would hold."""
    answer = policy(bounds, mask.copy())
    size = len(bounds)
    try:
        if rules.parameterised:
            numbers = _whole_numbers(answer["choice"]).reshape(size)
            v = np.array(answer["v"], dtype=np.float64).reshape(size)
        else:
            numbers, v = _whole_numbers(answer).reshape(size), np.zeros(size)
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


def _whole_numbers(answer: Any) -> np.ndarray:
    """Return action numbers; a network's values handed over by mistake are refused, not rounded."""
    given = np.asarray(answer)
    numbers = given.astype(np.int64)
    if (numbers != given).any():
        raise ValueError("action numbers must be whole")
    return numbers


def _endless_message(rules: SplitRules, lower: np.ndarray, upper: np.ndarray, depth: int, number: int) -> str:
    """Return what to say of a policy that does not act at a node of these bounds, where it takes action `number`."""
    where = ", ".join(
        f"{name} in [{lo:g}, {hi:g}]" for name, lo, hi in zip(rules.features.names[:4], lower, upper, strict=False)
    )
    return (
        f"the policy asks for ever: at depth {depth} ({where}{', …' if rules.features.n > 4 else ''}) it takes action "
        f"{number}, which is not afforded there. Apply the mask, or pass fallback= an action for such leaves."
    )
