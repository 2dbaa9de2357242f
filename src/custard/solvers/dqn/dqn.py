"""CUSTARD (DQN): a network over bounds that is the tree, and an omniscient network that teaches it.

Two dueling networks, as in the paper's section "Training Procedure" and its appendix:

* Q(o, a) over bounds o = s_w \\ s_b and all actions of the IBMDP. It is the policy and never sees a base state.
* Q_o, omniscient. The value of a base action does not depend on the bounds, so Q_o(s_b, a) is over base states and
  base actions only; what a split is worth comes from walking the greedy tree below (`custard.solvers.dqn.imagine`).

Learning goes in rounds: base steps by the tree of the averaged Q, with exploration; updates of Q_o from the replay;
nodes imagined for replayed states, at each of which Q learns all actions at once; the tree is read off again. Now and
then it is judged on rollouts, pruned by several prices too, and the best tree is kept.

`docs/dqn.md` explains each setting, `docs/deviations.md` lists what differs from the paper. The preset "paper" is the
appendix as written (`custard.solvers.dqn.paper`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

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
from custard.nn.replay import Replay
from custard.solvers.common.bounds_survey import default_splits, fill_missing_bounds
from custard.solvers.common.reading import NODES, pruned, read_off
from custard.solvers.common.selection import Selection
from custard.solvers.dqn.behaviour import SHARE, Actor, Foreign, Native, tree_actions, tree_arrays
from custard.solvers.dqn.imagine import imagine, make_imagination, refresh
from custard.task.problem import Problem, Snapshot
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Settings of CUSTARD (DQN). The defaults are the preset "tuned" and are meant for any environment."""

    budget: int | None = None  # environment steps, judging included; None: 3 million, 200,000 where Python steps
    splits: int | None = None  # p, thresholds a feature; None: as many as whole numbers need, 7 for real features
    zeta: float | None = None  # the reward of a question; None: by what questions can gain (docs/dqn.md)
    gamma_b: float = 0.99  # discount of a base action
    gamma_w: float = 1.0  # discount of a question
    hidden: int = 128  # units in each of the two hidden layers
    frequencies: int | None = None  # sines and cosines of each input; None: 0 for whole numbers, else 9 / n, at least 2
    learning_rate: float = 1e-3
    final_rate: float = 5e-5  # what it falls to at the budget's end
    batch: int = 128  # transitions, or nodes, in an update
    critic_updates: int = 2  # of Q_o for each of Q
    steps_per_update: int | None = None  # steps for each update; None: 192, 16 where Python steps (paper: 4)
    buffer: int = 200_000  # transitions remembered
    warmup: int = 5_000  # random steps before the first update
    epsilon: float = 0.5  # share of random questions on the way to an imagined node (paper: of random actions)
    epsilon_end: float = 0.3  # what it falls to
    explore: float = 0.8  # share of episodes that explore
    explore_end: float = 0.5  # what it falls to
    mu: float = 0.1  # share of the best action, beside the tree's, in what follows; it falls to this from 1
    followed: float = 0.9  # share of nodes imagined for states that the tree met, once a third of the budget is used
    target_rate: float = 0.02  # how far Q_o's slow copy moves at each update
    averaging: float = 0.005  # the same for the averaged Q, whose tree is walked and read off
    depth: int = 10  # questions at most where no depth limit is given
    questions: int = 12  # splits valued at an imagined node, at most
    draws: int = 8  # trees drawn near the policy's own in each round, to be judged beside it
    snapshots: int = 60  # how often trees are pruned and progress is shown
    prices: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)  # of a leaf, in units of -zeta: for pruning
    margin: float = 0.5  # standard errors by which a smaller tree may be worse
    patience: int = 6  # snapshots without a better tree before stopping, if the threshold is met; else three times that
    shared: bool = True  # Q_o over base states and imagined nodes; False: both networks as the paper writes them
    keep: bool = True  # hand back the best tree judged; False: the last one
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: nothing does
    epsilon_steps: int = 200_000  # paper only: steps over which epsilon falls
    target_every: int = 1000  # paper only: updates between copies of Q_o
    low: Any = None  # bounds of the features, where the environment's own do not suit
    high: Any = None

    def __post_init__(self) -> None:
        require_least(self, 1, "hidden", "batch", "critic_updates", "steps_per_update", "buffer", "warmup", "depth")
        require_least(self, 1, "questions", "snapshots", "patience", "epsilon_steps", "target_every")
        require_least(self, 0, "frequencies", "learning_rate", "final_rate", "draws", "margin")
        require_shares(self, "epsilon", "epsilon_end", "explore", "explore_end", "mu", "followed")
        require_shares(self, "target_rate", "averaging")


