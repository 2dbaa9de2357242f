"""The policy over bounds that a network is, trees drawn from it, and trees drawn near another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from custard.ibmdp.splits import Rules, project
from custard.nn.networks import Weights, encode, forward
from custard.solvers.ppo.acting_data import SQUASH, vector_action, vector_rules
from custard.tree.tree import LEAF, Tree

__all__ = ["BoundsNetwork", "nearby"]


class BoundsNetwork:
    """The greedy policy over bounds that a network is; with a generator, a tree drawn from the stochastic one."""

    def __init__(
        self,
        actor: Weights,
        frequencies: int,
        rules: Rules,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.actor, self.frequencies = tuple(np.asarray(w) for w in actor), frequencies
        self.rules, self.rng, self.vector = rules, rng, vector_rules(rules.actions)
        self.sampled, self.spread = True, np.zeros(2)  # of a draw: whether choices are drawn; deviations of v, vectors

    def __call__(self, bounds: np.ndarray, mask: np.ndarray) -> Any:
        """The afforded action with the largest output for each of many bounds, and v where it belongs to it."""
        z = forward(self.actor, encode(bounds, self.frequencies), np.tanh)
        n_actions = mask.shape[1]
        logits = z[:, :n_actions]
        if self.rng is not None and self.sampled:
            logits = logits + self.rng.gumbel(size=logits.shape)  # the largest is then a draw from the softmax
        choice = np.argmax(np.where(mask, logits, -np.inf), axis=1)
        if not self.rules.parameterised:
            return choice
        middle = z[np.arange(len(z)), n_actions + np.maximum(choice - self.rules.n_base, 0)].astype(np.float64)
        if self.rng is not None:
            middle += self.spread[0] * self.rng.standard_normal(middle.shape)
        answer = {"choice": choice, "v": 1.0 / (1.0 + np.exp(-np.clip(middle, -SQUASH, SQUASH)))}
        if self.vector.shape[1]:
            middle = z[:, -self.vector.shape[1] :].astype(np.float64)
            if self.rng is not None:
                middle += self.spread[1] * self.rng.standard_normal(middle.shape)
            answer["base"] = vector_action(middle, *self.vector)
        return answer


def nearby(tree: Tree, rules: Rules, rng: np.random.Generator, spread: tuple[float, float]) -> Tree:
    """A draw from the stochastic policy whose greedy tree is `tree`, its choices kept.

    The v of about half of the questions gets normal noise of deviation spread[0] before it is squashed, and thresholds
    lie between the bounds that the moved questions above leave; half of the components of action vectors get noise of
    spread[1] before they are scaled.
    """
    n, count = tree.features.n, tree.n_nodes
    noise = spread[0] * rng.standard_normal(count) * (rng.random(count) < 0.5)
    bounds, moved = np.zeros((count, 2, n)), np.zeros((count, 2, n))
    bounds[0], moved[0] = np.stack(rules.root()), np.stack(rules.root())
    threshold = tree.threshold.copy()
    for node in np.flatnonzero(tree.feature != LEAF):
        c, (lower, upper) = tree.feature[node], bounds[node, :, tree.feature[node]]
        v = np.clip((tree.threshold[node] - lower) / (upper - lower), 1e-9, 1.0 - 1e-9)
        z = np.clip(np.log(v / (1.0 - v)) + noise[node], -SQUASH, SQUASH)
        threshold[node] = project(moved[node, 0, c], moved[node, 1, c], 1.0 / (1.0 + np.exp(-z)))
        for child, side in ((tree.children_left[node], 1), (tree.children_right[node], 0)):
            bounds[child], moved[child] = bounds[node], moved[node]
            bounds[child, side, c], moved[child, side, c] = tree.threshold[node], threshold[node]
    value = tree.value
    if not rules.actions.discrete:
        vector = vector_rules(rules.actions)
        noise = spread[1] * rng.standard_normal(tree.value.shape) * (rng.random(tree.value.shape) < 0.5)
        z = (tree.value - vector[2]) / vector[3] + noise
        value = vector_action(z, *vector)
    return replace(tree, threshold=threshold, value=value)
