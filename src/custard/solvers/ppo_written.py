"""CUSTARD (PPO) as the paper writes it: sampled steps of the IBMDP, Q_o over the full state, PPO's usual update.

The critic Q_o(s_w, a) has an output for every action of the IBMDP and sees base state and bounds. V(s_w) is its mean
under the policy. Targets are the merged agent's, lambda-returns with gamma_b after a base action and gamma_w after a
question; the advantage is the target minus V. The tree handed back is the last policy's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from custard.ibmdp.splits import Rules
from custard.ibmdp.vector import VectorIBMDP
from custard.solvers.api import Problem, Snapshot
from custard.solvers.networks import Weights, dueling, forward, make
from custard.solvers.selection import Selection
from custard.tree.extract import extract

__all__ = ["returns", "solve_as_written"]

ENTROPY, CRITIC, LARGEST, TRACE = (
    0.01,
    0.5,
    0.5,
    0.95,
)  # Stable Baselines' defaults: coefficients, gradient norm, lambda
ADAM = optax.chain(optax.clip_by_global_norm(LARGEST), optax.scale_by_adam(eps=1e-5))
JUDGE = 64  # iterations between two snapshots


class Steps(NamedTuple):
    """One iteration's steps, [steps, environments, ...]."""

    obs: np.ndarray  # [3n]: base state, lower and upper bounds
    mask: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray  # gamma_b or gamma_w
    after: np.ndarray  # [3n]
    after_mask: np.ndarray
    terminated: np.ndarray
    over: np.ndarray  # terminated or truncated


def returns(steps: Any, after: Any, trace: float) -> Any:
    """Lambda-returns from the values `after` each step, every step with its own discount.

    Nothing follows termination; a truncated episode's last state keeps its value.
    """

    def backward(later: Any, row: Any) -> Any:
        reward, discount, value, terminated, over = row
        future = jnp.where(over, value, (1.0 - trace) * value + trace * later)
        target = reward + discount * jnp.where(terminated, 0.0, future)
        return target, target

    columns = (steps.reward, steps.discount, after, steps.terminated, steps.over)
    return jax.lax.scan(backward, after[-1], columns, reverse=True)[1]