_CARTPOLE = {"splits": 3, "zeta": -0.01, "low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4]}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {
        "CartPole": _CARTPOLE,
        "PrereqWorld": {"zeta": -0.01},
        "PotholeWorld": {"splits": 3, "zeta": -0.001, "gamma_b": 0.9},
    },
    "paper": {
        "": {"splits": 3, "zeta": -0.01, "gamma_b": 1.0, "learning_rate": 2.5e-4, "buffer": 10**6, "warmup": 100_000,
             "epsilon": 0.5, "epsilon_end": 0.05, "frequencies": 0, "shared": False, "keep": False, "snapshots": 20,
             "steps_per_update": 4, "budget": 1_000_000},
        "CartPole": {**_CARTPOLE, "bootstrap_at_limit": False},
        "PrereqWorld": {"splits": 1},
        "PotholeWorld": {"splits": 3, "zeta": 0.0, "gamma_b": 0.99, "gamma_w": 0.99},
    },
}  # fmt: skip

UPDATES = 32  # in a round
ROUNDS = 20  # at least, however small the budget
PRICE = 0.03  # of a question, as a share of what questions can gain
NOISE = 0.4  # of the trees drawn, in units of the spread of a node's values; a half, a quarter, an eighth of it
CAPACITY = 50_000  # nodes kept in imagination
RECENT = 20_000  # states that the tree met, kept for imagining and pruning


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn; yields the best tree so far after each judgement."""
    problem.require_discrete_actions("dqn")
    learner = Learner(problem, settings, state)
    while not learner.message:
        if learner.advance():
            yield learner.snapshot()


class Learner:
    """One run: what is learned, the selection, and where in the budget it stands."""

    def __init__(self, problem: Problem, settings: Settings, state: Mapping[str, np.ndarray] | None = None) -> None:
        self.problem, self.settings = problem, settings
        native = problem.native
        self.budget = settings.budget or (3_000_000 if native else 200_000)
        self.rules, self.steps = rules_for(problem, settings, self.budget)
        if settings.shared:
            per = settings.steps_per_update or min(192 if native else 16, max(1, self.budget // (ROUNDS * UPDATES)))
            self.lesson: Any = Imagined(problem, self.rules, settings, self.budget, UPDATES * per)
        else:
            from custard.solvers.dqn.paper import Written

            self.lesson = Written(problem, self.rules, settings, self.budget)
        most = int(np.clip(self.budget // 2000, 32, 512))
        first = int(np.clip(self.budget // 5000, 2, 8))
        self.selection = Selection(problem, most, first, settings.margin, self.budget)
        self.shown = self.waited = self.improved = 0
        self.message, self.final_value, self.clock = "", float("nan"), (time.perf_counter(), self.steps)
        self.final: Tree | None = None
        if state is not None:
            self.steps, self.shown, self.waited, self.improved = (int(value) for value in state["at"])
            self.selection.restore(dict(state))
            self.lesson.restore(state)

    def advance(self) -> bool:
        """Learn for one round and judge; whether it is time to show where the run stands."""
        self.steps += self.lesson.learn(min(1.0, self.steps / self.budget))
        end = self.steps >= self.budget
        time_to = self.steps >= self.budget * (self.shown + 1) / self.settings.snapshots
        due = self.lesson.resting and (end or (time_to and (self.settings.keep or self._affordable)))
        if due or (self.settings.keep and self._affordable):
            self._judge(due)
        if not due:
            return False
        self.shown = int(self.settings.snapshots * self.steps / self.budget)
        self.waited = 0 if self.selection.improved > self.improved else self.waited + 1
        self.improved = self.selection.improved
        patience, met = self.settings.patience, self.selection.surely_above(self.problem.source.threshold)
        if self.steps >= self.budget:
            self.message = "budget used"
        elif self.settings.keep and met and not self.selection.varying and self.waited >= patience:
            self.message = "reward threshold met, and no better tree since"
        elif self.settings.keep and self.selection.asks and not self.selection.varies and self.waited >= 3 * patience:
            self.message = "no better tree for long"  # and chance has no part in that
        return True

    @property
    def _affordable(self) -> bool:
        """Judging takes half of all steps at the most."""
        return 2 * self.selection.steps <= self.steps

    def _judge(self, thoroughly: bool) -> None:
        """Judge the policy's tree; the same pruned; and, while it is affordable, trees that look nearly as good."""
        selection, spent = self.selection, self.selection.steps
        self.final, acts = self.lesson.read_off()
        if not self.settings.keep:
            selection.replace(self.final)
        better = self.settings.keep and selection.show(self.final)
        self.final_value = selection.last
        for tree in self.lesson.smaller(self.final, acts) if better or thoroughly else ():
            selection.show(tree)
        self.steps += selection.steps - spent
        for i in range(self.settings.draws if self.settings.keep else 0):
            if not self._affordable:
                break
            spent = selection.steps
            selection.show(self.lesson.read_off(NOISE * 2.0 ** -(i % 4), i)[0])
            self.steps += selection.steps - spent

    def snapshot(self) -> Snapshot:
        """Where the run stands; everything in it is a copy."""
        best, final = self.selection.best, self.final
        assert best is not None
        assert final is not None
        now = time.perf_counter()
        metrics = {
            "tree_return": self.final_value, "depth": final.depth, "leaves": final.n_leaves,
            "best_depth": best.small.depth, "best_leaves_raw": best.tree.n_leaves, "best_leaves": best.small.n_leaves,
            "best_leaves_reached": best.reachable, "traversal_limit": int(final.origin.get("cut", 0)),
            "judging_steps": self.selection.steps, **self.lesson.metrics(),
            "steps_per_second": (self.steps - self.clock[1]) / (now - self.clock[0]),
        }  # fmt: skip
        self.clock = (now, self.steps)
        at = np.array([self.steps, self.shown, self.waited, self.improved])
        state = {"at": at, **self.selection.state(), **self.lesson.state()}
        return Snapshot(self.steps, best.tree, best.mean, self.budget, metrics, final, self.message, lambda: state)


