"""Proofs about a tree: properties decided by Z3, and two trees or a tree and its policy compared everywhere."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.tree.assertions import Term, holds, parse
from custard.tree.export.names import missing_package
from custard.tree.extract import MAX_NODES, must_act
from custard.tree.rounded_sums import leaf_components, sum_variables
from custard.tree.rounding import first_above, last_within
from custard.tree.tree import LEAF, Tree

__all__ = ["Certificate", "Verdict", "certify", "difference", "verify", "where_holds"]

MAX_FLOAT64 = sys.float_info.max
DIFFERENCE_SLACKS = (0.01, 1e-6, 0.0)  # room that is asked for where two trees are to differ
MAX_POINTS_TRIED = 2000  # floats beside a point of Z3's that are tried as counterexamples


@dataclass(frozen=True)
class Verdict:
    """Whether an assertion holds for every observation that was asked about."""

    holds: bool | None  # None: false for some real numbers, but no float64 observation was found that shows it
    assertion: str
    bounded: bool  # whether observations were taken to lie within the features' bounds
    leaves: int  # how many leaves were checked
    counterexample: np.ndarray | None = None  # [n] float64; the tree itself confirms it
    action: Any = None  # what the tree does there
    leaf: int | None = None
    vacuous: bool = False  # it holds only because no observation meets the premise before its ->

    def __bool__(self) -> bool:
        return self.holds is True


def verify(tree: Tree, assertion: str, *, bounded: bool = True) -> Verdict:
    """Decide whether an assertion (see `custard.tree.assertions`) holds for every observation of finite numbers.

    With `bounded` observations lie within the features' bounds, where those are finite. Whole-number features hold
    whole numbers. For each leaf Z3 is asked for a point of its box that breaks the assertion; exact rational arithmetic
    on both sides means that *holds* is a proof, for float32 and float64 observations alike. A point that is found is
    turned into float64, and counts only if the assertion is false of it in exact arithmetic with the action that the
    tree itself takes there. Sums and linear leaves are taken with every rounding error they may have
    (`custard.tree.rounded_sums`), and an assertion may name a derived feature: its value is what the tree computes. Of
    products and angles only their bounds are known, and nothing where one may overflow. What an assertion names is a
    number: observations near the largest float64 for which a derived feature or an action that it names is NaN count
    as meeting it.

    >>> from custard import Actions, Features, Tree
    >>> tree = Tree.stump(0, 0.1, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("left", "right")))
    >>> verify(tree, "angle > 0.2 -> right").holds
    True
    >>> verdict = verify(tree, "angle > 0 -> right")
    >>> verdict.holds, 0 < verdict.counterexample[0] <= 0.1
    (False, np.True_)
    """
    term = parse(assertion, tree.features, tree.actions)
    try:
        import z3
    except ImportError:
        raise missing_package("z3-solver", "verify", "custard verify") from None
    raw = _raw_variables(z3, tree.features)
    limits = _limits(tree.features.raw, bounded)
    reals, of_sums = sum_variables(z3, tree, raw, limits)
    within = _within_limits(z3, raw, limits) + of_sums
    undecided_leaf, checked, premise = None, 0, _premise(term)
    premise_met = premise is None
    for leaf, box in tree.boxes():
        checked += 1
        takes = int(tree.value[leaf]) - tree.actions.start if tree.actions.discrete else None
        components, of_action = leaf_components(z3, tree, leaf, raw, limits)
        solver = z3.Solver()
        solver.add(*within, *of_action)
        solver.add(*_within_box(z3, box, reals))
        if premise is not None and not premise_met:
            premise_met = solver.check(_formula(z3, premise, reals, takes, components, None)) != z3.unsat
        sums = {c: edges for c, edges in box.items() if c >= tree.features.n_raw}
        room = _within_box(z3, sums, reals, z3.Real("slack"))
        models = _models_of_failure(z3, solver, term, reals, takes, components, leaf, room)
        for model in models:
            x = _confirmed(z3, tree, term, model, raw, bounded)
            if x is not None:
                return Verdict(False, assertion, bounded, checked, x, tree.act(x), tree.path(x)[-1])
        if models:
            undecided_leaf = leaf
    is_proved = True if undecided_leaf is None else None
    vacuous = bool(is_proved and not premise_met)
    return Verdict(is_proved, assertion, bounded, checked, leaf=undecided_leaf, vacuous=vacuous)


def _raw_variables(z3: Any, features: Features) -> list[Any]:
    """Return Z3's variable of each of the observation's own features."""
    whole = features.integer[: features.n_raw]
    return [z3.ToReal(z3.Int(f"x{c}")) if is_whole else z3.Real(f"x{c}") for c, is_whole in enumerate(whole)]


def _limits(features: Features, bounded: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds within which observations of finite float64 lie: the features', or the largest there are."""
    most = np.full(features.n, MAX_FLOAT64)
    return (np.maximum(features.low, -most), np.minimum(features.high, most)) if bounded else (-most, most)


