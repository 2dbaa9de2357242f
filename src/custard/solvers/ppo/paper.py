"""CUSTARD (PPO) as the paper writes it: sampled steps of the IBMDP, Q_o over the full state, PPO's usual update.

The critic Q_o(s_w, a) has an output for every action of the IBMDP and sees base state and bounds. V(s_w) is its mean
under the policy. Targets are the merged agent's, lambda-returns with gamma_b after a base action and gamma_w after a
split; the advantage is the target minus V. The tree returned is the last policy's.

An iteration: a compiled rollout samples actions from the policy, evaluating the actor from its weights; one JAX call
learns from its steps.

Arguments of compiled functions are those of `custard.solvers.ppo.rollouts`, with `zeta`, `gamma_b` and `gamma_w` of the
IBMDP; they write step `t` of environment `i` to `steps` (`Steps`).
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from custard.core.errors import CustardError, require_least
from custard.core.numba_tools import njit_inlined, njit_outer
from custard.core.threads import meanwhile
from custard.envs.pcg64 import streams
from custard.ibmdp.kernels import normalise
from custard.ibmdp.splits import PARAMETERISED, Rules
from custard.nn.checkpoints import from_arrays, to_arrays
from custard.nn.descent import descend
from custard.nn.networks import Weights, dueling, forward, make_network
from custard.solvers.common.bounds_survey import choose_bounds
from custard.solvers.common.checkpoint import copy_arrays, restore_arrays
from custard.solvers.common.network_trees import extract_limited
from custard.solvers.common.selection import Selection
from custard.solvers.ppo.policy import ExtractablePolicy, PolicyNetwork
from custard.solvers.ppo.rollouts import Environments, break_episodes, make_environments
from custard.solvers.ppo.traversal import (
    NONE,
    TraversalRules,
    apply_split,
    choose_action,
    compile_rules,
    forget_outputs,
    make_nodes,
    move_to_root,
)
from custard.solvers.ppo.update import clipped_surrogate, minibatch_order
from custard.task.compiled_episodes import CompiledEpisodes, start_episode, step_episode
from custard.task.problem import Problem, Snapshot

__all__ = ["PRESETS", "PaperSettings", "lambda_returns", "solve"]


@dataclass(frozen=True)
class PaperSettings:
    """Settings of the preset "paper": the appendix's, and Stable Baselines' defaults for what it leaves open."""

    budget: int = 3_200_000  # steps of the IBMDP, as the appendix counts
    splits: Any = 3  # p, thresholds per feature
    zeta: float = -0.01  # the reward of a split
    gamma_b: float = 1.0  # discount of a base action
    gamma_w: float = 1.0  # discount of a split
    hidden: int = 64  # units in each of the two hidden layers of actor and critic
    num_envs: int = 1  # environments side by side
    num_steps: int = 1024  # steps of the IBMDP per environment and iteration
    epochs: int = 4  # passes over an iteration's steps
    minibatches: int = 4  # per epoch
    learning_rate: float = 2.5e-4  # Adam
    clip: float = 0.2  # PPO's epsilon
    default_max_depth: int = 1000  # depth limit where none is given
    bootstrap_at_limit: bool = True  # a truncated episode's last state keeps its value; False: nothing follows
    low: Any = None  # lower bounds of the features, where the environment's own do not suit
    high: Any = None  # upper bounds of the features

    def __post_init__(self) -> None:
        require_least(self, 1, "num_envs", "num_steps", "epochs", "minibatches", "default_max_depth")
        require_least(self, 0, "hidden", "learning_rate", "clip")


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole": {"num_steps": 512, "bootstrap_at_limit": False,
                 "low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4]},
    "PrereqWorld": {"splits": 1},
    "PotholeWorld": {"zeta": 0.0, "gamma_b": 0.99, "gamma_w": 0.99},
}  # fmt: skip

# Stable Baselines' defaults.
ENTROPY_COEFFICIENT, CRITIC_COEFFICIENT = 0.01, 0.5
MAX_GRADIENT_NORM = 0.5
LAMBDA = 0.95
ADAM = optax.chain(optax.clip_by_global_norm(MAX_GRADIENT_NORM), optax.scale_by_adam(eps=1e-5))

MASKED_LOGIT = -1e9
ITERATIONS_PER_SNAPSHOT = 64
MAX_SNAPSHOT_EPISODES = 64  # of which the value shown is the mean


# -- the run ----------------------------------------------------------------------------------------------------------


def solve(problem: Problem, settings: PaperSettings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn in iterations of `num_envs` times `num_steps` steps of the IBMDP; yield the policy's tree every 64."""
    s, seeds = settings, problem.seeds("learner", "environment")
    rules, base_steps = rules_for(problem, s)
    nets: Any = make_networks(np.random.default_rng(seeds["learner"]), rules, s.hidden)
    moments: Any = ADAM.init(nets)
    envs = make_environments(problem, s.num_envs, seeds["environment"], not s.bootstrap_at_limit)
    rollouts = Rollouts(rules, envs, nets[0], seeds["learner"])
    steps = make_steps(rollouts.rules, s.num_steps, len(envs.x))
    selection = Selection(problem, max_episodes=MAX_SNAPSHOT_EPISODES, budget=s.budget)
    ibmdp_steps = iteration = 0
    if state is not None:
        base_steps, ibmdp_steps, iteration = (int(number) for number in state["counts"])
        nets, moments = from_arrays((nets, moments), state)
        restore_arrays(rollouts.arrays(), state)
        selection.restore(state)
    is_compiled = False
    while ibmdp_steps < s.budget:
        policy = PolicyNetwork(tuple(np.array(w) for w in nets[0]), frequencies=0)
        rng = np.random.default_rng([seeds["learner"], iteration])
        order = minibatch_order(rng, steps.reward.size, s.epochs, s.minibatches)
        learning = nets, moments, steps, order, s.learning_rate, s.clip
        with nullcontext() if is_compiled else meanwhile(improve, *learning):
            base_steps += rollouts.collect(policy, steps)
        (nets, moments), is_compiled = improve(*learning), True
        ibmdp_steps += steps.reward.size
        iteration += 1
        if iteration % ITERATIONS_PER_SNAPSHOT and ibmdp_steps < s.budget:
            continue
        policy, judging_steps = policy._replace(weights=tuple(np.array(w) for w in nets[0])), selection.steps
        tree = extract_limited(ExtractablePolicy(policy, rules), rules)
        selection.spent = base_steps - judging_steps
        selection.replace(tree)
        base_steps += selection.steps - judging_steps
        break_episodes(envs)
        metrics = {
            "ibmdp_steps": ibmdp_steps, "tree_return": selection.last_mean, "depth": tree.depth,
            "leaves": tree.n_leaves,
        }  # fmt: skip
        kept = copy_arrays(rollouts.arrays())
        counts = np.array([base_steps, ibmdp_steps, iteration])
        kept |= {"counts": counts, **to_arrays((nets, moments)), **selection.state()}
        message = "budget used" if ibmdp_steps >= s.budget else ""
        yield Snapshot(base_steps, tree, selection.last_mean, None, metrics, tree, message, lambda kept=kept: kept)


