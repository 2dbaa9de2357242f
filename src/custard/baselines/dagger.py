"""DAgger (Ross et al. 2011): the states that a student visits, with what an expert does there; for VIPER and MoËT."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from custard.core.errors import CustardError
from custard.experts import dqn
from custard.experts.expert import Expert
from custard.experts.kinds import experts
from custard.task.episodes import affordable_parts
from custard.task.problem import Problem, Snapshot
from custard.task.runners import run_episodes, visited_states
from custard.task.settings import settings_for
from custard.tree.tree import Tree

__all__ = [
    "STATE_WEIGHTINGS", "LabelledStates", "Mispredictions", "Rollouts", "expert_or_stored", "expert_training",
    "state_weights", "stored_expert", "stored_tree", "train_expert", "tree_stored",
]  # fmt: skip

if TYPE_CHECKING:
    from custard.baselines import moet, viper

    ImitationSettings = viper.Settings | moet.Settings

STATE_WEIGHTINGS = ("auto", "q", "policy", "none")

EXPERT_TRAINING_BUDGET_SHARE, EXPERT_CHECK_BUDGET_SHARE = 1 / 2, 1 / 8


class Mispredictions:
    """A tree that acts while its actions are compared with an expert's.

    >>> from custard import Actions, Features
    >>> from custard.experts.expert import from_q_function
    >>> expert = from_q_function(lambda x: np.stack([-x[:, 0], x[:, 0]], axis=1), 2)  # action 1 where x > 0
    >>> tree = Tree.stump(0, 2.0, 0, 1, Features(("x",), [-9], [9]), Actions("discrete", ("left", "right")))
    >>> watched = Mispredictions(tree, expert)
    >>> watched.predict(np.array([[-3.0], [-1.0], [1.0], [3.0]])).tolist()
    [0, 0, 0, 1]
    >>> watched.share
    0.25
    """

    def __init__(self, tree: Tree, expert: Expert) -> None:
        self.tree, self.expert = tree, expert
        self.steps = self.mispredicted = 0

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the tree's actions [B] for states [B, n], and count those that are not the expert's."""
        actions = self.tree.predict(x)
        self.steps += len(x)
        self.mispredicted += int((actions - self.tree.actions.start != self.expert.act(x)).sum())
        return actions

    @property
    def share(self) -> float:
        """The share of the steps so far at which the expert acts otherwise."""
        return self.mispredicted / max(1, self.steps)


class Rollouts:
    """Rolls policies out and counts the environment steps; the budget is exceeded by at most one rollout."""

    def __init__(self, problem: Problem, steps: int, max_episode_steps: int, budget: float) -> None:
        self.problem, self.steps, self.max_episode_steps, self.budget = problem, steps, max_episode_steps, budget

    def visited_states(self, policy: Expert | Tree, seeds: np.ndarray) -> np.ndarray:
        """Return the states [N, n] that a policy visits in one rollout per seed."""
        start = self.problem.base.actions.start
        act = policy.predict if isinstance(policy, Tree) else lambda x: policy.act(x) + start
        visited_parts = []
        for part in self._affordable_seed_parts(seeds, 1):
            # Cut where the budget ends: states count, not returns.
            max_steps = max(1, int(min(self.max_episode_steps, self.budget - self.steps)))
            visited, results = visited_states(act, self.problem, part, max_steps)
            self.steps += int(results.lengths.sum())
            visited_parts.append(visited)
        return np.concatenate(visited_parts)

    def mean_return(self, policy: Tree | Mispredictions, seeds: np.ndarray, is_needed: bool = False) -> float | None:
        """Return the mean return of a policy over one rollout per seed; None if the budget does not allow them all.

        Where `is_needed`, it is that of the rollouts the budget allows, at least one.
        """
        returns = self.returns(policy, seeds, is_needed)
        return float(returns.mean()) if len(returns) == len(seeds) or (is_needed and len(returns)) else None

    def returns(self, policy: Tree | Mispredictions, seeds: np.ndarray, is_needed: bool = False) -> np.ndarray:
        """Return a policy's returns, one per seed that the budget allows; where `is_needed`, at least one."""
        source, features = self.problem.source, self.problem.encoder
        returns = [np.zeros(0)]
        for part in self._affordable_seed_parts(seeds, int(is_needed)):
            results = run_episodes(policy.predict, source, part, features=features, max_steps=self.max_episode_steps)
            self.steps += int(results.lengths.sum())
            returns.append(results.returns)
        return np.concatenate(returns)

    def _affordable_seed_parts(self, seeds: np.ndarray, min_rollouts: int) -> Iterator[np.ndarray]:
        """Return the seeds in parts, each as large as the budget allows for the longest rollouts."""
        longest = self.problem.source.time_limit or self.max_episode_steps
        return affordable_parts(seeds, lambda: self.budget - self.steps, longest, min_rollouts)