def _within_limits(z3: Any, reals: list[Any], limits: tuple[np.ndarray, np.ndarray]) -> list[Any]:
    """Return Z3's conditions that each feature lies within its limits."""
    ends = [
        (real >= _exact(z3, low), real <= _exact(z3, high))
        for real, low, high in zip(reals, *(side.tolist() for side in limits), strict=True)
    ]
    return [condition for pair in ends for condition in pair]


def _models_of_failure(
    z3: Any,
    solver: Any,
    term: Term,
    reals: list[Any],
    takes: int | None,
    components: list[Any],
    leaf: int,
    room: list[Any],
) -> list[Any]:
    """Return Z3's points of a leaf's box where the assertion is false, the roomiest first; none proves that it holds.

    z3                 the module
    solver             with the leaf's box
    term               the assertion
    reals              Z3's variable of each feature
    takes, components  the leaf's action: its number, or Z3's expressions of a vector's components
    leaf               its number, for the error message
    room               that sums lie inside the leaf's box by some slack: what Z3 computes exactly the tree rounds
    """
    failure = Term("not", (term,))
    answer = solver.check(_formula(z3, failure, reals, takes, components, None))
    if answer == z3.unknown:
        raise CustardError(f"Z3 could not decide the assertion at leaf {leaf}: {solver.reason_unknown()}")
    if answer == z3.unsat:
        return []
    models = [solver.model()]
    # A point well inside is more likely to survive being turned into floats: ask for room as well.
    slack = z3.Real("slack")
    roomy = _formula(z3, failure, reals, takes, components, slack)
    for size in ("1/100", "1/1000000"):
        if solver.check(roomy, slack == z3.RealVal(size), *room) == z3.sat:
            return [solver.model(), *models]
    return models


def _premise(term: Term) -> Term | None:
    """Return what stands before the last -> of an assertion, all of it together; None where there is no ->."""
    parts = []
    while term.implies:
        (premise,), term = term.parts[0].parts, term.parts[1]
        parts.append(premise)
    return Term("and", tuple(parts)) if parts else None


def where_holds(condition: str, x: np.ndarray, features: Features) -> np.ndarray:
    """Return which of the feature vectors x [S, n] a condition without actions is true of, [S] bool.

    >>> where_holds("a + b > 1", np.array([[0.0, 1.0], [1.0, 1.0]]), Features(("a", "b"), [0, 0], [1, 1])).tolist()
    [False, True]
    """
    term = parse(condition, features, Actions("discrete", ("",)))
    return np.array([holds(term, row, None) for row in x.tolist()])


def _exact(z3: Any, value: float) -> Any:
    """Return a float as Z3's rational number."""
    top, bottom = value.as_integer_ratio()
    return z3.Q(top, bottom)


def _taken(tree: Tree, x: np.ndarray) -> tuple[int | None, list[float]]:
    """Return which action the tree takes by number, or a vector's components."""
    if tree.actions.discrete:
        return int(tree.act(x)) - tree.actions.start, []
    return None, [float(v) for v in tree.act(x)]


