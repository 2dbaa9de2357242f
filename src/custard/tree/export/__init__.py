"""A tree in other languages and formats, one file per format. Every one decides as `Tree.predict` does, to the bit.

NaN goes right and infinities are ordinary numbers in `python`, `c`, `rust`, `json`, `dot`, `text` and `onnx`;
`sklearn` reads float32 only (see its module), and `smt2` knows finite numbers only. `prism` is the Markov chain of a
finite MDP under the tree.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.errors import CustardError, one_of
from custard.tree.tree import Tree

__all__ = ["FORMATS", "Format", "export"]


@dataclass(frozen=True)
class Format:
    """Where a format is written, and what its files are called."""

    module: str
    function: str
    suffix: str
    about: str


FORMATS: dict[str, Format] = {
    "text": Format("text", "to_text", ".txt", "indented text, thresholds in full"),
    "json": Format("json", "to_json", ".json", "custard's own format; Tree.load reads it"),
    "dot": Format("dot", "to_dot", ".dot", "Graphviz"),
    "python": Format("python", "to_python", ".py", "act(obs), no dependencies"),
    "c": Format("c", "to_c", ".c", "int custard_act(const double *obs), C99, no library"),
    "rust": Format("rust", "to_rust", ".rs", "pub fn act(obs: &[f64; N]), no crate"),
    "sklearn": Format("sklearn", "to_sklearn_source", ".py", "estimator() gives a fitted scikit-learn tree"),
    "onnx": Format("onnx", "to_onnx", ".onnx", "tree ensemble, float64 in"),
    "smt2": Format("smt2", "to_smt2", ".smt2", "SMT-LIB function of reals"),
    "prism": Format("prism", "to_prism", ".prism", "Markov chain of a finite MDP under the tree"),
}


def export(tree: Tree, format: str, **options: Any) -> str | bytes:
    """Return the tree in a format: text, or bytes for `onnx`. `options` go to the format's own function.

    >>> from custard import Actions, Features, Tree
    >>> tree = Tree.stump(0, 0.5, 0, 1, Features(("angle",), [-1], [1]), Actions("discrete", ("a", "b")))
    >>> "custard_act" in export(tree, "c")
    True
    """
    if format not in FORMATS:
        raise CustardError(one_of("format", format, FORMATS))
    chosen = FORMATS[format]
    module = importlib.import_module(f"custard.tree.export.{chosen.module}")
    with np.errstate(all="ignore"):  # a caller's own settings must not make an error of a rounding
        return getattr(module, chosen.function)(tree, **options)
