"""CUSTARD (DQN): a network over bounds that is the tree, and an omniscient network that teaches it.

Two dueling networks, as in the paper's section "Training Procedure" and its appendix:

* Q(o, a) over bounds o = s_w \\ s_b and all actions of the IBMDP. It is the policy and never sees a base state.
* Q_o, omniscient. The value of a base action does not depend on the bounds, so Q_o(s_b, a) is over base states and
  base actions only; the value of a split is computed by following the greedy tree below it (`node_values`).

A round: base steps that follow the tree of the averaged Q, with exploration; updates of Q_o from the replay memory;
nodes drawn on the paths of replayed states, at each of which Q learns all actions at once; the tree is extracted again.
In between, trees are judged on rollouts, pruned ones as well, and the best tree is kept (`judge`).

`docs/explanation/dqn.md` explains each setting, `docs/explanation/deviations.md` lists what differs from the paper.
The preset "paper" is the appendix as written (`custard.solvers.dqn.paper`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from custard.core.errors import require_least, require_shares
from custard.envs.pcg64 import streams
from custard.ibmdp.splits import Rules
from custard.nn import networks
from custard.nn.checkpoints import from_arrays, to_arrays
from custard.nn.networks import Weights
from custard.nn.replay import Replay, Transitions
from custard.solvers.common.bounds_survey import default_splits, fill_missing_bounds
from custard.solvers.common.checkpoint import copy_arrays, restore_arrays
from custard.solvers.common.network_trees import MAX_NODES, extract_from_network, prune
from custard.solvers.dqn import paper
from custard.solvers.dqn.behaviour import collect, make_behaviour, tree_actions
from custard.solvers.dqn.judge import Judge
from custard.solvers.dqn.node_values import make_node_cache, node_values, with_weights
from custard.solvers.dqn.paper import PaperSettings
from custard.task.compiled_rollouts import tree_arrays
from custard.task.problem import Problem, Snapshot
from custard.task.runners import make_episodes
from custard.tree.tree import Tree

__all__ = ["PRESETS", "SETTINGS", "Learner", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Settings of CUSTARD (DQN). The defaults are the preset "tuned" and are meant for any environment."""

    budget: int | None = None  # environment steps, judging included; None: 3 million, 200,000 where Python steps
    splits: int | None = None  # p, thresholds per feature; None: as many as whole numbers need, 7 for real features
    zeta: float | None = None  # the reward of a split; None: by what splits can gain (docs/explanation/dqn.md)
    gamma_b: float = 0.99  # discount of a base action
    gamma_w: float = 1.0  # discount of a split
    hidden: int = 128  # units in each of the two hidden layers
    frequencies: int | None = None  # sines and cosines of each input; None: 0 for whole numbers, else 9 / n, at least 2
    learning_rate: float = 1e-3  # Adam, at first
    final_rate: float = 5e-5  # the learning rate at the budget's end
    batch: int = 128  # transitions, or nodes, per update
    critic_updates: int = 2  # updates of Q_o per update of Q
    steps_per_update: int | None = None  # environment steps per update of Q; None: 192, 16 where Python steps
    buffer: int = 200_000  # transitions in the replay memory
    warmup: int = 5_000  # random steps before the first update
    epsilon: float = 0.5  # share of random splits on the path to a drawn node
    epsilon_end: float = 0.3  # the same at the budget's end
    exploring_share: float = 0.8  # share of episodes that explore
    exploring_share_end: float = 0.5  # the same at the budget's end
    best_action_weight: float = 0.1  # of the best action, beside the tree's, in Q_o's targets; falls to this from 1
    tree_state_share: float = 0.9  # share of nodes drawn for states that the tree visits, from a third of the budget on
    target_rate: float = 0.02  # how far Q_o's target network moves per update
    average_rate: float = 0.005  # how far the average of Q, whose tree is followed and extracted, moves per update
    default_max_depth: int = 10  # depth limit where none is given
    max_splits_per_node: int = 12  # splits evaluated per drawn node, at most
    sampled_trees: int = 8  # trees drawn near the policy's own per round, to be judged beside it
    snapshots: int = 60  # how often trees are pruned and progress is shown
    leaf_prices: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)  # of a leaf, in units of -zeta: for pruning
    margin: float = 0.5  # standard errors by which a smaller tree may be worse
    patience: int = 6  # snapshots without a better tree before stopping, if the threshold is met; else three times that
    keep_best: bool = True  # return the best tree judged; False: the last one
    bootstrap_at_limit: bool = True  # a time limit is not a termination
    low: Any = None  # lower bounds of the features, where the environment's own do not suit
    high: Any = None  # upper bounds of the features

    def __post_init__(self) -> None:
        require_least(self, 1, "hidden", "batch", "critic_updates", "steps_per_update", "buffer", "warmup")
        require_least(self, 1, "default_max_depth", "max_splits_per_node", "snapshots", "patience")
        require_least(self, 0, "frequencies", "learning_rate", "final_rate", "sampled_trees", "margin")
        require_shares(self, "epsilon", "epsilon_end", "exploring_share", "exploring_share_end")
        require_shares(self, "best_action_weight", "tree_state_share", "target_rate", "average_rate")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {
        "CartPole": {"splits": 3, "zeta": -0.01, "low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4]},
        "PrereqWorld": {"zeta": -0.01},
        "PotholeWorld": {"splits": 3, "zeta": -0.001, "gamma_b": 0.9},
    },
    "paper": paper.PRESETS,
}
SETTINGS = {"paper": PaperSettings}  # the settings of a preset that is a form of its own

