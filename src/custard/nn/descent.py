"""Adam over minibatches, inside one compiled JAX call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

__all__ = ["descend"]


def descend(
    adam: Any, loss: Callable[..., Any], weights: Any, moments: Any, order: Any, rate: Any
) -> tuple[Any, Any, Any]:
    """Take one gradient step per minibatch; return weights, moments and the loss of each minibatch.

    adam: an optax transformation without a learning rate
    loss: of the weights and the numbers of a minibatch's rows
    weights: a pytree of arrays
    moments: the state of `adam`
    order: [minibatches, batch] numbers of rows
    rate: the learning rate
    """

    def step(carry: Any, index: Any) -> Any:
        weights, moments = carry
        value, gradient = jax.value_and_grad(loss)(weights, index)
        change, moments = adam.update(gradient, moments)
        return (jax.tree.map(lambda w, d: w - rate * d, weights, change), moments), value

    (weights, moments), losses = jax.lax.scan(step, (weights, moments), order)
    return weights, moments, losses
