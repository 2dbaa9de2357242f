"""Interpretable continuous control trees (Paleja et al. 2022): a tree that is crisp while gradients learn it.

The successor of differentiable decision trees for real-valued actions. Every node tests one feature and takes one side;
gradients pass straight through both choices as if they were soft. So what is learned is the tree, and nothing is lost
by making it crisp. Leaves are linear controllers. The tree is the actor of soft actor-critic (`custard.nn.sac`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from custard.baselines.growing_tree import run_learner
from custard.baselines.soft_trees import SHAPES, Branches, Paths, Scaling, crisp_shape, paths_of, scaling_of
from custard.baselines.whole_episodes import Batch, WholeEpisodes
from custard.core.actions import Actions
from custard.core.errors import CustardError, one_of, require_least, require_shares
from custard.core.features import Features
from custard.nn.checkpoints import StoredPytree
from custard.nn.replay import Replay
from custard.nn.sac import Rows, SACConfig, compile_updates, make_learned, target_entropy
from custard.solvers.common.selection import Selection
from custard.task.problem import Problem, Snapshot
from custard.tree.shape import LinearLeaf, Shape, build_tree
from custard.tree.tree import Tree

__all__ = ["PRESETS", "ControlTree", "Settings", "act_crisply", "crisp_tree", "leaf_features", "policy", "solve"]

MIN_LOG_EXPLORATION_DEVIATION, MAX_LOG_EXPLORATION_DEVIATION = -5.0, 0.5  # in half ranges of the action
FIRST_EXPLORATION_DEVIATION = 0.5
UPDATES_PER_COMPILED_CALL = 32
MAX_CACHED_COMPILED_UPDATES = 8  # of the settings used last
MAX_RANDOM_STEPS_BUDGET_SHARE = 0.1  # for the random steps before the first update


@dataclass(frozen=True)
class Settings:
    """Settings of interpretable continuous control trees."""

    budget: int = 300_000  # environment steps, judging included
    max_leaves: int = 8  # of the tree; a complete tree has the next smaller power of two
    shape: str = "tree"  # "tree": complete; "list": rules, one after the other
    leaves: str = "linear"  # "constant"; "linear": in all features; "linear:2": in two chosen ones per action component
    hidden: int = 128  # units in each of the two hidden layers of both critics
    gamma: float = 0.99  # discount
    learning_rate: float = 5e-4  # Adam, of actor, critics and temperature
    tau: float = 0.01  # how far the target critics move per update
    batch: int = 256  # transitions per update
    updates_per_step: float = 1.0  # updates per environment step
    buffer: int = 1_000_000  # transitions in the replay memory
    warmup: int = 2_000  # random steps before the first update, by which features are standardised
    exploration_deviation: float = 0.1  # of exploration, in half ranges of the action, that the temperature aims at
    num_envs: int = 1  # environments side by side
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: a time limit is a termination
    keep_best: bool = True  # return the best tree judged; False: the last one

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise CustardError(one_of("shape", self.shape, SHAPES))
        leaf_features(self.leaves, 1)
        require_shares(self, "gamma", "tau")
        require_least(self, 1, "batch", "buffer", "warmup", "num_envs", "hidden", "max_leaves")
        require_least(self, 0, "learning_rate", "updates_per_step")
        if not self.exploration_deviation > 0.0:
            raise CustardError(f"exploration_deviation={self.exploration_deviation} must be above 0")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {"": {}},
    "paper": {"": {"hidden": 256}},
}


def leaf_features(leaves: str, n: int) -> int:
    """Return how many features a leaf may weigh per action component: 0 where leaves are constant.

    >>> leaf_features("constant", 5), leaf_features("linear", 5), leaf_features("linear:2", 5)
    (0, 5, 2)
    """
    match = re.fullmatch(r"constant|linear(?::([1-9]\d*))?", leaves)
    if match is None:
        raise CustardError(
            f"leaves={leaves!r} is not known: choose constant, linear, or linear:2 for two features each"
        )
    return 0 if leaves == "constant" else min(n, int(match[1] or n))


class ControlTree(NamedTuple):
    """The actor: I inner nodes, L leaves, n features of which n_raw are the observation's own, k action components."""

    branches: Branches
    gain: Any  # [L, k, n_raw]
    bias: Any  # [L, k]
    log_deviation: Any  # [L, k]


