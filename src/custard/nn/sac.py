"""Soft actor-critic (Haarnoja et al. 2018) for any actor that gives a mean and a deviation, in JAX.

Actions lie in [-1, 1]. The actor's normal distribution is not squashed: a sample is clipped, and its gradient passes
through the clip. So the action without noise is clip(mean), which a linear leaf computes exactly. Means beyond the
range, where they have no effect, are penalised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from custard.nn.networks import Weights, forward, make_network

__all__ = ["Learned", "Rows", "SACConfig", "clip_straight_through", "compile_updates", "make_learned", "target_entropy"]

OUT_OF_RANGE_PENALTY = 1.0  # times the squared distance of means from [-1, 1]
STANDARD_NORMAL_ENTROPY = 0.5 * np.log(2.0 * np.pi * np.e)


class SACConfig(NamedTuple):
    """Numbers of the update."""

    gamma: float
    tau: float  # how far targets move per update
    learning_rate: float
    entropy: float  # what the temperature aims at


class Learned(NamedTuple):
    """All that changes."""

    actor: Any
    critics: tuple[Weights, Weights]
    targets: tuple[Weights, Weights]
    log_temperature: Any  # []
    moments: Any  # of Adam


class Rows(NamedTuple):
    """Minibatches of transitions with the noise of their updates, [updates, batch, ...]."""

    z: Any  # features before
    action: Any  # [., k] in [-1, 1]
    reward: Any
    after: Any  # features after
    ended: Any  # 1 where nothing follows
    noise: Any  # [., 2, k] standard normal: for the action after, and for the action now


Policy = Callable[[Any, Any], tuple[Any, Any]]  # actor and features [B, n] -> mean and log deviation [B, k]


def target_entropy(size: int, deviation: float) -> float:
    """Return the entropy of a normal distribution of `size` components with the same deviation each.

    >>> round(target_entropy(2, 1.0), 3)
    2.838
    """
    return float(size * (STANDARD_NORMAL_ENTROPY + np.log(deviation)))


def clip_straight_through(u: Any) -> Any:
    """Return clip(u, -1, 1) with the gradient of u."""
    return u + jax.lax.stop_gradient(jnp.clip(u, -1.0, 1.0) - u)


def make_learned(rng: np.random.Generator, actor: Any, n: int, k: int, hidden: int, rate: float) -> Learned:
    """Return critics of two hidden layers for n features and k action components beside an actor."""
    critics = tuple(make_network(rng, (n + k, hidden, hidden, 1)) for _ in range(2))
    log_temperature = np.zeros((), dtype=np.float32)
    moments = tuple(optax.adam(rate).init(part) for part in (actor, critics, log_temperature))
    return Learned(actor, critics, critics, log_temperature, moments)  # type: ignore[arg-type]


def compile_updates(policy: Policy, config: SACConfig) -> Callable[[Learned, Rows], Learned]:
    """Return a compiled function that takes one update per minibatch."""
    adam = optax.adam(config.learning_rate)

    def min_q(critics: Any, z: Any, action: Any) -> Any:
        inputs = jnp.concatenate([z, action], axis=1)
        return jnp.minimum(*(forward(critic, inputs, jax.nn.relu)[:, 0] for critic in critics))

    def sample_actions(actor: Any, z: Any, noise: Any) -> tuple[Any, Any, Any]:
        """Return sampled actions, the logarithm of their density, and their means."""
        mean, log_deviation = policy(actor, z)
        density = -(0.5 * noise**2 + log_deviation + 0.5 * jnp.log(2.0 * jnp.pi)).sum(axis=1)
        return clip_straight_through(mean + jnp.exp(log_deviation) * noise), density, mean

    def update(learned: Learned, rows: Rows) -> tuple[Learned, None]:
        temperature = jnp.exp(learned.log_temperature)
        next_action, next_density, _ = sample_actions(learned.actor, rows.after, rows.noise[:, 0])
        future = min_q(learned.targets, rows.after, next_action) - temperature * next_density
        goal = jax.lax.stop_gradient(rows.reward + config.gamma * (1.0 - rows.ended) * future)

        def critic_loss(critics: Any) -> Any:
            inputs = jnp.concatenate([rows.z, rows.action], axis=1)
            errors = [((forward(critic, inputs, jax.nn.relu)[:, 0] - goal) ** 2).mean() for critic in critics]
            return errors[0] + errors[1]

        def actor_loss(actor: Any) -> tuple[Any, Any]:
            action, density, mean = sample_actions(actor, rows.z, rows.noise[:, 1])
            beyond = (jnp.maximum(jnp.abs(mean) - 1.0, 0.0) ** 2).sum(axis=1)
            worth = min_q(learned.critics, rows.z, action)
            return (temperature * density - worth + OUT_OF_RANGE_PENALTY * beyond).mean(), density.mean()

        actor_gradient, density = jax.grad(actor_loss, has_aux=True)(learned.actor)
        gradients = actor_gradient, jax.grad(critic_loss)(learned.critics), -(density + config.entropy)
        parts, moved, moments = (learned.actor, learned.critics, learned.log_temperature), [], []
        for part, gradient, moment in zip(parts, gradients, learned.moments, strict=True):
            change, moment = adam.update(gradient, moment)
            moved.append(optax.apply_updates(part, change))
            moments.append(moment)
        targets = jax.tree.map(lambda t, w: t + config.tau * (w - t), learned.targets, moved[1])
        return Learned(moved[0], moved[1], targets, moved[2], tuple(moments)), None

    return jax.jit(lambda learned, rows: jax.lax.scan(update, learned, rows)[0])
