"""Differentiable decision trees (Silva et al. 2020): learn a soft tree by policy gradients, then make it crisp.

Every inner node weighs all features and takes both sides, each with a probability; a leaf holds the logits of actions.
The policy is differentiable, so PPO learns it. What counts as a tree is its crisp form: each node keeps one feature,
each leaf its likeliest action. The crisp form may return much less than the soft one, and that loss is a metric of the
run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from custard.baselines.growing_tree import default_budget, run_learner
from custard.baselines.soft_trees import (
    SHAPES,
    Branches,
    Paths,
    Scaling,
    branches_of,
    crisp_shape,
    leaf_probabilities,
    paths_of,
    scaling_of,
)
from custard.baselines.whole_episodes import Batch, WholeEpisodes
from custard.core.actions import Actions
from custard.core.errors import CustardError, one_of, require_least, require_shares
from custard.core.features import Features
from custard.core.files import load_arrays
from custard.nn.checkpoints import StoredPytree
from custard.nn.networks import forward, make_network
from custard.solvers.common.selection import Selection
from custard.task.problem import Problem, Snapshot
from custard.tree.shape import build_tree
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "SoftPolicy", "SoftTree", "advantages", "load_soft_policy", "solve"]

CRITIC_KINDS = ("tree", "network")
CRITIC_LOSS_COEFFICIENT, CRITIC_HIDDEN_UNITS = 0.5, 64
RMSPROP_DECAY, RMSPROP_EPSILON = 0.99, 1e-8
MAX_GRADIENT_NORM = 0.5
MAX_SCALE_SURVEY_STEPS, SCALE_SURVEY_BUDGET_SHARE = 2000, 0.02  # random steps that measure features and returns
SOFT_POLICY_JUDGING_EPISODES = 8


@dataclass(frozen=True)
class Settings:
    """Settings of differentiable decision trees."""

    budget: int | None = None  # environment steps, judging included; None: 5 million, a tenth where Python steps
    max_leaves: int = 8  # of the tree; a complete tree has the next smaller power of two
    shape: str = "tree"  # "tree": complete; "list": rules, one after the other
    critic: str = "network"  # "network": two layers of 64 units; "tree": a second soft tree, as in the paper
    standardise: bool = True  # scale features to mean 0 and deviation 1 under random actions
    gamma: float = 0.99  # discount
    trace: float = 0.95  # lambda of the advantages; 1: returns
    learning_rate: float = 1e-2  # RMSprop
    clip: float = 0.2  # PPO's epsilon
    entropy: float = 0.01  # weight of the policy's entropy
    num_envs: int = 8  # environments side by side
    num_steps: int = 2000  # environment steps per iteration
    epochs: int = 4  # passes over an iteration's steps
    batch: int = 250  # steps per gradient step
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: a time limit is a termination
    keep_best: bool = True  # return the best crisp tree judged; False: the last one

    def __post_init__(self) -> None:
        for what, given, accepted in (("shape", self.shape, SHAPES), ("critic", self.critic, CRITIC_KINDS)):
            if given not in accepted:
                raise CustardError(one_of(what, given, accepted))
        require_shares(self, "gamma", "trace", "clip")
        require_least(self, 1, "num_envs", "num_steps", "epochs", "batch")
        require_least(self, 2, "max_leaves")
        require_least(self, 0, "learning_rate", "entropy")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {"": {}},
    "paper": {"": {"critic": "tree", "standardise": False, "trace": 1.0, "num_envs": 1}},
}


class SoftTree(NamedTuple):
    """A soft tree: its tests, and what its leaves hold."""

    branches: Branches
    leaf: Any  # [L, outputs]

    def outputs(self, paths: Paths, z: Any, xp: Any = np) -> Any:
        """Return the mean of the leaves' outputs, weighted by the probability of reaching them: [B, n] -> [B, .]."""
        return leaf_probabilities(self.branches, paths, z, xp) @ self.leaf