def make_control_tree(rng: np.random.Generator, paths: Paths, n: int, n_raw: int, k: int) -> ControlTree:
    """Draw a first tree: thresholds about the middle of what random actions meet, small gains.

    `paths` are its shape; n, n_raw and k as in `ControlTree`.
    """
    inner, leaves = paths.high.shape
    beta, phi = rng.normal(size=(inner, n)), rng.normal(scale=0.5, size=(inner,))
    gain, bias = rng.normal(scale=0.1, size=(leaves, k, n_raw)), np.zeros((leaves, k))
    branches = Branches(beta.astype(np.float32), phi.astype(np.float32), np.ones((), dtype=np.float32))
    log_deviation = np.full((leaves, k), np.log(FIRST_EXPLORATION_DEVIATION), dtype=np.float32)
    return ControlTree(branches, gain.astype(np.float32), bias.astype(np.float32), log_deviation)


def _straight_through(hard: Any, soft: Any) -> Any:
    """Return `hard` with the gradient of `soft`."""
    return soft + jax.lax.stop_gradient(hard - soft)


def chosen_gains(gain: Any, count: int, xp: Any = np) -> Any:
    """Return the gains [L, k, n_raw] with all but the `count` largest of each action component set to zero."""
    if count == 0:
        return xp.zeros_like(gain)
    smallest = xp.sort(xp.abs(gain), axis=-1)[..., -count, None]
    return xp.where(xp.abs(gain) >= smallest, gain, 0.0)


def policy(tree: ControlTree, paths: Paths, count: int, z: Any) -> tuple[Any, Any]:
    """Return mean and log deviation [B, k] of the crisp tree, whose gradients are a soft tree's.

    tree   the actor
    paths  its shape
    count  features that a leaf may weigh per action component
    z      [B, n] standardised features
    """
    beta, phi, alpha = tree.branches
    size = jnp.abs(beta)
    feature = _straight_through(jax.nn.one_hot(size.argmax(axis=1), beta.shape[1]), jax.nn.softmax(size, axis=1))
    steepness = alpha * (z @ (feature * beta).T - phi)
    high = _straight_through((steepness > 0.0).astype(jnp.float32), jax.nn.sigmoid(steepness))[:, :, None]
    elsewhere = 1.0 - paths.high - paths.low
    reached = (high * paths.high + (1.0 - high) * paths.low + elsewhere).prod(axis=1)  # [B, L]
    gain = _straight_through(chosen_gains(tree.gain, count, jnp), tree.gain) if count else jnp.zeros_like(tree.gain)
    means = jnp.einsum("lkn,bn->blk", gain, z[:, : gain.shape[2]]) + tree.bias
    deviation = jnp.clip(tree.log_deviation, MIN_LOG_EXPLORATION_DEVIATION, MAX_LOG_EXPLORATION_DEVIATION)
    return (reached[:, :, None] * means).sum(axis=1), reached @ deviation.reshape(len(deviation), -1)


