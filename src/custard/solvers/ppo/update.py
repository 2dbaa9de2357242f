"""CUSTARD (PPO)'s equations: targets of base actions, values of splits, and the steps of critic and actor.

One compiled JAX call (`improve`) moves the critic to its targets and the actor by PPO's clipped ratio, for all actions
of a node at once. `custard.solvers.ppo.ppo` is the run around it.

Arguments: `nets` are `Networks`, `rows` are `Rows`, `schedule` is a `Schedule` and `config` an `UpdateConfig`; `zeta`,
`gamma_b`, `gamma_w`, `trace` and `clip` are settings. R rows are those of all environments together.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from custard.nn.descent import descend
from custard.nn.networks import Weights, dueling, encode, forward
from custard.solvers.ppo.policy import MAX_V_LOGIT

if TYPE_CHECKING:
    from custard.solvers.ppo.traversal import TraversalRules

__all__ = [
    "ADAM", "Networks", "Rows", "Schedule", "UpdateConfig", "clipped_surrogate", "critic_targets", "improve",
    "make_rows", "minibatch_order", "q_values", "split_cost", "split_values",
]  # fmt: skip

ADAM = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
MIN_TARGET_SCALE_RATE, TARGET_SCALE_RATE_DECAY = 0.05, 0.7  # of the running mean and deviation of the critic's targets
MIN_TARGET_DEVIATION = 1e-2
MASKED_LOGIT = -1e9
MAX_LOG_DENSITY_RATIO = 5.0
OUT_OF_RANGE_PENALTY = 0.01  # times the squared distance of continuous outputs from where they have an effect


class Networks(NamedTuple):
    """All that is learned."""

    actor: Weights
    critic: Weights
    actor_moments: Any  # Adam's
    critic_moments: Any
    target_scale: Any  # [3]: running mean and deviation of the critic's targets, and their rate of change


class Schedule(NamedTuple):
    """The settings that change from iteration to iteration, at one of them."""

    critic_rate: Any  # learning rates
    actor_rate: Any
    log_floor: Any  # logarithm of the least probability that is still pushed down
    uniform_weight: Any
    v_spread: Any
    vector_spread: Any


class UpdateConfig(NamedTuple):
    """What the compiled call depends on and no iteration changes."""

    zeta: float
    gamma_b: float
    gamma_w: float
    trace: float
    clip: float
    frequencies: int
    critic_frequencies: int
    parameterised: bool


class Rows(NamedTuple):
    """What an iteration learns from, [environments, rows, ...]: a row is a node visited, a base action, or both."""

    normalised_bounds: np.ndarray  # [2n] float32: the node
    mask: np.ndarray  # [n_actions]
    leaf_action: np.ndarray  # [n_actions]: the base action at the leaf behind each split
    leaf_splits: np.ndarray  # [n_actions]: how many splits lie between
    v_noise: np.ndarray  # [n]: noise on the logit of v, in standard deviations (parameterised form; else empty)
    noisy_leaf_action: np.ndarray  # [n]: `leaf_action` behind the splits with this noise
    noisy_leaf_splits: np.ndarray  # [n]
    base_state: np.ndarray  # [n] float32: scaled
    trains_actor: np.ndarray  # whether the row is a node
    has_action: np.ndarray  # whether a base action was taken; the following fields describe it
    action: np.ndarray
    reward: np.ndarray
    next_base_state: np.ndarray  # [n] float32: scaled
    next_action: np.ndarray  # the policy's base action at the next base state
    next_splits: np.ndarray  # after so many splits
    terminated: np.ndarray
    done: np.ndarray  # terminated or truncated
    on_policy: np.ndarray  # whether the action was the policy's own
    leaf_vectors: np.ndarray  # [2 + 2n, k]: scaled vectors; the greedy one here, a noisy one, those behind each split
    vector_noise: np.ndarray  # [k]          and each noisy split; noise on the noisy one, in standard deviations
    vector: np.ndarray  # [k]: the action vector taken, scaled
    next_vector: np.ndarray  # [k]: the policy's action vector at the next base state, scaled


def make_rows(rules: TraversalRules, envs: int, rows_per_env: int) -> Rows:
    """Return empty rows."""
    n, n_actions, k = len(rules.features), len(rules.root_mask), len(rules.vector_components)
    n_noisy = n if rules.parameterised else 0

    def zeros(dtype: Any, *shape: int) -> np.ndarray:
        return np.zeros((envs, rows_per_env, *shape), dtype=dtype)

    f, i, b = np.float32, np.int32, np.bool_
    return Rows(
        normalised_bounds=zeros(f, 2 * n), mask=zeros(b, n_actions),
        leaf_action=zeros(i, n_actions), leaf_splits=zeros(i, n_actions),
        v_noise=zeros(f, n_noisy), noisy_leaf_action=zeros(i, n_noisy), noisy_leaf_splits=zeros(i, n_noisy),
        base_state=zeros(f, n), trains_actor=zeros(b), has_action=zeros(b), action=zeros(i), reward=zeros(f),
        next_base_state=zeros(f, n), next_action=zeros(i), next_splits=zeros(i),
        terminated=zeros(b), done=zeros(b), on_policy=zeros(b),
        leaf_vectors=zeros(f, 2 + 2 * n, k), vector_noise=zeros(f, k), vector=zeros(f, k), next_vector=zeros(f, k),
    )  # fmt: skip


# -- equations --------------------------------------------------------------------------------------------------------


def split_cost(n_splits: Any, zeta: float, gamma_w: float) -> Any:
    """Return the discounted reward of consecutive splits: zeta + gamma_w zeta + ..."""
    return zeta * n_splits if gamma_w == 1.0 else zeta * (1.0 - gamma_w**n_splits) / (1.0 - gamma_w)


def q_values(critic: Weights, target_scale: Any, base_state: Any, vector: Any, frequencies: int) -> Any:
    """Return Q_o(s_b, .) [..., n_base] for base states [..., n], with vectors [..., k] where actions are vectors.

    `critic` are the weights, `target_scale` the mean and deviation of its targets, `frequencies` of its encoding.
    """
    inputs = jnp.concatenate([encode(base_state, frequencies, jnp), vector], axis=-1)
    return target_scale[0] + target_scale[1] * dueling(forward(critic, inputs, jnp.tanh))


def critic_targets(rows: Any, next_q: Any, zeta: float, gamma_b: float, gamma_w: float, trace: float) -> Any:
    """Return the merged agent's targets of all base actions, [environments, rows].

    A base action's target is r + gamma_b times what the policy gets from the next base state on: the cost of its
    splits there, then Q_o of the base action it takes (`next_q` [environments, rows, n_base]), in part replaced by
    that action's own target where it was the one taken (lambda-returns). Nothing follows termination; a truncated
    episode's last state keeps its value.
    """
    next_leaf_q = jnp.take_along_axis(next_q, rows.next_action[..., None], -1)[..., 0]
    n_splits = rows.next_splits.astype(jnp.float32)
    cost, discount = split_cost(n_splits, zeta, gamma_w), gamma_w**n_splits

    def backward(carry: Any, row: Any) -> Any:
        later_target, later_on_policy = carry
        has_action, reward, leaf_q, cost, discount, terminated, done, on_policy = row
        share = jnp.where(done, 0.0, trace * later_on_policy)
        future = cost + discount * ((1.0 - share) * leaf_q + share * later_target)
        target = reward + gamma_b * jnp.where(terminated, 0.0, future)
        kept = jnp.where(has_action, target, later_target), jnp.where(has_action, on_policy, later_on_policy)
        return kept, target

    on_policy = rows.on_policy * 1.0
    columns = (rows.has_action, rows.reward, next_leaf_q, cost, discount, rows.terminated, rows.done, on_policy)
    start = jnp.zeros(rows.has_action.shape[0]), jnp.zeros(rows.has_action.shape[0])
    return jax.lax.scan(backward, start, tuple(c.T for c in columns), reverse=True)[1].T


def split_values(q: Any, leaf: Any, leaf_splits: Any, zeta: float, gamma_w: float) -> Any:
    """Return the values of splits [R, splits]: their cost and that of the splits behind them, then Q_o at the leaf.

    `q` [R, .] are values at leaves, `leaf` [R, splits] says which of them belongs to each split, `leaf_splits`
    [R, splits] how many splits lie behind it.
    """
    n_splits = leaf_splits.astype(jnp.float32) + 1.0
    return split_cost(n_splits, zeta, gamma_w) + gamma_w**n_splits * jnp.take_along_axis(q, leaf, -1)


def clipped_surrogate(ratio: Any, advantage: Any, clip: float) -> Any:
    """Return PPO's surrogate: min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def density_ratio(noise: Any, moved_noise: Any) -> Any:
    """Return the ratio of normal densities of a sample: `moved_noise` and `noise` are its distances from the means."""
    log_ratio = 0.5 * (noise**2 - moved_noise**2)
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_DENSITY_RATIO, MAX_LOG_DENSITY_RATIO))


