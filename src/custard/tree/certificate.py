"""What exact planning proved about a tree, as the tree's file holds it."""

from __future__ import annotations

import math
from typing import Any

from custard.tree.store import honest_origin
from custard.tree.tree import Tree

__all__ = ["certificate_items", "certificate_of", "certificate_text", "is_discounted"]

MAX_FEATURES_TOLD = 8  # whose thresholds are named in a text

#: The numbers of a certificate, and what one that lacks them means.
DEFAULT_NUMBERS = {"value": None, "bound": None, "optimum": None, "tolerance": 0.0, "zeta": 0.0, "gamma": 1.0}


def certificate_of(tree: Tree) -> dict[str, Any] | None:
    """Return what exact planning stored with a tree; None if it was not planned, or was changed since."""
    origin = honest_origin(tree)
    stored = origin.get("certificate")
    if not isinstance(stored, dict) or origin.get("edited"):
        return None
    numbers = {key: stored.get(key, missing) for key, missing in DEFAULT_NUMBERS.items()}
    fits = all(entry is None or _is_number(entry) for entry in numbers.values())
    return {**stored, **numbers} if fits and None not in (numbers["tolerance"], numbers["gamma"]) else None


def is_discounted(tree: Tree) -> bool:
    """Whether a tree was planned for a discounted return without an end: episodes cannot show it, its value is exact.

    >>> from custard import Actions, Features
    >>> is_discounted(Tree.leaf(0, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b"))))
    False
    """
    stored = certificate_of(tree)
    return stored is not None and stored["gamma"] < 1.0 and stored.get("horizon") is None


def certificate_text(tree: Tree) -> str | None:
    """Return the certificate in one line: value, bound, tolerance and how it was found; None if there is none."""
    stored = certificate_of(tree)
    if stored is None:
        return None
    value, bound = _number(stored["value"]), _number(stored["bound"])
    proved = _proved_text(stored) or f"no tree of {_limit(stored)} returns more than {bound}"
    scope = _scope_text(stored)
    return (
        f"return {value} (exact); {proved} (tolerance {stored['tolerance']:.1g}; {stored.get('how')})"
        f"{f'; {scope}' if scope else ''}"
    )


def certificate_items(tree: Tree) -> list[list[str]]:
    """Return the certificate as pairs of a term and a text; [] if there is none."""
    stored = certificate_of(tree)
    if stored is None:
        return []
    kind = f", discounted by {stored['gamma']:g} per step" if stored["gamma"] < 1.0 else ""
    price = f", less {-stored['zeta']:g} per question asked" if stored["zeta"] else ""
    expected = "" if _scope_text(stored) else "expected "
    items = [
        ["Value", f"{_number(stored['value'])}: the exact {expected}return{kind}{price}; no episode was sampled"],
        ["Bound", f"{_number(stored['bound'])}: no tree of {_limit(stored)} has more"],
    ]
    if stored.get("proved"):
        items.append(["Gap", f"0; {_proved_text(stored)}"])
    elif stored["value"] is not None and stored["bound"] is not None:
        items.append(["Gap", f"{_number(stored['bound'] - stored['value'])}: not proved to be the best tree"])
    items.append(["Tolerance", f"{stored['tolerance']:.1g}: returns that differ by less count as equal"])
    items.append(["How", str(stored.get("how"))])
    if scope := _scope_text(stored):
        items.append(["Holds for", scope])
    if stored["optimum"] is not None:
        items.append(["Best policy", f"{_number(stored['optimum'])}: the most that any policy returns, tree or not"])
    return items


def _proved_text(stored: dict[str, Any]) -> str | None:
    if not stored.get("proved"):
        return None
    fewest = ", and none of fewer leaves as much" if stored.get("fewest_leaves") else ""
    return f"proved: no tree of {_limit(stored)} returns more{fewest}"


def _scope_text(stored: dict[str, Any]) -> str | None:
    """Return what a proof from fixed starts is about: starts, steps and thresholds."""
    scope = stored.get("scope")
    if not isinstance(scope, dict):
        return None
    try:
        first, episodes = int(scope["start_seed"]), int(scope["episodes"])
        starts = (
            f"the start of seed {first}" if episodes == 1 else f"the starts of seeds {first}…{first + episodes - 1}"
        )
        grid = [(str(name), [float(number) for number in own]) for name, own in scope["thresholds"].items()]
        texts = [f"{name} {_range_text(own)}" for name, own in grid if own[0] > 0]
        few = texts if len(texts) <= MAX_FEATURES_TOLD else [*texts[:MAX_FEATURES_TOLD], "…"]
        return f"from {starts}, at most {int(scope['steps'])} steps, thresholds: {', '.join(few) or 'none'}"
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _range_text(own: list[float]) -> str:
    """Return how many thresholds there are, and from where to where."""
    return f"at {own[1]:g}" if own[0] == 1 else f"{own[0]:g} from {own[1]:g} to {own[2]:g}"


def _limit(stored: dict[str, Any]) -> str:
    limit = "any depth" if stored.get("max_depth") is None else f"depth ≤ {stored['max_depth']}"
    return f"{limit} over these thresholds" if _scope_text(stored) else limit


def _number(value: float | None) -> str:
    return "-inf" if value is None else f"{value:.9g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
