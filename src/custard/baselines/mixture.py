"""Mixture of expert trees (Vasic et al. 2019): a linear gate that chooses among small trees, fitted by EM.

The gate gives each of E trees a probability, the softmax of scores that are linear in the standardised features. With
the trees' own class probabilities this is a mixture of experts (Jacobs et al. 1991). The hard mixture follows the tree
with the largest score. It is a `Tree`: comparing two scores is a test of one weighted sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from custard.baselines.soft_trees import Scaling, scaling_of
from custard.core.actions import Actions
from custard.core.features import Features
from custard.tree.export.sklearn import from_sklearn
from custard.tree.shape import Shape, Split, build_tree, shape_of
from custard.tree.tree import Tree

__all__ = [
    "Adam", "ExpertTree", "Fitting", "Mixture", "fit_mixture", "gate_gradient", "gate_probabilities",
    "responsibilities",
]  # fmt: skip

MIN_SAMPLE_WEIGHT = 1e-9  # CART cannot be fitted to states that weigh nothing


class Fitting(NamedTuple):
    """How a mixture is fitted."""

    experts: int
    expert_depth: int
    epochs: int
    learning_rate: float
    rate_decay: float  # per epoch
    train_share: float  # of the states; the others choose the epoch


@dataclass(frozen=True, eq=False)
class ExpertTree:
    """One tree of a mixture, fitted by CART; without one a single leaf."""

    prior: np.ndarray  # [A] shares of the classes, for a single leaf
    cart: Any = None  # a fitted DecisionTreeClassifier

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return class probabilities, [N, n] -> [N, A]; 0 for a class that the tree never saw."""
        if self.cart is None:
            return np.tile(self.prior, (len(x), 1))
        found = np.zeros((len(x), len(self.prior)))
        found[:, self.cart.classes_] = self.cart.predict_proba(x)
        return found

    def shape(self, features: Features, actions: Actions) -> Shape:
        """Return the tree of the likeliest actions."""
        if self.cart is None:
            return int(self.prior.argmax()) + actions.start
        counted = Actions("discrete", actions.names)
        shape = shape_of(from_sklearn(self.cart, features, counted))
        return _with_actions_numbered_from(shape, actions.start)


def _with_actions_numbered_from(shape: Shape, start: int) -> Shape:
    """Return a shape with its actions numbered from `start`."""
    if isinstance(shape, Split):
        return shape._replace(
            left=_with_actions_numbered_from(shape.left, start), right=_with_actions_numbered_from(shape.right, start)
        )
    return int(shape) + start


def fit_expert(x: np.ndarray, y: np.ndarray, weight: np.ndarray, depth: int, n_actions: int, seed: int) -> ExpertTree:
    """Fit a tree of limited depth to classes y [N], numbered up to `n_actions`, of states x [N, n] with weights [N]."""
    weight = np.maximum(weight, MIN_SAMPLE_WEIGHT)
    votes = np.bincount(y, weight, minlength=n_actions)
    prior = votes / votes.sum()
    if depth == 0 or (prior > 0).sum() == 1:
        return ExpertTree(prior)
    from sklearn.tree import DecisionTreeClassifier

    return ExpertTree(prior, DecisionTreeClassifier(max_depth=depth, random_state=seed).fit(x, y, weight))


@dataclass(frozen=True, eq=False)
class Mixture:
    """A gate over the raw features and its trees. Called with features [B, n] it acts as the soft mixture."""

    gate: np.ndarray  # [E, n_raw + 1] theta; the last column is the constant's
    scaling: Scaling  # of the raw features
    trees: tuple[ExpertTree, ...]
    start: int = 0  # the first action's number

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return the soft mixture's action probabilities, [B, n] -> [B, A]."""
        g = gate_probabilities(self.gate, gate_inputs(self.scaling, x))
        return np.einsum("be,bea->ba", g, np.stack([tree.probabilities(x) for tree in self.trees], axis=1))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the soft mixture's likeliest actions, [B, n] -> [B]."""
        return self.probabilities(x).argmax(axis=1) + self.start

    def tree(self, features: Features, actions: Actions) -> Tree:
        """Return the hard mixture: tests of weighted sums lead to the tree with the largest score.

        A tournament: the first tree's score is compared with the second's, the larger with the third's, and so on. The
        trees appear once for each way to get there.
        """
        n = features.n_raw
        weights = self.gate[:, :n] / self.scaling.scale
        constants = self.gate[:, n] - weights @ self.scaling.shift
        shapes = [tree.shape(features, actions) for tree in self.trees]
        sums: dict[tuple[int, int], int] = {}  # of two trees -> the number of the feature that compares them
        compared: list[np.ndarray] = []

        def below(champion: int, others: Sequence[int]) -> Shape:
            if not others:
                return shapes[champion]
            other, left = others[0], float(constants[champion] - constants[others[0]])
            sides = below(champion, others[1:]), below(other, others[1:])
            difference = weights[other] - weights[champion]
            if not difference.any():
                return sides[0] if left >= 0.0 else sides[1]
            if (champion, other) not in sums:
                sums[champion, other] = features.n + len(compared)
                compared.append(difference)
            return Split(sums[champion, other], left, *sides)

        shape = below(0, range(1, len(self.trees)))
        return build_tree(shape, features.with_sums(compared), actions)