def rules_for(problem: Problem, s: PaperSettings) -> tuple[Rules, int]:
    """Return the IBMDP, and the environment steps it took to see where features lie and what episodes are like."""
    if s.splits == PARAMETERISED:
        raise CustardError('the preset "paper" of ppo learns no thresholds: splits must be a whole number')
    features, survey_steps = choose_bounds(problem, problem.seeds("bounds")["bounds"], s.budget)
    depth = problem.max_depth if problem.max_depth is not None else s.default_max_depth
    rules = Rules(features, problem.base.actions, s.splits, s.zeta, s.gamma_b, s.gamma_w, depth)
    return rules, survey_steps + problem.probe_steps


def make_networks(rng: np.random.Generator, rules: Rules, hidden: int) -> tuple[Weights, Weights]:
    """Return the actor over bounds and the dueling critic over the full state."""
    n, n_actions = rules.features.n, rules.n_actions
    actor = make_network(rng, (2 * n, hidden, hidden, n_actions), last=0.01)
    return actor, make_network(rng, (3 * n, hidden, hidden, 1 + n_actions))


# -- the update -------------------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """One iteration's steps of the IBMDP, [steps, environments, ...]."""

    obs: np.ndarray  # [3n]: base state, lower and upper bounds
    mask: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray  # gamma_b or gamma_w
    next_obs: np.ndarray  # [3n]
    next_mask: np.ndarray
    terminated: np.ndarray
    done: np.ndarray  # terminated or truncated