def _formula(z3: Any, term: Term, x: list[Any], takes: int | None, components: list[Any], slack: Any) -> Any:
    """Return a term as Z3's formula with the action put in.

    z3                 the module
    term               the assertion, or a part of it
    x                  Z3's variable of each feature
    takes, components  the action: its number, or Z3's expressions of a vector's components
    slack              how much room strict inequalities leave, a variable; None for no room
    """
    if term.kind == "not" and slack is not None:  # push negations in, so that they meet the inequalities
        inner = term.parts[0]
        if inner.kind in ("and", "or"):
            flipped = Term("or" if inner.kind == "and" else "and", tuple(Term("not", (p,)) for p in inner.parts))
            return _formula(z3, flipped, x, takes, components, slack)
        if inner.kind == "not":
            return _formula(z3, inner.parts[0], x, takes, components, slack)
        if inner.kind in ("<", "<="):
            turned = Term("<=" if inner.kind == "<" else "<", (inner.parts[1], inner.parts[0]))
            return _formula(z3, turned, x, takes, components, slack)
    parts = [_formula(z3, part, x, takes, components, slack) for part in term.parts]
    kind = term.kind
    if kind == "number":
        return z3.Q(term.value.numerator, term.value.denominator)
    if kind in ("feature", "component"):
        return x[term.index] if kind == "feature" else components[term.index]
    if kind == "add":
        return z3.Sum(*parts)
    if kind == "scale":
        return z3.Q(term.value.numerator, term.value.denominator) * parts[0]
    if kind == "abs":
        return z3.If(parts[0] >= 0, parts[0], -parts[0])
    if kind in ("true", "false", "takes"):
        return z3.BoolVal(kind == "true" or (kind == "takes" and takes == term.index))
    if kind == "not":
        return z3.Not(parts[0])
    if kind in ("and", "or"):
        return z3.And(*parts) if kind == "and" else z3.Or(*parts)
    if kind == "==":
        return parts[0] == parts[1]
    room = slack if slack is not None else 0
    return parts[0] + room < parts[1] if kind == "<" else parts[0] + room <= parts[1]


def _confirmed(z3: Any, tree: Tree, term: Term, model: Any, reals: list[Any], bounded: bool) -> np.ndarray | None:
    """Return a float64 observation at or beside a model's point where the assertion is false of what the tree does.

    z3       the module
    tree     to be asked for its action there
    term     the assertion
    model    Z3's point
    reals    Z3's variable of each feature of the observation
    bounded  whether the observation must lie within the features' bounds
    """
    for point in _floats_beside(model, reals):
        x = np.array(point)
        if bounded and ((x < tree.features.raw.low) | (x > tree.features.raw.high)).any():
            continue
        with contextlib.suppress(ValueError):  # something that the assertion names is NaN
            if not holds(term, tree.features.extend(x).tolist(), *_taken(tree, x)):
                return x
    return None


def _floats_beside(model: Any, reals: list[Any]) -> Iterator[tuple[float, ...]]:
    """Yield points of float64 numbers at or beside a model's point, at most `MAX_POINTS_TRIED`."""
    choices = []
    for real in reals:
        fraction = model.eval(real, model_completion=True).as_fraction()
        near = float(fraction)
        # A whole number that is no float64 lies beyond 2**53, where the floats beside it are whole as well.
        beside = [near, math.nextafter(near, -math.inf), math.nextafter(near, math.inf)]
        choices.append([near] if near == fraction else [v for v in beside if math.isfinite(v)])
    yield from itertools.islice(itertools.product(*choices), MAX_POINTS_TRIED)


@dataclass(frozen=True)
class Certificate:
    """What a comparison over all observations found."""

    exact: bool
    bounds: int  # how many bounds the policy was asked about
    cells: int  # how many of its final boxes were compared with the tree
    counterexample: np.ndarray | None = None  # [n], an observation where the two differ

    def __bool__(self) -> bool:
        return self.exact


