"""Why a tree acts as it does: the path in words, the nearest counterfactuals, what the features are good for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.tree.nearest import nearest_point
from custard.tree.rounding import first_above, last_within
from custard.tree.text import bound_text, one_line
from custard.tree.tree import LEAF, Tree

__all__ = [
    "Change",
    "Explanation",
    "Usage",
    "counterfactuals",
    "explain",
    "node_visits",
    "read_features",
    "rule",
    "usage",
]


@dataclass(frozen=True)
class Change:
    """The nearest observation for which the tree takes another action."""

    action: Any  # the environment's own action
    observation: np.ndarray  # [n], one that the tree answers with this action
    distance: float  # the feature-scaled Euclidean length of the change
    features: tuple[int, ...]  # which features change
    leaf: int


@dataclass(frozen=True)
class Explanation:
    """One decision, explained."""

    observation: np.ndarray
    action: Any
    path: tuple[int, ...]
    rule: str  # the leaf's box in words
    changes: tuple[Change, ...]  # nearest first
    unreachable: tuple[Any, ...]  # actions that no allowed change leads to


@dataclass(frozen=True)
class Usage:
    """How a tree is used on a set of observations."""

    visits: np.ndarray  # [n_nodes] how many of them pass each node
    asked: np.ndarray  # [n] the share of them that meet a question about each feature
    unused: tuple[str, ...]  # features that no question of the tree asks about
    never_matter: tuple[str, ...]  # features whose value changes no decision, whatever the other values are


def rule(tree: Tree, node: int, observation: np.ndarray | None = None) -> str:
    """Return what must hold to reach a node, and a leaf's action, in words that are true of the observation, if given.

    >>> from custard import Actions, Features, Tree
    >>> rule(Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("left", "right"))), 2)
    'angle > 0.5 → right'
    """
    parts = []
    for c, edges in tree.box(node).items():
        name, x = one_line(tree.features.names[c]), np.nan if observation is None else float(observation[c])
        above, most = (bound_text(tree, c, edge, x) for edge in edges)
        if np.isinf(edges[0]):
            parts.append(f"{name} ≤ {most}")
        elif np.isinf(edges[1]):
            parts.append(f"{name} > {above}")
        else:
            parts.append(f"{above} < {name} ≤ {most}")
    condition = " and ".join(parts) or "always"
    if tree.feature[node] != LEAF:
        return condition
    return f"{condition} → {one_line(tree.leaf_text(node))}"


def explain(tree: Tree, observation: Any, *, fixed: Iterable[str] = (), scale: Any = None) -> Explanation:
    """Return the decision for one observation: its path, its rule and the nearest change to each other action.

    >>> from custard import Actions, Features, Tree
    >>> tree = Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("left", "right")))
    >>> told = explain(tree, [0.9])
    >>> told.rule, told.changes[0].observation.tolist(), told.changes[0].distance
    ('angle > 0.5 → right', [0.5], 0.2)
    """
    x = checked(tree, observation)
    path = tree.path(x)
    changes = counterfactuals(tree, x, fixed=fixed, scale=scale)
    told = rule(tree, path[-1], tree.features.extend(x))
    if tree.gains is not None:  # an action that is computed is not one of a few
        return Explanation(x, tree.act(x), tuple(path), told, tuple(changes), ())
    found = {_action_key(change.action) for change in changes} | {_action_key(tree.value[path[-1]])}
    others = [_plain_action(tree, value) for value in _possible_actions(tree)]
    missing = tuple(action for action in others if _action_key(action) not in found)
    action = _plain_action(tree, tree.value[path[-1]])
    return Explanation(x, action, tuple(path), told, tuple(changes), missing)


def counterfactuals(tree: Tree, observation: Any, *, fixed: Iterable[str] = (), scale: Any = None) -> list[Change]:
    """Return for each action of some other leaf the smallest change that leads to it, nearest first. Exact.

    Distance is Euclidean after dividing each feature's change by its scale: the width of its bounds, or what `scale`
    says (one number per feature, or a mapping from names). A feature without finite bounds has the width that its
    thresholds span. `fixed` features keep their value. A leaf is a box and the nearest point of a box is found feature
    by feature, so that the minimum over leaves is the minimum over all observations; where a box is open below, the
    point just inside it is taken: the next float64, or the next whole number for whole-number features. Changes stay
    within the features' bounds, unless the observation itself lies outside them.

    Where sums lead to a leaf, the observation's own features change, all at once where that is nearest
    (`custard.tree.nearest`): exact up to rounding, and the tree confirms the point. Leaves behind products, absolute
    values and angles are left out. Linear leaves count as different actions if they compute differently.
    """
    x = checked(tree, observation)
    n_raw = tree.features.n_raw
    held = np.zeros(n_raw, dtype=bool)
    for name in fixed:
        held[tree.features.raw.index(name)] = True
    width = scales(tree, scale)
    whole = tree.features.integer
    present_key = tree.leaf_key(tree.path(x)[-1])
    best: dict[bytes, Change] = {}
    for leaf, box in tree.boxes():
        key = tree.leaf_key(leaf)
        if key == present_key:
            continue
        if any(c >= n_raw for c in box):
            near_point = nearest_point(tree, leaf, x, width[:n_raw], held)
            if near_point is not None and (key not in best or near_point[1] < best[key].distance):
                moved = np.flatnonzero(~_unchanged(near_point[0], x))
                action = tree.act(near_point[0])
                best[key] = Change(action, *near_point, tuple(moved.tolist()), leaf)
            continue
        point = x.copy()
        for c, (above, most) in box.items():
            near = _nearest_value(x[c], above, most, tree.features.low[c], tree.features.high[c], bool(whole[c]))
            if near is None or (held[c] and not _unchanged(near, x[c])):
                break
            point[c] = near
        else:
            moved = np.flatnonzero(~_unchanged(point, x))
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.where(np.isfinite(x[moved]), (point[moved] - x[moved]) / width[moved], np.inf)
                distance = float(np.sqrt((gap**2).sum()))
            if key not in best or (distance, leaf) < (best[key].distance, best[key].leaf):
                action = _plain_action(tree, tree.value[leaf]) if tree.gains is None else tree.act(point)
                best[key] = Change(action, point, distance, tuple(moved.tolist()), leaf)
    return sorted(best.values(), key=lambda change: (change.distance, change.leaf))


def scales(tree: Tree, given: Any = None) -> np.ndarray:
    """Return what a change of each feature is divided by, [n]."""
    features = tree.features
    width = np.where(features.unbounded, np.nan, features.high - features.low)
    for c in np.flatnonzero(~(width > 0)):
        own = tree.threshold[tree.feature == c]
        span = float(np.ptp(own)) if len(own) else 0.0
        width[c] = span or (2 * float(np.abs(own).max()) if len(own) else 0.0) or 1.0
    if isinstance(given, Mapping):
        for name, value in given.items():
            width[features.index(name)] = value
    elif given is not None:
        try:
            width = np.broadcast_to(np.asarray(given, dtype=np.float64), (features.n,)).copy()
        except (TypeError, ValueError):
            raise CustardError(f"scale needs one number or {features.n} numbers, got {given!r}") from None
    if not (np.isfinite(width) & (width > 0)).all():
        raise CustardError("scale must hold positive numbers")
    return width


def usage(tree: Tree, observations: Any) -> Usage:
    """Return how often the nodes and features are used on visited observations [B, n], and which never matter."""
    visits = node_visits(tree, observations)
    asked = np.zeros(tree.features.n)
    total = max(int(visits[0]), 1)
    for c in np.unique(tree.feature[tree.feature != LEAF]):
        # A path may ask about a feature twice: count where it does so first.
        first = [node for node in np.flatnonzero(tree.feature == c) if int(c) not in tree.box(int(node))]
        asked[c] = visits[first].sum() / total
    used = read_features(tree)
    names = tree.features.names
    unused = tuple(name for c, name in enumerate(names) if c not in used)
    matter = deciding_features(tree)
    return Usage(visits, asked, unused, tuple(name for c, name in enumerate(names) if c not in matter))


def read_features(tree: Tree) -> set[int]:
    """Return the features that tests ask about, those their sums read, and those that linear leaves read."""
    used = {int(c) for c in tree.feature if c != LEAF}
    used |= {i for c in used for i in tree.features.sum_of(c).raw_features()}
    return used if tree.gains is None else used | {int(i) for i in np.flatnonzero(tree.gains.any(axis=(0, 1)))}


def node_visits(tree: Tree, observations: Any) -> np.ndarray:
    """Return how many of the observations [B, n] pass each node, [n_nodes] int64."""
    visits = np.bincount(tree.apply(observations), minlength=tree.n_nodes)
    for node in np.flatnonzero(tree.feature != LEAF)[::-1]:
        visits[node] = visits[tree.children_left[node]] + visits[tree.children_right[node]]
    return visits


def deciding_features(tree: Tree) -> set[int]:
    """Return the features whose value can change a decision: two leaves of different actions that only it keeps apart.

    Two leaves' boxes, with one feature left out of both, overlap exactly if some observation lies in the one and
    becomes one of the other by changing that feature alone. With sums or linear leaves features change together: every
    one that is read counts.
    """
    if tree.is_linear:
        return read_features(tree)
    boxes = [(_action_key(tree.value[leaf]), box) for leaf, box in tree.boxes()]
    n = tree.features.n
    low, high = np.full((len(boxes), n), -np.inf), np.full((len(boxes), n), np.inf)
    for k, (_, box) in enumerate(boxes):
        for c, (above, most) in box.items():
            low[k, c], high[k, c] = above, most
    low, high = first_above(low, tree.features.integer), last_within(high, tree.features.integer)
    possible = (low <= high).all(axis=1)
    actions = np.unique([key for key, _ in boxes], return_inverse=True)[1]
    found: set[int] = set()
    for k in np.flatnonzero(possible).tolist():
        rest = np.flatnonzero(possible & (actions != actions[k]))
        apart = np.minimum(high[rest], high[k]) < np.maximum(low[rest], low[k])  # [others, n]
        alone = apart.sum(axis=1) == 1
        found.update(np.flatnonzero(apart[alone].any(axis=0)).tolist())
    return found


def checked(tree: Tree, observation: Any) -> np.ndarray:
    """Return one observation as a float64 vector of the right length."""
    try:
        x = np.array(observation, dtype=np.float64)
    except (TypeError, ValueError):
        raise CustardError(f"an observation is {tree.features.n_raw} numbers, got {observation!r}") from None
    n = tree.features.n_raw
    if x.shape == (tree.features.n,):
        return x[:n]
    if x.shape != (n,):
        names = ", ".join(tree.features.names[: min(n, 8)]) + (", …" if n > 8 else "")
        raise CustardError(f"an observation has {n} values ({names}), got {x.size}")
    return x


def _nearest_value(value: float, above: float, most: float, low: float, high: float, whole: bool) -> float | None:
    """Return the nearest value in (above, most], and in [low, high] if the given one lies there; None if there is none.

    value        the given one
    above, most  the box
    low, high    the feature's bounds
    whole        whether only whole numbers count
    """
    if above < value <= most or (np.isnan(value) and np.isinf(most)) or (value == above == -np.inf):
        return value
    first, last = float(first_above(above, whole)), float(last_within(most, whole))
    if low <= value <= high:
        first, last = max(first, low), min(last, high)
    if first > last:
        return None
    return first if value < first else last  # NaN goes right, so that it has come to be at most `most`


def _unchanged(a: Any, b: Any) -> Any:
    """Return whether values are equal; NaN is as it was."""
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _possible_actions(tree: Tree) -> Sequence[Any]:
    """Return the actions some leaf holds, and for discrete ones all there are."""
    if tree.actions.discrete:
        return list(range(tree.actions.start, tree.actions.start + tree.actions.n))
    return list({_action_key(tree.value[leaf]): tree.value[leaf] for leaf in tree.leaves()}.values())


def _action_key(value: Any) -> bytes:
    """Return what is equal for equal actions."""
    return np.asarray(value).tobytes()


def _plain_action(tree: Tree, value: Any) -> Any:
    """Return an action as an int, or as an array for vectors."""
    return int(value) if tree.actions.discrete else np.asarray(value)
