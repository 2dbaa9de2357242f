"""CUSTARD (PPO)'s equations: the merged agent's targets, what questions are worth, and the step of critic and actor.

One compiled JAX call (`improve`) moves the critic to its targets and the actor by PPO's clipped ratio, for all actions
of a node at once. `custard.solvers.ppo.ppo` is the run around it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from custard.nn.descent import descend
from custard.nn.networks import Weights, dueling, encode, forward
from custard.solvers.ppo.acting_data import SQUASH, Rows

if TYPE_CHECKING:
    from custard.solvers.ppo.ppo import Settings

__all__ = ["ADAM", "Networks", "Now", "clipped", "improve", "price", "q_values", "questions", "targets"]


class Networks(NamedTuple):
    """All that is learned."""

    actor: Weights
    critic: Weights
    actor_moments: Any  # Adam's
    critic_moments: Any
    scale: Any  # [3]: mean and deviation of the critic's targets, by which its outputs are scaled; rate of change


class Now(NamedTuple):
    """What changes from iteration to iteration."""

    rate: Any  # learning rate
    actor_rate: Any
    floor: Any  # logarithm of the least probability that is still pushed down
    uniform: Any
    spread: Any
    action_spread: Any


ADAM = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())


def price(asked: Any, zeta: float, gamma_w: float) -> Any:
    """The discounted reward of so many questions: zeta + gamma_w zeta + ..."""
    return zeta * asked if gamma_w == 1.0 else zeta * (1.0 - gamma_w**asked) / (1.0 - gamma_w)


def q_values(critic: Weights, scale: Any, x: Any, u: Any, frequencies: int) -> Any:
    """Q_o(s_b, .) for base states [..., n] and, if actions are vectors, for these [..., k]: [..., n_base]."""
    inputs = jnp.concatenate([encode(x, frequencies, jnp), u], axis=-1)
    return scale[0] + scale[1] * dueling(forward(critic, inputs, jnp.tanh))


def targets(rows: Any, after: Any, zeta: float, gamma_b: float, gamma_w: float, trace: float) -> Any:
    """The merged agent's targets of all base actions, [environments, steps].

    A base action's target is r + gamma_b times what the policy gets from the next base state on: the price of its
    questions there, then Q_o of the base action it takes (`after`, the values at the next base states), in part
    replaced by that action's own target where it was the one taken (lambda-returns). Nothing follows termination;
    a truncated episode's last state keeps its value.
    """
    leaf = jnp.take_along_axis(after, rows.meant[..., None], -1)[..., 0]
    asked = rows.meant_asked.astype(jnp.float32)
    cost, shrink = price(asked, zeta, gamma_w), gamma_w**asked

    def backward(carry: Any, row: Any) -> Any:
        later, follows = carry
        acts, reward, q, cost, shrink, terminated, over, own = row
        share = jnp.where(over, 0.0, trace * follows)
        future = cost + shrink * ((1.0 - share) * q + share * later)
        target = reward + gamma_b * jnp.where(terminated, 0.0, future)
        return (jnp.where(acts, target, later), jnp.where(acts, own, follows)), target

    columns = (rows.acts, rows.reward, leaf, cost, shrink, rows.terminated, rows.over, rows.follows * 1.0)
    start = jnp.zeros(rows.acts.shape[0]), jnp.zeros(rows.acts.shape[0])
    return jax.lax.scan(backward, start, tuple(c.T for c in columns), reverse=True)[1].T


def questions(q: Any, leaf: Any, asked: Any, zeta: float, gamma_w: float) -> Any:
    """What questions are worth, [R, k]: their own price and that of those after them, then Q_o at the leaf reached."""
    asked = asked.astype(jnp.float32) + 1.0
    return price(asked, zeta, gamma_w) + gamma_w**asked * jnp.take_along_axis(q, leaf, -1)


def clipped(ratio: Any, advantage: Any, clip: float) -> Any:
    """PPO's surrogate: min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


