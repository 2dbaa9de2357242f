"""Tree: a decision tree policy as frozen parallel arrays, and everything that needs no more than the arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.tree import linear, store
from custard.tree.observations import checked_batch, checked_vector, is_vector, shape_message
from custard.tree.text import bound_text, draw_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from custard.tree.explain import Change, Explanation
    from custard.tree.sb3_policy import SB3Policy
    from custard.tree.verify import Verdict

__all__ = ["LEAF", "Tree"]

#: What `feature`, `children_left` and `children_right` hold at a leaf.
LEAF = -1

DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """A decision tree policy over named features, in the environment's own units.

    Node 0 is the root and children come after their parent. At an inner node an observation goes left where
    `obs[feature] <= threshold` and right otherwise, which includes NaN. Both sides are compared as float64. At a leaf
    `feature` and both children are `LEAF`, the threshold is 0, and `value` is the environment's own action. Depth
    counts splits: a single leaf has depth 0. The arrays cannot be written to.

    A node may ask about a derived feature of `features`, a sum; observations are given without them. With `gains` the
    action of a leaf is clip(value + gains · observation). Both are summed in one documented order (`custard.core.sums`,
    `custard.tree.linear`).

    >>> from custard import Actions, Features, Tree
    >>> tree = Tree(
    ...     feature=[0, -1, -1], threshold=[0.5, 0, 0], children_left=[1, -1, -1], children_right=[2, -1, -1],
    ...     value=[0, 0, 1], features=Features(("angle",), [-1], [1]), actions=Actions("discrete", ("left", "right")),
    ... )
    >>> tree.predict([[0.5], [0.6]]), tree.act([0.6]), tree.depth, tree.n_leaves
    (array([0, 1]), 1, 1, 2)
    >>> print(tree)
    angle ≤ 0.5?
    ├─ yes: left
    └─ no:  right
    """

    feature: np.ndarray  # [n_nodes] int32
    threshold: np.ndarray  # [n_nodes] float64
    children_left: np.ndarray  # [n_nodes] int32
    children_right: np.ndarray  # [n_nodes] int32
    value: np.ndarray  # [n_nodes] int64, or [n_nodes, k] int64 or float64 for vector actions; 0 at inner nodes
    features: Features
    actions: Actions
    origin: Mapping[str, Any] = field(default_factory=dict)  # method, seed, environment, versions: where it came from
    gains: np.ndarray | None = None  # [n_nodes, k, n_raw] float64, real-valued actions only; None: constant leaves

    def __post_init__(self) -> None:
        try:
            arrays: dict[str, np.ndarray] = {
                "feature": _whole_numbers("feature", self.feature, np.int32),
                "threshold": np.array(self.threshold, dtype=np.float64),
                "children_left": _whole_numbers("children_left", self.children_left, np.int32),
                "children_right": _whole_numbers("children_right", self.children_right, np.int32),
                "value": np.array(self.value, dtype=np.float64)
                if self.actions.kind == "box"
                else _whole_numbers("value", self.value, np.int64),
            }
        except CustardError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise CustardError(f"a tree's arrays must hold numbers ({error})") from None
        leaf = arrays["feature"] == LEAF if arrays["feature"].ndim == 1 else None
        if leaf is not None and arrays["threshold"].shape == leaf.shape:
            arrays["threshold"][leaf] = 0.0
            if len(arrays["value"]) == len(leaf):
                arrays["value"][~leaf] = 0
        for name, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if self.gains is not None:
            shape = (len(arrays["feature"]), self.actions.size, self.features.n_raw)
            gains = linear.checked_gains(self.gains, shape, self.actions, arrays["feature"] == LEAF)
            if gains is not None:
                gains.setflags(write=False)
            object.__setattr__(self, "gains", gains)
        store.check(self)
        object.__setattr__(self, "origin", store.honest_origin(self))

    # -- deciding ---------------------------------------------------------------------------------------------------

    def predict(self, observations: Any, *, compiled: bool = True) -> Any:
        """Return actions for a batch of observations, [B, n_raw] -> [B] (or [B, k] for vector actions).

        One observation [n_raw] gives one action, as `act` does. Where the features include derived ones, extended
        vectors [B, n] are accepted too; they are computed anew.
        """
        if is_vector(observations):
            return self.act(observations)
        x = checked_batch(self.features, observations)
        return self._compiled(x) if compiled else linear.leaf_actions(self, self.apply(x), x)

    def apply(self, observations: Any) -> np.ndarray:
        """Return the leaf each observation reaches, [B, n_raw] or [B, n] -> [B] int, in plain NumPy."""
        x = self.features.extend(checked_batch(self.features, observations))
        node = np.zeros(len(x), dtype=np.int64)
        moving = np.arange(len(x)) if self.n_nodes > 1 else np.arange(0)
        while len(moving):
            at = node[moving]
            left = x[moving, self.feature[at]] <= self.threshold[at]
            node[moving] = np.where(left, self.children_left[at], self.children_right[at])
            moving = moving[self.feature[node[moving]] != LEAF]
        return node

    def act(self, observation: Any) -> Any:
        """Return the action for one observation [n_raw] (or [n]): an int, or an array for vector actions."""
        dtype = getattr(observation, "dtype", None)
        if dtype is not DOUBLE and dtype is not SINGLE:  # others are rounded to float64 first, as for predict
            observation = checked_vector(self.features, observation)
        elif observation.shape != self._shape and observation.shape != (self.features.n,):
            raise CustardError(shape_message(self.features, observation.shape))
        node, item = self._nested, observation.item
        while len(node) == 4:
            node = node[2] if item(node[0]) <= node[1] else node[3]
        if len(node) == 1:
            return node[0]
        return node[0].copy() if len(node) == 2 else linear.act_from(node, item)

    def path(self, observation: Any) -> list[int]:
        """Return the nodes from the root to the leaf that one observation visits."""
        batch = observation[None] if isinstance(observation, np.ndarray) else [observation]
        x = self.features.extend(checked_batch(self.features, batch)[0])
        nodes = [0]
        while self.feature[nodes[-1]] != LEAF:
            at = nodes[-1]
            side = self.children_left if x[self.feature[at]] <= self.threshold[at] else self.children_right
            nodes.append(int(side[at]))
        return nodes

    # -- shape ------------------------------------------------------------------------------------------------------

    @property
    def n_nodes(self) -> int:
        """Inner nodes and leaves together."""
        return len(self.feature)

    @cached_property
    def n_leaves(self) -> int:
        """The number of leaves."""
        return int((self.feature == LEAF).sum())

    @cached_property
    def n_coefficients(self) -> int:
        """The number of weights in the sums that the tree asks about, each sum once, and of gains in its leaves."""
        return linear.count_coefficients(self)

    @property
    def is_linear(self) -> bool:
        """Whether the tree asks about derived features or has linear leaves."""
        return self.gains is not None or bool((self.feature >= self.features.n_raw).any())

    @cached_property
    def depth(self) -> int:
        """The largest number of questions on a path."""
        return int(self.node_depth.max())

    @cached_property
    def node_depth(self) -> np.ndarray:
        """The number of questions above each node, [n_nodes] int32."""
        depth = np.zeros(self.n_nodes, dtype=np.int32)
        level, k = np.zeros(1, dtype=np.int64), 0
        while len(level):
            depth[level] = k
            inner = level[self.feature[level] != LEAF]
            level, k = np.concatenate([self.children_left[inner], self.children_right[inner]]), k + 1
        return depth

    @cached_property
    def parent(self) -> np.ndarray:
        """The parent of each node, `LEAF` (-1) for the root, [n_nodes] int32."""
        parent = np.full(self.n_nodes, LEAF, dtype=np.int32)
        inner = np.flatnonzero(self.feature != LEAF)
        parent[self.children_left[inner]] = parent[self.children_right[inner]] = inner
        return parent

    def leaves(self) -> np.ndarray:
        """Return the node numbers of the leaves."""
        return np.flatnonzero(self.feature == LEAF)

    def boxes(self) -> Iterator[tuple[int, dict[int, tuple[float, float]]]]:
        """Yield each leaf with what must hold to reach it: feature -> (above, at most), for features on the way."""
        stack: list[tuple[int, dict[int, tuple[float, float]]]] = [(0, {})]
        while stack:
            node, box = stack.pop()
            if self.feature[node] == LEAF:
                yield node, box
                continue
            c, t = int(self.feature[node]), float(self.threshold[node])
            above, most = box.get(c, (-np.inf, np.inf))
            stack.append((int(self.children_right[node]), {**box, c: (max(above, t), most)}))
            stack.append((int(self.children_left[node]), {**box, c: (above, min(most, t))}))

    def box(self, node: int) -> dict[int, tuple[float, float]]:
        """Return what must hold to reach a node: feature -> (above, at most), outermost first."""
        steps = []
        while self.parent[node] != LEAF:
            steps.append((int(self.parent[node]), bool(self.children_left[self.parent[node]] == node)))
            node = int(self.parent[node])
        box: dict[int, tuple[float, float]] = {}
        for at, left in reversed(steps):
            c, t = int(self.feature[at]), float(self.threshold[at])
            above, most = box.get(c, (-np.inf, np.inf))
            box[c] = (above, min(most, t)) if left else (max(above, t), most)
        return box

    # -- text, files, equality --------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return draw_text(self)

    def __repr__(self) -> str:
        edited = ", edited" if self.origin.get("edited") else ""
        return f"Tree(depth={self.depth}, n_leaves={self.n_leaves}, features={list(self.features.names)}{edited})"

    def _repr_html_(self) -> str:
        from custard.tree.svg import to_html

        return to_html(self)

    def __eq__(self, other: object) -> bool:
        """Compare nodes, features and actions. Where a tree came from does not matter."""
        if not isinstance(other, Tree):
            return NotImplemented
        names = ("feature", "threshold", "children_left", "children_right", "value")
        return (
            all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)
            and (self.gains is None) == (other.gains is None)
            and (self.gains is None or np.array_equal(self.gains, other.gains))  # type: ignore[arg-type]
            and self.features.same_as(other.features)
            and self.actions.same_as(other.actions)
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple:
        """Copy the fields only: the nested form of a deep tree cannot be copied recursively."""
        return Tree, tuple(getattr(self, entry.name) for entry in fields(self))

    def save(self, path: str | Path) -> None:
        """Write the tree as JSON, replacing the file at once or not at all. `plot` and `export` write other formats."""
        store.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Tree:
        """Read a tree that `save` wrote."""
        return store.load(cls, path)

    # -- shortcuts to modules that load when they are used ------------------------------------------------------------

    def plot(self, path: str | Path | None = None, *, visits: Any = None) -> Figure:
        """Draw the tree: return a matplotlib figure, and write it where `path` says (.svg, .png or .pdf).

        With `visits`, a count per node (`custard.tree.explain.node_visits`), edges are as wide as their shares.
        """
        from custard.tree.draw import draw, save_figure

        figure = draw(self, visits)
        if path is not None:
            save_figure(figure, path)
        return figure

    def export(self, format: str, path: str | Path | None = None, **options: Any) -> str | bytes:
        """Return the tree in another language or format, such as "c", and write it where `path` says."""
        from custard.core.files import write_atomically
        from custard.tree.export import export

        content = export(self, format, **options)
        if path is not None:
            write_atomically(path, content)
        return content

    def explain(self, observation: Any, **options: Any) -> Explanation:
        """Return why the tree acts as it does here, and what would change it. See `custard.tree.explain.explain`."""
        from custard.tree.explain import explain

        return explain(self, observation, **options)

    def counterfactual(self, observation: Any, **options: Any) -> Change | None:
        """Return the nearest observation with another action (`custard.tree.explain.Change`), or None."""
        from custard.tree.explain import counterfactuals

        return next(iter(counterfactuals(self, observation, **options)), None)

    def verify(self, assertion: str, *, bounded: bool = True) -> Verdict:
        """Prove an assertion for every observation, or find one that breaks it. See `custard.tree.verify.verify`."""
        from custard.tree.verify import verify

        return verify(self, assertion, bounded=bounded)

    def to_sklearn(self) -> Any:
        """Return the tree as a fitted scikit-learn tree. See `custard.tree.export.sklearn.to_sklearn`."""
        from custard.tree.export.sklearn import to_sklearn

        return to_sklearn(self)

    def as_sb3(self, env: Any = None) -> SB3Policy:
        """Return the tree as Stable-Baselines3 sees a model. See `custard.tree.sb3_policy.SB3Policy`."""
        from custard.tree.sb3_policy import SB3Policy

        return SB3Policy(self, env)

    def to_json(self) -> dict[str, Any]:
        """Return the tree as plain data; `from_json` is the inverse."""
        return store.to_json(self)

    @classmethod
    def from_json(cls, data: Any) -> Tree:
        """Return a tree from plain data, checked."""
        return store.from_json(cls, data)

    @classmethod
    def from_sklearn(cls, estimator: Any, features: Features | None = None, actions: Actions | None = None) -> Tree:
        """Return a tree from a fitted scikit-learn tree. See `custard.tree.export.sklearn.from_sklearn`."""
        from custard.tree.export.sklearn import from_sklearn

        return from_sklearn(estimator, features, actions)

    def with_origin(self, **origin: Any) -> Tree:
        """Return the same tree with more said about where it came from."""
        return replace(self, origin={**self.origin, **origin})

    def question(self, node: int) -> str:
        """Return the question an inner node asks, in words.

        >>> from custard import Actions, Features, Tree
        >>> Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b"))).question(0)
        'angle ≤ 0.5'
        """
        c = int(self.feature[node])
        return f"{self.features.names[c]} ≤ {bound_text(self, c, float(self.threshold[node]))}"

    def leaf_text(self, node: int) -> str:
        """Return the action of a leaf in words; of a linear leaf how it is computed."""
        return linear.leaf_text(self, node)

    def definitions(self, number: Callable[[float], str] | None = None) -> list[str]:
        """Return what the named derived features that the tree asks about are: "where tilt = …", one line each."""
        return [f"where {line}" for line in linear.definitions(self, number or (lambda value: f"{value:.6g}"))]

    def leaf_key(self, node: int) -> bytes:
        """Return what is equal for leaves that always take the same action."""
        key = np.asarray(self.value[node]).tobytes()
        return key if self.gains is None else key + self.gains[node].tobytes()

    def with_nodes(
        self, feature: Any, threshold: Any, children_left: Any, children_right: Any, leaf_of: np.ndarray
    ) -> Tree:
        """Return a tree of other nodes; `leaf_of` [n_nodes] is this tree's node whose action each new leaf takes."""
        gains = None if self.gains is None else self.gains[leaf_of]
        return replace(
            self,
            feature=feature,
            threshold=threshold,
            children_left=children_left,
            children_right=children_right,
            value=self.value[leaf_of],
            gains=gains,
        )

    def keep_used_sums(self) -> Tree:
        """Return the same tree without the derived features that it does not ask about."""
        return linear.keep_used_sums(self)

    @classmethod
    def leaf(cls, action: Any, features: Features, actions: Actions) -> Tree:
        """Return the tree that always takes one action."""
        none = np.array([LEAF])
        return cls(none, np.zeros(1), none, none, np.array([action]), features, actions)

    @classmethod
    def stump(cls, feature: int, threshold: float, left: Any, right: Any, features: Features, actions: Actions) -> Tree:
        """Return the tree that asks one question."""
        columns = ([feature, LEAF, LEAF], [threshold, 0, 0], [1, LEAF, LEAF], [2, LEAF, LEAF], [left, left, right])
        arrays = [np.array(column) for column in columns]
        return cls(*arrays, features=features, actions=actions)  # type: ignore[misc,arg-type]

    # -- what speed needs -------------------------------------------------------------------------------------------

    @cached_property
    def _shape(self) -> tuple[int]:
        return (self.features.n_raw,)

    @cached_property
    def _nested(self) -> tuple:
        """The tree as nested tuples: (feature, threshold, left, right), (action,) or (vector action, None).

        A test of a derived feature is (sum, threshold, left, right, None), a linear leaf (components, low, high).
        """
        rows = zip(self.feature.tolist(), self.threshold.tolist(), strict=True)
        kids = list(zip(self.children_left.tolist(), self.children_right.tolist(), strict=True))
        values = [(v,) for v in self.value.tolist()] if self.actions.discrete else [(v, None) for v in self.value]
        built: list[Any] = [None] * self.n_nodes
        for node, (c, t) in reversed(list(enumerate(rows))):
            if c == LEAF:
                built[node] = linear.nested_leaf(self, node) or values[node]
            elif c < self.features.n_raw:
                built[node] = (c, t, built[kids[node][0]], built[kids[node][1]])
            else:
                built[node] = (self.features.sum_of(c), t, built[kids[node][0]], built[kids[node][1]], None)
        return built[0]

    @cached_property
    def _compiled(self) -> Any:
        from custard.tree.compiled import predictor

        return predictor(self)


def _whole_numbers(name: str, given: Any, dtype: type) -> np.ndarray:
    """Return an array of whole numbers; what would have to be cut is refused."""
    array = np.asarray(given)
    with np.errstate(invalid="ignore"):
        whole: np.ndarray = array.astype(dtype)
    if array.dtype.kind not in "fiub" or not (whole == array).all():
        raise CustardError(f"a tree's {name} must hold whole numbers of at most {8 * whole.itemsize} bits")
    return whole
