"""To and from scikit-learn.

scikit-learn's trees read float32: `predict` rounds each value to the nearest float32 and compares that with a float64
threshold. So the estimator made here agrees with the tree on every float32 observation; a float64 observation is
decided as its nearest float32 would be. `predict` refuses infinities before it looks at the tree;
`predict(X, check_input=False)` takes a float32 array as it is, infinities included. NaN goes right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from custard.core.actions import Actions, numbered
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.tree.export.names import rows
from custard.tree.linear import require_constant_leaves
from custard.tree.memory import history_of
from custard.tree.tree import LEAF, Tree

__all__ = ["from_sklearn", "to_sklearn", "to_sklearn_source"]


def to_sklearn(tree: Tree, visits: Any = None) -> Any:
    """Return a fitted `DecisionTreeClassifier` (`…Regressor` for vector actions) that decides as the tree.

    `visits` (a count for each node) becomes the number of samples; without it every leaf counts one.

    >>> from custard import Actions, Features, Tree
    >>> from sklearn.tree import export_text
    >>> tree = Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b")))
    >>> print(export_text(to_sklearn(tree), feature_names=["angle"]).strip())
    |--- angle <= 0.50
    |   |--- class: 0
    |--- angle >  0.50
    |   |--- class: 1
    """
    tree = _without_sums(tree)
    classes = np.arange(tree.actions.start, tree.actions.start + tree.actions.n) if tree.actions.discrete else None
    return _fitted_estimator(_node_table(tree, visits), classes, tree.features.n, tree.depth)


def to_sklearn_source(tree: Tree) -> str:
    """Return a Python file whose `estimator()` builds what `to_sklearn` returns, without pickle and without custard."""
    tree = _without_sums(tree)
    arrays = _node_table(tree, None)
    lines = [
        '"""A decision tree written by custard: estimator() gives it as a fitted scikit-learn estimator.',
        "",
        "scikit-learn reads float32; on float32 observations it decides exactly as the tree does. predict() refuses",
        "infinities, predict(X, check_input=False) takes them. NaN goes right.",
        *(["The features of past steps, such as position[-1], are to be given too."] if history_of(tree) else []),
        '"""',
        "",
        "import numpy as np",
        "from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor",
        "from sklearn.tree._tree import Tree",
        "",
        f"FEATURES = {tree.features.names!a}",
        f"ACTIONS = {tree.actions.names!a}",
        f"START = {tree.actions.start}  # the number of the first action",
        f"DEPTH = {tree.depth}",
        f"KIND = {tree.actions.kind!r}",
        "ARRAYS = {",
    ]
    for name, array in arrays.items():
        lines += [
            f"    {name!r}: [",
            rows([repr(v).replace("inf", "1e999") for v in array.reshape(-1).tolist()], "        "),
            "    ],",
        ]
    lines += ["}", "", "", ESTIMATOR_SOURCE]
    return "\n".join(lines)


ESTIMATOR_SOURCE = '''def estimator():
    """The fitted estimator."""
    if KIND == "discrete":
        classes = np.arange(START, START + len(ACTIONS))
        result, outputs, n_classes = DecisionTreeClassifier(), 1, np.array([len(classes)], dtype=np.intp)
    else:
        classes = None
        result, outputs = DecisionTreeRegressor(), len(ACTIONS)
        n_classes = np.ones(outputs, dtype=np.intp)
    inner = Tree(len(FEATURES), n_classes, outputs)
    state = inner.__getstate__()
    count = len(ARRAYS["feature"])
    nodes = np.zeros(count, dtype=state["nodes"].dtype)
    for name, values in ARRAYS.items():
        if name != "values":
            nodes[name] = values
    values = np.array(ARRAYS["values"], dtype=np.float64).reshape(count, outputs, int(n_classes.max()))
    inner.__setstate__({**state, "max_depth": DEPTH, "node_count": count, "nodes": nodes, "values": values})
    result.n_features_in_, result.n_outputs_, result.max_features_ = len(FEATURES), outputs, len(FEATURES)
    if classes is not None:
        result.classes_, result.n_classes_ = classes, len(classes)
    result.tree_ = inner
    return result
'''


def from_sklearn(estimator: Any, features: Features | None = None, actions: Actions | None = None) -> Tree:
    """Return a tree from a fitted `DecisionTreeClassifier` or `…Regressor`: both agree on every float32 observation.

    Without `features` the names are scikit-learn's (or feature_0, …) and nothing is known of bounds. Without `actions`
    whole-number classes are taken as the actions' own numbers, other classes are numbered in order and keep their
    names; with `actions` these are found among them by name. A regressor's outputs become a vector of reals. NaN goes
    right, whatever scikit-learn would do with it.

    >>> from sklearn.tree import DecisionTreeClassifier
    >>> print(from_sklearn(DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1])))
    feature_0 ≤ 0.5?
    ├─ yes: action_0
    └─ no:  action_1
    """
    inner = getattr(estimator, "tree_", None)
    if inner is None or not hasattr(inner, "children_left"):
        kind = type(estimator).__name__
        raise CustardError(f"from_sklearn takes a fitted DecisionTreeClassifier or DecisionTreeRegressor, got {kind}")
    if features is None:
        n = int(inner.n_features)
        names = getattr(estimator, "feature_names_in_", None)
        names = numbered("feature", n) if names is None else tuple(str(name) for name in names)
        features = Features(names, np.full(n, -np.inf), np.full(n, np.inf), origin={"bounds": "unknown"})
    elif features.n != inner.n_features:
        raise CustardError(f"the estimator has {inner.n_features} features, but {features.n} were described")
    leaf = np.asarray(inner.children_left) < 0
    if not hasattr(estimator, "classes_"):
        value = np.asarray(inner.value)[:, :, 0]
        k = value.shape[1]
        if actions is None:
            actions = Actions("box", numbered("action", k), low=np.full(k, -np.inf), high=np.full(k, np.inf))
        if actions.kind == "multi":
            value = np.round(value)
    else:
        if inner.n_outputs != 1:
            raise CustardError("from_sklearn takes classifiers of one output; give a regressor for vector actions")
        value, actions = _node_actions(estimator.classes_, np.argmax(inner.value[:, 0, :], axis=1), actions)
    return Tree(
        np.where(leaf, LEAF, inner.feature), np.where(leaf, 0.0, inner.threshold), inner.children_left,
        inner.children_right, value, features, actions, {"method": type(estimator).__name__},
    )  # fmt: skip


