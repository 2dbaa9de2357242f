"""CUSTARD (DQN) as the paper's appendix writes it: two dueling networks that learn from replayed steps of the IBMDP.

Q(o, a) over bounds o = s_w \\ s_b is the policy; Q_o(s_w, a) is omniscient. Both move toward the same `targets`.
`docs/deviations.md` lists what the appendix leaves open.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numba import njit

from custard.core.numba_tools import borrowed
from custard.envs.native import advance, observe
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.kernels import ask, restart
from custard.ibmdp.splits import Rules
from custard.ibmdp.vector import VectorIBMDP
from custard.nn import networks
from custard.nn.checkpoints import from_arrays, to_arrays
from custard.nn.networks import Weights, forward_row
from custard.nn.replay import Replay
from custard.solvers.common.reading import read_off
from custard.task.problem import Problem

if TYPE_CHECKING:
    from custard.solvers.dqn.dqn import Settings

__all__ = ["Written", "q_values", "targets"]

UPDATES = 20  # in one compiled call; meanwhile the policy that acts stays the same
RHO = 0.95  # of RMSProp


def _with_one(x: Any) -> Any:
    return jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), x.dtype)], axis=-1)


@jax.custom_vjp
def affine(x: Any, w: Any) -> Any:
    """[x, 1] @ w, with a gradient whose transposed factor is written out first: XLA multiplies twice as fast so."""
    return _with_one(x) @ w


affine.defvjp(
    lambda x, w: (_with_one(x) @ w, (_with_one(x), w)),
    lambda kept, g: (g @ kept[1][:-1].T, jax.lax.optimization_barrier(kept[0].T) @ g),
)


def q_values(weights: Weights, x: Any) -> Any:
    """A dueling network's values, [B, inputs] -> [B, actions]: `networks.forward`, quicker to learn."""
    for w in weights[:-1]:
        x = jax.nn.relu(affine(x, w))
    return networks.dueling(affine(x, weights[-1]))


def targets(q: Callable[[Any], Any], q_o: Callable[[Any], Any], batch: Mapping[str, Any]) -> Any:
    """r + gamma * Q_o(s_w', argmax_a Q(s_w' \\ s_b, a)).

    gamma is gamma_b after base actions and gamma_w after splits, and r is zeta for a split. Only afforded actions count
    in the argmax. Where the episode terminated nothing follows; where it was only cut off, what would have followed
    counts. s_w' begins with s_b' and goes on with the bounds.
    """
    after, n = batch["after"], batch["after"].shape[-1] // 3
    greedy = jnp.where(batch["mask"], q(after[..., n:]), -jnp.inf).argmax(axis=-1)
    future = jnp.take_along_axis(q_o(after), greedy[..., None], axis=-1)[..., 0]
    return batch["reward"] + jnp.where(batch["ended"], 0.0, batch["discount"] * future)