UPDATES_PER_ROUND = 32  # updates of Q
MIN_ROUNDS = 20  # however small the budget
SPLIT_PRICE_GAIN_SHARE = 0.03  # -zeta as a share of what splits can gain
MAX_CACHED_NODES = 50_000
MAX_STATES_OF_TREE_EPISODES = 20_000  # states kept that were visited while following the tree
MIN_STATES_OF_TREE_EPISODES = 500  # of them before nodes are drawn for them
MAX_GRADIENT_NORM = 10.0


def solve(
    problem: Problem, settings: Settings | PaperSettings, state: dict[str, np.ndarray] | None = None
) -> Iterator[Snapshot]:
    """Learn; yield the best tree so far at each snapshot."""
    if isinstance(settings, PaperSettings):
        yield from paper.solve(problem, settings, state)
        return
    problem.require_discrete_actions("dqn")
    budget = settings.budget or (3_000_000 if problem.is_compiled else 200_000)
    rules, surveyed = rules_for(problem, settings, budget)
    learner, judge = Learner(problem, rules, settings, budget), Judge(problem, settings, budget, surveyed)
    if state is not None:
        judge.restore(state)
        learner.restore(state)
    while not judge.message:
        max_steps = max(1, judge.learning_budget - judge.steps)
        judge.steps += learner.learn(min(1.0, judge.steps / budget), max_steps)
        if judge.judge(learner):
            yield judge.snapshot(learner)


def rules_for(problem: Problem, s: Settings, budget: int) -> tuple[Rules, int]:
    """Return the IBMDP, and the environment steps it took to find bounds of features that have none."""
    features, steps = fill_missing_bounds(problem, budget)
    depth = s.default_max_depth if problem.max_depth is None else problem.max_depth
    zeta = (s.zeta or 0.0) / problem.reward_scale
    splits = s.splits or default_splits(features)
    return Rules(features, problem.base.actions, splits, zeta, s.gamma_b, s.gamma_w, depth), steps


def zeta_by_gain(q_o: np.ndarray, lowest: float) -> float:
    """Return the reward of a split: minus a small share of what splits can gain over one action for all states.

    q_o [K, B] are the values of base actions in K states; `lowest` is the lowest reward allowed.

    >>> zeta_by_gain(np.array([[1.0, 0.0], [0.0, 1.0]]), -1.0)
    -0.015
    """
    gain = float(q_o.max(axis=1).mean() - q_o.mean(axis=0).max())
    return max(lowest, -SPLIT_PRICE_GAIN_SHARE * max(gain, 0.0))


