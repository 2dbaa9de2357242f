"""CUSTARD (DQN) as the paper's appendix writes it: two dueling networks that learn from replayed steps of the IBMDP.

Q(o, a) over bounds o = s_w \\ s_b is the policy; Q_o(s_w, a) is omniscient. Both move toward the same `targets`. The
tree returned is that of the last policy. `docs/explanation/deviations.md` lists what the appendix leaves open.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numba import njit

from custard.core.errors import require_least, require_shares
from custard.core.numba_tools import without_refcounts
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.kernels import ask, best_afforded, random_afforded, restart
from custard.ibmdp.splits import Rules
from custard.ibmdp.vector import VectorIBMDP
from custard.nn import networks
from custard.nn.checkpoints import from_arrays, to_arrays
from custard.nn.networks import Weights, forward_row
from custard.nn.replay import Replay
from custard.solvers.common.bounds_survey import fill_missing_bounds
from custard.solvers.common.network_trees import extract_from_network
from custard.solvers.common.selection import LEARNING_BUDGET_SHARE
from custard.solvers.dqn.judge import make_selection, tree_metrics
from custard.task.compiled_episodes import compiled_episodes_of, step_episode
from custard.task.problem import Problem, Snapshot

__all__ = ["PRESETS", "PaperLearner", "PaperSettings", "solve", "targets"]


@dataclass(frozen=True)
class PaperSettings:
    """Settings of CUSTARD (DQN) as the appendix writes it, with the appendix's numbers."""

    budget: int = 1_000_000  # steps of the IBMDP, and of the environment for judging
    splits: int = 3  # p, thresholds per feature
    zeta: float = -0.01  # the reward of a split
    gamma_b: float = 1.0  # discount of a base action
    gamma_w: float = 1.0  # discount of a split
    hidden: int = 128  # units in each of the two hidden layers
    learning_rate: float = 2.5e-4  # RMSProp
    batch: int = 128  # transitions per update
    steps_per_update: int = 4  # steps of the IBMDP per update of both networks
    buffer: int = 1_000_000  # transitions in the replay memory
    warmup: int = 100_000  # random steps before the first update
    epsilon: float = 0.5  # share of random actions after the warm-up
    epsilon_end: float = 0.05  # the same at the end of `epsilon_steps`
    epsilon_steps: int = 200_000  # steps over which epsilon falls
    target_every: int = 1000  # updates between copies of Q_o to its target network
    snapshots: int = 20  # how often the tree is judged and progress is shown
    bootstrap_at_limit: bool = True  # a time limit is not a termination
    low: Any = None  # lower bounds of the features, where the environment's own do not suit
    high: Any = None  # upper bounds of the features

    def __post_init__(self) -> None:
        require_least(self, 1, "splits", "hidden", "batch", "steps_per_update", "buffer", "warmup", "snapshots")
        require_least(self, 1, "epsilon_steps", "target_every")
        require_least(self, 0, "learning_rate")
        require_shares(self, "epsilon", "epsilon_end")


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole": {"low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4], "bootstrap_at_limit": False},
    "PrereqWorld": {"splits": 1},
    "PotholeWorld": {"zeta": 0.0, "gamma_b": 0.99, "gamma_w": 0.99},
}

UPDATES_PER_COMPILED_CALL = 20  # in one compiled call; meanwhile the policy that acts stays the same
RMSPROP_DECAY = 0.95


def solve(problem: Problem, settings: PaperSettings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn; yield the policy's tree at each snapshot."""
    problem.require_discrete_actions("dqn")
    budget = settings.budget
    rules, steps = rules_for(problem, settings)
    learner, selection, snapshots = PaperLearner(problem, rules, settings), make_selection(problem, budget), 0
    if state is not None:
        steps, snapshots = map(int, state["at"])
        selection.restore(dict(state))
        learner.restore(state)
    clock, message = (time.perf_counter(), steps), ""  # at the last snapshot
    while not message:
        steps += learner.learn()
        is_time = steps >= budget * (snapshots + 1) / settings.snapshots and 2 * selection.steps <= steps
        is_last = steps >= LEARNING_BUDGET_SHARE * budget
        if not learner.at_episode_start or not (is_time or is_last):
            continue
        tree, judged_before = learner.extract(), selection.steps
        selection.spent = steps - selection.steps
        selection.replace(tree)
        steps += selection.steps - judged_before
        snapshots = int(settings.snapshots * steps / budget)
        message = "budget used" if is_last else ""
        now = time.perf_counter()
        speed, clock = (steps - clock[1]) / (now - clock[0]), (now, steps)
        metrics = {**tree_metrics(selection, tree, selection.last_mean), **learner.metrics(), "steps_per_second": speed}
        data = {"at": np.array([steps, snapshots]), **selection.state(), **learner.state()}
        yield Snapshot(steps, tree, selection.last_mean, budget, metrics, tree, message, lambda data=data: data)


def rules_for(problem: Problem, s: PaperSettings) -> tuple[Rules, int]:
    """Return the IBMDP, and the environment steps it took to find bounds of features that have none."""
    features, steps = fill_missing_bounds(problem, s.budget)
    return Rules(features, problem.base.actions, s.splits, s.zeta, s.gamma_b, s.gamma_w, problem.max_depth), steps


# -- the update -----------------------------------------------------------------------------------------------------


def _with_bias_input(x: Any) -> Any:
    return jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), x.dtype)], axis=-1)