def certify(tree: Tree, policy: Any, env: Any, *, max_nodes: int = MAX_NODES) -> Certificate:
    """Compare a tree with the policy over bounds it came from, on every bounds the policy can meet.

    The policy is followed from the root bounds through both answers of each of its questions. Where it acts, all the
    states within those bounds get that action, and every leaf of the tree that shares a state with them must hold it.
    Where `custard.extract` would have cut it (`max_nodes`), it must act here too.
    """
    rules = getattr(env, "rules", env)
    low, high = rules.root()
    level = [(low, high)]
    asked = cells = depth = 0
    while level:
        lower, upper = (np.array(side) for side in zip(*level, strict=True))
        mask = rules.mask(lower, upper, np.full(len(level), depth))
        asked += len(level)
        if must_act(rules, depth, asked, len(level), max_nodes):
            mask[:, rules.n_base :] = False
        answer = policy(rules.normalised(lower, upper), mask.copy())
        parameterised = rules.parameterised
        numbers = np.asarray(answer["choice"] if parameterised else answer, dtype=np.int64).reshape(len(level))
        v = np.asarray(answer["v"], dtype=np.float64).reshape(len(level)) if parameterised else np.zeros(len(level))
        following = []
        for k, number in enumerate(numbers.tolist()):
            if not mask[k, number]:
                raise CustardError(f"the policy takes action {number}, which is not afforded there: it never acts")
            if number >= rules.n_base:
                c, t = (
                    array[0] for array in rules.thresholds(lower[k : k + 1], upper[k : k + 1], numbers[[k]], v[[k]])
                )
                left_upper, right_lower = upper[k].copy(), lower[k].copy()
                left_upper[c], right_lower[c] = min(left_upper[c], t), max(right_lower[c], t)
                following += [(lower[k], left_upper), (right_lower, upper[k])]
                continue
            cells += 1
            value = number + rules.actions.start if rules.actions.discrete else np.asarray(answer["base"])[k]
            above = np.where(lower[k] == low, -np.inf, lower[k])  # beyond the bounds the outermost box goes on
            most = np.where(upper[k] == high, np.inf, upper[k])
            differs = _differing_point(tree, above, most, _constant_action(tree, value), tree.features.integer)
            if differs is not None:
                return Certificate(False, asked, cells, differs)
        level = following
        depth += 1
    return Certificate(True, asked, cells)


def difference(tree: Tree, other: Tree) -> np.ndarray | None:
    """Return an observation on which two trees of the same features differ; None proves that there is none, even NaN.

    Features that are whole numbers in both trees are taken to hold whole numbers or NaN. Where sums are involved and
    differ, Z3 compares the leaves, rounding errors included, for observations of finite numbers.

    >>> from custard import Actions, Features, Tree
    >>> features, actions = Features(("angle",), [-1], [1]), Actions("discrete", ("left", "right"))
    >>> a, b = Tree.stump(0, 0.1, 0, 1, features, actions), Tree.stump(0, 0.2, 0, 1, features, actions)
    >>> difference(a, a) is None, difference(a, b)
    (True, array([0.2]))
    """
    if tree.features.raw.names != other.features.raw.names:
        raise CustardError("the trees do not take the same features: " + ", ".join(other.features.raw.names))
    if (tree.actions.kind, tree.actions.names) != (other.actions.kind, other.actions.names):
        one, two = (f"{', '.join(t.actions.names)} ({t.actions.kind})" for t in (tree, other))
        raise CustardError(f"the trees do not choose among the same actions: {one} against {two}")
    tree, other = tree.keep_used_sums(), other.keep_used_sums()
    is_linear = tree.is_linear or other.is_linear
    if is_linear and (tree.features.derived, tree.features.names) != (other.features.derived, other.features.names):
        return _difference_of_sums(tree, other)
    n = tree.features.n
    whole = tree.features.integer & other.features.integer
    for leaf, box in tree.boxes():
        above, most = np.full(n, -np.inf), np.full(n, np.inf)
        for c, (lo, hi) in box.items():
            above[c], most[c] = lo, hi
        key = tree.leaf_key(leaf)
        found = _differing_point(other, above, most, lambda node, key=key: other.leaf_key(node) == key, whole)  # type: ignore[misc]
        if found is not None:
            return _difference_of_sums(tree, other) if is_linear else found
    return None