@dataclass(frozen=True, eq=False)
class SoftPolicy:
    """The soft policy: a function from features [B, n] to actions for `custard.evaluate`, and its crisp tree."""

    soft: SoftTree
    paths: Paths
    scaling: Scaling
    start: int = 0  # the first action's number

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Return the probabilities of actions, [B, n] -> [B, A]."""
        logits = self.soft.outputs(self.paths, self.scaling.apply(x))
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the likeliest actions, [B, n] -> [B]."""
        return self.probabilities(x).argmax(axis=1) + self.start

    def sample(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw actions numbered from 0, [B, n] -> [B]."""
        cumulated = self.probabilities(x).cumsum(axis=1)
        return (rng.random((len(x), 1)) * cumulated[:, -1:] >= cumulated).sum(axis=1)

    def crisp(self, features: Features, actions: Actions) -> Tree:
        """Return the crisp tree: one feature per node, the likeliest action per leaf."""
        best = np.asarray(self.soft.leaf).argmax(axis=1) + actions.start
        shape = crisp_shape(self.soft.branches, self.paths, self.scaling, lambda number: int(best[number]))
        return build_tree(shape, features, actions)


def load_soft_policy(directory: str | Path) -> SoftPolicy:
    """Read the soft policy with which a run ended, from the run's directory."""
    path = Path(directory) / "checkpoint" / "state.npz"
    try:
        data = load_arrays(path)
        beta, phi, alpha, leaf = (data[f"learned.{k}"] for k in range(4))
        paths = Paths(data["ddt.high"], data["ddt.low"], data["ddt.children"])
        start = int(data["ddt.start"])
        return SoftPolicy(
            SoftTree(Branches(beta, phi, alpha), leaf), paths, Scaling(data["ddt.shift"], data["ddt.scale"]), start
        )
    except OSError as error:
        raise CustardError(f"cannot read {path}: {error.strerror or error}") from None
    except (KeyError, ValueError) as error:
        raise CustardError(f"{path} holds no run of ddt ({error})") from None


# -- the update --------------------------------------------------------------------------------------------------------


class Learned(NamedTuple):
    """All that gradients move."""

    actor: SoftTree
    critic: Any  # a SoftTree, or the layers of a network


class Rows(NamedTuple):
    """Minibatches of one iteration, [gradient steps, batch, ...]."""

    z: Any
    action: Any
    log_policy: Any  # of the action when it was taken
    advantage: Any
    target: Any


class UpdateConfig(NamedTuple):
    """The settings that the compiled update reads."""

    learning_rate: float
    clip: float
    entropy: float


def optimiser(rate: float) -> Any:
    """Return RMSprop with clipped gradients."""
    clipped = optax.clip_by_global_norm(MAX_GRADIENT_NORM)
    return optax.chain(clipped, optax.rmsprop(rate, decay=RMSPROP_DECAY, eps=RMSPROP_EPSILON))


def values(critic: Any, paths: Paths, z: Any, xp: Any) -> Any:
    """Return the critic's values [B] in units of the returns' scale."""
    outputs = critic.outputs(paths, z, xp) if isinstance(critic, SoftTree) else forward(critic, z, xp.tanh)
    return outputs[..., 0]


@partial(jax.jit, static_argnums=(4,))
def improve(learned: Learned, moments: Any, rows: Rows, paths: Paths, config: UpdateConfig) -> tuple[Learned, Any]:
    """Take one step of PPO per minibatch; return what is learned and the optimiser's moments.

    `rows` are the minibatches, `paths` those of the trees, `config` the settings that the update reads.
    """
    moves = optimiser(config.learning_rate)

    def loss(learned: Learned, part: Rows) -> Any:
        log_policy = jax.nn.log_softmax(learned.actor.outputs(paths, part.z, jnp))
        taken = jnp.take_along_axis(log_policy, part.action[:, None], axis=1)[:, 0]
        ratio = jnp.exp(taken - part.log_policy)
        clipped = jnp.clip(ratio, 1.0 - config.clip, 1.0 + config.clip)
        gain = jnp.minimum(ratio * part.advantage, clipped * part.advantage)
        entropy = -(jnp.exp(log_policy) * log_policy).sum(axis=1)
        error = (values(learned.critic, paths, part.z, jnp) - part.target) ** 2
        return -(gain + config.entropy * entropy).mean() + CRITIC_LOSS_COEFFICIENT * error.mean()

    def step(carry: Any, part: Rows) -> Any:
        learned, moments = carry
        change, moments = moves.update(jax.grad(loss)(learned, part), moments)
        return (optax.apply_updates(learned, change), moments), None

    return jax.lax.scan(step, (learned, moments), rows)[0]


def advantages(batch: Batch, value: np.ndarray, next_value: np.ndarray, gamma: float, trace: float) -> np.ndarray:
    """Return generalised advantages [T] from the values before and after each step (Schulman et al. 2016).

    `batch` holds the steps, `value` and `next_value` are [T], `gamma` is the discount and `trace` lambda.

    Nothing follows termination; an episode that is cut keeps the value of its last state.
    """
    delta = batch.reward + gamma * np.where(batch.terminated, 0.0, next_value) - value
    found, later = np.zeros(len(delta)), 0.0
    for t in range(len(delta) - 1, -1, -1):
        later = delta[t] + (0.0 if batch.last[t] else gamma * trace * later)
        found[t] = later
    return found


# -- the run -----------------------------------------------------------------------------------------------------------


class _Learner:
    """Runs whole episodes of the soft policy and improves it after each batch of them."""

    max_interval = 50_000

    def __init__(self, problem: Problem, settings: Settings, budget: int) -> None:
        self.problem, self.settings = problem, settings
        base, seeds = problem.base, problem.seeds("learner", "environment", "survey")
        rng = np.random.default_rng(seeds["learner"])
        n, self.seed = base.features.n, seeds["learner"]
        self.paths = paths_of(settings.shape, settings.max_leaves, problem.max_depth)
        inner, leaves = self.paths.high.shape
        actor = SoftTree(branches_of(rng, n, inner), rng.random((leaves, base.actions.n)).astype(np.float32))
        critic: Any = SoftTree(branches_of(rng, n, inner), np.zeros((leaves, 1), dtype=np.float32))
        if settings.critic == "network":
            critic = make_network(rng, (n, CRITIC_HIDDEN_UNITS, CRITIC_HIDDEN_UNITS, 1))
        learned = Learned(actor, critic)
        self.learned = StoredPytree((learned, optimiser(settings.learning_rate).init(learned)))
        cap, limit_terminates = problem.episode_cap(budget), not settings.bootstrap_at_limit
        survey_cap = max(1, min(MAX_SCALE_SURVEY_STEPS, int(SCALE_SURVEY_BUDGET_SHARE * budget)))
        survey = WholeEpisodes(problem, seeds["survey"], settings.num_envs, min(cap, survey_cap), limit_terminates)
        seen = survey.collect(lambda x, rng: rng.integers(base.actions.n, size=len(x)), survey_cap)
        survey.close()
        self.survey_steps = seen.steps
        self.scaling = scaling_of(seen.x) if settings.standardise else Scaling(np.zeros(n), np.ones(n))
        returns = advantages(seen, np.zeros(seen.steps), np.zeros(seen.steps), settings.gamma, 1.0)
        self.return_scale = float(max(np.abs(returns).mean(), 1e-8)) if returns.any() else 1.0
        self.episodes = WholeEpisodes(problem, seeds["environment"], settings.num_envs, cap, limit_terminates)
        self.iterations = np.zeros(1, dtype=np.int64)

    def policy(self) -> SoftPolicy:
        """Return the present soft policy."""
        actor = self.learned.numpy()[0].actor
        return SoftPolicy(actor, self.paths, self.scaling, self.problem.base.actions.start)

    def learn(self, steps: int) -> int:
        """Learn from `steps` environment steps in iterations of about equal length."""
        taken, part = 0, steps / max(1, round(steps / self.settings.num_steps))
        while taken < steps:
            batch = self.episodes.collect(self.policy().sample, max(1, min(round(part), steps - taken)))
            taken += batch.steps
            self._take_gradient_steps(batch)
        return taken

    def _take_gradient_steps(self, batch: Batch) -> None:
        """Take the gradient steps that one batch allows."""
        s, (learned, _) = self.settings, self.learned.numpy()
        z, after = self.scaling.apply(batch.x), self.scaling.apply(batch.after)
        value = values(learned.critic, self.paths, z, np).astype(np.float64) * self.return_scale
        next_value = values(learned.critic, self.paths, after, np).astype(np.float64) * self.return_scale
        advantage = advantages(batch, value, next_value, s.gamma, s.trace)
        target = (value + advantage) / self.return_scale
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        probability = self.policy().probabilities(batch.x)[np.arange(batch.steps), batch.action]
        rng = np.random.default_rng([self.seed, int(self.iterations[0])])
        # As many gradient steps in every iteration, so that they are compiled once.
        count = max(1, s.num_steps // s.batch) * s.batch
        order = np.concatenate([np.resize(rng.permutation(batch.steps), count) for _ in range(s.epochs)])
        columns = z, batch.action.astype(np.int32), np.log(probability + 1e-12), advantage, target
        rows = Rows(*(_floats_as_float32(column)[order].reshape(-1, s.batch, *column.shape[1:]) for column in columns))
        config = UpdateConfig(s.learning_rate, s.clip, s.entropy)
        self.learned.put(improve(*self.learned.pytree(), rows, self.paths, config))
        self.iterations += 1

    def tree(self) -> Tree:
        """Return the crisp tree of the present policy."""
        return self.policy().crisp(self.problem.base.features, self.problem.base.actions)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that changes, the arrays themselves, and what else the soft policy is made of."""
        fixed = {
            "shift": self.scaling.shift, "scale": self.scaling.scale, "high": self.paths.high, "low": self.paths.low,
            "children": self.paths.children, "start": np.array(self.problem.base.actions.start),
            "iterations": self.iterations,
        }  # fmt: skip
        return {**self.learned.arrays(), **{f"ddt.{k}": v for k, v in fixed.items()}, **self.episodes.arrays()}

    def further_metrics(self, selection: Selection) -> dict[str, float]:
        """Return what the soft policy returns, and how much of it the crisp tree loses."""
        soft = selection.mean_return(self.policy(), SOFT_POLICY_JUDGING_EPISODES)
        return {"soft_return": soft, "crisp_loss": soft - selection.last_mean}


def _floats_as_float32(column: np.ndarray) -> np.ndarray:
    return column if column.dtype == np.int32 else column.astype(np.float32)


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn until the budget is used; yield the best crisp tree judged (or the last one) at intervals."""
    problem.require_discrete_actions("ddt")
    budget = default_budget(problem, settings.budget)
    learner = _Learner(problem, settings, budget)
    steps = problem.probe_steps + learner.survey_steps
    yield from run_learner(problem, learner, budget, steps, settings.keep_best, state)