def gate_inputs(scaling: Scaling, x: np.ndarray) -> np.ndarray:
    """Return the gate's inputs, [B, n] -> [B, n_raw + 1]: standardised raw features and 1."""
    n = len(scaling.shift)
    return np.column_stack([(x[:, :n] - scaling.shift) / scaling.scale, np.ones(len(x))])


def gate_probabilities(gate: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Return g [B, E], the softmax of the gate's scores, from its inputs [B, n_raw + 1]."""
    scores = inputs @ gate.T
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def responsibilities(g: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return the E-step: h = g p / sum of g p over the trees, [N, E]; g where no tree knows the class.

    g  [N, E] the gate's probabilities
    p  [N, E] the trees' probabilities of the right class
    """
    joint = g * p
    total = joint.sum(axis=1, keepdims=True)
    return np.where(total > 0.0, joint / np.where(total > 0.0, total, 1.0), g)


def gate_gradient(h: np.ndarray, g: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Return the gradient [E, n_raw + 1] of the log-likelihood, sum_i log sum_j g_ij p_ij, with respect to theta."""
    return (h - g).T @ inputs


class Adam:
    """Adam with the moments' decays .9 and .999."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.square, self.steps = np.zeros(shape), np.zeros(shape), 0

    def step(self, gradient: np.ndarray, rate: float) -> np.ndarray:
        """Return how far to move along a gradient."""
        self.steps += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean, square = self.mean / (1.0 - 0.9**self.steps), self.square / (1.0 - 0.999**self.steps)
        return rate * mean / (np.sqrt(square) + 1e-7)


def fit_mixture(
    x: np.ndarray, y: np.ndarray, features: Features, actions: Actions, fitting: Fitting, rng: np.random.Generator
) -> tuple[Mixture, float]:
    """Fit a mixture to states x [N, n] with actions y [N], numbered from 0; return it and its held-out accuracy.

    `features` and `actions` are the environment's, `fitting` says how to fit, `rng` draws the parts and first weights.

    The first epoch has trees of depth 0: deeper ones fit so well at once that the gate has nothing left to learn. Of
    all epochs the one with the best soft accuracy on held-out states counts, and among equals the best hard accuracy.
    """
    order = rng.permutation(len(x))
    cut = max(1, round(fitting.train_share * len(x)))
    train, held_out = order[:cut], order[cut:] if cut < len(x) else order
    scaling = scaling_of(x[:, : features.n_raw])
    inputs, held_out_inputs = gate_inputs(scaling, x[train]), gate_inputs(scaling, x[held_out])
    gate, adam = rng.random((fitting.experts, inputs.shape[1])), Adam((fitting.experts, inputs.shape[1]))
    h = rng.random((len(train), fitting.experts))
    fitted, others = (np.ascontiguousarray(x[index], dtype=np.float32) for index in (train, held_out))  # as CART has it
    best: Mixture | None = None
    best_accuracy = (-1.0, -1.0)
    for epoch in range(fitting.epochs + 1):
        depth = fitting.expert_depth if epoch else 0
        trees = tuple(
            fit_expert(fitted, y[train], h[:, j], depth, actions.n, int(rng.integers(2**31)))
            for j in range(fitting.experts)
        )
        p = np.stack([tree.probabilities(fitted)[np.arange(len(train)), y[train]] for tree in trees], axis=1)
        g = gate_probabilities(gate, inputs)
        h = responsibilities(g, p)
        gate = gate + adam.step(gate_gradient(h, g, inputs), fitting.learning_rate * fitting.rate_decay**epoch)
        accuracy = _soft_and_hard_accuracy(gate, trees, held_out_inputs, others, y[held_out])
        if accuracy > best_accuracy:
            best, best_accuracy = Mixture(gate, scaling, trees, actions.start), accuracy
    assert best is not None
    return best, best_accuracy[0]


def _soft_and_hard_accuracy(
    gate: np.ndarray, trees: Sequence[ExpertTree], inputs: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[float, float]:
    """Return how often the soft and the hard mixture give the right class y [N].

    `gate` and `trees` are the mixture's; `inputs` are the gate's for the states x [N, n].
    """
    g, each = gate_probabilities(gate, inputs), np.stack([tree.probabilities(x) for tree in trees], axis=1)
    soft = np.einsum("be,bea->ba", g, each).argmax(axis=1)
    hard = each[np.arange(len(x)), g.argmax(axis=1)].argmax(axis=1)
    return float((soft == y).mean()), float((hard == y).mean())