def make_steps(rules: TraversalRules, length: int, envs: int) -> Steps:
    """Return empty steps."""
    n, n_actions = len(rules.features), len(rules.root_mask)

    def zeros(dtype: Any, *shape: int) -> np.ndarray:
        return np.zeros((length, envs, *shape), dtype=dtype)

    obs, next_obs = zeros(np.float32, 3 * n), zeros(np.float32, 3 * n)
    mask, next_mask = zeros(np.bool_, n_actions), zeros(np.bool_, n_actions)
    action, reward, discount = zeros(np.int32), zeros(np.float32), zeros(np.float32)
    return Steps(obs, mask, action, reward, discount, next_obs, next_mask, zeros(np.bool_), zeros(np.bool_))


def lambda_returns(steps: Any, next_value: Any, trace: float) -> Any:
    """Return lambda-returns [steps, environments] from the values after each step, every step with its own discount.

    Nothing follows termination; a truncated episode's last state keeps its value.
    """

    def backward(later: Any, row: Any) -> Any:
        reward, discount, value, terminated, done = row
        future = jnp.where(done, value, (1.0 - trace) * value + trace * later)
        target = reward + discount * jnp.where(terminated, 0.0, future)
        return target, target

    columns = (steps.reward, steps.discount, next_value, steps.terminated, steps.done)
    return jax.lax.scan(backward, next_value[-1], columns, reverse=True)[1]


