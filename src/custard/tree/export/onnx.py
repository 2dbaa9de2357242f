"""ONNX: a `TreeEnsembleRegressor` finds the number of the leaf, a `Gather` looks its action up.

The model's input `obs` is float64 [B, n] and its thresholds are too, so that it decides as the tree does on every
float64 observation; widen float32 ones. `to_onnx(tree, "float32")` takes float32 instead, with thresholds rounded down,
which decides exactly as widening would. NaN goes right. The output `action` is int64 [B], or [B, k] for vector actions.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.tree.export.names import missing_package
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
    double = dtype == "float64"
    of_input = TensorProto.DOUBLE if double else TensorProto.FLOAT
    of_output = TensorProto.DOUBLE if tree.actions.kind == "box" else TensorProto.INT64
    nodes = [
        helper.make_node(
            "TreeEnsembleRegressor", ["obs"], ["leaf"], domain="ai.onnx.ml", **_ensemble_attributes(tree, double)
        ),
        helper.make_node("Cast", ["leaf"], ["leaf_number"], to=TensorProto.INT64),
        helper.make_node("Squeeze", ["leaf_number", "columns"], ["node"]),
        helper.make_node("Gather", ["value", "node"], ["action"], axis=0),
    ]
    size = None if tree.actions.discrete else tree.actions.size
    shape: list[str | int | None] = ["batch"] if size is None else ["batch", size]
    graph = helper.make_graph(
        nodes, "custard",
        [helper.make_tensor_value_info("obs", of_input, ["batch", tree.features.n])],
        [helper.make_tensor_value_info("action", of_output, shape)],
        [numpy_helper.from_array(tree.value, "value"), numpy_helper.from_array(np.array([1]), "columns")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="custard", ir_version=8)
    said = {"features": list(tree.features.names), "actions": list(tree.actions.names), "start": tree.actions.start}
    helper.set_model_props(model, {key: json.dumps(value) for key, value in said.items()})
    return model.SerializeToString()


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