def out_of_range(outputs: Any, limit: float) -> Any:
    """Return the penalty [R] of continuous outputs [R, .] beyond +-limit, where they have no effect."""
    return OUT_OF_RANGE_PENALTY * (jnp.maximum(jnp.abs(outputs) - limit, 0.0) ** 2).sum(axis=1)


def log_policy(actor: Weights, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return log pi(. | o) [R, n_actions], and the continuous outputs that follow the logits."""
    outputs = forward(actor, inputs, jnp.tanh)
    n_actions = mask.shape[1]
    return jax.nn.log_softmax(jnp.where(mask, outputs[:, :n_actions], MASKED_LOGIT)), outputs[:, n_actions:]


# -- one iteration ----------------------------------------------------------------------------------------------------


def minibatch_order(rng: np.random.Generator, n_rows: int, epochs: int, minibatches: int) -> np.ndarray:
    """Return which rows each minibatch has, [epochs * minibatches, rows of one]: another permutation every epoch."""
    size = n_rows // minibatches
    order = np.stack([rng.permutation(n_rows)[: size * minibatches] for _ in range(epochs)])
    return order.reshape(epochs * minibatches, size).astype(np.int32)


@partial(jax.jit, static_argnums=(4,))
def improve(nets: Networks, rows: Rows, order: Any, schedule: Schedule, config: UpdateConfig) -> tuple[Networks, Any]:
    """Learn from one iteration's rows; return the networks, and losses, entropy and size of advantages [4].

    `order` [2, epochs * minibatches, rows of one] lists the rows of each minibatch, for the critic and for the actor.
    """
    count = rows.has_action.size
    flat = jax.tree.map(lambda a: a.reshape(count, *a.shape[2:]), rows)
    nets, critic_loss = critic_step(nets, rows, flat, order[0], schedule, config)
    inputs = encode(flat.normalised_bounds, config.frequencies, jnp)
    advantages = node_advantages(nets, flat, inputs, config)
    nets, actor_loss = actor_step(nets, flat, inputs, advantages, order[1], schedule, config)
    return nets, jnp.stack([critic_loss, actor_loss, advantages.entropy, advantages.size])


def rescale_critic(critic: Weights, target_scale: Any, target: Any, weight: Any) -> tuple[Weights, Any]:
    """Follow the targets' mean and deviation, and move the last layer so that Q_o stays the same (PopArt).

    `target` [R] are the targets, `weight` [R] is 1 where there is one, otherwise 0.
    """
    mean = (weight * target).sum() / weight.sum()
    deviation = jnp.sqrt((weight * (target - mean) ** 2).sum() / weight.sum())
    old_mean, old_deviation, old_rate = target_scale[0], target_scale[1], target_scale[2]
    rate = jnp.maximum(MIN_TARGET_SCALE_RATE, old_rate)
    new_scale = jnp.stack([
        old_mean + rate * (mean - old_mean),
        jnp.maximum(old_deviation + rate * (deviation - old_deviation), MIN_TARGET_DEVIATION),
        TARGET_SCALE_RATE_DECAY * old_rate,
    ])  # fmt: skip
    last = critic[-1] * old_deviation / new_scale[1]
    last = last.at[-1, 0].add((old_mean - new_scale[0]) / new_scale[1])
    return (*critic[:-1], last), new_scale


def critic_step(
    nets: Networks, rows: Rows, flat: Rows, order: Any, schedule: Schedule, config: UpdateConfig
) -> tuple[Networks, Any]:
    """Move Q_o of base actions to the merged agent's targets; return the networks and the mean loss.

    `rows` are [environments, rows, ...] as targets need them, `flat` the same rows [R, ...], `order` [minibatches,
    rows of one].
    """
    critic, target_scale = nets.critic, nets.target_scale
    has_action = flat.has_action.astype(jnp.float32)
    next_q = q_values(critic, target_scale, rows.next_base_state, rows.next_vector, config.critic_frequencies)
    target = critic_targets(rows, next_q, config.zeta, config.gamma_b, config.gamma_w, config.trace)
    target = target.reshape(has_action.size)
    critic, target_scale = rescale_critic(critic, target_scale, target, has_action)
    taken = jax.nn.one_hot(flat.action, critic[-1].shape[1] - 1) * has_action[:, None]
    wanted = taken * ((target - target_scale[0]) / target_scale[1])[:, None]
    inputs = jnp.concatenate([encode(flat.base_state, config.critic_frequencies, jnp), flat.vector], axis=-1)

    def loss(critic: Weights, index: Any) -> Any:
        q = dueling(forward(critic, inputs[index], jnp.tanh))
        chosen = taken[index]
        return ((chosen * q - wanted[index]) ** 2).sum() / jnp.maximum(chosen.sum(), 1.0)

    critic, moments, losses = descend(ADAM, loss, critic, nets.critic_moments, order, schedule.critic_rate)
    return nets._replace(critic=critic, critic_moments=moments, target_scale=target_scale), losses.mean()


class Advantages(NamedTuple):
    """What the actor's step needs to know of each node; advantages are divided by `size`."""

    log_pi: Any  # [R, n_actions]: the policy before the step
    pi: Any  # [R, n_actions]: 0 where masked
    continuous: Any  # [R, .]: the policy's continuous outputs before the step: logits of v, vectors
    action: Any  # [R, n_actions]: of each action over the policy's mean
    noisy_split: Any  # [R, n]: of each noisy split over the one at the greedy v; None in the discrete form
    noisy_vector: Any  # [R]: of the noisy action vector over the greedy one; None where actions are numbers
    size: Any  # their root mean square under the policy
    entropy: Any  # the policy's, mean over nodes


def node_advantages(nets: Networks, flat: Rows, inputs: Any, config: UpdateConfig) -> Advantages:
    """Return the advantages of all actions at each node, on its own base state.

    A base action is worth Q_o, a split the cost of it and the splits behind it and Q_o at its leaf.
    """
    mask, is_node = flat.mask, flat.trains_actor.astype(jnp.float32)
    count, n = flat.base_state.shape
    leaf: Any
    noisy_leaf: Any
    if flat.vector.shape[1]:  # one base action; leaf_vectors: greedy, noisy, behind splits, behind noisy splits
        base_state = jnp.broadcast_to(flat.base_state[:, None], (count, 2 + 2 * n, n))
        leaf_q = q_values(nets.critic, nets.target_scale, base_state, flat.leaf_vectors, config.critic_frequencies)
        leaf_q = leaf_q[..., 0]
        q, leaf = leaf_q[:, :1], jnp.broadcast_to(2 + jnp.arange(n), (count, n))
        noisy_leaf = leaf + n
    else:
        q = q_values(nets.critic, nets.target_scale, flat.base_state, flat.vector, config.critic_frequencies)
        leaf_q, leaf, noisy_leaf = q, flat.leaf_action[:, q.shape[1] :], flat.noisy_leaf_action
    n_base = q.shape[1]
    split_q = split_values(leaf_q, leaf, flat.leaf_splits[:, n_base:], config.zeta, config.gamma_w)
    value = jnp.where(mask, jnp.concatenate([q, split_q], axis=1), 0.0)

    log_pi, continuous = log_policy(nets.actor, inputs, mask)
    pi = jnp.where(mask, jnp.exp(log_pi), 0.0)
    advantage = jnp.where(mask, value - (pi * value).sum(axis=1, keepdims=True), 0.0)
    n_nodes = jnp.maximum(is_node.sum(), 1.0)
    size = jnp.sqrt((is_node[:, None] * pi * advantage**2).sum() / n_nodes) + 1e-8
    noisy_split: Any = None
    noisy_vector: Any = None
    if config.parameterised:
        noisy_q = split_values(leaf_q, noisy_leaf, flat.noisy_leaf_splits, config.zeta, config.gamma_w)
        noisy_split = jnp.where(mask[:, -n:], (noisy_q - value[:, -n:]) / size, 0.0)
    if flat.vector.shape[1]:
        noisy_vector = (leaf_q[:, 1] - leaf_q[:, 0]) / size
    entropy = -(is_node[:, None] * jnp.where(mask, pi * log_pi, 0.0)).sum() / n_nodes
    return Advantages(log_pi, pi, continuous, advantage / size, noisy_split, noisy_vector, size, entropy)


def actor_step(
    nets: Networks, flat: Rows, inputs: Any, old: Advantages, order: Any, schedule: Schedule, config: UpdateConfig
) -> tuple[Networks, Any]:
    """Move the actor by PPO's clipped surrogate, summed over all actions of a node; return it and the mean loss.

    `flat` are rows [R, ...], `inputs` [R, .] the actor's there, `old` policy and advantages before this step, `order`
    [minibatches, rows of one].
    """
    mask, is_node, n = flat.mask, flat.trains_actor.astype(jnp.float32), flat.base_state.shape[1]
    uniform = mask / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
    weight = schedule.uniform_weight * uniform + (1.0 - schedule.uniform_weight) * old.pi

    def loss(actor: Weights, index: Any) -> Any:
        m, a, w = mask[index], old.action[index], weight[index]
        log_pi, continuous = log_policy(actor, inputs[index], m)
        ratio = jnp.exp(jnp.where(m, log_pi - old.log_pi[index], 0.0))
        is_low_already = (a < 0.0) & (log_pi < schedule.log_floor)
        gain = (w * jnp.where(m & ~is_low_already, clipped_surrogate(ratio, a, config.clip), 0.0)).sum(axis=1)
        if old.noisy_split is not None:
            v_logits, noise = continuous[:, :n], flat.v_noise[index]
            ratio = density_ratio(noise, noise + (old.continuous[index, :n] - v_logits) / schedule.v_spread)
            gain += (w[:, -n:] * clipped_surrogate(ratio, old.noisy_split[index], config.clip)).sum(axis=1)
            gain -= out_of_range(v_logits, MAX_V_LOGIT)
        if old.noisy_vector is not None:
            vectors, noise = continuous[:, n:], flat.vector_noise[index]
            ratio = density_ratio(noise, noise + (old.continuous[index, n:] - vectors) / schedule.vector_spread)
            gain += w[:, 0] * clipped_surrogate(ratio.prod(axis=1), old.noisy_vector[index], config.clip)
            gain -= out_of_range(vectors, 1.0)
        return -(is_node[index] * gain).sum() / jnp.maximum(is_node[index].sum(), 1.0)

    actor, moments, losses = descend(ADAM, loss, nets.actor, nets.actor_moments, order, schedule.actor_rate)
    return nets._replace(actor=actor, actor_moments=moments), losses.mean()
