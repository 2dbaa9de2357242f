"""CUSTARD (PPO) as the paper writes it: sampled steps of the IBMDP, Q_o over the full state, PPO's usual update.

The critic Q_o(s_w, a) has an output for every action of the IBMDP and sees base state and bounds. V(s_w) is its mean
under the policy. Targets are the merged agent's, lambda-returns with gamma_b after a base action and gamma_w after a
question; the advantage is the target minus V. The tree handed back is the last policy's.

An iteration: a compiled rollout draws actions from the policy, evaluating the actor from its weights; one JAX call
learns from its steps.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from custard.core.errors import CustardError
from custard.core.numba_tools import once, outer
from custard.core.threads import meanwhile
from custard.envs.native import advance, begin, observe
from custard.envs.pcg64 import streams
from custard.ibmdp.kernels import normalise
from custard.ibmdp.splits import Rules
from custard.nn.checkpoints import from_arrays, to_arrays
from custard.nn.descent import descend
from custard.nn.networks import Weights, dueling, forward, make
from custard.solvers.common.reading import extract_limited
from custard.solvers.common.selection import Selection
from custard.solvers.ppo.acting_data import AT, LOW, NONE, WIDTH, Game, make_game, make_nodes
from custard.solvers.ppo.drawing import BoundsNetwork
from custard.solvers.ppo.stepping import Foreign, Native
from custard.solvers.ppo.update import clipped
from custard.solvers.ppo.walking import choose, refresh, to_answer, to_root
from custard.task.problem import Problem, Snapshot

__all__ = ["returns", "solve_as_written"]

# Stable Baselines' defaults: coefficients, gradient norm, lambda.
ENTROPY, CRITIC, LARGEST, TRACE = 0.01, 0.5, 0.5, 0.95
ADAM = optax.chain(optax.clip_by_global_norm(LARGEST), optax.scale_by_adam(eps=1e-5))
JUDGE = 64  # iterations between two snapshots
BASE, IBMDP, ITERATION = range(3)  # counts of steps of the environment and of the IBMDP, and of iterations
PLACE = ("x", "bounds", "obs", "mask", "number")  # what a checkpoint keeps of a node


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


def make_steps(game: Game, length: int, envs: int) -> Steps:
    """Room for one iteration's steps."""
    n, k = game.box.shape[1], len(game.root_mask)

    def zeros(dtype: Any, *more: int) -> np.ndarray:
        return np.zeros((length, envs, *more), dtype=dtype)

    f, b = np.float32, np.bool_
    return Steps(
        zeros(f, 3 * n), zeros(b, k), zeros(np.int32), zeros(f), zeros(f), zeros(f, 3 * n), zeros(b, k), zeros(b),
        zeros(b),
    )  # fmt: skip


# -- rollouts ---------------------------------------------------------------------------------------------------------


@once
def arrive(game, node, x):
    """A base state of which nothing is known yet."""
    for c in range(len(x)):
        node.x[c] = x[c]
    to_root(game, node)


@once
def write(game, node, obs, mask):
    """The state s_w, base state and bounds, and what is afforded in it."""
    n = len(node.x)
    for c in range(n):
        obs[c] = normalise(node.x[c], game.box[LOW, c], game.box[WIDTH, c])
    for j in range(2 * n):
        obs[n + j] = node.obs[j]
    for a in range(len(mask)):
        mask[a] = node.mask[a]


@once
def ask(game, prices, weights, node, rng, x, plan, steps, i, t):
    """Draw from the policy, from step t on, until it acts: the step and the base action.

    The step is past the last one, if questions took all that were left. plan[0] < 0 says that an episode begins.
    """
    zeta, gamma_w, _ = prices
    if plan[0] < 0:
        arrive(game, node, x)
        plan[0] = 0
    action = np.int64(NONE)
    while t < len(steps.action):
        write(game, node, steps.obs[t, i], steps.mask[t, i])
        action = np.int64(choose(game, weights, node, rng, True))
        steps.action[t, i] = action
        if action < game.flags[0]:
            break
        to_answer(game, node, action)
        write(game, node, steps.after[t, i], steps.after_mask[t, i])
        steps.reward[t, i], steps.discount[t, i] = zeta, gamma_w
        steps.terminated[t, i] = steps.over[t, i] = False
        t += 1
    return t, action


@once
def note(game, prices, node, steps, i, t, reward, after, terminated, over):
    """What came of the base action in step t."""
    arrive(game, node, after)
    write(game, node, steps.after[t, i], steps.after_mask[t, i])
    steps.reward[t, i], steps.discount[t, i] = reward, prices[2]
    steps.terminated[t, i], steps.over[t, i] = terminated, over


@outer
def run_native(
    game, prices, weights, node, rng, world, params, limit, limit_ends, state, env_rng, x, elapsed, plan, steps, i
):  # fmt: skip
    """Take all steps of the native environment i; counts base actions."""
    taken = 0
    t = np.int64(0)
    while True:
        t, action = ask(game, prices, weights, node, rng, x, plan, steps, i, t)
        if t == len(steps.action):
            return taken
        reward, terminated = advance(world, params, state, float(action), env_rng)
        observe(world, state, x)
        elapsed[i] += 1
        taken += 1
        over = terminated or elapsed[i] >= limit
        note(game, prices, node, steps, i, t, reward, x, terminated or (over and limit_ends), over)
        if over:
            begin(world, state, env_rng)
            observe(world, state, x)
            elapsed[i] = 0
            plan[0] = -1
        t += 1


