"""A tree's file format and what makes a tree valid.

The JSON object has `format` "custard-tree", `version`, `features` (name, kind, low, high; null for no bound),
`actions`, `nodes` (the five arrays of `Tree`, threshold in full precision) and `origin`.

Version 2 adds to derived features a `sum` (`terms`: feature and weight, `constant`) and to `nodes` an array `gains` of
[node, action component, feature, gain] for those that are not zero. A tree with neither is written as version 1, which
is read for ever.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.core.files import require_possible_name, write_atomically

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["FORMAT", "VERSION", "check", "fingerprint", "from_json", "honest_origin", "load", "save", "to_json"]

FORMAT, VERSION = "custard-tree", 2
PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".gif")
PICKLES = (".pkl", ".pickle", ".joblib")
LANGUAGES = {".c": "c", ".py": "python", ".rs": "rust", ".dot": "dot", ".onnx": "onnx", ".smt2": "smt2", ".txt": "text"}
ARRAYS = ("feature", "threshold", "children_left", "children_right", "value")
MAX_ORIGIN_DEPTH = 50  # objects and lists inside each other, in what says where a tree came from


def check(tree: Tree) -> None:
    """Raise unless the arrays are a tree: one root, every other node the child of one earlier node."""
    count = len(tree.feature)
    shape = (count,) if tree.actions.discrete else (count, tree.actions.size)
    for name in ARRAYS:
        expected = shape if name == "value" else (count,)
        if getattr(tree, name).shape != expected:
            raise CustardError(
                f"a tree of {count} nodes needs {name} of shape {expected}, got {getattr(tree, name).shape}"
            )
    if count == 0:
        raise CustardError("a tree needs at least one node")
    leaf = tree.feature < 0
    bad = np.flatnonzero(leaf & ((tree.feature != -1) | (tree.children_left != -1) | (tree.children_right != -1)))
    if len(bad):
        raise CustardError(f"node {bad[0]} is neither a leaf (feature and both children -1) nor an inner node")
    inner = np.flatnonzero(~leaf)
    if len(inner) and (tree.feature[inner] >= tree.features.n).any():
        node = inner[tree.feature[inner] >= tree.features.n][0]
        raise CustardError(
            f"node {node} asks about feature {tree.feature[node]}, but there are {tree.features.n} features"
        )
    bad = inner[~np.isfinite(tree.threshold[inner])]
    if len(bad):
        raise CustardError(
            f"node {bad[0]} has the threshold {tree.threshold[bad[0]]}: thresholds must be finite numbers"
        )
    children = np.concatenate([tree.children_left[inner], tree.children_right[inner]]).astype(np.int64)
    parents = np.concatenate([inner, inner])
    bad = parents[(children <= parents) | (children >= count)]
    if len(bad):
        raise CustardError(f"node {bad[0]} has a child that does not come after it: not a tree, or a cycle")
    seen = np.bincount(children, minlength=count)
    bad = np.flatnonzero(seen[1:] != 1) + 1
    if len(bad):
        what = "has no parent" if seen[bad[0]] == 0 else "has several parents"
        raise CustardError(f"node {bad[0]} {what}: not a tree")
    _check_values(tree, np.flatnonzero(leaf))


def _check_values(tree: Tree, leaves: np.ndarray) -> None:
    """Raise unless every leaf holds one of the actions."""
    values, actions = tree.value[leaves], tree.actions
    if actions.discrete:
        wrong = (values < actions.start) | (values >= actions.start + actions.n)
        accepted = f"{actions.start}…{actions.start + actions.n - 1}"
    else:
        assert actions.low is not None
        assert actions.high is not None
        within = (values >= actions.low) & (values <= actions.high)
        if tree.gains is not None:  # what is clipped may begin outside
            within |= tree.gains[leaves].any(axis=2)
        wrong = ~(within & np.isfinite(values)).all(axis=1)
        accepted = f"[{actions.low.tolist()}, {actions.high.tolist()}]"
    if wrong.any():
        where = np.flatnonzero(wrong)[0]
        raise CustardError(f"leaf {leaves[where]} holds the action {values[where]}, outside {accepted}")


def fingerprint(tree: Tree) -> str:
    """Return a short text that changes with any node of the tree."""
    digest = hashlib.sha256()
    for name in ARRAYS:
        digest.update(getattr(tree, name).tobytes())
    for part in (tree.gains, tree.features.derived or None):
        digest.update(b"" if part is None else part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()[:16]


def honest_origin(tree: Tree) -> Mapping[str, Any]:
    """Return where a tree came from; if its nodes are no longer those that were learned, "edited" says so."""
    if "fingerprint" not in tree.origin:
        return tree.origin
    kept = {key: value for key, value in tree.origin.items() if key != "edited"}
    return kept if kept["fingerprint"] == fingerprint(tree) else {**kept, "edited": True}


def to_json(tree: Tree) -> dict[str, Any]:
    """Return a tree as plain data."""
    nodes = {name: getattr(tree, name).tolist() for name in ARRAYS}
    if tree.gains is not None:
        places = np.argwhere(tree.gains != 0.0)
        nodes["gains"] = [[*place, float(tree.gains[tuple(place)])] for place in places.tolist()]
    return {
        "format": FORMAT,
        "version": 2 if tree.features.derived or tree.gains is not None else 1,
        "features": tree.features.to_json(),
        "actions": tree.actions.to_json(),
        "bounds": _jsonable(tree.features.origin),
        "origin": _jsonable(tree.origin),
        "nodes": nodes,
    }


def _jsonable(value: Any) -> Any:
    """Return NumPy's numbers and arrays as plain ones; a number that is not finite, which JSON lacks, as None."""
    if isinstance(value, Mapping):
        return {key: _jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(entry) for entry in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return _jsonable(value.tolist())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _depth_of(value: Any) -> int:
    """Return how deep plain data is nested; beyond `MAX_ORIGIN_DEPTH` it is not looked at further."""
    depth, layer = 0, [value]
    while layer and depth <= MAX_ORIGIN_DEPTH:
        layer = [each for entry in layer for each in (entry.values() if isinstance(entry, dict) else entry)
                 if isinstance(each, (dict, list))]  # fmt: skip
        depth += 1
    return depth


def from_json(cls: type[Tree], data: Any) -> Tree:
    """Return a tree from plain data, checked."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CustardError(f'not a custard tree: the JSON object lacks "format": "{FORMAT}"')
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CustardError(f"the tree's version is {version!r}: expected a whole number")
    if version > VERSION:
        raise CustardError(f"the tree has version {version}, this custard reads up to {VERSION}: upgrade custard-rl")
    missing = [key for key in ("features", "actions", "nodes") if key not in data]
    nodes = data.get("nodes", {})
    missing += [name for name in ARRAYS if not isinstance(nodes, dict) or not isinstance(nodes.get(name), list)]
    if missing:
        raise CustardError(f"the tree lacks {', '.join(missing)}")
    origin = data.get("origin", {})
    bounds = data.get("bounds", {})
    if not isinstance(origin, dict) or not isinstance(bounds, dict):
        raise CustardError("the tree's origin and bounds must be objects")
    if _depth_of(origin) > MAX_ORIGIN_DEPTH or _depth_of(bounds) > MAX_ORIGIN_DEPTH:
        raise CustardError(f"the tree's origin and bounds must not be nested more than {MAX_ORIGIN_DEPTH} deep")
    for name in ("feature", "children_left", "children_right"):
        if not all(type(entry) is int for entry in nodes[name]):
            raise CustardError(f"the tree's {name} must hold whole numbers only")
    if any(entry is None or isinstance(entry, (bool, str)) for entry in nodes["threshold"]):
        raise CustardError("the tree's threshold must hold numbers only")
    flat = [entry for row in nodes["value"] for entry in (row if isinstance(row, list) else [row])]
    whole = isinstance(data["actions"], dict) and data["actions"].get("kind") == "discrete"
    if not all(type(entry) is int or (type(entry) is float and not whole) for entry in flat):
        raise CustardError(f"the tree's value must hold {'whole ' if whole else ''}numbers only")
    features, actions = Features.from_json(data["features"], bounds), Actions.from_json(data["actions"])
    return cls(
        **{name: nodes[name] for name in ARRAYS},
        features=features,
        actions=actions,
        origin=origin,
        gains=_gains_from_json(nodes.get("gains"), (len(nodes["feature"]), actions.size, features.n_raw)),
    )


def _gains_from_json(rows: Any, shape: tuple[int, int, int]) -> np.ndarray | None:
    """Return gains [n_nodes, k, n_raw] from rows of node, action component, feature and gain."""
    if rows is None:
        return None
    gains = np.zeros(shape)
    for row in rows if isinstance(rows, list) else [rows]:
        is_row = isinstance(row, list) and len(row) == 4 and all(type(entry) is int for entry in row[:3])
        if not is_row or type(row[3]) not in (int, float):
            raise CustardError("the tree's gains must hold [node, action component, feature, gain] only")
        if not all(0 <= entry < size for entry, size in zip(row, shape, strict=False)):
            raise CustardError(f"the tree's gains name node {row[0]}, component {row[1]}, feature {row[2]}: not there")
        gains[tuple(row[:3])] = row[3]
    return gains


def save(tree: Tree, path: str | Path) -> None:
    """Write a tree's JSON; a name that promises another format is refused."""
    suffix = Path(path).suffix.lower()
    if suffix in PICTURES:
        raise CustardError(f"{path}: save writes JSON. tree.plot({str(path)!r}) draws the tree")
    if suffix in PICKLES:
        raise CustardError(f"{path}: save writes JSON, never a pickle. Name it {Path(path).with_suffix('.json')}")
    if suffix in LANGUAGES:
        call = f"tree.export({LANGUAGES[suffix]!r}, {str(path)!r})"
        raise CustardError(f"{path}: save writes JSON. {call} writes the tree as {LANGUAGES[suffix]}")
    write_atomically(path, json.dumps(to_json(tree), allow_nan=False) + "\n")


def load(cls: type[Tree], path: str | Path) -> Tree:
    """Read a tree's JSON."""
    path = Path(path)
    require_possible_name(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CustardError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CustardError(f"{path} is not a text file") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CustardError(f"{path} is not valid JSON ({error}): the file may be cut short") from None
    try:
        return from_json(cls, data)
    except CustardError as error:
        raise CustardError(f"{path}: {error}") from None