@jax.custom_vjp
def affine(x: Any, w: Any) -> Any:
    """Return [x, 1] @ w, with a gradient whose transposed factor is written out first: XLA multiplies twice as fast."""
    return _with_bias_input(x) @ w


affine.defvjp(
    lambda x, w: (_with_bias_input(x) @ w, (_with_bias_input(x), w)),
    lambda kept, g: (g @ kept[1][:-1].T, jax.lax.optimization_barrier(kept[0].T) @ g),
)


def q_values(weights: Weights, x: Any) -> Any:
    """Return a dueling network's values, [B, inputs] -> [B, actions]."""
    return networks.dueling(networks.forward(weights, x, jax.nn.relu, affine))


def targets(q: Callable[[Any], Any], q_o: Callable[[Any], Any], batch: Mapping[str, Any]) -> Any:
    """Return r + gamma * Q_o(s_w', argmax_a Q(s_w' \\ s_b, a)).

    gamma is gamma_b after base actions and gamma_w after splits, and r is zeta for a split. Only afforded actions count
    in the argmax. Nothing follows termination; a truncated episode's last state keeps its value. s_w' begins with s_b'
    and goes on with the bounds.
    """
    after, n = batch["after"], batch["after"].shape[-1] // 3
    greedy = jnp.where(batch["mask"], q(after[..., n:]), -jnp.inf).argmax(axis=-1)
    future = jnp.take_along_axis(q_o(after), greedy[..., None], axis=-1)[..., 0]
    return batch["reward"] + jnp.where(batch["ended"], 0.0, batch["discount"] * future)


