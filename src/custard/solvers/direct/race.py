"""Trees compared on fresh common episodes, few at first and more for those that may be the best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from custard.task.episodes import EpisodeRequest, EpisodeRunner, Episodes
from custard.task.policies import Policy
from custard.task.source import episode_seeds
from custard.tree.tree import Tree

__all__ = ["Racer"]


class Racer:
    """Runs episodes of policies, never the same ones twice, and counts their steps."""

    def __init__(self, runner: EpisodeRunner, seed: int, max_steps: int | None) -> None:
        """`max_steps` cuts episodes of environments without a time limit."""
        self.runner, self.seed, self.max_steps = runner, seed, max_steps
        self.steps = self.draws = 0

    def fresh_seeds(self, count: int) -> np.ndarray:
        """Return the seeds of episodes that nothing has run before."""
        self.draws += 1
        return episode_seeds(int(np.random.SeedSequence([self.seed, self.draws]).generate_state(1)[0]), count)

    def run(self, policies: Sequence[Policy], seeds: np.ndarray, keep_states: bool = False) -> list[Episodes]:
        """Run the same episodes with every policy."""
        requests = [EpisodeRequest(policy, seeds, 0.0, self.max_steps, keep_states) for policy in policies]
        results = self.runner.run(requests)
        self.steps += sum(result.steps for result in results)
        return results

    def episodes(self, policy: Policy, count: int, keep_states: bool = False) -> Episodes:
        """Run fresh episodes of one policy."""
        return self.run([policy], self.fresh_seeds(count), keep_states)[0]

    def screen(self, policies: Sequence[Policy], count: int, keep_states: bool = False) -> list[Episodes]:
        """Run the same fresh episodes with every policy."""
        return self.run(policies, self.fresh_seeds(count), keep_states)

    def best(self, trees: Sequence[Tree], keep: int, first_episodes: int = 8, rounds: int = 3) -> list[Tree]:
        """Return the `keep` best trees by successive halving: half of them in each round, with twice the episodes."""
        left, returns = list(trees), [np.zeros(0)] * len(trees)
        for k in range(rounds):
            if len(left) <= keep and k > 0:
                break
            results = self.screen(left, first_episodes * 2**k)
            returns = [np.append(a, b.returns) for a, b in zip(returns, results, strict=True)]
            order = np.argsort([-float(each.mean()) for each in returns], kind="stable")
            survivors = order[: max(keep, len(left) // 2)]
            left, returns = [left[i] for i in survivors], [returns[i] for i in survivors]
        return left[:keep]

    def improve(
        self, incumbent: Tree, challengers: Sequence[Tree], tolerance: float = 0.0, stages: Sequence[int] = (8, 24, 60)
    ) -> tuple[Tree, float]:
        """Return the incumbent, or a challenger that beats it on the same fresh episodes; and its mean return.

        Challengers drop out at each stage (episodes in all) where they lie behind by more than `tolerance`. One wins if
        its mean gain less one standard error exceeds minus the tolerance.
        """
        seeds = self.fresh_seeds(stages[-1])
        own = self.run([incumbent], seeds)[0].returns
        left = [(tree, np.zeros(0)) for tree in challengers]
        done = 0
        for stage in stages:
            if not left:
                break
            results = self.run([tree for tree, _ in left], seeds[done:stage])
            ran = [(tree, np.append(old, new.returns)) for (tree, old), new in zip(left, results, strict=True)]
            ran.sort(key=lambda entry: -float(entry[1].mean()))
            left = [(tree, r) for tree, r in ran if r.mean() > own[:stage].mean() - tolerance][: max(1, len(ran) // 3)]
            done = stage
        if left:
            tree, returns = left[0]
            gain = returns - own
            error = float(gain.std()) / np.sqrt(len(gain))
            if float(gain.mean()) - error > -tolerance or (tolerance == 0.0 and bool((gain >= 0).all()) and gain.any()):
                return tree, float(returns.mean())
        return incumbent, float(own.mean())