class Rollouts:
    """The environments, each with its node in the tree."""

    def __init__(
        self, problem: Problem, rules: Rules, actor: Weights, envs: int, seeds: dict[str, int], limit_ends: bool
    ) -> None:  # fmt: skip
        self.env: Any = (Native if problem.native else Foreign)(problem, envs, seeds["environment"], limit_ends)
        self.game, self.prices = make_game(rules, 0), (rules.zeta, rules.gamma_w, rules.gamma_b)
        self.start, count = rules.actions.start, self.env.count
        *self.nodes, self.spare = make_nodes(self.game, actor, count + 1)
        self.rng = streams(np.random.SeedSequence(seeds["learner"]).spawn(count))

    def run(self, actor: Weights, steps: Steps) -> int:
        """Take all steps; how many of them were base actions."""
        env, given = self.env, (self.game, self.prices, actor)
        refresh(self.game, self.spare)
        for node in self.nodes:
            node.number[AT] = NONE  # what was known of it may be forgotten by now
        if isinstance(env, Native):
            return sum(
                run_native(
                    *given, node, self.rng[i], *env.fixed, env.state[i], env.rng[i], env.x[i], env.elapsed,
                    env.plans[i], steps, i,
                )
                for i, node in enumerate(self.nodes)
            )  # fmt: skip

        def decide(i: int, t: int) -> tuple[int, int]:
            t, action = ask(*given, self.nodes[i], self.rng[i], env.parts.x[i], env.plans[i], steps, i, t)
            return t, action + self.start

        def learn(i: int, t: int, *came: Any) -> None:
            reward, terminated, over = came
            note(*given[:2], self.nodes[i], steps, i, t, reward, env.parts.x[i], terminated, over)

        return env.steps(len(steps.action), decide, learn)

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: these very arrays."""
        places = {f"node.{i}.{name}": getattr(node, name) for i, node in enumerate(self.nodes) for name in PLACE}
        return {"rng": self.rng, **places, **self.env.arrays()}


# -- the update -------------------------------------------------------------------------------------------------------


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
        gain = clipped(ratio, a, clip)
        entropy = -jnp.where(mask, jnp.exp(new) * new, 0.0).sum(axis=1)
        q = (hot * dueling(forward(nets[1], flat.obs[index], jnp.tanh))).sum(axis=1)
        return -(gain + ENTROPY * entropy).mean() + CRITIC * ((q - target[index]) ** 2).mean()

    return descend(ADAM, loss, nets, moments, order, rate)[:2]


# -- the run ----------------------------------------------------------------------------------------------------------


def solve_as_written(
    problem: Problem, rules: Rules, settings: Any, surveyed: int, state: Any = None
) -> Iterator[Snapshot]:
    """Learn with `settings.num_envs` x `settings.num_steps` steps of the IBMDP an iteration, after a survey's."""
    if rules.parameterised:
        raise CustardError('the preset "paper" of ppo learns no thresholds: splits must be a whole number')
    s, n, budget = settings, rules.features.n, int(settings.budget)
    seeds = problem.seeds("learner", "environment")
    rng = np.random.default_rng(seeds["learner"])
    hidden = (s.hidden,) * 2
    actor, critic = make(rng, (2 * n, *hidden, rules.n_actions), 0.01), make(rng, (3 * n, *hidden, 1 + rules.n_actions))
    learned: Any = ((actor, critic), ADAM.init((actor, critic)))  # type: ignore[arg-type]
    rollouts = Rollouts(problem, rules, actor, s.num_envs, seeds, not s.bootstrap_at_limit)
    steps = make_steps(rollouts.game, s.num_steps, rollouts.env.count)
    at = np.zeros(3, dtype=np.int64)
    at[BASE] = surveyed
    selection = Selection(problem, 64, budget=budget)
    if state is not None:
        learned = from_arrays(learned, state)
        for name, array in {"at": at, **rollouts.arrays()}.items():
            array[...] = state[name]
        rollouts.env.resume()
        selection.restore(state)
    count, first = steps.reward.size, True
    while at[IBMDP] < budget:
        draws = np.random.default_rng([seeds["learner"], int(at[ITERATION])])
        order = np.stack([draws.permutation(count) for _ in range(s.epochs)]).astype(np.int32)
        order = order[:, : count - count % s.minibatches].reshape(s.epochs * s.minibatches, -1)
        actor = tuple(np.array(w) for w in learned[0][0])
        with meanwhile(improve, *learned, steps, order, s.learning_rate, s.clip) if first else nullcontext():
            at[BASE] += rollouts.run(actor, steps)
        learned, first = improve(*learned, steps, order, s.learning_rate, s.clip), False
        at[IBMDP] += count
        at[ITERATION] += 1
        if at[ITERATION] % JUDGE and at[IBMDP] < budget:
            continue
        spent = selection.steps
        tree = extract_limited(BoundsNetwork(learned[0][0], 0, rules), rules)
        selection.replace(tree)
        at[BASE] += selection.steps - spent
        rollouts.env.break_off()
        data = to_arrays(learned) | {name: array.copy() for name, array in {"at": at, **rollouts.arrays()}.items()}
        data |= selection.state()
        metrics = {
            "ibmdp_steps": int(at[IBMDP]),
            "tree_return": selection.last,
            "depth": tree.depth,
            "leaves": tree.n_leaves,
        }
        message = "budget used" if at[IBMDP] >= budget else ""
        yield Snapshot(int(at[BASE]), tree, selection.last, None, metrics, tree, message, lambda data=data: data)
