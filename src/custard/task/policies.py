"""Policies as plain data, so that other processes can follow them: trees and linear policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from custard.core.actions import Actions
from custard.core.features import Features
from custard.core.sums import Sum
from custard.tree.tree import Tree

__all__ = ["LinearPolicy", "Policy", "policy_data", "policy_from_data"]


class Policy(Protocol):
    """What acts: one feature vector in, one action out."""

    def act(self, x: Any) -> Any:
        """Return the action for one feature vector [n]."""


@dataclass(frozen=True, eq=False)
class LinearPolicy:
    """Scores linear in the features: the largest decides; where actions are vectors, the clipped scores are the action.

    >>> policy = LinearPolicy(np.array([[1.0], [-1.0]]), np.zeros(2), Actions("discrete", ("left", "right")))
    >>> policy.act(np.array([-0.5])), policy.predict(np.array([[-0.5], [2.0]])).tolist()
    (1, [1, 0])
    """

    weights: np.ndarray  # [k, n]: a row per discrete action, or per component of an action vector
    bias: np.ndarray  # [k]
    actions: Actions

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Return the scores of feature vectors, [B, n] -> [B, k]; features after the n-th are derived, and left out."""
        return x[:, : self.weights.shape[1]] @ self.weights.T + self.bias

    def act(self, x: np.ndarray) -> Any:
        """Return the action for one feature vector [n]."""
        scores = self.weights @ x[: self.weights.shape[1]] + self.bias
        if self.actions.discrete:
            return int(scores.argmax()) + self.actions.start
        return self._action_vectors(scores)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the actions for feature vectors, [B, n] -> [B] or [B, k]."""
        scores = self.scores(x)
        return scores.argmax(axis=1) + self.actions.start if self.actions.discrete else self._action_vectors(scores)

    def _action_vectors(self, scores: np.ndarray) -> np.ndarray:
        clipped = np.clip(scores, self.actions.low, self.actions.high)
        return np.rint(clipped).astype(np.int64) if self.actions.kind == "multi" else clipped


def policy_data(policy: Policy) -> dict[str, Any]:
    """Return a tree or a linear policy as arrays; `policy_from_data` is the inverse."""
    if isinstance(policy, Tree):
        arrays = ("feature", "threshold", "children_left", "children_right", "value")
        data: dict[str, Any] = {"kind": "tree", **{name: np.asarray(getattr(policy, name)) for name in arrays}}
        if policy.gains is not None:
            data["gains"] = policy.gains
        if policy.features.derived:
            n_raw = policy.features.n_raw
            data["derived"] = policy.features.names[n_raw:], [entry.to_json() for entry in policy.features.derived]
        return data
    if isinstance(policy, LinearPolicy):
        return {"kind": "linear", "weights": policy.weights, "bias": policy.bias}
    raise TypeError(f"a {type(policy).__name__} cannot be sent to another process")


def policy_from_data(data: Mapping[str, Any], features: Features, actions: Actions) -> Policy:
    """Return the policy that `policy_data` was given, for an environment's features and actions."""
    fields = {name: value for name, value in data.items() if name != "kind"}
    if data["kind"] == "tree":
        names, sums = fields.pop("derived", ((), ()))
        features = features.raw.with_sums([Sum.from_json(entry) for entry in sums], names)
        return Tree(**fields, features=features, actions=actions)
    return LinearPolicy(**fields, actions=actions)