def log_policy(actor: Weights, obs: Any, mask: Any) -> Any:
    """Return log pi(. | o), o being the bounds only."""
    bounds = obs[..., obs.shape[-1] // 3 :]
    return jax.nn.log_softmax(jnp.where(mask, forward(actor, bounds, jnp.tanh), MASKED_LOGIT))


def state_value(nets: Any, obs: Any, mask: Any) -> Any:
    """Return V(s_w): the mean of Q_o under the policy."""
    q = dueling(forward(nets[1], obs, jnp.tanh))
    return jnp.where(mask, jnp.exp(log_policy(nets[0], obs, mask)) * q, 0.0).sum(axis=-1)


@partial(jax.jit, static_argnums=(4, 5))
def improve(nets: Any, moments: Any, steps: Steps, order: Any, rate: float, clip: float) -> tuple[Any, Any]:
    """Move actor and critic by PPO's loss over all minibatches; return them and Adam's moments.

    `nets` are actor and critic, `order` [epochs * minibatches, steps of one].
    """
    target = lambda_returns(steps, state_value(nets, steps.next_obs, steps.next_mask), LAMBDA)
    advantage = target - state_value(nets, steps.obs, steps.mask)
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
        gain = clipped_surrogate(ratio, a, clip)
        entropy = -jnp.where(mask, jnp.exp(new) * new, 0.0).sum(axis=1)
        q = (hot * dueling(forward(nets[1], flat.obs[index], jnp.tanh))).sum(axis=1)
        critic_loss = ((q - target[index]) ** 2).mean()
        return -(gain + ENTROPY_COEFFICIENT * entropy).mean() + CRITIC_COEFFICIENT * critic_loss

    return descend(ADAM, loss, nets, moments, order, rate)[:2]


# -- rollouts ---------------------------------------------------------------------------------------------------------


@njit_inlined
def start_traversal(rules, node, base_state):
    """Move to the root with a new base state."""
    for c in range(len(base_state)):
        node.base_state[c] = base_state[c]
    move_to_root(rules, node)


@njit_inlined
def write_state(rules, node, obs, mask):
    """Write the state s_w, base state and bounds, and its affordances."""
    n = len(node.base_state)
    for c in range(n):
        obs[c] = normalise(node.base_state[c], rules.features[c].low, rules.features[c].width)
    for j in range(2 * n):
        obs[n + j] = node.normalised_bounds[j]
    for a in range(len(mask)):
        mask[a] = node.mask[a]


@njit_inlined
def record_splits(rules, zeta, gamma_w, policy, node, rng, base_state, is_new, steps, i, t):
    """Sample the policy's actions in environment i from step t on, until it takes a base action: that step and action.

    `node` is the traversal's, `rng` the environment's stream; is_new[i] says that an episode starts at `base_state`
    [n]. The step returned lies past the last one if splits took all that were left.
    """
    if is_new[i]:
        start_traversal(rules, node, base_state)
        is_new[i] = False
    action = np.int64(NONE)
    while t < len(steps.action):
        write_state(rules, node, steps.obs[t, i], steps.mask[t, i])
        action = np.int64(choose_action(rules, policy, node, rng, True))
        steps.action[t, i] = action
        if action < rules.n_base:
            break
        apply_split(rules, node, action)
        write_state(rules, node, steps.next_obs[t, i], steps.next_mask[t, i])
        steps.reward[t, i], steps.discount[t, i] = zeta, gamma_w
        steps.terminated[t, i] = steps.done[t, i] = False
        t += 1
    return t, action


@njit_inlined
def record_outcome(rules, gamma_b, node, base_state, steps, i, t, reward, terminated, done):
    """Write the outcome of environment i's base action to step t; the next traversal starts at `base_state` [n]."""
    start_traversal(rules, node, base_state)
    write_state(rules, node, steps.next_obs[t, i], steps.next_mask[t, i])
    steps.reward[t, i], steps.discount[t, i] = reward, gamma_b
    steps.terminated[t, i], steps.done[t, i] = terminated, done


@njit_outer
def fill_steps(rules, zeta, gamma_b, gamma_w, policy, node, rng, envs, steps, i):
    """Take all steps of compiled environment i, with its stream `rng`; return the number of base actions."""
    n_actions = 0
    t = np.int64(0)
    while True:
        base_state = envs.x[i]
        t, action = record_splits(rules, zeta, gamma_w, policy, node, rng, base_state, envs.is_new, steps, i, t)
        if t == len(steps.action):
            return n_actions
        reward, terminated, done = step_episode(envs, i, float(action))
        n_actions += 1
        record_outcome(rules, gamma_b, node, base_state, steps, i, t, reward, terminated, done)
        if done:
            start_episode(envs, i)
        t += 1


class Rollouts:
    """The environments, each with the node its traversal has reached."""

    def __init__(self, rules: Rules, envs: Environments, actor: Weights, seed: int) -> None:
        self.rules, self.envs, self.first_action = compile_rules(rules), envs, rules.actions.start
        self.zeta, self.gamma_b, self.gamma_w = rules.zeta, rules.gamma_b, rules.gamma_w
        *self.nodes, self.spare = make_nodes(self.rules, actor, 0, len(envs.x) + 1)
        self.rng = streams(np.random.SeedSequence(seed).spawn(len(envs.x)))

    def collect(self, policy: PolicyNetwork, steps: Steps) -> int:
        """Take all steps; return the number of base actions among them."""
        rules, zeta, gamma_b, gamma_w, envs = self.rules, self.zeta, self.gamma_b, self.gamma_w, self.envs
        nodes, rng = self.nodes, self.rng
        forget_outputs(rules, self.spare)
        for node in nodes:
            node.place["cache_index"] = NONE  # it may be dropped from the cache
        if isinstance(envs, CompiledEpisodes):
            own = ((node, rng[i], envs, steps, i) for i, node in enumerate(nodes))
            return sum(fill_steps(rules, zeta, gamma_b, gamma_w, policy, *each) for each in own)

        def choose(i: int, t: int) -> tuple[int, int]:
            x = envs.x[i]
            t, action = record_splits(rules, zeta, gamma_w, policy, nodes[i], rng[i], x, envs.is_new, steps, i, t)
            return t, action + self.first_action

        def record(i: int, t: int, reward: float, terminated: bool, done: bool) -> None:
            record_outcome(rules, gamma_b, nodes[i], envs.x[i], steps, i, t, reward, terminated, done)

        return envs.step_all(len(steps.action), choose, record)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays a checkpoint keeps, not copied."""
        kept = {"rng": self.rng, **self.envs.arrays()}
        for i, node in enumerate(self.nodes):
            kept |= {f"node.{i}.{name}": getattr(node, name) for name in ("base_state", "bounds", "normalised_bounds")}
            kept |= {f"node.{i}.mask": node.mask, f"node.{i}.depth": node.place["depth"]}
        return kept