def _difference_of_sums(tree: Tree, other: Tree) -> np.ndarray | None:
    """Return an observation of finite numbers on which two trees with sums differ; None proves that there is none."""
    try:
        import z3
    except ImportError:
        raise missing_package("z3-solver", "verify", "comparing trees with sums") from None
    raw, limits = _raw_variables(z3, tree.features.raw), _limits(tree.features.raw, bounded=False)
    sides = [sum_variables(z3, one, raw, limits, name) for one, name in ((tree, "s"), (other, "t"))]
    solver, is_undecided = z3.Solver(), False
    solver.add(*_within_limits(z3, raw, limits), *sides[0][1], *sides[1][1])
    # The same sum in both trees is the same number.
    for c, total in enumerate(tree.features.derived):
        for d, same in enumerate(other.features.derived):
            if total == same:
                solver.add(sides[0][0][tree.features.n_raw + c] == sides[1][0][other.features.n_raw + d])
    for leaf, box in tree.boxes():
        solver.push()
        solver.add(*_within_box(z3, box, sides[0][0]))
        for twin, its_box in other.boxes() if solver.check() != z3.unsat else ():
            if other.leaf_key(twin) == tree.leaf_key(leaf):
                continue
            mine, of_mine = leaf_components(z3, tree, leaf, raw, limits, "a")
            its, of_its = leaf_components(z3, other, twin, raw, limits, "b")
            for slack in DIFFERENCE_SLACKS:  # the last one proves; points with room survive being turned into floats
                room = _exact(z3, slack)
                apart = [z3.Or(a > b + room, b > a + room) for a, b in zip(mine, its, strict=True)]
                where = _within_box(z3, its_box, sides[1][0], room) + _within_box(z3, box, sides[0][0], room)
                if solver.check(*where, *of_mine, *of_its, *([z3.Or(*apart)] if apart else [])) == z3.unsat:
                    continue
                for point in _floats_beside(solver.model(), raw):
                    if not np.array_equal(tree.act(np.array(point)), other.act(np.array(point))):
                        return np.array(point)
                is_undecided = is_undecided or slack == 0.0
        solver.pop()
    if is_undecided:
        raise CustardError(
            "it could not be decided whether the trees differ: perhaps only within the rounding of a sum"
        )
    return None


def _within_box(z3: Any, box: dict[int, tuple[float, float]], reals: list[Any], slack: Any = 0) -> list[Any]:
    """Return Z3's conditions that features lie within a leaf's box, by some slack."""
    above = [reals[c] > _exact(z3, low) + slack for c, (low, _) in box.items() if np.isfinite(low)]
    return above + [reals[c] + slack <= _exact(z3, high) for c, (_, high) in box.items() if np.isfinite(high)]


def _constant_action(tree: Tree, value: Any) -> Callable[[int], bool]:
    """Return whether a leaf always takes an action, as a function of the leaf."""
    linear = np.zeros(tree.n_nodes, dtype=bool) if tree.gains is None else np.asarray(tree.gains.any(axis=(1, 2)))
    return lambda node: bool(np.array_equal(tree.value[node], value) and not linear[node])


def _differing_point(
    tree: Tree, above: np.ndarray, most: np.ndarray, agrees: Callable[[int], bool], whole: np.ndarray
) -> np.ndarray | None:
    """Return a point of the box (above, most] where the tree reaches a leaf that does not agree; None if there is none.

    tree         to be followed
    above, most  [n], the box
    agrees       whether a leaf does what is expected in the box
    whole        [n] bool, which features take whole numbers only
    """
    # First and last number of the box; +inf stands for everything above, NaN included.
    stack = [(0, first_above(above, whole), last_within(most, whole))]
    while stack:
        node, first, last = stack.pop()
        if (last < first).any():
            continue
        if tree.feature[node] == LEAF:
            if not agrees(node):
                # Any point will do.
                return np.where(np.isfinite(last), last, np.where(first > -MAX_FLOAT64, first, 0.0))
            continue
        c, t = int(tree.feature[node]), float(tree.threshold[node])
        left, right = last.copy(), first.copy()
        left[c], right[c] = min(last[c], last_within(t, whole[c])), max(first[c], first_above(t, whole[c]))
        stack += [(int(tree.children_left[node]), first, left), (int(tree.children_right[node]), right, last)]
    return None