def log_policy(actor: Weights, obs: Any, mask: Any) -> Any:
    """log pi(. | o), o being the bounds only."""
    bounds = obs[..., obs.shape[-1] // 3 :]
    return jax.nn.log_softmax(jnp.where(mask, forward(actor, bounds, jnp.tanh), -1e9))


def value_of(nets: Any, obs: Any, mask: Any) -> Any:
    """V(s_w): the mean of Q_o under the policy."""
    q = dueling(forward(nets[1], obs, jnp.tanh))
    return jnp.where(mask, jnp.exp(log_policy(nets[0], obs, mask)) * q, 0.0).sum(axis=-1)


@jax.jit
def act(actor: Weights, obs: Any, mask: Any, key: Any) -> Any:
    """Actions drawn from the policy."""
    return jax.random.categorical(key, log_policy(actor, obs, mask))


@partial(jax.jit, static_argnums=(4, 5))
def improve(nets: Any, moments: Any, steps: Steps, order: Any, rate: float, clip: float) -> tuple[Any, Any]:
    """PPO's update of actor and critic over all minibatches."""
    target = returns(steps, value_of(nets, steps.after, steps.after_mask), TRACE)
    advantage = target - value_of(nets, steps.obs, steps.mask)
    count = steps.reward.size
    flat = jax.tree.map(lambda a: a.reshape(count, *a.shape[2:]), steps)
    target, advantage = target.reshape(count), advantage.reshape(count)
    chosen = jax.nn.one_hot(flat.action, flat.mask.shape[1])
    old = jnp.where(flat.mask, log_policy(nets[0], flat.obs, flat.mask), 0.0)
    old = (chosen * old).sum(axis=1)

    def loss(nets: Any, index: Any) -> Any:
        a, hot, mask = advantage[index], chosen[index], flat.mask[index]
        a = (a - a.mean()) / (a.std() + 1e-8)
        new = jnp.where(mask, log_policy(nets[0], flat.obs[index], mask), 0.0)
        ratio = jnp.exp((hot * new).sum(axis=1) - old[index])
        gain = jnp.minimum(ratio * a, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * a)
        entropy = -jnp.where(mask, jnp.exp(new) * new, 0.0).sum(axis=1)
        q = (hot * dueling(forward(nets[1], flat.obs[index], jnp.tanh))).sum(axis=1)
        return -(gain + ENTROPY * entropy).mean() + CRITIC * ((q - target[index]) ** 2).mean()

    def step(carry: Any, index: Any) -> Any:
        nets, moments = carry
        change, moments = ADAM.update(jax.grad(loss)(nets, index), moments)
        return (jax.tree.map(lambda w, d: w - rate * d, nets, change), moments), None

    return jax.lax.scan(step, (nets, moments), order)[0]


def solve_as_written(problem: Problem, rules: Rules, settings: Any, state: Any = None) -> Iterator[Snapshot]:
    """Learn with `settings.num_envs` x `settings.num_steps` steps of the IBMDP an iteration."""
    s, n, budget = settings, rules.features.n, int(settings.budget)
    seeds = problem.seeds("learner", "environment")
    rng = np.random.default_rng(seeds["learner"])
    hidden = (s.hidden,) * 2
    nets = make(rng, (2 * n, *hidden, rules.n_actions), 0.01), make(rng, (3 * n, *hidden, 1 + rules.n_actions))
    tree_of = jax.tree.structure((nets, ADAM.init(nets)))  # type: ignore[arg-type]
    leaves = jax.tree.leaves((nets, ADAM.init(nets)))  # type: ignore[arg-type]
    at = np.zeros(3, dtype=np.int64)  # steps of the environment, steps of the IBMDP, iterations
    selection = Selection(problem, most=64)
    if state is not None:
        leaves, at = [state[f"nets.{k}"] for k in range(len(leaves))], state["at"].copy()
        selection.restore(state)
    nets, moments = jax.tree.unflatten(tree_of, leaves)
    base = problem.source.vector(s.num_envs)
    venv = VectorIBMDP(
        base, rules.splits, zeta=rules.zeta, gamma_b=rules.gamma_b, gamma_w=rules.gamma_w, max_depth=rules.max_depth,
        low=rules.features.low, high=rules.features.high, features=problem.encoder,
    )  # fmt: skip
    shape = (s.epochs * s.minibatches, -1)
    fresh, obs, mask = True, np.zeros(0), np.zeros(0, dtype=bool)
    while at[1] < budget:
        if fresh:  # episodes start anew after each snapshot, so that a run can be resumed from there
            seed = int(np.random.SeedSequence([seeds["environment"], int(at[2])]).generate_state(1)[0]) % 2**31
            obs, info = venv.reset(seed=seed)
            mask, fresh = info["action_mask"], False
        keys = jax.random.split(jax.random.PRNGKey((seeds["learner"] + int(at[2])) % 2**31), s.num_steps)
        rows = []
        for key in np.asarray(keys):
            action = np.asarray(act(nets[0], obs, mask, key))
            after, reward, terminated, truncated, info = venv.step(action)
            over = terminated | truncated
            row = (obs, mask, action, reward, info["discount"], after, info["action_mask"], terminated, over)
            rows.append(row)
            at[0] += int((action < rules.n_base).sum())
            obs, mask = after, info["action_mask"]
            if over.any():
                obs, info = venv.reset(options={"reset_mask": over})
                mask = info["action_mask"]
        kinds = (np.float32, bool, np.int32, np.float32, np.float32, np.float32, bool, bool, bool)
        steps = Steps(
            *(np.array(column, dtype=kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True))
        )
        count = steps.reward.size
        draws = np.random.default_rng([seeds["learner"], int(at[2])])
        order = np.stack([draws.permutation(count) for _ in range(s.epochs)]).reshape(shape).astype(np.int32)
        nets, moments = improve(nets, moments, steps, order, s.learning_rate, s.clip)
        at[1:] += (count, 1)
        if at[2] % JUDGE and at[1] < budget:
            continue
        fresh, spent = True, selection.steps
        actor = tuple(np.asarray(w) for w in nets[0])
        tree = extract(lambda b, m, w=actor: np.argmax(np.where(m, forward(w, b, np.tanh), -np.inf), axis=1), rules)
        selection.replace(tree)
        at[0] += selection.steps - spent
        data = {f"nets.{k}": np.array(leaf) for k, leaf in enumerate(jax.tree.leaves((nets, moments)))}
        data |= {"at": at.copy(), **selection.state()}
        metrics = {
            "ibmdp_steps": int(at[1]),
            "tree_return": selection.last,
            "depth": tree.depth,
            "leaves": tree.n_leaves,
        }
        message = "budget used" if at[1] >= budget else ""
        yield Snapshot(int(at[0]), tree, selection.last, None, metrics, tree, message, lambda data=data: data)
