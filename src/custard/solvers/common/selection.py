"""Keep the best tree: judge extracted trees on rollouts and compare them episode by episode.

Learning over bounds oscillates between trees, so the last one is rarely the best one. Every method that extracts trees
while it learns can hand them to a `Selection`. All trees run the same selection episodes, whose seeds no evaluation
uses. The best tree's mean over them is the largest of many noisy numbers, so what a run shows is its mean over further
episodes, which choose nothing. The environment steps of both are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.envs.pcg64 import streams
from custard.solvers.common.paired import paired_gain
from custard.task.compiled_rollouts import rollouts_for, world_of
from custard.task.episodes import EpisodeRequest, affordable_parts
from custard.task.problem import Problem
from custard.task.runners import Policy, run_episodes
from custard.task.source import episode_seeds
from custard.task.workers import make_judging_runner
from custard.tree.simplify import simplify
from custard.tree.store import ARRAYS
from custard.tree.tree import Tree

__all__ = ["LEARNING_BUDGET_SHARE", "Judged", "Selection", "better"]

LEARNING_BUDGET_SHARE = 0.97  # of a budget; then the last trees are judged and the run ends

COMPILED_ONE_TREE_DIVISOR, STEPPED_ONE_TREE_DIVISOR = 4, 10  # judging one tree takes at most budget / divisor steps
FLAWLESS_EPISODES_FACTOR = 8  # times as many compiled episodes for a best tree that never fails where others do
#: Of the budget: for the episodes that a run shows, and for those of them that are kept for the last tree.
SHOWN_BUDGET_SHARE, LAST_SHOWN_BUDGET_SHARE = 0.03, 0.01
FIRST_SHOWN_EPISODES, MAX_SHOWN_EPISODES = (
    8,
    200,
)  # such episodes of a new best tree, twice as many at each snapshot, and at most
CLEAR_STANDARD_ERRORS = (
    2.0  # standard errors by which a tree is clearly worse than another, or clearly above a threshold
)
MAX_EPISODES_OF_EQUAL_TREE = 64  # after which a tree that is no smaller and returned the same as the best is given up


@dataclass
class Judged:
    """A tree with the returns of its selection episodes, in the order of their seeds."""

    tree: Tree  # as extracted
    simplified: Tree
    returns: np.ndarray
    visits: np.ndarray  # [n_nodes of simplified] base states that reached each leaf
    shown: np.ndarray = field(default_factory=lambda: np.zeros(0))  # returns of episodes that chose nothing

    @property
    def n_reached_leaves(self) -> int:
        """The number of leaves of the simplified tree that its selection episodes reached."""
        return int((self.visits > 0).sum())

    @property
    def mean(self) -> float:
        """The mean return over the episodes run so far; NaN if there is none."""
        return float(self.returns.mean()) if len(self.returns) else float("nan")

    @property
    def size(self) -> tuple[int, int, int]:
        """Leaves and depth of the simplified tree, then leaves of the tree as extracted: what trees are ordered by."""
        return self.simplified.n_leaves, self.simplified.depth, self.tree.n_leaves


def better(a: Judged, b: Judged, margin: float = 1.0) -> bool:
    """Return whether tree a should replace tree b, by the episodes both have run.

    A smaller tree replaces b unless it is clearly worse, a larger one only if it is clearly better, one of the same
    size if its mean is higher. "Clearly" means by more than `margin` standard errors of the paired difference. Each
    replacement by a smaller tree reduces the size, so small losses cannot add up without end.
    """
    k = min(len(a.returns), len(b.returns))
    gain, error = paired_gain(a.returns[:k], b.returns[:k], margin)
    if a.size < b.size:
        return gain >= -error
    if a.size > b.size:
        return gain > error
    return gain > 0


def _unjudged(tree: Tree, simplified: Tree) -> Judged:
    return Judged(tree, simplified, np.zeros(0), np.zeros(simplified.n_nodes, dtype=np.int64))


@dataclass
class Selection:
    """The best of the trees judged so far. A tree runs further episodes only while it could still win."""

    problem: Problem
    max_episodes: int = 512  # that the best tree runs
    screening_episodes: int = 8  # that every tree runs
    margin: float = 1.0  # standard errors by which a smaller tree may be worse, and a larger one must be better
    budget: float = np.inf  # environment steps of the whole run; judging exceeds it by at most one episode
    spent: int = 0  # environment steps of the run besides those of judging, which the method keeps up to date
    steps: int = 0  # environment steps spent on judging
    shown_steps: int = 0  # environment steps of the episodes that a run shows
    longest: int = 0  # steps of the longest episode so far
    best: Judged | None = None
    last_mean: float = float("nan")  # mean return of the tree judged last
    returns_vary: bool = False  # whether the episodes of any one tree ever differed in return
    n_improvements: int = 0  # how often the best tree was replaced
    known_means: dict[bytes, float] = field(default_factory=dict)  # mean return of every tree judged, by its arrays

    def __post_init__(self) -> None:
        is_compiled = self.problem.is_compiled and self.problem.base.actions.discrete
        self.usual_max_episodes = self.max_episodes  # of trees that do not return the same in every episode
        self.flawless_max_episodes = self.max_episodes * (FLAWLESS_EPISODES_FACTOR if is_compiled else 1)
        seeds = self.problem.seeds("selection", "shown")
        self.seeds = episode_seeds(seeds["selection"], self.flawless_max_episodes)
        self.shown_seeds = episode_seeds(seeds["shown"], MAX_SHOWN_EPISODES)
        self.compiled_env: Any = self.problem.source.make_vec(1) if is_compiled else None
        self.streams = streams(self.seeds.tolist()) if is_compiled else None
        self.runner = None if is_compiled else make_judging_runner(self.problem)

    def judge(self, tree: Tree, keep: bool) -> bool:
        """Judge the policy's own tree. With `keep` the best tree counts: return whether this is it; else this one."""
        if keep:
            return self.consider(tree)
        self.replace(tree)
        return False

    def show(self, is_last: bool = False) -> float:
        """Run episodes of the best tree that choose nothing and return their mean: what the run shows.

        While the run learns they are few, and none where their share of the budget is used: then the mean is not known
        (NaN). The last tree has what the budget has left, at least one episode.
        """
        best = self.best
        if best is None:
            return float("nan")

        def steps_left() -> float:
            if is_last:
                return self.budget - self.spent - self.steps - self.shown_steps
            return (SHOWN_BUDGET_SHARE - LAST_SHOWN_BUDGET_SHARE) * self.budget - self.shown_steps

        done = len(best.shown)
        seeds = self.shown_seeds[done : MAX_SHOWN_EPISODES if is_last else max(FIRST_SHOWN_EPISODES, 2 * done)]
        rng = streams(seeds.tolist()) if self.compiled_env is not None else None
        for returns, _, steps in self._run_in_parts(
            best.simplified, seeds, rng, steps_left, int(is_last and done == 0)
        ):
            best.shown = np.concatenate([best.shown, returns])
            self.shown_steps += steps
        return float(best.shown.mean()) if len(best.shown) else float("nan")

    def consider(self, tree: Tree) -> bool:
        """Judge a tree, and make it the best if it is better; return whether it is."""
        simplified = simplify(tree)
        key = _key_of(simplified)
        if key in self.known_means:
            self.last_mean = self.known_means[key]
            best = self.best
            if best is not None and simplified == best.simplified and tree.n_leaves < best.tree.n_leaves:
                best.tree = tree  # the same decisions, extracted with fewer leaves
            return False
        judged = _unjudged(tree, simplified)
        while len(judged.returns) < self.max_episodes:
            # Where returns have never varied from episode to episode, a few episodes show as much as many.
            first_episodes = self.screening_episodes if self.returns_vary or self.best is None else 1
            done = len(judged.returns)
            self.extend(judged, max(first_episodes, 2 * done), is_needed=self.best is None)
            if len(judged.returns) == done:  # the budget is used
                break
            self._limit_episodes_to_budget(judged)
            self.returns_vary = self.returns_vary or bool((judged.returns != judged.returns[0]).any())
            if self.best is not None and self.returns_vary:
                self.extend(self.best, self.max_episodes)
            is_screened = len(judged.returns) >= 2 * self.screening_episodes
            if self._is_clearly_worse(judged) or (not self.returns_vary and is_screened):
                break
        if not len(judged.returns):
            return False
        self.known_means[key] = self.last_mean = judged.mean
        is_complete = self.best is None or not self.returns_vary or len(judged.returns) >= self.max_episodes
        if not is_complete or (self.best is not None and not better(judged, self.best, self.margin)):
            return False
        self.best = judged
        self.n_improvements += 1
        self._extend_judging_if_best_is_flawless()
        return True

    def _limit_episodes_to_budget(self, judged: Judged) -> None:
        """Lower `max_episodes` where episodes as long as this tree's would take too much of the budget."""
        if self.max_episodes <= self.usual_max_episodes and self.budget < np.inf:
            steps_per_episode = judged.visits.sum() / len(judged.returns)
            divisor = COMPILED_ONE_TREE_DIVISOR if self.compiled_env is not None else STEPPED_ONE_TREE_DIVISOR
            affordable = max(2, int(self.budget / divisor / max(1, steps_per_episode)))
            self.max_episodes = min(self.max_episodes, affordable)
            self.usual_max_episodes = min(self.usual_max_episodes, affordable)

    def _extend_judging_if_best_is_flawless(self) -> None:
        """Judge all trees on more episodes where the best one never fails but others do: it may fail rarely."""
        while self.best is not None and self.returns_vary and not self.best_varies:
            if self.max_episodes >= self.flawless_max_episodes:
                break
            if self.steps + self.best.visits.sum() > self.budget:  # twice the episodes take as many steps again
                break
            done = len(self.best.returns)
            self.max_episodes = min(self.flawless_max_episodes, 2 * done)
            self.extend(self.best, self.max_episodes)
            if len(self.best.returns) == done:  # the budget is used
                break

    @property
    def is_over(self) -> bool:
        """Whether no environment steps are left for choosing."""
        return self._steps_left() <= 0

    @property
    def best_has_splits(self) -> bool:
        """Whether the best tree has a split; a single leaf may only mean that nothing was learned yet."""
        return self.best is not None and self.best.simplified.n_leaves > 1

    @property
    def best_varies(self) -> bool:
        """Whether the best tree returns more in some episodes than in others."""
        return self.best is not None and bool((self.best.returns != self.best.returns[0]).any())

    def replace(self, tree: Tree) -> None:
        """Make a tree the best whatever it returns, for methods that report their last tree."""
        self.best = _unjudged(tree, simplify(tree))
        self.extend(self.best, self.screening_episodes, is_needed=True)
        self._limit_episodes_to_budget(self.best)
        self.extend(self.best, 8 * self.screening_episodes)
        self.last_mean, self.best.shown = self.best.mean, self.best.returns  # which chose nothing

    @property
    def is_nearly_perfect(self) -> bool:
        """Whether the best tree has its highest return in at least four of five episodes, though returns vary."""
        returns = self.best.returns if self.best is not None else np.zeros(0)
        return self.returns_vary and 5 * int((returns == returns.max(initial=-np.inf)).sum()) >= 4 * len(returns)

    def challenge(self, tree: Tree) -> bool:
        """Judge a tree against a nearly perfect best tree that is no larger; return False where there is none.

        Only episodes below the best tree's highest return leave something to gain. They run first, then the others,
        until as much is lost as was gained.
        """
        simplified, best = simplify(tree), self.best
        if best is None or simplified.n_leaves < best.simplified.n_leaves or not self.is_nearly_perfect:
            return False
        is_perfect = best.returns == best.returns.max()
        order, gained, done, count = np.argsort(is_perfect, kind="stable"), 0.0, 0, int((~is_perfect).sum())
        while count > 0 and done < len(order):
            index = order[done : done + count]
            returns = self._run_and_count_steps(simplified, self.seeds[index])
            if len(returns) < len(index):  # the budget is used
                return True
            gained += float((returns - best.returns[index]).sum())
            if gained <= 0.0:
                return True
            done += count
            count = max(8, done)
        if gained > 0.0:
            self.replace(tree)
            assert self.best is not None
            self.best.shown = np.zeros(0)
            self.extend(self.best, len(best.returns))
            self.n_improvements += 1
            self._extend_judging_if_best_is_flawless()
        return True

    def clearly_reaches(self, threshold: float | None) -> bool:
        """Return whether the best tree's mean return reaches a threshold by two standard errors."""
        if threshold is None or self.best is None:
            return False
        returns = self.best.returns
        return bool(returns.mean() - CLEAR_STANDARD_ERRORS * returns.std() / np.sqrt(len(returns)) >= threshold)

    def _is_clearly_worse(self, judged: Judged) -> bool:
        """Return whether more episodes would hardly make a tree the best."""
        if self.best is None:
            return False
        k = min(len(judged.returns), len(self.best.returns))  # the best has fewer where the budget is used
        if (judged.returns[:k] == self.best.returns[:k]).all() and judged.size >= self.best.size:
            return k >= MAX_EPISODES_OF_EQUAL_TREE
        gain, error = paired_gain(judged.returns[:k], self.best.returns[:k], CLEAR_STANDARD_ERRORS)
        return gain < -error

    def extend(self, judged: Judged, count: int, is_needed: bool = False) -> None:
        """Run further episodes until a tree has `count`, at most `max_episodes`, or the budget is used.

        Where `is_needed`, a tree without an episode gets one even then: without a return it is no result.
        """
        done = len(judged.returns)
        count = min(count, self.max_episodes)
        if count <= done:
            return
        rng = self.streams[done:count] if self.streams is not None else None
        min_episodes = int(is_needed and done == 0)
        played = self._run_in_parts(judged.simplified, self.seeds[done:count], rng, self._steps_left, min_episodes)
        for returns, visits, steps in played:
            judged.returns = np.concatenate([judged.returns, returns])
            judged.visits += visits
            self.steps += steps

    def _run_in_parts(
        self, tree: Tree, seeds: np.ndarray, rng: np.ndarray | None, steps_left: Callable[[], float], min_episodes: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Run episodes of a tree in parts that the steps left allow; yield returns, visits of nodes and steps of each.

        seeds         of the episodes
        rng           the streams that they give where the environment is compiled
        steps_left    called before each part
        min_episodes  1: an episode runs even where no steps are left
        """
        if self.compiled_env is None:
            assert self.runner is not None
            cap = self.problem.episode_cap(self.budget)
            for part in affordable_parts(seeds, steps_left, cap, min_episodes):
                episodes = self.runner.run([EpisodeRequest(tree, part, max_steps=cap, keep_states=True)])[0]
                visits = np.bincount(tree.apply(episodes.states), minlength=tree.n_nodes)
                self.longest = max(self.longest, int(episodes.lengths.max()))
                yield episodes.returns, visits, episodes.steps
            return
        assert rng is not None
        world = world_of(self.compiled_env)
        for numbers in affordable_parts(np.arange(len(seeds)), steps_left, world.time_limit, min_episodes):
            returns, lengths, _, visits = rollouts_for(tree)(tree, world, rng[numbers])
            self.longest = max(self.longest, int(lengths.max()))
            yield returns, visits, int(lengths.sum())

    def _steps_left(self) -> float:
        """Return the environment steps that the budget has left for choosing: one episode at least is to be shown."""
        for_choosing = (1.0 - LAST_SHOWN_BUDGET_SHARE) * self.budget - self.longest
        return for_choosing - self.spent - self.steps - self.shown_steps

    def _run_and_count_steps(self, policy: Policy, seeds: np.ndarray) -> np.ndarray:
        """Run one episode per seed, fewer where the budget does not allow more, and count their steps; return the
        returns."""
        problem, cap = self.problem, self.problem.episode_cap(self.budget)
        returns = [np.zeros(0)]
        for part in affordable_parts(seeds, self._steps_left, cap):
            results = run_episodes(policy, problem.source, part, features=problem.encoder, max_steps=cap)
            self.steps += int(results.lengths.sum())
            returns.append(results.returns)
        return np.concatenate(returns)

    def mean_return(self, policy: Policy, episodes: int) -> float:
        """Return the mean return of a policy that is no candidate over the first selection episodes; NaN without any.

        Their steps count, and fewer run where the budget does not allow more.
        """
        returns = self._run_and_count_steps(policy, self.seeds[: min(episodes, self.max_episodes)])
        return float(returns.mean()) if len(returns) else float("nan")

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything a checkpoint stores, as arrays."""
        keys = list(self.known_means)
        data: dict[str, Any] = {
            "selection.numbers": np.array(self._saved_integers()),
            "selection.last": np.array(self.last_mean),
            "selection.names": np.frombuffer(b"".join(keys), dtype=np.uint8).copy(),
            "selection.lengths": np.array([len(key) for key in keys], dtype=np.int64),
            "selection.means": np.array([self.known_means[key] for key in keys]),
        }
        if self.best is not None:
            data |= {f"best.{part}": getattr(self.best.tree, part) for part in ARRAYS}
            data |= {"best.low": self.best.tree.features.low, "best.high": self.best.tree.features.high}
            data |= _gains_and_sums(self.best.tree, len(self.problem.base.features.derived))
            data |= {"best.returns": self.best.returns, "best.visits": self.best.visits.copy()}
            data["best.shown"] = self.best.shown
        return data

    def _saved_integers(self) -> list[int]:
        """Return the whole numbers that change."""
        return [
            self.steps, self.n_improvements, int(self.returns_vary), self.max_episodes, self.usual_max_episodes,
            self.shown_steps, self.longest,
        ]  # fmt: skip

    def restore(self, data: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        numbers = [int(number) for number in data["selection.numbers"]]
        if len(numbers) != len(self._saved_integers()):
            raise CustardError("the checkpoint is of an earlier version of custard: start the run anew")
        self.steps, self.n_improvements, vary, self.max_episodes, self.usual_max_episodes = numbers[:5]
        self.returns_vary, (self.shown_steps, self.longest) = bool(vary), numbers[5:]
        self.last_mean = float(data["selection.last"])
        text, lengths = data["selection.names"].tobytes(), data["selection.lengths"].tolist()
        ends = np.cumsum(lengths).tolist()
        keys = [text[end - size : end] for end, size in zip(ends, lengths, strict=True)]
        self.known_means = dict(zip(keys, data["selection.means"].tolist(), strict=True))
        if "best.feature" in data:
            features = self.problem.base.features
            if "best.sums" in data:
                features = features.with_sums(list(data["best.sums"]))
            features = replace(features, low=data["best.low"], high=data["best.high"])
            parts = [data[f"best.{part}"] for part in ARRAYS]
            gains = data.get("best.gains")
            tree = Tree(*parts, features=features, actions=self.problem.base.actions, gains=gains)
            returns, visits, shown = data["best.returns"], data["best.visits"].copy(), data["best.shown"]
            self.best = Judged(tree, simplify(tree), returns, visits, shown)


def _key_of(tree: Tree) -> bytes:
    """Return bytes that differ between trees that decide differently."""
    key = b"".join(np.ascontiguousarray(getattr(tree, part)).tobytes() for part in ARRAYS)
    if not tree.is_linear:
        return key
    return key + repr(tree.features.derived).encode() + (b"" if tree.gains is None else tree.gains.tobytes())


def _gains_and_sums(tree: Tree, known: int) -> dict[str, np.ndarray]:
    """Return the gains and the weights [m, n_raw] of the sums after the `known` first, where a tree has any."""
    data = {} if tree.gains is None else {"best.gains": tree.gains}
    derived = tree.features.derived[known:]
    if derived:
        weights = np.zeros((len(derived), tree.features.n_raw))
        for row, entry in zip(weights, derived, strict=True):
            assert entry.constant == 0.0
            for index, weight in entry.terms:
                assert isinstance(index, int)
                row[index] = weight
        data["best.sums"] = weights
    return data
