"""ONNX: a `TreeEnsembleRegressor` finds the number of the leaf, a `Gather` looks its action up.

The model's input `obs` is float64 [B, n] and its thresholds are too, so that it decides as the tree does on every
float64 observation; widen float32 ones. `to_onnx(tree, "float32")` takes float32 instead, with thresholds rounded down,
which decides exactly as widening would; a tree with sums or linear leaves widens it. Sums are separate products and
additions of float64 in the documented order, which no operator fuses. NaN goes right. The output `action` is int64 [B],
or [B, k] for vector actions.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.sums import FULL_TURN, HALF_TURN, Part, Sum
from custard.tree.export.names import heading, missing_package
from custard.tree.memory import history_of
from custard.tree.rounding import round_down
from custard.tree.tree import LEAF, Tree

__all__ = ["to_onnx"]

MAX_NODES = 2**24  # leaf numbers pass through float32


def to_onnx(tree: Tree, dtype: str = "float64") -> bytes:
    """Return the tree as a serialised ONNX model."""
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise missing_package("onnx", "onnx", "export to ONNX") from None
    if tree.n_nodes >= MAX_NODES:
        raise CustardError(f"ONNX trees hold fewer than {MAX_NODES} nodes, this one has {tree.n_nodes}")
    if dtype not in ("float64", "float32"):
        raise CustardError(f"dtype={dtype!r} is not known: choose float64 or float32")
    tree = tree.keep_used_sums()
    double = dtype == "float64" or tree.is_linear
    of_input = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    of_output = TensorProto.DOUBLE if tree.actions.kind == "box" else TensorProto.INT64
    graph_parts = _Graph(tree, "obs")
    if tree.is_linear:
        graph_parts.widen()
    read = graph_parts.extended()
    nodes = [
        *graph_parts.nodes,
        helper.make_node(
            "TreeEnsembleRegressor", [read], ["leaf"], domain="ai.onnx.ml", **_ensemble_attributes(tree, double)
        ),
        helper.make_node("Cast", ["leaf"], ["leaf_number"], to=TensorProto.INT64),
        helper.make_node("Squeeze", ["leaf_number", "columns"], ["node"]),
        helper.make_node("Gather", ["value", "node"], ["action" if tree.gains is None else "bias"], axis=0),
    ]
    if tree.gains is not None:
        graph_parts.nodes = []
        graph_parts.linear_leaves()
        nodes += graph_parts.nodes
    size = None if tree.actions.discrete else tree.actions.size
    shape: list[str | int | None] = ["batch"] if size is None else ["batch", size]
    graph = helper.make_graph(
        nodes, "custard",
        [helper.make_tensor_value_info("obs", of_input, ["batch", tree.features.n_raw])],
        [helper.make_tensor_value_info("action", of_output, shape)],
        [
            numpy_helper.from_array(tree.value, "value"), numpy_helper.from_array(np.array([1]), "columns"),
            *graph_parts.constants,
        ],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="custard", ir_version=8)
    if history_of(tree):
        model.doc_string = f"{heading(tree)} {', '.join(tree.features.raw.names)}"
    said = {"features": list(tree.features.raw.names), "actions": list(tree.actions.names), "start": tree.actions.start}
    helper.set_model_props(model, {key: json.dumps(value) for key, value in said.items()})
    return model.SerializeToString()


class _Graph:
    """The nodes that compute sums before the tree and linear leaves after it, and the constants that they read."""

    def __init__(self, tree: Tree, observation: str) -> None:
        self.tree, self.observation = tree, observation
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.columns: dict[int, str] = {}
        self.count = 0

    def add(self, operation: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        from onnx import helper

        self.count += 1
        output = output or f"v{self.count}"
        self.nodes.append(helper.make_node(operation, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Any) -> str:
        """Add a constant and return its name."""
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def widen(self) -> None:
        """Make the observation float64."""
        from onnx import TensorProto

        self.observation = self.add("Cast", self.observation, to=TensorProto.DOUBLE)

    def column(self, i: int) -> str:
        """Return feature i of the observation, [B, 1]."""
        if i not in self.columns:
            self.columns[i] = self.add("Gather", self.observation, self.constant(np.array([i])), axis=1)
        return self.columns[i]

    def extended(self) -> str:
        """Return the observation with its derived features."""
        sums = [self.sum(total) for total in self.tree.features.derived]
        return self.add("Concat", self.observation, *sums, axis=1) if sums else self.observation

    def sum(self, total: Sum) -> str:
        """Return a sum, [B, 1], in the documented order."""
        value = None if total.constant == 0.0 else self.constant(np.array([[total.constant]]))
        for atom, weight in total.terms:
            inner = self.column(atom) if isinstance(atom, int) else self.part(atom)
            product = self.add("Mul", self.constant(np.array([[weight]])), inner)
            value = product if value is None else self.add("Add", value, product)
        assert value is not None
        return value

    def part(self, part: Part) -> str:
        """Return a part that is not linear, [B, 1]."""
        inner = [self.sum(argument) for argument in part.arguments]
        if part.operation == "product":
            return self.add("Mul", *inner)
        if part.operation == "abs":
            return self.add("Abs", inner[0])
        half, full = (self.constant(np.array([[value]])) for value in (HALF_TURN, FULL_TURN))
        turns = self.add("Floor", self.add("Div", self.add("Add", inner[0], half), full))
        return self.add("Sub", inner[0], self.add("Mul", full, turns))

    def linear_leaves(self) -> None:
        """Turn "bias" and "node" into "action": gains in ascending order of the features, then the bounds."""
        tree, value = self.tree, "bias"
        assert tree.gains is not None
        zero = self.constant(np.zeros((1, 1)))
        for i in np.flatnonzero(tree.gains.any(axis=(0, 1))).tolist():
            gain = self.add("Gather", self.constant(np.ascontiguousarray(tree.gains[:, :, i])), "node", axis=0)
            more = self.add("Add", value, self.add("Mul", gain, self.column(i)))
            value = self.add("Where", self.add("Equal", gain, zero), value, more)
        low, high = (self.constant(np.asarray(side)[None]) for side in (tree.actions.low, tree.actions.high))
        value = self.add("Where", self.add("Less", value, low), low, value)
        self.add("Where", self.add("Greater", value, high), high, value, output="action")


def _ensemble_attributes(tree: Tree, double: bool) -> dict[str, Any]:
    """Return the attributes of the tree ensemble that maps observations to leaf numbers."""
    from onnx import numpy_helper

    leaf = tree.feature == LEAF
    leaves = np.flatnonzero(leaf)
    limits = tree.threshold if double else round_down(tree.threshold)

    def numbers(name: str, values: np.ndarray) -> dict[str, Any]:
        """Return reals as a tensor (float64) or a list of floats (float32): the operator takes one kind throughout."""
        if double:
            return {f"{name}_as_tensor": numpy_helper.from_array(values.astype(np.float64), f"{name}_as_tensor")}
        return {name: values.astype(np.float32).tolist()}

    return {
        "n_targets": 1,
        "nodes_treeids": [0] * tree.n_nodes,
        "nodes_nodeids": list(range(tree.n_nodes)),
        "nodes_featureids": np.where(leaf, 0, tree.feature).tolist(),
        "nodes_modes": ["LEAF" if is_leaf else "BRANCH_LEQ" for is_leaf in leaf],
        "nodes_truenodeids": np.where(leaf, 0, tree.children_left).tolist(),
        "nodes_falsenodeids": np.where(leaf, 0, tree.children_right).tolist(),
        "nodes_missing_value_tracks_true": [0] * tree.n_nodes,
        "target_ids": [0] * len(leaves),
        "target_treeids": [0] * len(leaves),
        "target_nodeids": leaves.tolist(),
        **numbers("nodes_values", np.where(leaf, 0.0, limits)),
        **numbers("target_weights", leaves),
    }
