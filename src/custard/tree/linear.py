"""Sums in tests and linear leaves: what a tree computes beyond comparing features with thresholds.

A linear leaf takes the action clip(value + gains · x), where x are the features of the observation itself. It is
accumulated like a sum (`custard.core.sums`): the value first, then one product after the other in ascending order of
the features, gains of zero left out, in float64 without fused multiply-add; then it is clipped. NaN stays NaN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.errors import CustardError

if TYPE_CHECKING:
    from custard.core.actions import Actions
    from custard.core.features import Features
    from custard.tree.tree import Tree

__all__ = [
    "act_from", "checked_gains", "count_coefficients", "definitions", "keep_used_sums", "leaf_actions", "leaf_terms",
    "leaf_text", "nested_leaf", "question_text", "require_constant_leaves", "require_linear", "used_derived",
]  # fmt: skip


def checked_gains(given: Any, shape: tuple[int, int, int], actions: Actions, leaf: np.ndarray) -> np.ndarray | None:
    """Return gains as an array [n_nodes, k, n_raw] that is 0 at inner nodes; None where no leaf has any."""
    if given is None:
        return None
    try:
        gains = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise CustardError(f"a tree's gains must hold numbers ({error})") from None
    if actions.kind != "box":
        if not gains.any():
            return None
        raise CustardError(f"a linear leaf needs real-valued (Box) actions, and this tree's are {actions.kind}")
    if gains.shape != shape:
        raise CustardError(
            f"a tree of {shape[0]} nodes, {shape[1]} action components and {shape[2]} features needs gains of shape "
            f"{shape}, got {gains.shape}"
        )
    if not np.isfinite(gains).all():
        raise CustardError("a tree's gains must be finite numbers")
    gains[~leaf] = 0.0
    return gains + 0.0 if gains.any() else None  # -0.0 becomes 0.0


def used_derived(tree: Tree) -> list[int]:
    """Return the derived features that the tree asks about, ascending."""
    n_raw = tree.features.n_raw
    return sorted({int(c) for c in tree.feature if c >= n_raw})


def count_coefficients(tree: Tree) -> int:
    """Return the number of weights in the sums that the tree asks about, each sum once, and of gains."""
    n_raw = tree.features.n_raw
    in_tests = sum(tree.features.derived[c - n_raw].n_coefficients for c in used_derived(tree))
    return in_tests + (0 if tree.gains is None else int(np.count_nonzero(tree.gains)))


def keep_used_sums(tree: Tree) -> Tree:
    """Return the tree without the derived features that it does not ask about."""
    used, n_raw = used_derived(tree), tree.features.n_raw
    if len(used) == len(tree.features.derived):
        return tree
    number = np.arange(tree.features.n)
    number[used] = n_raw + np.arange(len(used))
    feature = np.where(tree.feature >= 0, number[tree.feature], tree.feature)
    return replace(tree, feature=feature, features=tree.features.select_derived(used))


def leaf_terms(tree: Tree, node: int, component: int) -> list[tuple[int, float]]:
    """Return the gains of one action component at a leaf that are not zero: (feature, gain), ascending."""
    if tree.gains is None:
        return []
    row = tree.gains[node, component]
    return [(int(i), float(row[i])) for i in np.flatnonzero(row)]


def leaf_actions(tree: Tree, leaf: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the actions at the leaves that observations reach, in plain NumPy: [B], [B, >= n_raw] -> [B] or [B, k]."""
    action = tree.value[leaf]
    if tree.gains is None:
        return action
    with np.errstate(over="ignore", invalid="ignore"):
        for i in np.flatnonzero(tree.gains.any(axis=(0, 1))):
            gain = tree.gains[leaf, :, i]
            action = np.where(gain != 0.0, action + gain * x[:, i, None].astype(np.float64), action)
    linear = np.asarray(tree.gains.any(axis=2))[leaf]
    return np.where(linear, np.clip(action, tree.actions.low, tree.actions.high), action)


def nested_leaf(tree: Tree, node: int) -> tuple | None:
    """Return a linear leaf for `Tree._nested`: components (value, terms), low, high. None for a constant leaf."""
    if tree.gains is None or not tree.gains[node].any():
        return None
    assert tree.actions.low is not None
    assert tree.actions.high is not None
    parts = [(float(v), leaf_terms(tree, node, k)) for k, v in enumerate(tree.value[node])]
    return parts, tree.actions.low.tolist(), tree.actions.high.tolist()