def _without_sums(tree: Tree) -> Tree:
    """Return the tree without derived features, or raise if it needs them: scikit-learn compares features only."""
    small = tree.keep_used_sums()
    if small.features.derived:
        raise CustardError(
            f"scikit-learn's trees compare single features, and this tree asks about {small.features.names[-1]!r}, "
            "which is computed: choose python, c, rust, onnx, smt2 or json"
        )
    require_constant_leaves(tree, "scikit-learn's trees hold constant leaves")
    return small


def _node_actions(classes: Any, best: np.ndarray, actions: Actions | None) -> tuple[np.ndarray, Actions]:
    """Return each node's action, and the actions there are."""
    classes = np.asarray(classes)
    whole = classes.dtype.kind in "iub" or (classes.dtype.kind == "f" and bool((classes == np.round(classes)).all()))
    if not whole:
        names = [str(c) for c in classes]
        actions = actions or Actions("discrete", tuple(names))
        # By name: scikit-learn sorts its classes, whoever described the actions did not.
        lost = [name for name in names if not actions.discrete or actions.names.count(name) != 1]
        if lost:
            raise CustardError(
                f"classes are matched to actions by name, and the class {lost[0]!r} is not exactly one of the actions "
                f"{', '.join(actions.names)} ({actions.kind})"
            )
        return actions.start + np.array([actions.names.index(name) for name in names])[best], actions
    numbers = classes.astype(np.int64)
    if actions is None:
        start = min(0, int(numbers.min()))
        actions = Actions("discrete", numbered("action", int(numbers.max()) - start + 1, start), start=start)
    return numbers[best], actions


def _node_table(tree: Tree, visits: Any) -> dict[str, np.ndarray]:
    """Return the columns of scikit-learn's node table, and `values`: the mean over the leaves below each node."""
    leaf = tree.feature == LEAF
    inner = np.flatnonzero(~leaf)
    if tree.actions.discrete:
        held = np.eye(tree.actions.n)[np.where(leaf, tree.value - tree.actions.start, 0)]
    else:
        held = tree.value.astype(np.float64)
    weight = np.where(leaf, 1.0, 0.0) if visits is None else np.where(leaf, np.asarray(visits, dtype=np.float64), 0.0)
    total = weight.copy()
    share = np.where(leaf, np.maximum(weight, 1e-12), 0.0)[:, None] * held  # a leaf never visited still has its action
    mass = np.where(leaf, np.maximum(weight, 1e-12), 0.0)
    for node in inner[::-1]:
        a, b = tree.children_left[node], tree.children_right[node]
        total[node], mass[node], share[node] = total[a] + total[b], mass[a] + mass[b], share[a] + share[b]
    with np.errstate(invalid="ignore"):  # an infinite action has no mean
        values = np.where(leaf[:, None], held, np.nan_to_num(share / mass[:, None]))
    impurity = 1.0 - (values**2).sum(axis=1) if tree.actions.discrete else np.zeros(tree.n_nodes)
    return {
        "left_child": tree.children_left.astype(np.int64), "right_child": tree.children_right.astype(np.int64),
        "feature": np.where(leaf, -2, tree.feature).astype(np.int64), "threshold": np.where(leaf, -2.0, tree.threshold),
        "impurity": np.maximum(impurity, 0.0), "n_node_samples": np.maximum(total, 0).astype(np.int64),
        "weighted_n_node_samples": total, "values": values,
    }  # fmt: skip


def _fitted_estimator(arrays: dict[str, np.ndarray], classes: np.ndarray | None, n: int, depth: int) -> Any:
    """Return an estimator for `n` features with a node table; without `classes` it is a regressor."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
    from sklearn.tree._tree import Tree as Inner

    count, width = arrays["values"].shape
    outputs = 1 if classes is not None else width
    n_classes = np.array([width], dtype=np.intp) if classes is not None else np.ones(width, dtype=np.intp)
    inner = Inner(n, n_classes, outputs)
    state = inner.__getstate__()
    nodes = np.zeros(count, dtype=state["nodes"].dtype)
    for name, values in arrays.items():
        if name != "values":
            nodes[name] = values
    values = np.ascontiguousarray(arrays["values"]).reshape(count, outputs, int(n_classes.max()))
    inner.__setstate__({**state, "max_depth": depth, "node_count": count, "nodes": nodes, "values": values})
    result = DecisionTreeClassifier() if classes is not None else DecisionTreeRegressor()
    result.n_features_in_, result.n_outputs_, result.max_features_ = n, outputs, n
    if classes is not None:
        result.classes_, result.n_classes_ = classes, len(classes)
    result.tree_ = inner
    return result
