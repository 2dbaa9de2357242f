"""The policy over bounds that the actor represents: its outputs, extraction, and trees sampled from it.

The first outputs are the logits of the IBMDP's actions. In the parameterised form one per feature follows, the logit of
the v at which the feature is split; where base actions are vectors, one per component, from which a leaf's vector is
computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from custard.core.actions import Actions
from custard.ibmdp.splits import Rules, project
from custard.nn.networks import encode, forward
from custard.tree.tree import LEAF, Tree

__all__ = [
    "MAX_V_LOGIT", "ExtractablePolicy", "PolicyNetwork", "perturb_tree", "vector_action", "vector_components",
]  # fmt: skip

MAX_V_LOGIT = 4.0  # clips the logit of v, so v lies between 0.018 and 0.982
#: A component of action vectors: its value is centre + half_width * output, clipped to [low, high], perhaps rounded.
VECTOR_COMPONENT = np.dtype(
    [("low", "f8"), ("high", "f8"), ("centre", "f8"), ("half_width", "f8"), ("is_integer", "?")], align=True
)
MIN_V_MARGIN = 1e-9  # distance from 0 and 1 that a tree's own v keep, so that their logits are finite


class PolicyNetwork(NamedTuple):
    """The stochastic policy over bounds: the actor and the noise on its continuous outputs."""

    weights: tuple  # float32 arrays
    frequencies: int  # sines and cosines of each bound in the input
    v_spread: float = 0.0  # standard deviation of the noise on the logit of v
    vector_spread: float = 0.0  # standard deviation of the noise on the outputs that give action vectors


def vector_components(actions: Actions) -> np.ndarray:
    """Return how outputs become action vectors, [k] `VECTOR_COMPONENT`; k = 0 where base actions are numbers.

    An output of -1 is a component's lower bound, 1 its upper one. A component without bounds counts from 0 in ones.
    Whole numbers have half of one more on either side.
    """
    if actions.discrete:
        return np.zeros(0, VECTOR_COMPONENT)
    assert actions.low is not None
    assert actions.high is not None
    low, high, is_integer = actions.low, actions.high, np.full(actions.size, actions.kind == "multi")
    bounded = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        centre = np.where(bounded, 0.5 * (low + high), np.clip(0.0, low, high))
        half_width = np.where(bounded & (high > low), 0.5 * (high - low + is_integer), 1.0)
    return np.rec.fromarrays([low, high, centre, half_width, is_integer], dtype=VECTOR_COMPONENT).view(np.ndarray)


def vector_action(outputs: Any, components: np.ndarray) -> Any:
    """Return action vectors [..., k] in the environment's units from outputs [..., k]."""
    action = components["centre"] + components["half_width"] * outputs
    action = np.minimum(np.maximum(action, components["low"]), components["high"])
    return np.where(components["is_integer"], np.rint(action), action)


def clipped_sigmoid(logit: Any) -> Any:
    """Return v in (0, 1) from its logit."""
    return 1.0 / (1.0 + np.exp(-np.clip(logit, -MAX_V_LOGIT, MAX_V_LOGIT)))


class ExtractablePolicy:
    """The policy as `extract` calls it: greedy, or sampled anew at every node if there is a generator.

    With `samples_actions=False` actions stay greedy, and only v and action vectors are sampled.
    """

    def __init__(
        self,
        policy: PolicyNetwork,
        rules: Rules,
        rng: np.random.Generator | None = None,
        samples_actions: bool = True,
    ) -> None:
        self.policy, self.rules, self.rng = policy, rules, rng
        self.samples_actions, self.components = samples_actions, vector_components(rules.actions)

    def __call__(self, bounds: np.ndarray, mask: np.ndarray) -> Any:
        """Return an afforded action for each of many bounds; in the parameterised form with v and action vectors."""
        policy, rng = self.policy, self.rng
        outputs = forward(policy.weights, encode(bounds, policy.frequencies), np.tanh)
        n_actions, k = mask.shape[1], len(self.components)
        logits = outputs[:, :n_actions]
        if rng is not None and self.samples_actions:
            logits = logits + rng.gumbel(size=logits.shape)  # the largest is then a sample from the softmax
        choice = np.argmax(np.where(mask, logits, -np.inf), axis=1)
        if not self.rules.parameterised:
            return choice
        feature = np.maximum(choice - self.rules.n_base, 0)
        v_logit = outputs[np.arange(len(outputs)), n_actions + feature].astype(np.float64)
        if rng is not None:
            v_logit += policy.v_spread * rng.standard_normal(v_logit.shape)
        answer = {"choice": choice, "v": clipped_sigmoid(v_logit)}
        if k:
            vector_outputs = outputs[:, -k:].astype(np.float64)
            if rng is not None:
                vector_outputs += policy.vector_spread * rng.standard_normal(vector_outputs.shape)
            answer["base"] = vector_action(vector_outputs, self.components)
        return answer


def perturb_tree(tree: Tree, rules: Rules, rng: np.random.Generator, v_spread: float, vector_spread: float) -> Tree:
    """Return a sample of the stochastic policy whose greedy tree is `tree`, with its features and discrete actions.

    The v of about half of the splits get normal noise of deviation `v_spread` on their logits, and thresholds lie
    between the bounds that the moved splits above leave; half of the components of action vectors get noise of
    `vector_spread` before they are scaled.
    """
    n, count = tree.features.n, tree.n_nodes
    v_noise = v_spread * rng.standard_normal(count) * (rng.random(count) < 0.5)
    bounds, moved_bounds = np.zeros((count, 2, n)), np.zeros((count, 2, n))
    bounds[0], moved_bounds[0] = np.stack(rules.root()), np.stack(rules.root())
    threshold = tree.threshold.copy()
    for node in np.flatnonzero(tree.feature != LEAF):
        c, (lower, upper) = tree.feature[node], bounds[node, :, tree.feature[node]]
        v = np.clip((tree.threshold[node] - lower) / (upper - lower), MIN_V_MARGIN, 1.0 - MIN_V_MARGIN)
        moved_v = clipped_sigmoid(np.log(v / (1.0 - v)) + v_noise[node])
        threshold[node] = project(moved_bounds[node, 0, c], moved_bounds[node, 1, c], moved_v)
        for child, side in ((tree.children_left[node], 1), (tree.children_right[node], 0)):
            bounds[child], moved_bounds[child] = bounds[node], moved_bounds[node]
            bounds[child, side, c], moved_bounds[child, side, c] = tree.threshold[node], threshold[node]
    value = tree.value
    if not rules.actions.discrete:
        components = vector_components(rules.actions)
        noise = vector_spread * rng.standard_normal(tree.value.shape) * (rng.random(tree.value.shape) < 0.5)
        outputs = (tree.value - components["centre"]) / components["half_width"]
        value = vector_action(outputs + noise, components)
    return replace(tree, threshold=threshold, value=value)