def act_from(node: tuple, item: Callable[[int], float]) -> Any:
    """Return the action below a node of `Tree._nested`, of whatever kinds the nodes are."""
    while len(node) > 3:
        value = item(node[0]) if len(node) == 4 else node[0].value(item)
        node = node[2] if value <= node[1] else node[3]
    if len(node) < 3:
        return node[0] if len(node) == 1 else node[0].copy()
    action = np.empty(len(node[0]))
    for k, ((value, terms), low, high) in enumerate(zip(*node, strict=True)):
        if not terms:
            action[k] = value
            continue
        for i, gain in terms:
            value = value + gain * item(i)
        action[k] = low if value < low else high if value > high else value
    return action


def leaf_text(tree: Tree, node: int, number: Callable[[float], str] | None = None) -> str:
    """Return a leaf's action in words; of a linear leaf how it is computed.

    >>> from custard import Actions, Features, Tree
    >>> x, torque = Features(("angle",), [-1], [1]), Actions("box", ("torque",), low=[-2], high=[2])
    >>> leaf_text(Tree([-1], [0], [-1], [-1], [[0.5]], x, torque, gains=[[[-3.0]]]), 0)
    'torque=clip(0.5 - 3*angle, -2, 2)'
    """
    if tree.gains is None or not tree.gains[node].any():
        return tree.actions.name(tree.value[node])
    number = number or (lambda value: f"{value:.6g}")
    assert tree.actions.low is not None
    assert tree.actions.high is not None
    texts = []
    for k, name in enumerate(tree.actions.names):
        terms, value = leaf_terms(tree, node, k), float(tree.value[node, k])
        if not terms:
            texts.append(f"{name}={number(value)}")
            continue
        low, high = (number(float(side[k])) for side in (tree.actions.low, tree.actions.high))
        texts.append(f"{name}=clip({weighted_text(value, terms, tree.features.names, number)}, {low}, {high})")
    return ", ".join(texts)


def weighted_text(
    constant: float, terms: Sequence[tuple[int, float]], names: Sequence[str], number: Callable[[float], str]
) -> str:
    """Return a constant and weighted features for people, in the order in which they are added."""
    pieces = [] if constant == 0.0 else [("-" if constant < 0 else "+", number(abs(constant)))]
    for i, weight in terms:
        size = "" if abs(weight) == 1.0 else f"{number(abs(weight))}*"
        pieces.append(("-" if weight < 0 else "+", f"{size}{names[i]}"))
    (sign, first), *rest = pieces
    return ("-" if sign == "-" else "") + first + "".join(f" {sign} {piece}" for sign, piece in rest)


def question_text(tree: Tree, c: int, digits: int = 3) -> str:
    """Return what a feature is called in a picture: a sum that has no name of its own by its rounded coefficients."""
    if c < tree.features.n_raw or has_own_name(tree.features, c):
        return tree.features.names[c]
    return picture_text(tree.features.sum_of(c).text(tree.features.names, lambda value: f"{value:.{digits}g}"))


def definitions(tree: Tree, number: Callable[[float], str]) -> list[str]:
    """Return what the named derived features that the tree asks about are, one line each."""
    names, features = tree.features.names, tree.features
    named = [c for c in used_derived(tree) if has_own_name(features, c)]
    return [f"{names[c]} = {features.sum_of(c).text(names, number)}" for c in named]


def has_own_name(features: Features, c: int) -> bool:
    """Return whether a derived feature has another name than what it is."""
    total, name = features.sum_of(c), re.sub(r" \(\d+\)$", "", features.names[c])
    return all(name != total.text(features.names, lambda v, d=digits: f"{v:.{d}g}") for digits in range(6, 18))  # type: ignore[misc]


def picture_text(text: str) -> str:
    """Return a formula for pictures: a true minus sign, a dot for products."""
    return text.replace("*", "·").replace("-", "−")


def require_linear(tree: Tree, what: str) -> None:
    """Raise if the tree asks about a derived feature that is not a weighted sum."""
    for c in used_derived(tree):
        if not tree.features.sum_of(c).is_linear:
            raise CustardError(f"{what}, and feature {tree.features.names[c]!r} is not: it is no weighted sum")


def require_constant_leaves(tree: Tree, what: str) -> None:
    """Raise if the tree has linear leaves."""
    if tree.gains is not None:
        raise CustardError(f"{what}, and this tree has linear leaves")
