"""Policies compared on fresh common episodes, few at first and more for those that may be the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from custard.task.episodes import EpisodeRequest, Episodes, Runner
from custard.task.halving import successive_halving
from custard.task.policies import Policy
from custard.task.source import episode_seeds
from custard.tree.tree import Tree

__all__ = ["BudgetUsed", "Racer", "Winner", "number_count"]

STAGE_EPISODE_SHARES = 0.125, 0.375, 1.0  # of a comparison's episodes, after which challengers drop out
CHALLENGERS_PER_STAGE_SURVIVOR = 3
CONFIRMATION_EPISODE_FACTOR = 2  # episodes that confirm a smaller tree, per one that chose it
MAX_CONFIRMED_TREES = 3


class BudgetUsed(Exception):
    """No environment steps are left for what was asked."""


@dataclass(frozen=True, eq=False)
class Winner:
    """Who won a comparison, and what it returned on its episodes."""

    tree: Tree
    returns: np.ndarray  # [episodes]
    is_new: bool  # whether a challenger won
    gain: float = 0.0  # mean of its returns less those of the one that it replaces

    @property
    def mean(self) -> float:
        """The mean return: of a challenger that won it is the largest of several noisy numbers."""
        return float(self.returns.mean())


class Entry(NamedTuple):
    """A challenger and its returns so far."""

    tree: Tree
    returns: np.ndarray


class Racer:
    """Runs episodes of policies, never the same ones for two comparisons, and counts their steps.

    It is a `Runner` itself, with a limit: when `limit` steps are used it raises `BudgetUsed`, at most one episode late.
    """

    def __init__(self, runner: Runner, seed: int, max_steps: int | None, limit: int, gamma: float = 1.0) -> None:
        """`max_steps` cuts episodes of environments without a time limit; `gamma` discounts all returns, per step."""
        self.gamma = gamma
        self.runner, self.seed, self.max_steps, self.limit = runner, seed, max_steps, limit
        self.steps = self.draws = 0  # environment steps, and lists of fresh seeds, so far
        self.longest = 0  # steps of the longest episode so far
        self.recent_length = 1.0  # steps per episode of what ran last

    def fresh_seeds(self, count: int) -> np.ndarray:
        """Return the seeds of episodes that nothing has run before."""
        self.draws += 1
        return episode_seeds(int(np.random.SeedSequence([self.seed, self.draws]).generate_state(1)[0]), count)

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Episodes]:
        """Run all requests; raise `BudgetUsed` where the limit is reached before."""
        if self.gamma != 1.0:
            requests = [replace(request, gamma=self.gamma) for request in requests]
        longest = self.max_steps or self.longest
        if longest and sum(len(request.seeds) for request in requests) * longest <= self.limit - self.steps:
            return self._count_steps(self.runner.run(requests))
        return [self._run_within_limit(request) for request in requests]

    def _run_within_limit(self, request: EpisodeRequest) -> Episodes:
        """Run the episodes of one request in parts that cannot exceed the limit, as far as is known of their length."""
        parts, done = list[Episodes](), 0
        while done < len(request.seeds) or not parts:
            if self.steps >= self.limit:
                raise BudgetUsed
            longest = self.max_steps or self.longest
            count = max(1, (self.limit - self.steps) // longest) if longest else 1
            parts += self._count_steps(self.runner.run([replace(request, seeds=request.seeds[done : done + count])]))
            done += count
        return Episodes.joined(parts)

    def _count_steps(self, results: list[Episodes]) -> list[Episodes]:
        steps, episodes = sum(result.steps for result in results), sum(len(result.lengths) for result in results)
        self.steps += steps
        if episodes:
            self.recent_length = max(1.0, steps / episodes)
        self.longest = max([self.longest, *(int(result.lengths.max()) for result in results if len(result.lengths))])
        return results

    def close(self) -> None:
        """End what was started for it."""
        self.runner.close()

    def compare(self, policies: Sequence[Policy], seeds: np.ndarray, keep_states: bool = False) -> list[Episodes]:
        """Run the same episodes with every policy."""
        return self.run([EpisodeRequest(policy, seeds, 0.0, self.max_steps, keep_states) for policy in policies])

    def screen(self, policies: Sequence[Policy], count: int, keep_states: bool = False) -> list[Episodes]:
        """Run the same fresh episodes with every policy."""
        return self.compare(policies, self.fresh_seeds(count), keep_states)

    def rank(self, trees: Sequence[Tree], keep: int, first_episodes: int, rounds: int = 3) -> list[int]:
        """Return the numbers of the `keep` best trees, best first: half go on to a round with twice the episodes."""

        def returns_of(numbers: list[int], k: int) -> list[np.ndarray]:
            results = self.screen([trees[i] for i in numbers], first_episodes * 2**k)
            return [result.returns for result in results]

        return successive_halving(returns_of, len(trees), keep, rounds)

    def improve(self, incumbent: Tree, challengers: Sequence[Tree], episodes: int) -> Winner:
        """Return the incumbent, or a challenger that beats it on `episodes` fresh episodes, the same for both.

        Challengers drop out at each stage where they return less; of the others the best go on. One wins if its mean
        gain exceeds a standard error.
        """

        def survivors(entries: list[Entry], own: np.ndarray) -> list[Entry]:
            better = [entry for entry in entries if entry.returns.mean() > own.mean()]
            return better[: max(1, len(entries) // CHALLENGERS_PER_STAGE_SURVIVOR)]

        remaining, own = self._compare_in_stages(incumbent, challengers, episodes, survivors)
        if remaining and _mean_minus_standard_error(remaining[0].returns - own) > 0.0:
            tree, returns = remaining[0]
            return Winner(tree, returns, True, float((returns - own).mean()))
        return Winner(incumbent, own, False)

    def simplest(self, incumbent: Tree, challengers: Sequence[Tree], episodes: int, tolerance: float) -> Winner:
        """Return the incumbent, or the challenger with the fewest numbers that loses at most `tolerance` against it.

        Challengers drop out at each stage where they clearly lose more than that; of the others those that return most
        go on. The last few are then compared on fresh episodes, more of them, one after the other, the smallest first.
        """
        if not challengers:
            return Winner(incumbent, np.zeros(0), False)

        def survivors(entries: list[Entry], own: np.ndarray) -> list[Entry]:
            tolerable = [entry for entry in entries if _mean_minus_standard_error(own - entry.returns) <= tolerance]
            best = tolerable[: max(MAX_CONFIRMED_TREES, len(entries) // CHALLENGERS_PER_STAGE_SURVIVOR)]
            return sorted(best, key=lambda entry: number_count(entry.tree))

        by_size = sorted(challengers, key=number_count)
        remaining, own = self._compare_in_stages(incumbent, by_size, episodes, survivors)
        if not remaining:
            return Winner(incumbent, own, False)
        own = np.zeros(0)
        seeds = self.fresh_seeds(CONFIRMATION_EPISODE_FACTOR * episodes)
        for tree, _ in remaining[:MAX_CONFIRMED_TREES]:
            returns = np.zeros(0)
            for part in np.split(seeds, CONFIRMATION_EPISODE_FACTOR):
                if len(own) <= len(returns):
                    own = np.append(own, self.compare([incumbent], part)[0].returns)
                returns = np.append(returns, self.compare([tree], part)[0].returns)
                loss = own[: len(returns)] - returns
                if _mean_minus_standard_error(loss) > tolerance:
                    break
            if len(returns) == len(seeds) and loss.mean() <= tolerance:
                return Winner(tree, returns, True, -float(loss.mean()))
        return Winner(incumbent, own, False)

    def _compare_in_stages(
        self,
        incumbent: Tree,
        challengers: Sequence[Tree],
        episodes: int,
        survivors: Callable[[list[Entry], np.ndarray], list[Entry]],
    ) -> tuple[list[Entry], np.ndarray]:
        """Run fresh episodes of the incumbent and, in stages, the same of challengers; some drop out at each stage.

        incumbent    all of its episodes run at once
        challengers  run a share of them at each stage
        episodes     the number of episodes
        survivors    returns which entries, given in descending order of their mean returns, go on to the next stage;
                     it also gets the incumbent's returns on the episodes so far

        Returns the entries that are left, and the incumbent's returns [episodes].
        """
        seeds = self.fresh_seeds(episodes)
        own = self.compare([incumbent], seeds)[0].returns
        remaining, done = [Entry(tree, np.zeros(0)) for tree in challengers], 0
        for end in (int(np.ceil(share * episodes)) for share in STAGE_EPISODE_SHARES):
            results = self.compare([entry.tree for entry in remaining], seeds[done:end])
            entries = [
                Entry(entry.tree, np.append(entry.returns, result.returns))
                for entry, result in zip(remaining, results, strict=True)
            ]
            entries.sort(key=lambda entry: -float(entry.returns.mean()))
            remaining, done = survivors(entries, own[:end]), end
            if not remaining:
                break
        return remaining, own


def number_count(tree: Tree) -> int:
    """Return how many numbers a person must read to know a tree: thresholds, coefficients, actions at leaves."""
    return tree.n_nodes - tree.n_leaves + tree.n_coefficients + tree.n_leaves * tree.actions.size


def _mean_minus_standard_error(gain: np.ndarray) -> float:
    """Return the mean of paired gains less its standard error."""
    return float(gain.mean() - gain.std() / np.sqrt(len(gain)))