def act_crisply(tree: ControlTree, paths: Paths, count: int, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the same as `policy`, in NumPy."""
    beta, phi, alpha = tree.branches
    at = np.abs(beta).argmax(axis=1)
    high = alpha * (z[:, at] * beta[np.arange(len(at)), at] - phi) > 0.0
    leaf = (~high @ paths.high + high @ paths.low).argmin(axis=1)  # the one that no test contradicts
    gain = chosen_gains(tree.gain, count)[leaf]
    mean = np.einsum("bkn,bn->bk", gain, z[:, : gain.shape[2]]) + tree.bias[leaf]
    return mean, np.clip(tree.log_deviation[leaf], MIN_LOG_EXPLORATION_DEVIATION, MAX_LOG_EXPLORATION_DEVIATION)


def crisp_tree(
    tree: ControlTree, paths: Paths, count: int, scaling: Scaling, features: Features, actions: Actions
) -> Tree:
    """Return the actor as a tree: clip(mean) in the action's own units, of features in their own units.

    `paths` and `count` are as in `policy`; `scaling` standardised the features that the actor saw.
    """
    middle, half = action_range(actions)
    gains = chosen_gains(np.asarray(tree.gain, dtype=np.float64), count) / scaling.scale[: features.n_raw]
    value = np.asarray(tree.bias, dtype=np.float64) - gains @ scaling.shift[: features.n_raw]
    gains, value = half[:, None] * gains, middle + half * value
    assert actions.low is not None
    assert actions.high is not None
    # What a leaf says without weighing anything must be an action; else it is clipped after the sum.
    value = np.where(gains.any(axis=2), value, np.clip(value, actions.low, actions.high))

    def leaf(number: int) -> Shape:
        return LinearLeaf(value[number], gains[number]) if gains[number].any() else value[number]

    return build_tree(crisp_shape(tree.branches, paths, scaling, leaf), features, actions)


def action_range(actions: Actions) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle and half the width of each action component."""
    if actions.kind != "box":
        raise CustardError(f"icct needs real-valued (Box) actions, but this environment has {actions.kind} ones")
    assert actions.low is not None
    assert actions.high is not None
    if not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
        raise CustardError("icct needs actions with finite bounds: wrap the environment in RescaleAction")
    return (actions.low + actions.high) / 2.0, (actions.high - actions.low) / 2.0


# -- the run -----------------------------------------------------------------------------------------------------------


@lru_cache(MAX_CACHED_COMPILED_UPDATES)
def _compiled_updates(form: tuple[str, int, int | None], count: int, config: SACConfig) -> Any:
    """Return the compiled updates of trees of a form (`paths_of`), the same for all runs with these settings."""
    paths = paths_of(*form)
    return compile_updates(lambda actor, z: policy(actor, paths, count, z), config)


class _Learner:
    """Runs whole episodes of the tree with noise, remembers them and updates actor and critics."""

    max_interval = 5_000

    def __init__(self, problem: Problem, settings: Settings) -> None:
        s, base, budget = settings, problem.base, settings.budget
        self.settings, self.base, self.range = s, base, action_range(base.actions)
        seeds = problem.seeds("learner", "environment", "survey")
        self.seed, n, k = seeds["learner"], base.features.n, base.actions.size
        rng = np.random.default_rng(self.seed)
        form = s.shape, s.max_leaves, problem.max_depth
        self.paths = paths_of(*form)
        self.count = leaf_features(s.leaves, base.features.n_raw)
        actor = make_control_tree(rng, self.paths, n, base.features.n_raw, k)
        self.learned = StoredPytree(make_learned(rng, actor, n, k, s.hidden, s.learning_rate))
        config = SACConfig(s.gamma, s.tau, s.learning_rate, target_entropy(k, s.exploration_deviation))
        self.updates = _compiled_updates(form, self.count, config)
        number = np.zeros((), np.float32)
        state = np.zeros(n, np.float32)
        row: dict[str, Any] = {
            "z": state, "action": np.zeros(k, np.float32), "reward": number, "after": state, "ended": number,
        }  # fmt: skip
        self.memory = Replay(min(s.buffer, 2 * budget), row)
        self.counts = np.zeros(3, dtype=np.int64)  # next row and filled rows of the memory, calls so far
        self.due = np.zeros(1)  # updates
        cap, limit_terminates = problem.episode_cap(budget), not s.bootstrap_at_limit
        warmup = max(1, min(s.warmup, int(MAX_RANDOM_STEPS_BUDGET_SHARE * budget)))
        survey = WholeEpisodes(problem, seeds["survey"], s.num_envs, min(cap, warmup), limit_terminates)
        seen = survey.collect(self._act_randomly, warmup)
        survey.close()
        self.survey_steps, self.scaling = seen.steps, scaling_of(seen.x)
        self.reward_unit = float(np.abs(seen.reward).mean()) or 1.0
        self._remember_steps(seen)
        self.episodes = WholeEpisodes(problem, seeds["environment"], s.num_envs, cap, limit_terminates)

    @property
    def actor(self) -> ControlTree:
        """The present actor, in NumPy."""
        return self.learned.numpy().actor

    def _act_randomly(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        middle, half = self.range
        return middle + half * rng.uniform(-1.0, 1.0, (len(x), len(half)))

    def _explore(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        mean, log_deviation = act_crisply(self.actor, self.paths, self.count, self.scaling.apply(x))
        middle, half = self.range
        return middle + half * np.clip(mean + np.exp(log_deviation) * rng.normal(size=mean.shape), -1.0, 1.0)

    def _remember_steps(self, batch: Batch) -> None:
        middle, half = self.range
        columns = {
            "z": self.scaling.apply(batch.x), "action": (batch.action - middle) / np.where(half > 0.0, half, 1.0),
            "reward": batch.reward / self.reward_unit, "after": self.scaling.apply(batch.after),
            "ended": batch.terminated,
        }  # fmt: skip
        self.memory.add(columns)
        self.counts[:2] = self.memory.next_row, self.memory.filled

    def learn(self, steps: int) -> int:
        """Learn from `steps` environment steps, at most one episode more."""
        self.memory.next_row, self.memory.filled = (int(number) for number in self.counts[:2])
        taken = 0
        while taken < steps:
            batch = self.episodes.collect(self._explore, max(1, min(self.settings.num_envs, steps - taken)))
            taken += batch.steps
            self._remember_steps(batch)
            self.due += batch.steps * self.settings.updates_per_step
            self._run_due_updates()
        return taken

    def _run_due_updates(self) -> None:
        """Take the updates that are due, some at a time."""
        s, learned = self.settings, self.learned.pytree()
        while self.due[0] >= UPDATES_PER_COMPILED_CALL:
            rng = np.random.default_rng([self.seed, int(self.counts[2])])
            rows = self.memory.sample(rng, UPDATES_PER_COMPILED_CALL * s.batch)
            noise = rng.standard_normal((UPDATES_PER_COMPILED_CALL * s.batch, 2, self.base.actions.size)).astype(
                np.float32
            )
            columns = (*(rows[name] for name in Rows._fields[:-1]), noise)
            parts = (column.reshape(UPDATES_PER_COMPILED_CALL, s.batch, *column.shape[1:]) for column in columns)
            learned = self.updates(learned, Rows(*parts))
            self.due -= UPDATES_PER_COMPILED_CALL
            self.counts[2] += 1
        self.learned.put(learned)

    def tree(self) -> Tree:
        """Return the actor as a tree."""
        return crisp_tree(
            self.actor, self.paths, self.count, self.scaling, self.base.features, self.base.actions
        )  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that changes, the arrays themselves."""
        remembered = {f"memory.{name}": column for name, column in self.memory.columns.items()}
        numbers = {"icct.counts": self.counts, "icct.due": self.due}
        return {**self.learned.arrays(), **remembered, **numbers, **self.episodes.arrays()}

    def further_metrics(self, selection: Selection) -> dict[str, float]:
        """Return the weights of leaves, and how much the tree explores."""
        learned = self.learned.numpy()
        deviation = np.exp(
            np.clip(learned.actor.log_deviation, MIN_LOG_EXPLORATION_DEVIATION, MAX_LOG_EXPLORATION_DEVIATION)
        )
        return {
            "coefficients": self.tree().n_coefficients, "temperature": float(np.exp(learned.log_temperature)),
            "deviation": float(deviation.mean()),
        }  # fmt: skip


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn until the budget is used; yield the best tree judged (with `keep_best=False` the last one) at intervals."""
    learner = _Learner(problem, settings)
    steps = problem.probe_steps + learner.survey_steps
    yield from run_learner(problem, learner, settings.budget, steps, settings.keep_best, state)