def update(optimiser: Any, target_network: Weights, learned: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """Take one step of both networks on the squared error; `learned` is ((Q, Q_o), moments). Return it and the loss."""
    pair, moments = learned
    goal = targets(partial(q_values, pair[0]), partial(q_values, target_network), batch)
    n = batch["obs"].shape[-1] // 3

    def loss(pair: Any) -> Any:
        chosen = batch["action"][..., None]
        both = q_values(pair[0], batch["obs"][..., n:]), q_values(pair[1], batch["obs"])
        return sum(jnp.square(jnp.take_along_axis(q, chosen, axis=-1)[..., 0] - goal).mean() for q in both)

    cost, gradient = jax.value_and_grad(loss)(pair)
    change, moments = optimiser.update(gradient, moments)
    return (optax.apply_updates(pair, change), moments), cost


class Networks(NamedTuple):
    """What is learned."""

    pair: tuple[Weights, Weights]  # Q and Q_o
    target_network: Weights  # a copy of Q_o
    moments: Any  # RMSProp's
    updates: Any  # how many there were


def update_many(
    optimiser: Any, target_every: int, learned: Networks, batches: Mapping[str, Any]
) -> tuple[Networks, Any]:
    """Call `update` for each batch of [U, B, …]; then renew the target network if `target_every` updates have passed.

    The target network is not carried from update to update, which would write it out each time: a sixth of all time.
    """
    pair, target_network, moments, before = learned
    (pair, moments), cost = jax.lax.scan(partial(update, optimiser, target_network), (pair, moments), batches)
    after = before + len(cost)
    renew = after // target_every > before // target_every
    target_network = jax.tree.map(lambda old, new: jnp.where(renew, new, old), target_network, pair[1])
    return Networks(pair, target_network, moments, after), cost.mean()


@cache  # compiled once for all seeds
def compile_updates(learning_rate: float, target_every: int) -> tuple[Any, Any]:
    """Return RMSProp and the compiled `update_many`."""
    optimiser = optax.rmsprop(learning_rate, decay=RMSPROP_DECAY)
    return optimiser, jax.jit(partial(update_many, optimiser, target_every), donate_argnums=0)


# -- steps and updates ------------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """Transitions of the IBMDP, one row per step."""

    obs: np.ndarray  # [T, 3n] float32: base state, lower and upper bounds, normalised
    action: np.ndarray  # [T] int32
    reward: np.ndarray  # [T] float32
    discount: np.ndarray  # [T] float32: gamma_b or gamma_w
    ended: np.ndarray  # [T] bool: nothing follows
    after: np.ndarray  # [T, 3n] float32
    mask: np.ndarray  # [T, actions] bool: what is afforded afterwards


def make_steps(count: int, n: int, n_actions: int) -> Steps:
    """Allocate `count` steps."""
    obs, after = (np.zeros((count, 3 * n), np.float32) for _ in range(2))
    reward, discount = (np.zeros(count, np.float32) for _ in range(2))
    ended, mask = np.zeros(count, bool), np.zeros((count, n_actions), bool)
    return Steps(obs, np.zeros(count, np.int32), reward, discount, ended, after, mask)


class PaperLearner:
    """The networks, the replay memory and the IBMDP of one run."""

    def __init__(self, problem: Problem, rules: Rules, settings: PaperSettings) -> None:
        self.settings, self.rules, budget = settings, rules, settings.budget
        self.seeds = problem.seeds("networks", "environment", "actions", "replay")
        n, n_actions = rules.features.n, rules.n_actions
        rng = np.random.default_rng(self.seeds["networks"])
        layers = (settings.hidden, settings.hidden, 1 + n_actions)
        pair = networks.make_network(rng, (2 * n, *layers)), networks.make_network(rng, (3 * n, *layers))
        optimiser, self.improve = compile_updates(settings.learning_rate, settings.target_every)
        pair = jax.tree.map(jnp.asarray, pair)
        target_network = jax.tree.map(jnp.array, pair[1])
        self.learned = Networks(pair, target_network, optimiser.init(pair), jnp.zeros((), jnp.int32))
        self.weights: Weights = tuple(np.array(w) for w in pair[0])
        self.warmup = min(settings.warmup, budget // 2)
        self.steps_per_call = UPDATES_PER_COMPILED_CALL * settings.steps_per_update
        self.rows = make_steps(self.steps_per_call, n, n_actions)
        row = {name: column[0] for name, column in self.rows._asdict().items()}
        self.memory = Replay(min(settings.buffer, budget), row)
        base: Any = problem.source.make_vec(1)
        self.env = VectorIBMDP(
            base, int(rules.splits), zeta=rules.zeta, gamma_b=rules.gamma_b, gamma_w=rules.gamma_w,
            max_depth=rules.max_depth, low=rules.features.low, high=rules.features.high, features=problem.encoder,
        )  # fmt: skip
        self.rng = streams([self.seeds["actions"]])[0]
        self.layer_outputs = networks.make_layer_outputs(self.weights)
        self.limit = problem.episode_cap(budget)
        self.limit_ends = not settings.bootstrap_at_limit and problem.source.time_limit is not None
        self.episodes = self.calls = self.steps = self.steps_not_learned = 0
        self.loss = float("nan")
        self._start_episode()
        self.compiled = compiled_episodes_of(base, self.limit_ends) if problem.is_compiled else None

    def _start_episode(self) -> None:
        """Begin an episode with its own seed. Between episodes a run can be resumed."""
        seed = np.random.SeedSequence([self.seeds["environment"], self.episodes]).generate_state(1)[0]
        self.obs, info = self.env.reset(seed=int(seed))
        self.mask = info["action_mask"]
        self.elapsed, self.at_episode_start = 0, True

    def learn(self) -> int:
        """Take some steps, at most to the end of the episode, and the updates due; return the number of steps."""
        s = self.settings
        step_numbers = self.steps + np.arange(self.steps_per_call)
        falling = np.interp(step_numbers, [self.warmup, self.warmup + s.epsilon_steps], [s.epsilon, s.epsilon_end])
        epsilon = np.where(step_numbers < self.warmup, 1.0, falling)
        count, self.at_episode_start = self._step_to_episode_end(epsilon)
        self.memory.add({name: column[:count] for name, column in self.rows._asdict().items()})
        self.steps += count
        self.steps_not_learned += count if self.steps > self.warmup else 0
        if self.at_episode_start:
            self.episodes += 1
            self._start_episode()
        while self.steps_not_learned >= self.steps_per_call:
            rng = np.random.default_rng([self.seeds["replay"], self.calls])
            drawn = self.memory.sample(rng, UPDATES_PER_COMPILED_CALL * s.batch)
            shape = UPDATES_PER_COMPILED_CALL, s.batch
            batches = {name: column.reshape(*shape, *column.shape[1:]) for name, column in drawn.items()}
            self.learned, loss = self.improve(self.learned, batches)
            self.weights = tuple(np.array(w) for w in self.learned.pair[0])
            self.loss = float(loss)
            self.calls += 1
            self.steps_not_learned -= self.steps_per_call
        return count

    def _step_to_episode_end(self, epsilon: np.ndarray) -> tuple[int, bool]:
        """Take a step for each epsilon, at most to the end of the episode, into `rows`; return how many, and whether
        the episode is over."""
        if self.compiled is not None:
            base = self.compiled, self.rules.gamma_b
            return play_compiled(
                self.weights, self.layer_outputs, self.rng, epsilon, self.env.compiled, *base, self.rows
            )
        n = self.rules.features.n
        for t, share in enumerate(epsilon):
            action = choose_action(self.weights, self.obs[0, n:], self.mask[0], share, self.rng, self.layer_outputs)
            after, reward, terminated, truncated, info = self.env.step(np.array([action]))
            mask, is_base = info["action_mask"], action < self.rules.n_base
            self.elapsed += is_base
            is_cut = truncated[0] or self.elapsed >= self.limit
            ended = terminated[0] or (self.limit_ends and is_cut and is_base)
            row = (self.obs[0], action, reward[0], info["discount"][0], ended, after[0], mask[0])
            for column, value in zip(self.rows, row, strict=True):
                column[t] = value
            self.obs, self.mask = after, mask
            if terminated[0] or is_cut:
                return t + 1, True
        return len(epsilon), False

    def extract(self) -> Any:
        """Return the policy's tree."""
        return extract_from_network(self.weights, 0, self.rules)[0]

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the networks."""
        return {"loss": self.loss, "updates": UPDATES_PER_COMPILED_CALL * self.calls}

    def state(self) -> dict[str, np.ndarray]:
        """Return everything as arrays, copied."""
        numbers = np.array([self.episodes, self.calls, self.steps, self.steps_not_learned])
        own = {"learner.numbers": numbers, "learner.rng": self.rng.copy()}
        return {**own, **to_arrays(self.learned), **self.memory.state("memory")}

    def restore(self, data: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        self.episodes, self.calls, self.steps, self.steps_not_learned = map(int, data["learner.numbers"])
        self.rng[...] = data["learner.rng"]
        self.memory.restore("memory", data)
        self.learned = from_arrays(self.learned, data)
        self.weights = tuple(np.array(w) for w in self.learned.pair[0])
        self._start_episode()


@njit(cache=True)
def choose_action(weights, bounds, mask, epsilon, rng, layer_outputs):
    """Return an afforded action: with probability epsilon a random one, otherwise the one of the largest Q.

    weights: of Q over bounds
    bounds, mask: [2n] float32 and [actions] bool of the node
    rng: [4] a random stream
    layer_outputs: `networks.make_layer_outputs` of the weights
    """
    if uniform(rng, 0.0, 1.0) < epsilon:
        return random_afforded(rng, mask)
    return best_afforded(forward_row(weights, bounds, layer_outputs, True)[1:], mask)


@njit(cache=True)
def play_compiled(weights, layer_outputs, rng, epsilon, ibmdp, episodes, gamma_b, rows):
    """Take a step of the IBMDP for each epsilon, at most to the end of the episode; return how many, and whether it is
    over.

    weights, layer_outputs, rng: see `choose_action`
    epsilon: [T]
    ibmdp: `VectorIBMDP.compiled`
    episodes: `CompiledEpisodes` of its base environment
    gamma_b: discount of a base action
    rows: Steps to fill
    """
    weights, ibmdp, episodes, rows = without_refcounts((weights, ibmdp, episodes, rows))
    rules, (low, high, width, integer, fractions), root, (x, lower, upper, depth, queries, obs, mask) = ibmdp
    index, action, v, busy = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.bool_)
    acting, reward, discount, cut = np.zeros(1, np.int64), np.zeros(1), np.zeros(1), np.zeros(1, np.bool_)
    for t in range(len(epsilon)):
        rows.obs[t] = obs[0]
        action[0] = choose_action(weights, obs[0, len(low) :], mask[0], epsilon[t], rng, layer_outputs)
        ask(
            action, v, busy, rules, low, width, integer, fractions, x, lower, upper, depth, queries, obs, mask, acting,
            reward, discount, cut,
        )  # fmt: skip
        ended = False
        if action[0] < rules[0]:
            reward[0], ended, cut[0] = step_episode(episodes, 0, action[0])
            discount[0] = gamma_b
            restart(index, low, high, width, root[0], root[1], x, lower, upper, depth, queries, obs, mask)
        rows.action[t], rows.reward[t], rows.discount[t], rows.ended[t] = action[0], reward[0], discount[0], ended
        rows.after[t], rows.mask[t] = obs[0], mask[0]
        if ended or cut[0]:
            return t + 1, True
    return len(epsilon), False