class LabelledStates:
    """The states visited so far, with the expert's actions and the states' weights; N states."""

    def __init__(self, n: int) -> None:
        self.x, self.action, self.weight = np.zeros((0, n)), np.zeros(0, dtype=np.int64), np.zeros(0)

    def add(self, x: np.ndarray, action: np.ndarray, weight: np.ndarray) -> None:
        """Append states."""
        self.x, self.action = np.concatenate([self.x, x]), np.concatenate([self.action, action])
        self.weight = np.concatenate([self.weight, weight])

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw at most `count` states by weight, with their actions."""
        size = min(count, len(self.x))
        index = rng.choice(len(self.x), size=size, p=self.weight / self.weight.sum())
        return self.x[index], self.action[index]


def train_expert(problem: Problem, settings: ImitationSettings, seed: int) -> Iterator[Snapshot | Expert]:
    """Yield a snapshot at each check of the expert's training, if it is trained, then the expert."""
    training = expert_training(problem, settings)
    for item in experts(
        problem, settings.expert, training, seed, ties=settings.ties, normalise=settings.normalise,
        out=settings.expert_out,
    ):  # fmt: skip
        if isinstance(item, Expert):
            yield item
        else:
            metrics, message = {"expert": item.value}, "training the expert"
            yield Snapshot(item.steps, None, float("nan"), settings.budget, metrics, message=message, slow_until=np.inf)


def expert_or_stored(
    problem: Problem, settings: ImitationSettings, seed: int, stored: np.ndarray | None
) -> Iterator[Snapshot | Expert]:
    """Yield the progress of the expert's training, then the expert; one that `stored_expert` stored is not trained."""
    if stored is None or not len(stored):
        yield from train_expert(problem, settings, seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "expert.npz"
        path.write_bytes(stored.tobytes())
        found = next(iter(experts(problem, str(path), expert_training(problem, settings), seed)))
    assert isinstance(found, Expert)
    yield found


def stored_expert(expert: Expert) -> np.ndarray:
    """Return an expert as the bytes of its file; empty where it has none and is made anew."""
    if expert.save is None:
        return np.zeros(0, dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "expert.npz"
        expert.save(path)
        return np.frombuffer(path.read_bytes(), dtype=np.uint8)


def stored_tree(tree: Tree) -> np.ndarray:
    """Return a tree as the bytes of its JSON."""
    return np.frombuffer(json.dumps(tree.to_json()).encode(), dtype=np.uint8)


def tree_stored(stored: np.ndarray) -> Tree:
    """Return the tree that `stored_tree` stored."""
    return Tree.from_json(json.loads(stored.tobytes()))


def expert_training(problem: Problem, settings: ImitationSettings) -> dqn.Settings:
    """Return the settings of a DQN expert, within the budget if there is one."""
    chosen = settings_for(dqn, problem.preset_key, settings.expert_preset, settings.expert_settings, "expert setting")
    if settings.budget is not None:
        steps = max(1, min(chosen.steps, int(settings.budget * EXPERT_TRAINING_BUDGET_SHARE)))
        check_rollouts = max(1 if steps < 1000 else 2, min(chosen.check_rollouts, steps // 1000))
        affordable = max(1, int(EXPERT_CHECK_BUDGET_SHARE * settings.budget))
        check_steps = min(problem.episode_cap(settings.budget), affordable)
        share = settings.budget / steps * EXPERT_CHECK_BUDGET_SHARE
        limits = {"check_steps": check_steps, "max_judging_share": share}
        chosen = replace(chosen, steps=steps, check_rollouts=check_rollouts, **limits)
    return chosen


def state_weights(expert: Expert, weights: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function to states' weights: the loss of the worst action, by Q-values or by log-probabilities."""
    if weights == "q" and expert.q is None:
        raise CustardError(
            f"weights='q' needs an expert with Q-values, but {expert.name} has none: choose weights=policy or none"
        )
    if weights == "policy" and expert.log_policy is None:
        raise CustardError(f"weights='policy' needs an expert with action probabilities, but {expert.name} has none")
    rating = {"q": expert.q, "policy": expert.log_policy, "none": None, "auto": expert.q or expert.log_policy}[weights]
    if rating is None:
        return lambda x: np.ones(len(x))
    return lambda x: np.ptp(rating(x), axis=1) + 1e-12  # all weights zero would leave CART nothing to fit