class Learner:
    """The networks, the replay memory and the environment of one run."""

    def __init__(self, problem: Problem, rules: Rules, settings: Settings, budget: int) -> None:
        self.settings, self.rules = settings, rules
        per_update = min(192 if problem.is_compiled else 16, max(1, budget // (MIN_ROUNDS * UPDATES_PER_ROUND)))
        self.steps_per_round = UPDATES_PER_ROUND * (settings.steps_per_update or per_update)
        self.warmup = min(settings.warmup, budget // 4)
        seeds = problem.seeds("networks", "environment", "actions", "replay", "nodes")
        features, n = rules.features, rules.features.n
        default_frequencies = 0 if features.integer.all() else max(2, 9 // n)
        self.frequencies = default_frequencies if settings.frequencies is None else settings.frequencies
        inputs, hidden = n * (1 + 2 * self.frequencies), (settings.hidden, settings.hidden)
        rng = np.random.default_rng(seeds["networks"])
        critic = networks.make_network(rng, (inputs, *hidden, 1 + rules.n_base), 0.01)
        q = networks.make_network(rng, (2 * inputs, *hidden, 1 + rules.n_actions), 0.0)  # at first no split has a value
        self.updates = compile_updates(rules.gamma_b, self.frequencies, settings.target_rate, settings.average_rate)
        self.critic, self.q = self.updates.begin(critic), self.updates.begin(q)
        self.weights, self.replay_seed, self.rounds = q, seeds["replay"], 0
        self.zeta = self.lowest_zeta = rules.zeta
        row: dict[str, Any] = {
            "x": np.zeros(n), "action": np.zeros((), np.int32), "reward": np.zeros(()), "after": np.zeros(n),
            "ended": np.zeros((), bool),
        }  # fmt: skip
        self.memory = Replay(min(settings.buffer, budget), row)
        self.tree_states = Replay(MAX_STATES_OF_TREE_EPISODES, {"x": np.zeros(n)})  # visited while following the tree
        self.nodes = make_node_cache(rules, q, self.frequencies, streams([seeds["nodes"]])[0], MAX_CACHED_NODES)
        self.episodes = make_episodes(
            problem.with_scaled_rewards, seeds["environment"], max_steps=problem.episode_cap(budget),
            limit_terminates=not settings.bootstrap_at_limit,
        )  # fmt: skip
        self.tree, _ = self.extract()
        self.behaviour = make_behaviour(
            tree_arrays(self.tree), critic, self.frequencies, streams([seeds["actions"]])[0], n, rules.n_base
        )
        # The critic's inputs: bounded features are scaled by their bounds, others by where random steps led (NaN here).
        unbounded = problem.base.features.unbounded
        self.input_bounds = np.where(unbounded, np.nan, features.low), np.where(unbounded, np.nan, features.high)
        self.losses = (float("nan"), float("nan"))

    def learn(self, progress: float, max_steps: int) -> int:
        """Learn for one round, at this share of the budget; return the number of environment steps it took."""
        s = self.settings
        rows = self._play_round(progress, max_steps)
        self.rounds += 1
        rng = np.random.default_rng([self.replay_seed, self.rounds])
        rate = np.float32(s.learning_rate * (s.final_rate / s.learning_rate) ** progress)
        drawn = self.memory.sample(rng, s.critic_updates * UPDATES_PER_ROUND * s.batch)
        mu = np.float32(max(s.best_action_weight, 1.0 - 2.0 * progress * (1.0 - s.best_action_weight)))
        critic_loss = self._update_critic(drawn, rate, mu)
        x = drawn["x"][: UPDATES_PER_ROUND * s.batch]
        if self.tree_states.filled > MIN_STATES_OF_TREE_EPISODES:
            count = int(len(x) * s.tree_state_share * min(1.0, 3.0 * progress))
            x = np.concatenate([x[count:], self.tree_states.sample(rng, count)["x"]])
            rng.shuffle(x)
        q_loss = self._update_q(x, rate, s.epsilon + (s.epsilon_end - s.epsilon) * progress)
        self.losses = (critic_loss, q_loss)
        self._use_new_weights()
        return len(rows.x)

    def _play_round(self, progress: float, max_steps: int) -> Transitions:
        """Step the environment for a round, in the first one by random actions, and remember the transitions."""
        s, is_first = self.settings, self.rounds == 0
        share = s.exploring_share + (s.exploring_share_end - s.exploring_share) * progress
        self.behaviour.exploring_share[0] = 1.0 if is_first else share
        steps = min(self.warmup if is_first else self.steps_per_round, max_steps)
        rows, on_tree = collect(self.episodes, self.behaviour, steps)
        self.memory.add(rows._asdict())
        if on_tree.any():
            self.tree_states.add({"x": rows.x[on_tree]})
        if is_first:
            self._set_scaling(rows.x)
            if s.zeta is None:
                self.lowest_zeta = -0.01 * max(float(np.abs(rows.reward).mean()), 1e-3)
        return rows

    def _update_critic(self, rows: dict[str, np.ndarray], rate: np.float32, mu: np.float32) -> float:
        """Update Q_o from replayed transitions; return the mean loss."""
        next_action = tree_actions(self.behaviour.tree, rows["after"])
        columns = (
            self._scaled(rows["x"]), rows["action"], rows["reward"].astype(np.float32), self._scaled(rows["after"]),
            rows["ended"], next_action,
        )  # fmt: skip
        self.critic, loss = self.updates.improve_critic(self.critic, rate, mu, *map(self._in_batches, columns))
        return float(loss)

    def _update_q(self, x: np.ndarray, rate: np.float32, epsilon: float) -> float:
        """Update Q at a node on the path of each base state, toward the values of all actions; return the mean loss."""
        count, n_actions = len(x), self.rules.n_actions
        bounds, values = np.empty((count, 2 * x.shape[1]), np.float32), np.empty((count, n_actions), np.float32)
        known = np.empty((count, n_actions), bool)
        q_o = self._q_o(x)
        if self.settings.zeta is None:
            self.zeta = zeta_by_gain(q_o, self.lowest_zeta)
        max_depth = min(max(self.tree.depth + 1, 2), self.rules.depth_limit)
        max_splits = self.settings.max_splits_per_node
        node_values(self.nodes, x, q_o, self.zeta, max_depth, epsilon, max_splits, bounds, values, known)
        self.q, loss = self.updates.improve_q(self.q, rate, *map(self._in_batches, (bounds, values, known)))
        return float(loss)

    def _use_new_weights(self) -> None:
        """Act by the weights learned last, draw nodes and extract the tree by them."""
        self.weights = tuple(np.array(w) for w in self.q.slow)
        self.nodes = with_weights(self.nodes, self.weights)
        self.tree, _ = self.extract()
        critic = tuple(np.array(w) for w in self.critic.slow)
        self.behaviour = self.behaviour._replace(tree=tree_arrays(self.tree), critic=critic)

    def extract(self, noise: float = 0.0, number: int = 0) -> tuple[Tree, np.ndarray]:
        """Return the policy's tree and the preferred base action of each node; with noise, the draw of this number."""
        rng = np.random.default_rng([self.replay_seed, self.rounds, 2, number]) if noise else None
        return extract_from_network(self.weights, self.frequencies, self.rules, noise, rng)

    def pruned_trees(self, tree: Tree, base_actions: np.ndarray) -> Iterator[Tree]:
        """Yield the tree pruned by each price of a leaf, by Q_o's values in visited states."""
        visited = self.tree_states if self.tree_states.filled else self.memory
        x = visited.sample(np.random.default_rng([self.replay_seed, self.rounds, 1]), 2 * MAX_NODES)["x"]
        q_o = self._q_o(x).astype(np.float64)
        for price in self.settings.leaf_prices:
            yield prune(tree, base_actions, x, q_o - q_o.max(axis=1, keepdims=True), -price * self.zeta)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the networks."""
        updates = (1 + self.settings.critic_updates) * UPDATES_PER_ROUND * self.rounds
        return {"loss_critic": self.losses[0], "loss_q": self.losses[1], "updates": updates}

    def _q_o(self, x: np.ndarray) -> np.ndarray:
        """Return Q_o of base states [K, n], [K, B] float32, by its target network."""
        return np.asarray(self.updates.q_values(self.critic.slow, self._scaled(x)))

    def _set_scaling(self, x: np.ndarray) -> None:
        mean, spread = x.mean(axis=0), 3.0 * np.maximum(x.std(axis=0), 1e-6)
        low, high = self.input_bounds
        low, high = np.where(np.isnan(low), mean - spread, low), np.where(np.isnan(high), mean + spread, high)
        self.behaviour.scaling[...] = low, np.where(high > low, high - low, 1.0)

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        low, width = self.behaviour.scaling
        return ((x - low) / width).astype(np.float32)

    def _in_batches(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, self.settings.batch, *rows.shape[1:])

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _checkpoint_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that a checkpoint keeps, not copied."""
        b = self.behaviour
        own = {"scaling": b.scaling, "rng": b.rng, "exploring_share": b.exploring_share, **b.episode._asdict()}
        return {"nodes.rng": self.nodes.rng, **{f"behaviour.{k}": v for k, v in own.items()}, **self.episodes.arrays()}

    def state(self) -> dict[str, np.ndarray]:
        """Return everything as arrays, copied."""
        data = copy_arrays(self._checkpoint_arrays())
        data |= {"zeta": np.array([self.zeta, self.lowest_zeta]), "rounds": np.array(self.rounds)}
        data |= to_arrays((self.critic, self.q))
        return {**data, **self.memory.state("memory"), **self.tree_states.state("tree_states")}

    def restore(self, data: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        restore_arrays(self._checkpoint_arrays(), data)
        self.zeta, self.lowest_zeta = data["zeta"].tolist()
        self.critic, self.q = from_arrays((self.critic, self.q), data)
        self.rounds = int(data["rounds"])
        self.memory.restore("memory", data)
        self.tree_states.restore("tree_states", data)
        self._use_new_weights()


class Network(NamedTuple):
    """A network while it is learned."""

    weights: Weights
    slow: Weights  # the target network (Q_o) or the average (Q): it follows the weights slowly
    moments: Any  # Adam's


class Updates(NamedTuple):
    """Compiled functions; `compile_updates` says what each does."""

    improve_critic: Any
    improve_q: Any
    q_values: Any
    begin: Any


@cache  # compiled once for all seeds
def compile_updates(gamma_b: float, frequencies: int, target_rate: float, average_rate: float) -> Updates:
    """Return the updates of Q_o and of Q, many per call, Q-values of a batch, and the start of learning."""
    optimiser = optax.chain(optax.clip_by_global_norm(MAX_GRADIENT_NORM), optax.scale_by_adam())

    def q_values(weights: Weights, x: Any) -> Any:
        return networks.dueling(networks.forward(weights, networks.encode(x, frequencies, jnp), jax.nn.relu))

    def descend(loss: Any, rate: Any, slow_rate: float, network: Network) -> tuple[Network, Any]:
        cost, gradient = jax.value_and_grad(loss)(network.weights)
        change, moments = optimiser.update(gradient, network.moments)
        weights = jax.tree.map(lambda w, d: w - rate * d, network.weights, change)
        slow = jax.tree.map(lambda old, new: old + slow_rate * (new - old), network.slow, weights)
        return Network(weights, slow, moments), cost

    def update_critic(rate: Any, mu: Any, critic: Network, batch: Any) -> tuple[Network, Any]:
        """Move Q_o to r + gamma_b * Q_o(s_b', b'): b' is the tree's action, with weight mu the best one instead."""
        x, action, reward, after, ended, next_action = batch
        rows = jnp.arange(len(action))
        ahead, best = q_values(critic.slow, after), q_values(critic.weights, after).argmax(axis=-1)
        future = (1.0 - mu) * ahead[rows, next_action] + mu * ahead[rows, best]
        goal = reward + gamma_b * jnp.where(ended, 0.0, future)
        return descend(lambda w: jnp.square(q_values(w, x)[rows, action] - goal).mean(), rate, target_rate, critic)

    def update_q(rate: Any, q: Network, batch: Any) -> tuple[Network, Any]:
        """Move Q to the values of all actions at each node, where they are known."""
        bounds, values, known = batch
        error = lambda w: jnp.where(known, jnp.square(q_values(w, bounds) - values), 0.0).sum() / len(bounds)  # noqa: E731
        return descend(error, rate, average_rate, q)

    def improve_critic(critic: Network, rate: Any, mu: Any, *batches: Any) -> tuple[Network, Any]:
        critic, cost = jax.lax.scan(lambda network, batch: update_critic(rate, mu, network, batch), critic, batches)
        return critic, cost.mean()

    def improve_q(q: Network, rate: Any, *batches: Any) -> tuple[Network, Any]:
        q, cost = jax.lax.scan(lambda network, batch: update_q(rate, network, batch), q, batches)
        return q, cost.mean()

    def begin(weights: Weights) -> Network:
        arrays = tuple(jnp.asarray(w) for w in weights)
        return Network(arrays, arrays, optimiser.init(arrays))

    return Updates(jax.jit(improve_critic), jax.jit(improve_q), jax.jit(q_values), begin)
