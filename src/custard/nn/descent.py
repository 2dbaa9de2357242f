"""Adam over minibatches, inside one compiled JAX call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

__all__ = ["descend"]


def descend(
    adam: Any, loss: Callable[..., Any], weights: Any, moments: Any, order: Any, rate: Any
) -> tuple[Any, Any, Any]:
    """Follow the gradient of `loss(weights, rows)` over all minibatches `order` [minibatches, rows of one].

    `adam` is an optax transformation without a learning rate. Weights, moments, and the loss of each minibatch.
    """

    def step(carry: Any, index: Any) -> Any:
        weights, moments = carry
        value, gradient = jax.value_and_grad(loss)(weights, index)
        change, moments = adam.update(gradient, moments)
        return (jax.tree.map(lambda w, d: w - rate * d, weights, change), moments), value

    (weights, moments), losses = jax.lax.scan(step, (weights, moments), order)
    return weights, moments, losses