def update(optimiser: Any, slow: Weights, learned: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """One step of both networks on the squared error; Q_o's values come from `slow`, a copy of it."""
    pair, memory = learned
    goal = targets(partial(q_values, pair[0]), partial(q_values, slow), batch)
    n = batch["obs"].shape[-1] // 3

    def loss(pair: Any) -> Any:
        chosen = batch["action"][..., None]
        both = q_values(pair[0], batch["obs"][..., n:]), q_values(pair[1], batch["obs"])
        return sum(jnp.square(jnp.take_along_axis(q, chosen, axis=-1)[..., 0] - goal).mean() for q in both)

    cost, gradient = jax.value_and_grad(loss)(pair)
    change, memory = optimiser.update(gradient, memory)
    return (optax.apply_updates(pair, change), memory), cost


def updates(optimiser: Any, target_every: int, state: Any, batches: Mapping[str, Any]) -> tuple[Any, Any]:
    """`update` for each of many batches [U, B, …]; then the copy of Q_o is renewed, if its time came meanwhile.

    Carried from update to update, the copy would be written out each time: a sixth of all time.
    """
    pair, slow, memory, number = state
    (pair, memory), cost = jax.lax.scan(partial(update, optimiser, slow), (pair, memory), batches)
    after = number + len(cost)
    renew = after // target_every > number // target_every
    slow = jax.tree.map(lambda old, new: jnp.where(renew, new, old), slow, pair[1])
    return (pair, slow, memory, after), cost.mean()


@cache
def compiled(learning_rate: float, target_every: int) -> tuple[Any, Any]:
    """RMSProp, and many updates in one call; kept, so that further seeds need not wait for it again."""
    optimiser = optax.rmsprop(learning_rate, decay=RHO)
    return optimiser, jax.jit(partial(updates, optimiser, target_every), donate_argnums=0)


class Written:
    """The networks, the memory and the IBMDP of one run."""

    def __init__(self, problem: Problem, rules: Rules, settings: Settings, budget: int) -> None:
        self.problem, self.settings, self.rules, self.budget = problem, settings, rules, budget
        self.seeds = problem.seeds("networks", "environment", "actions", "replay")
        n, actions = rules.features.n, rules.n_actions
        rng = np.random.default_rng(self.seeds["networks"])
        inner = (settings.hidden, settings.hidden, 1 + actions)
        pair = networks.make(rng, (2 * n, *inner)), networks.make(rng, (3 * n, *inner))
        optimiser, self.improve = compiled(settings.learning_rate, settings.target_every)
        pair = jax.tree.map(jnp.asarray, pair)
        self.learned = (
            pair,
            jax.tree.map(jnp.array, pair[1]),
            optimiser.init(pair),
            jnp.zeros((), jnp.int32),
        )
        self.weights: Weights = tuple(np.array(w) for w in pair[0])
        row = np.zeros(3 * n, dtype=np.float32)
        kinds = {
            "obs": row, "action": np.zeros((), np.int32), "reward": row[0], "discount": row[0],
            "ended": np.zeros((), bool), "after": row, "mask": np.zeros(actions, bool),
        }  # fmt: skip
        self.memory = Replay(min(settings.buffer, budget), kinds)
        self.length = UPDATES * (settings.steps_per_update or 1)
        self.rows = {name: np.zeros((self.length, *kind.shape), kind.dtype) for name, kind in kinds.items()}
        f = rules.features
        base: Any = problem.source.vector(1)
        self.env = VectorIBMDP(
            base, int(rules.splits), zeta=rules.zeta, gamma_b=rules.gamma_b, gamma_w=rules.gamma_w,
            max_depth=rules.max_depth, low=f.low, high=f.high, features=problem.encoder,
        )  # fmt: skip
        self.rng = streams([self.seeds["actions"]])[0]
        self.room = networks.scratch(self.weights)
        self.longest = problem.longest(budget)
        self.limit_ends = not settings.bootstrap_at_limit and problem.source.limit is not None
        self.episodes = self.calls = self.steps = self.owed = 0
        self.loss = float("nan")
        self.start()
        self.base: Any = None
        if problem.native:
            limits = min(base.limit, self.longest), self.limit_ends
            self.base = base.world, base.params, *limits, rules.gamma_b, base.state, base.rng, base.elapsed

    def start(self) -> None:
        """Begin an episode; each has a seed of its own. Between episodes a run can be resumed."""
        seed = np.random.SeedSequence([self.seeds["environment"], self.episodes]).generate_state(1)[0]
        self.obs, info = self.env.reset(seed=int(seed))
        self.mask = info["action_mask"]
        self.elapsed, self.resting = 0, True

    def learn(self, share: float = 0.0) -> int:  # its schedules count steps
        """Some steps, at most to the end of the episode, and the updates they are worth; returns how many steps."""
        s, fill = self.settings, min(self.settings.warmup, self.budget // 2)
        at = self.steps + np.arange(self.length)
        falling = np.interp(at, [fill, fill + s.epsilon_steps], [s.epsilon, s.epsilon_end])
        epsilon = np.where(at < fill, 1.0, falling)
        count, self.resting = self._play_native(epsilon) if self.base is not None else self._play(epsilon)
        self.memory.add({name: column[:count] for name, column in self.rows.items()})
        self.steps += count
        self.owed += count if self.steps > fill else 0
        if self.resting:
            self.episodes += 1
            self.start()
        while self.owed >= self.length:
            rng = np.random.default_rng([self.seeds["replay"], self.calls])
            sampled = self.memory.sample(rng, UPDATES * s.batch)
            batches = {name: value.reshape(UPDATES, s.batch, *value.shape[1:]) for name, value in sampled.items()}
            self.learned, loss = self.improve(self.learned, batches)
            self.weights = tuple(np.array(w) for w in self.learned[0][0])
            self.loss = float(loss)
            self.calls += 1
            self.owed -= self.length
        return count

    def _play(self, epsilon: np.ndarray) -> tuple[int, bool]:
        """A step for each epsilon, at most to the end of the episode, into `rows`: how many, and whether it ended."""
        n = self.rules.features.n
        for t, share in enumerate(epsilon):
            action = choose(self.weights, self.obs[0, n:], self.mask[0], share, self.rng, self.room)
            after, reward, ended, cut, info = self.env.step(np.array([action]))
            mask, base = info["action_mask"], action < self.rules.n_base
            self.elapsed += base
            over = cut[0] or self.elapsed >= self.longest
            end = ended[0] or (self.limit_ends and over and base)
            row = (self.obs[0], action, reward[0], info["discount"][0], end, after[0], mask[0])
            for column, value in zip(self.rows.values(), row, strict=True):
                column[t] = value
            self.obs, self.mask = after, mask
            if ended[0] or over:
                return t + 1, True
        return len(epsilon), False

    def _play_native(self, epsilon: np.ndarray) -> tuple[int, bool]:
        """`_play` for a native environment, compiled."""
        rows = tuple(self.rows.values())
        play: Any = play_native
        return play(self.weights, self.room, self.rng, epsilon, self.env.compiled, self.base, rows)

    def read_off(self, *_: Any) -> tuple[Any, Any]:
        """The policy's tree."""
        return read_off(self.weights, 0, self.rules)

    def smaller(self, *_: Any) -> list[Any]:
        """Trees beside the policy's own: none."""
        return []

    def metrics(self) -> dict[str, float]:
        """A part of a row of metrics."""
        return {"loss": self.loss, "updates": UPDATES * self.calls}

    def state(self) -> dict[str, np.ndarray]:
        """Everything as arrays."""
        numbers = np.array([self.episodes, self.calls, self.steps, self.owed])
        own = {"lesson.numbers": numbers, "lesson.rng": self.rng.copy()}
        return {**own, **to_arrays(self.learned), **self.memory.state("memory")}

    def restore(self, data: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        self.episodes, self.calls, self.steps, self.owed = (int(value) for value in data["lesson.numbers"])
        self.rng[...] = data["lesson.rng"]
        self.memory.restore("memory", data)
        self.learned = from_arrays(self.learned, data)
        self.weights = tuple(np.array(w) for w in self.learned[0][0])
        self.start()


@njit(cache=True)
def choose(weights, bounds, mask, epsilon, rng, room):
    """An afforded action: with probability epsilon any, otherwise the one of the largest Q."""
    if uniform(rng, 0.0, 1.0) < epsilon:
        chosen = int(uniform(rng, 0.0, 1.0) * mask.sum())
        for a in range(len(mask)):
            chosen -= mask[a]
            if chosen < 0:
                return a
    advantage = forward_row(weights, bounds, room, True)[1:]
    top = 0
    for a in range(1, len(mask)):
        if mask[a] and advantage[a] > advantage[top]:
            top = a
    return top


@njit(cache=True)
def play_native(weights, room, rng, epsilon, ibmdp, base, rows):
    """A step of the IBMDP for each epsilon, at most to the end of the episode: how many, and whether it ended."""
    weights, ibmdp, rows = borrowed((weights, ibmdp, rows))
    rules, (low, high, width, integer, fractions), root, (x, lower, upper, depth, queries, obs, mask) = ibmdp
    world, params, limit, limit_ends, gamma_b, state, env_rng, elapsed = base
    index, action, v, busy = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.bool_)
    acting, reward, discount, cut = np.zeros(1, np.int64), np.zeros(1), np.zeros(1), np.zeros(1, np.bool_)
    for t in range(len(epsilon)):
        rows[0][t] = obs[0]
        action[0] = choose(weights, obs[0, len(low) :], mask[0], epsilon[t], rng, room)
        ask(
            action, v, busy, rules, low, width, integer, fractions, x, lower, upper, depth, queries, obs, mask, acting,
            reward, discount, cut,
        )  # fmt: skip
        ended = False
        if action[0] < rules[0]:
            reward[0], ended = advance(world, params, state[0], action[0], env_rng[0])
            observe(world, state[0], x[0])
            elapsed[0] += 1
            discount[0], cut[0] = gamma_b, elapsed[0] >= limit
            ended = ended or (limit_ends and cut[0])
            restart(index, low, high, width, root[0], root[1], x, lower, upper, depth, queries, obs, mask)
        rows[1][t], rows[2][t], rows[3][t], rows[4][t] = action[0], reward[0], discount[0], ended
        rows[5][t], rows[6][t] = obs[0], mask[0]
        if ended or cut[0]:
            return t + 1, True
    return len(epsilon), False
