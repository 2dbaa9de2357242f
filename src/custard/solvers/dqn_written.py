"""CUSTARD (DQN) as the paper's appendix writes it: two dueling networks, one update for each step of the IBMDP.

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

from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.splits import Rules
from custard.ibmdp.vector import VectorIBMDP
from custard.solvers import networks
from custard.solvers.api import Problem
from custard.solvers.networks import Weights, forward_row
from custard.solvers.reading import read_off
from custard.solvers.replay import Replay

if TYPE_CHECKING:
    from custard.solvers.dqn import Settings

__all__ = ["Written", "q_values", "targets"]

UPDATES = 16  # so many steps, then as many updates, in one compiled call
RHO = 0.95  # of RMSProp


@jax.custom_vjp
def product(x: Any, w: Any) -> Any:
    """x @ w, with a gradient whose transposed factor is written out first: XLA multiplies twice as fast so."""
    return x @ w


product.defvjp(
    lambda x, w: (x @ w, (x, w)),
    lambda kept, g: (g @ kept[1].T, jax.lax.optimization_barrier(kept[0].T) @ g),
)


def q_values(weights: Weights, x: Any) -> Any:
    """A dueling network's values, [B, inputs] -> [B, actions]: `networks.forward`, quicker to learn."""
    for w in weights[:-1]:
        x = jax.nn.relu(product(x, w[:-1]) + w[-1])
    return networks.dueling(product(x, weights[-1][:-1]) + weights[-1][-1])


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


def update(optimiser: Any, target_every: int, state: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """One step of both networks on the squared error; Q_o's values come from a copy that is renewed now and then."""
    pair, slow, memory, number = state
    goal = targets(partial(q_values, pair[0]), partial(q_values, slow), batch)
    n = batch["obs"].shape[-1] // 3

    def loss(pair: Any) -> Any:
        chosen = batch["action"][..., None]
        both = q_values(pair[0], batch["obs"][..., n:]), q_values(pair[1], batch["obs"])
        return sum(jnp.square(jnp.take_along_axis(q, chosen, axis=-1)[..., 0] - goal).mean() for q in both)

    cost, gradient = jax.value_and_grad(loss)(pair)
    change, memory = optimiser.update(gradient, memory)
    pair = optax.apply_updates(pair, change)
    number += 1
    renew = number % target_every == 0
    slow = jax.tree.map(lambda old, new: jnp.where(renew, new, old), slow, pair[1])
    return (pair, slow, memory, number), cost


@cache
def compiled(learning_rate: float, target_every: int) -> tuple[Any, Any]:
    """RMSProp, and many updates in one call; kept, so that further seeds need not wait for it again."""
    optimiser = optax.rmsprop(learning_rate, decay=RHO)
    one = partial(update, optimiser, target_every)
    return optimiser, jax.jit(lambda state, batches: jax.lax.scan(one, state, batches), donate_argnums=0)


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
        self.memory = Replay(
            min(settings.buffer, budget),
            {"obs": row, "action": np.zeros((), np.int32), "reward": row[0], "discount": row[0],
             "ended": np.zeros((), bool), "after": row, "mask": np.zeros(actions, bool)},
        )  # fmt: skip
        f = rules.features
        self.env = VectorIBMDP(
            problem.source.vector(1), int(rules.splits), zeta=rules.zeta, gamma_b=rules.gamma_b, gamma_w=rules.gamma_w,
            max_depth=rules.max_depth, low=f.low, high=f.high, features=problem.encoder,
        )  # fmt: skip
        self.rng = streams([self.seeds["actions"]])[0]
        self.room = networks.scratch(self.weights)
        self.episodes = self.updates = self.steps = self.owed = 0
        self.loss = float("nan")
        self.start()

    def start(self) -> None:
        """Begin an episode; each has a seed of its own. Between episodes a run can be resumed."""
        seed = np.random.SeedSequence([self.seeds["environment"], self.episodes]).generate_state(1)[0]
        self.obs, info = self.env.reset(seed=int(seed))
        self.mask = info["action_mask"]
        self.resting = True

    def learn(self, share: float = 0.0) -> int:  # its schedules count steps
        """Some steps, at most to the end of the episode, and as many updates; returns how many steps."""
        s, n = self.settings, self.rules.features.n
        rows: list[tuple[Any, ...]] = []
        fill = min(s.warmup, self.budget // 2)
        self.resting = False
        while not self.resting and len(rows) < UPDATES:
            fall = min(1.0, max(0, self.steps - fill) / s.epsilon_steps)
            epsilon = 1.0 if self.steps < fill else s.epsilon + (s.epsilon_end - s.epsilon) * fall
            action = choose(self.weights, self.obs[0, n:], self.mask[0], epsilon, self.rng, self.room)
            after, reward, ended, cut, info = self.env.step(np.array([action]))
            mask = info["action_mask"]
            rows.append((self.obs[0], action, reward[0], info["discount"][0], ended[0], after[0], mask[0]))
            self.obs, self.mask = after, mask
            self.steps += 1
            if ended[0] or cut[0]:
                self.episodes += 1
                self.start()
        columns = map(np.array, zip(*rows, strict=True))
        self.memory.add(dict(zip(self.memory.columns, columns, strict=True)))
        self.owed += len(rows) if self.steps > fill else 0
        while self.owed >= UPDATES:
            rng = np.random.default_rng([self.seeds["replay"], self.updates])
            sampled = self.memory.sample(rng, UPDATES * s.batch)
            batches = {name: value.reshape(UPDATES, s.batch, *value.shape[1:]) for name, value in sampled.items()}
            self.learned, loss = self.improve(self.learned, batches)
            self.weights = tuple(np.array(w) for w in self.learned[0][0])
            self.loss = float(loss.mean())
            self.updates += 1
            self.owed -= UPDATES
        return len(rows)

    def read_off(self, *_: Any) -> tuple[Any, Any]:
        """The policy's tree."""
        return read_off(self.weights, 0, self.rules)

    def smaller(self, *_: Any) -> list[Any]:
        """Trees beside the policy's own: none."""
        return []

    def metrics(self) -> dict[str, float]:
        """A part of a row of metrics."""
        return {"loss": self.loss, "updates": UPDATES * self.updates}

    def state(self) -> dict[str, np.ndarray]:
        """Everything as arrays."""
        numbers = np.array([self.episodes, self.updates, self.steps, self.owed])
        data = {"lesson.numbers": numbers, "lesson.rng": self.rng.copy(), **self.memory.state("memory")}
        return data | {f"lesson.{i}": np.array(leaf) for i, leaf in enumerate(jax.tree.leaves(self.learned))}

    def restore(self, data: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        self.episodes, self.updates, self.steps, self.owed = (int(value) for value in data["lesson.numbers"])
        self.rng[...] = data["lesson.rng"]
        self.memory.restore("memory", data)
        leaves, shape = jax.tree.flatten(self.learned)
        self.learned = jax.tree.unflatten(shape, [jnp.asarray(data[f"lesson.{i}"]) for i in range(len(leaves))])
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