@partial(jax.jit, static_argnums=(4, 5, 6))
def improve(
    nets: Networks, rows: Rows, order: Any, now: Now, s: Settings, prices: tuple, parameterised: bool
) -> tuple[Networks, Any]:
    """One iteration's learning. `order` [2, epochs * minibatches, rows of one] says which rows each minibatch has."""
    zeta, gamma_b, gamma_w = prices
    actor, critic, actor_moments, critic_moments, scale = nets
    count = rows.acts.size
    flat = jax.tree.map(lambda a: a.reshape(count, *a.shape[2:]), rows)
    acts = flat.acts.astype(jnp.float32)

    # Critic: targets, kept at mean 0 and deviation 1 by moving the last layer along (PopArt), then regression.
    after = q_values(critic, scale, rows.after, rows.meant_u, s.critic_frequencies)
    target = targets(rows, after, zeta, gamma_b, gamma_w, s.trace).reshape(count)
    mean = (acts * target).sum() / acts.sum()
    deviation = jnp.sqrt((acts * (target - mean) ** 2).sum() / acts.sum())
    share = jnp.maximum(0.05, scale[2])
    new = jnp.stack([
        scale[0] + share * (mean - scale[0]), jnp.maximum(scale[1] + share * (deviation - scale[1]), 1e-2),
        0.7 * scale[2],
    ])  # fmt: skip
    last = (critic[-1] * scale[1] / new[1]).at[-1, 0].add((scale[0] - new[0]) / new[1])
    critic, scale = (*critic[:-1], last), new
    taken = jax.nn.one_hot(flat.action, critic[-1].shape[1] - 1) * acts[:, None]
    wanted = taken * ((target - scale[0]) / scale[1])[:, None]
    inputs = jnp.concatenate([encode(flat.x, s.critic_frequencies, jnp), flat.u], axis=-1)

    def critic_loss(critic: Weights, index: Any) -> Any:
        q = dueling(forward(critic, inputs[index], jnp.tanh))
        chosen = taken[index]
        return ((chosen * q - wanted[index]) ** 2).sum() / jnp.maximum(chosen.sum(), 1.0)

    critic, critic_moments, critic_losses = descend(ADAM, critic_loss, critic, critic_moments, order[0], now.rate)

    # Advantages of all actions, from the critic just learned.
    mask, learns = flat.mask, flat.learns.astype(jnp.float32)
    bounds = encode(flat.obs, s.frequencies, jnp)
    n_actions, n_vector, n = mask.shape[1], flat.u.shape[1], flat.x.shape[1]
    if n_vector:  # one base action: the greedy vector, then a varied one, those behind questions and varied questions
        at = jnp.broadcast_to(flat.x[:, None], (count, 2 + 2 * n, n))
        reached = q_values(critic, scale, at, flat.vectors, s.critic_frequencies)[..., 0]
        q, leaf = reached[:, :1], jnp.broadcast_to(2 + jnp.arange(n), (count, n))
        varied_leaf = leaf + n
    else:
        q = reached = q_values(critic, scale, flat.x, flat.u, s.critic_frequencies)
        leaf, varied_leaf = flat.leaf[:, q.shape[1] :], flat.varied_leaf
    n_base = q.shape[1]
    asking = questions(reached, leaf, flat.asked[:, n_base:], zeta, gamma_w)
    value = jnp.where(mask, jnp.concatenate([q, asking], axis=1), 0.0)

    def policy(actor: Weights, bounds: Any, mask: Any) -> Any:
        z = forward(actor, bounds, jnp.tanh)
        return jax.nn.log_softmax(jnp.where(mask, z[:, :n_actions], -1e9)), z[:, n_actions:]

    def density_ratio(noise: Any, moved: Any) -> Any:
        return jnp.exp(jnp.clip(0.5 * (noise**2 - moved**2), -5.0, 5.0))

    old, old_middle = policy(actor, bounds, mask)
    pi = jnp.where(mask, jnp.exp(old), 0.0)
    advantage = jnp.where(mask, value - (pi * value).sum(axis=1, keepdims=True), 0.0)
    rows_learned = jnp.maximum(learns.sum(), 1.0)
    size = jnp.sqrt((learns[:, None] * pi * advantage**2).sum() / rows_learned) + 1e-8
    advantage = advantage / size
    weight = now.uniform * mask / jnp.maximum(mask.sum(axis=1, keepdims=True), 1) + (1.0 - now.uniform) * pi
    if parameterised:
        varied = questions(reached, varied_leaf, flat.varied_asked, zeta, gamma_w)
        better = jnp.where(mask[:, -n:], (varied - value[:, -n:]) / size, 0.0)

    # Actor: PPO's clipped surrogate, for all actions of a node.
    def actor_loss(actor: Weights, index: Any) -> Any:
        m, a, w = mask[index], advantage[index], weight[index]
        new, middle = policy(actor, bounds[index], m)
        ratio = jnp.exp(jnp.where(m, new - old[index], 0.0))
        low_already = (a < 0.0) & (new < now.floor)
        gain = (w * jnp.where(m & ~low_already, clipped(ratio, a, s.clip), 0.0)).sum(axis=1)
        if parameterised:
            noise = flat.noise[index]
            moved = noise + (old_middle[index, :n] - middle[:, :n]) / now.spread
            gain += (w[:, -n:] * clipped(density_ratio(noise, moved), better[index], s.clip)).sum(axis=1)
            gain -= 0.01 * (jnp.maximum(jnp.abs(middle[:, :n]) - SQUASH, 0.0) ** 2).sum(axis=1)
        if n_vector:
            noise = flat.vector_noise[index]
            moved = noise + (old_middle[index, n:] - middle[:, n:]) / now.action_spread
            ratio = density_ratio(noise, moved).prod(axis=1)
            gain += w[:, 0] * clipped(ratio, (reached[index, 1] - reached[index, 0]) / size, s.clip)
            gain -= 0.01 * (jnp.maximum(jnp.abs(middle[:, n:]) - 1.0, 0.0) ** 2).sum(axis=1)
        return -(learns[index] * gain).sum() / jnp.maximum(learns[index].sum(), 1.0)

    actor, actor_moments, actor_losses = descend(ADAM, actor_loss, actor, actor_moments, order[1], now.actor_rate)
    entropy = -(learns[:, None] * jnp.where(mask, pi * old, 0.0)).sum() / rows_learned
    report = jnp.stack([critic_losses.mean(), actor_losses.mean(), entropy, size])
    return Networks(actor, critic, actor_moments, critic_moments, scale), report