def rules_for(problem: Problem, s: Settings, budget: int) -> tuple[Rules, int]:
    """The IBMDP, and the environment steps it took to see where features without bounds lie."""
    features, steps = fill_missing_bounds(problem, budget)
    depth = problem.max_depth if problem.max_depth is not None or not s.shared else s.depth
    splits = s.splits or default_splits(features)
    zeta = (s.zeta or 0.0) / (problem.unit if s.shared else 1.0)
    return Rules(features, problem.base.actions, splits, zeta, s.gamma_b, s.gamma_w, depth), steps


def zeta_by_gain(q_o: np.ndarray, most: float) -> float:
    """The reward of a question: minus a small share of what asking can gain over one action for all states, or `most`.

    >>> zeta_by_gain(np.array([[1.0, 0.0], [0.0, 1.0]]), -1.0)
    -0.015
    """
    gain = float(q_o.max(axis=1).mean() - q_o.mean(axis=0).max())
    return max(most, -PRICE * max(gain, 0.0))


class Imagined:
    """The networks, the memory and the environment of one run of the preset "tuned"."""

    resting = True  # a run can be resumed after every round

    def __init__(self, problem: Problem, rules: Rules, settings: Settings, budget: int, length: int) -> None:
        self.settings, self.rules, self.length = settings, rules, length
        self.warmup = min(settings.warmup, budget // 4)
        seeds = problem.seeds("networks", "environment", "actions", "replay", "nodes")
        f, n = rules.features, rules.features.n
        waves = 0 if f.integer.all() else max(2, 9 // n)
        self.frequencies = waves if settings.frequencies is None else settings.frequencies
        wide, inner = 1 + 2 * self.frequencies, (settings.hidden, settings.hidden)
        rng = np.random.default_rng(seeds["networks"])
        critic = networks.make(rng, (n * wide, *inner, 1 + rules.n_base), 0.01)
        q = networks.make(rng, (2 * n * wide, *inner, 1 + rules.n_actions), 0.0)  # at first nothing is worth asking
        self.improve, self.values_of, begin = compiled(
            rules.gamma_b, self.frequencies, settings.target_rate, settings.averaging
        )
        self.critic, self.q = begin(critic), begin(q)
        self.weights, self.seed, self.rounds = q, seeds["replay"], 0
        self.zeta = np.array([rules.zeta, rules.zeta])  # of a question now, and at the most
        row: dict[str, Any] = {
            "x": np.zeros(n),
            "action": np.zeros((), np.int32),
            "reward": np.zeros(()),
            "after": np.zeros(n),
        }
        self.memory = Replay(min(settings.buffer, budget), {**row, "ended": np.zeros((), bool)})
        self.met = Replay(RECENT, {"x": np.zeros(n)})
        self.nodes = make_imagination(rules, q, self.frequencies, streams([seeds["nodes"]])[0], CAPACITY)
        self.env: Any = (
            Native(problem, seeds["environment"], not settings.bootstrap_at_limit)
            if problem.native
            else Foreign(problem.scaled, seeds["environment"], not settings.bootstrap_at_limit, problem.longest(budget))
        )
        self.tree, _ = self.read_off()
        self.actor = Actor(
            tree_arrays(self.tree), critic, np.stack([np.zeros(n), np.ones(n)]), self.frequencies,
            np.zeros(n * wide, np.float32), networks.scratch(critic), streams([seeds["actions"]])[0],
            np.zeros(3, np.int64), np.ones(2), np.full(n, np.nan), rules.n_base,
        )  # fmt: skip
        # Bounded features are scaled by their bounds, others by where they were seen.
        loose = problem.base.features.unbounded
        self.loose = np.where(loose, np.nan, f.low), np.where(loose, np.nan, f.high)
        self.losses = (float("nan"), float("nan"))

    def learn(self, share: float) -> int:
        """One round at this share of the budget; returns how many environment steps it took."""
        s = self.settings
        if self.rounds == 0:
            rows = self._play(self.warmup, 1.0)
            self._scale(rows["x"])
            if s.zeta is None:
                self.zeta[1] = -0.01 * max(float(np.abs(rows["reward"]).mean()), 1e-3)
        else:
            rows = self._play(self.length, s.explore + (s.explore_end - s.explore) * share)
        self.rounds += 1
        rng = np.random.default_rng([self.seed, self.rounds])
        rate = np.float32(s.learning_rate * (s.final_rate / s.learning_rate) ** share)
        mu = np.float32(max(s.mu, 1.0 - 2.0 * share * (1.0 - s.mu)))
        drawn = self.memory.sample(rng, s.critic_updates * UPDATES * s.batch)
        then = tree_actions(self.actor.tree, drawn["after"])
        batches = (
            self._scaled(drawn["x"]), drawn["action"], drawn["reward"].astype(np.float32),
            self._scaled(drawn["after"]), drawn["ended"], then,
        )  # fmt: skip
        self.critic, critic_loss = self.improve[0](self.critic, rate, mu, *map(self._batches, batches))
        x = drawn["x"][: UPDATES * s.batch]
        if self.met.full > 500:
            few = int(len(x) * s.followed * min(1.0, 3.0 * share))
            x = np.concatenate([x[few:], self.met.sample(rng, few)["x"]])
            rng.shuffle(x)
        seen, target, known = self._imagine(x, s.epsilon + (s.epsilon_end - s.epsilon) * share)
        self.q, q_loss = self.improve[1](self.q, rate, *map(self._batches, (seen, target, known)))
        self.losses = (float(critic_loss), float(q_loss))
        self._renew()
        return len(rows["x"])

    def _play(self, steps: int, explore: float) -> dict[str, np.ndarray]:
        self.actor.now[SHARE] = explore
        rows: dict[str, np.ndarray] = self.env.run(self.actor, steps)
        self.memory.add(rows)
        if rows["followed"].any():
            self.met.add({"x": rows["x"][rows["followed"]]})
        return rows

    def _imagine(self, x: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A node for each base state, and what every action is worth there."""
        count, actions = len(x), self.rules.n_actions
        seen, target = np.empty((count, 2 * x.shape[1]), np.float32), np.empty((count, actions), np.float32)
        known = np.empty((count, actions), bool)
        q_o = np.asarray(self.values_of(self.critic[1], self._scaled(x)))
        if self.settings.zeta is None:
            self.zeta[0] = zeta_by_gain(q_o, self.zeta[1])
        longest = min(max(self.tree.depth + 1, 2), self.rules.depth_limit)
        imagine(self.nodes, x, q_o, float(self.zeta[0]), longest, epsilon, self.settings.questions, seen, target, known)
        return seen, target, known

    def _renew(self) -> None:
        """Act, walk and read off by the weights learned last."""
        self.weights = tuple(np.array(w) for w in self.q[1])
        self.nodes = refresh(self.nodes, self.weights)
        self.tree, _ = self.read_off()
        self.actor = self.actor._replace(tree=tree_arrays(self.tree), critic=tuple(np.array(w) for w in self.critic[1]))

    def read_off(self, noise: float = 0.0, number: int = 0) -> tuple[Tree, np.ndarray]:
        """`read_off`, for this policy; with noise, the draw of this number."""
        rng = np.random.default_rng([self.seed, self.rounds, 2, number]) if noise else None
        return read_off(self.weights, self.frequencies, self.rules, noise, rng)

    def smaller(self, tree: Tree, acts: np.ndarray) -> Iterator[Tree]:
        """The tree pruned by several prices of a leaf, on states that trees met, by Q_o's values there."""
        source = self.met if self.met.full else self.memory
        x = source.sample(np.random.default_rng([self.seed, self.rounds, 1]), 2 * NODES)["x"]
        q_o = np.asarray(self.values_of(self.critic[1], self._scaled(x)), dtype=np.float64)
        for price in self.settings.prices:
            yield pruned(tree, acts, x, q_o - q_o.max(axis=1, keepdims=True), -price * float(self.zeta[0]))

    def metrics(self) -> dict[str, float]:
        """A part of a row of metrics."""
        updates = (1 + self.settings.critic_updates) * UPDATES * self.rounds
        return {"loss_critic": self.losses[0], "loss_q": self.losses[1], "updates": updates}

    def _scale(self, x: np.ndarray) -> None:
        mean, spread = x.mean(axis=0), 3.0 * np.maximum(x.std(axis=0), 1e-6)
        low = np.where(np.isnan(self.loose[0]), mean - spread, self.loose[0])
        high = np.where(np.isnan(self.loose[1]), mean + spread, self.loose[1])
        self.actor.scaling[...] = low, np.where(high > low, high - low, 1.0)

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        low, width = self.actor.scaling
        return ((x - low) / width).astype(np.float32)

    def _batches(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, self.settings.batch, *rows.shape[1:])

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps as it is: these very arrays."""
        a = self.actor
        own = {"scaling": a.scaling, "rng": a.rng, "number": a.number, "now": a.now, "last": a.last}
        return {
            "nodes.rng": self.nodes.rng,
            "zeta": self.zeta,
            **{f"actor.{k}": v for k, v in own.items()},
            **self.env.arrays(),
        }

    def state(self) -> dict[str, np.ndarray]:
        """Everything as arrays."""
        data = {name: array.copy() for name, array in self._arrays().items()}
        data |= to_arrays((self.critic, self.q))
        return {**data, "rounds": np.array(self.rounds), **self.memory.state("memory"), **self.met.state("met")}

    def restore(self, data: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        for name, array in self._arrays().items():
            array[...] = data[name]
        self.critic, self.q = from_arrays((self.critic, self.q), data)
        self.rounds = int(data["rounds"])
        self.memory.restore("memory", data)
        self.met.restore("met", data)
        self._renew()


@cache
def compiled(gamma_b: float, frequencies: int, target_rate: float, averaging: float) -> Any:
    """The updates of Q_o and of Q, many in one call; Q-values of a batch; and the state a network begins with.

    A network's state: its weights, their slow copy (Q_o) or average (Q), and the optimiser's memory. What is compiled
    is kept, so that further seeds need not wait for it again.
    """
    optimiser = optax.chain(optax.clip_by_global_norm(10.0), optax.scale_by_adam())

    def values(weights: Weights, x: Any) -> Any:
        return networks.dueling(networks.forward(weights, networks.encode(x, frequencies, jnp), jax.nn.relu))

    def descend(loss: Any, rate: Any, slowly: float, state: Any) -> Any:
        weights, slow, memory = state
        cost, gradient = jax.value_and_grad(loss)(weights)
        change, memory = optimiser.update(gradient, memory)
        weights = jax.tree.map(lambda w, d: w - rate * d, weights, change)
        slow = jax.tree.map(lambda old, new: old + slowly * (new - old), slow, weights)
        return (weights, slow, memory), cost

    def update_critic(rate: Any, mu: Any, state: Any, batch: Any) -> Any:
        """Q_o moves to r + gamma_b * Q_o(s_b', b'): b' is the tree's action, in part (mu) the best one."""
        x, action, reward, after, ended, then = batch
        rows = jnp.arange(len(action))
        ahead, best = values(state[1], after), values(state[0], after).argmax(axis=-1)
        follows = (1.0 - mu) * ahead[rows, then] + mu * ahead[rows, best]
        goal = reward + gamma_b * jnp.where(ended, 0.0, follows)
        return descend(lambda w: jnp.square(values(w, x)[rows, action] - goal).mean(), rate, target_rate, state)

    def update_q(rate: Any, state: Any, batch: Any) -> Any:
        """Q moves to what every action is worth at each node."""
        seen, target, known = batch
        error = lambda w: jnp.where(known, jnp.square(values(w, seen) - target), 0.0).sum() / len(seen)  # noqa: E731
        return descend(error, rate, averaging, state)

    def improve_critic(state: Any, rate: Any, mu: Any, *batches: Any) -> Any:
        state, cost = jax.lax.scan(lambda a, b: update_critic(rate, mu, a, b), state, batches)
        return state, cost.mean()

    def improve_q(state: Any, rate: Any, *batches: Any) -> Any:
        state, cost = jax.lax.scan(lambda a, b: update_q(rate, a, b), state, batches)
        return state, cost.mean()

    def begin(weights: Weights) -> Any:
        arrays = tuple(jnp.asarray(w) for w in weights)
        return arrays, arrays, optimiser.init(arrays)

    return (jax.jit(improve_critic), jax.jit(improve_q)), jax.jit(values), begin
