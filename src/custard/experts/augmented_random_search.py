"""Augmented random search (Mania, Guy and Recht 2018): a linear policy moves along the random changes that pay.

Each generation draws directions. The policy moved a little along a direction and the one moved the other way run the
same fresh episode, and the policy moves along the best directions, in proportion to these differences of return.
Features are standardised by all states met so far, so that the search goes on where better policies reach new states:
this is the paper's version V2-t. It departs from the paper in two ways: new statistics change the directions alone, not
the policy, and of directions that are as good those come first along which a policy may fail. The state of a search is
its present policy, so it can stop and go on after any judgement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from custard.core.actions import Actions
from custard.experts.direct_search import DirectSearchSettings, Referee, SearchProgress, is_enough
from custard.task.episodes import EpisodeRequest, Runner
from custard.task.policies import LinearPolicy
from custard.task.source import episode_seeds
from custard.tree.leaf_actions import LeafActions

__all__ = ["FeatureStatistics", "Scaling", "augmented_random_search"]

FIRST_NOISE_DEVIATION = 0.1  # the paper's nu, in units of standardised features
FIRST_STEP_SIZE = 0.05  # the paper's alpha, in the same units and half an action range
FINAL_STEP_AND_NOISE_SHARE = 0.2  # of both, to which they fall as the steps are used
MIN_DIRECTIONS, MAX_DIRECTIONS = 8, 64  # the paper's N: a quarter of the parameters, within these,
MIN_GENERATIONS = 100  # and fewer where the steps do not allow so many generations
BEST_DIRECTIONS_SHARE = 0.5  # of the directions, the best of which move the policy: the paper's b / N
MIN_RETURN_DEVIATION_SHARE = 1e-3  # of their size: where all are as good, the policy hardly moves
JUDGING_EPISODES_SHARE, MIN_JUDGING_EPISODES = 0.125, 4  # for judging the present policy now and then
NEW_POLICY_SHARE_OF_AVERAGE = 0.05  # of a generation's policy in the average of the last ones
STATISTICS_POLICIES = 4  # per generation, whose states are added to the statistics


@dataclass(frozen=True, eq=False)
class Scaling:
    """What standardises features, and what scales scores to an action space."""

    mean: np.ndarray  # [n]
    deviation: np.ndarray  # [n]
    actions: Actions

    @property
    def size(self) -> int:
        """How many parameters a policy has: a weight per feature and a bias, for each action or component."""
        return (self.actions.n if self.actions.discrete else self.actions.size) * (len(self.mean) + 1)

    def policy(self, parameters: np.ndarray) -> LinearPolicy:
        """Return the policy, for raw features, of parameters [size] for standardised ones."""
        n = len(self.mean)
        table = parameters.reshape(-1, n + 1)
        weights = table[:, :n] / self.deviation
        bias = table[:, n] - weights @ self.mean
        if not self.actions.discrete:
            box = LeafActions(self.actions)
            half, middle = (box.high - box.low) / 2, (box.high + box.low) / 2
            weights, bias = weights * half[:, None], bias * half + middle
        return LinearPolicy(weights, bias, self.actions)

    def parameters(self, policy: LinearPolicy) -> np.ndarray:
        """Return the parameters [size] of which `policy` makes this policy."""
        weights, bias = policy.weights, policy.bias
        if not self.actions.discrete:
            box = LeafActions(self.actions)
            half, middle = (box.high - box.low) / 2, (box.high + box.low) / 2
            weights, bias = weights / half[:, None], (bias - middle) / half
        return np.column_stack([weights * self.deviation, bias + weights @ self.mean]).ravel()


@dataclass(eq=False)
class FeatureStatistics:
    """Mean and deviation of features over the states that were added."""

    count: float
    mean: np.ndarray  # [n]
    square: np.ndarray  # [n]: mean of the squares

    @classmethod
    def of(cls, mean: np.ndarray, deviation: np.ndarray, count: float) -> FeatureStatistics:
        """Return the statistics of `count` states with this mean and deviation."""
        return cls(count, mean, deviation**2 + mean**2)

    def add(self, states: np.ndarray) -> None:
        """Add states [M, n]."""
        share = len(states) / (self.count + len(states))
        self.mean = (1 - share) * self.mean + share * states.mean(axis=0)
        self.square = (1 - share) * self.square + share * (states**2).mean(axis=0)
        self.count += len(states)

    @property
    def deviation(self) -> np.ndarray:
        """Deviations [n], one for features that do not vary."""
        deviation = np.sqrt(np.maximum(self.square - self.mean**2, 0.0))
        return np.where(deviation <= 1e-8 * (1.0 + np.abs(self.mean)), 1.0, deviation)

    def scaling(self, actions: Actions) -> Scaling:
        """Return the scaling by these statistics."""
        return Scaling(self.mean, self.deviation, actions)


@dataclass(eq=False)
class _Search:
    """Where a search stands."""

    statistics: FeatureStatistics
    table: np.ndarray  # [size]: the present policy's parameters, for standardised features
    average: np.ndarray  # [size]: of the last generations' policies, for raw features: it moves less than they do
    generation: int = 0
    steps: int = 0
    improved_at: int = 0  # steps when the best policy was found
    judged_at: int = 0  # steps when a policy was judged last
    episode_steps: float = np.inf  # of the last generation's policies, on average
    is_over: bool = False
    is_flat: bool = True  # whether all policies so far returned the same
    length: float = 0.0  # steps per episode of the present policy when it was judged last
    judged: list[tuple[int, float]] = field(default_factory=list)  # generation, mean return of the policy then
    best: dict[int, np.ndarray] = field(default_factory=dict)  # by generation: the best policies, for raw features

    @property
    def best_generation(self) -> int:
        """The generation of the best policy."""
        return max(self.judged, key=lambda entry: entry[1], default=(0, 0.0))[0]

    def present(self, actions: Actions) -> np.ndarray:
        """Return the present policy's parameters [size] for raw features."""
        policy = self.statistics.scaling(actions).policy(self.table)
        return np.column_stack([policy.weights, policy.bias]).ravel()

    def judge(self, value: float, raw: np.ndarray, keep: int) -> None:
        """Note what the present policy returns, and keep the best policies."""
        if not self.judged or value > max(entry for _, entry in self.judged):
            self.improved_at = self.steps
        self.judged.append((self.generation, value))
        kept = {generation for generation, _ in sorted(self.judged, key=lambda entry: -entry[1])[:keep]}
        self.best = {generation: each for generation, each in self.best.items() if generation in kept}
        if self.generation in kept:
            self.best[self.generation] = raw

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything as arrays."""
        statistics = self.statistics
        numbers = [self.steps, self.generation, self.improved_at, self.judged_at, self.is_over, self.is_flat]
        return {
            "search.steps": np.array(numbers), "search.judged": np.array(self.judged).reshape(-1, 2),
            "search.lengths": np.array([self.length, self.episode_steps]), "search.table": self.table,
            "search.average": self.average, "search.count": np.array(statistics.count), "search.mean": statistics.mean,
            "search.square": statistics.square, "search.kept": np.array(list(self.best), dtype=np.int64),
            "search.best": np.array(list(self.best.values())).reshape(len(self.best), -1),
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, data: Mapping[str, np.ndarray]) -> _Search:
        """Return the search that `arrays` was made of."""
        statistics = FeatureStatistics(float(data["search.count"]), data["search.mean"], data["search.square"])
        steps, generation, improved_at, judged_at, is_over, is_flat = data["search.steps"].tolist()
        length, episode_steps = data["search.lengths"].tolist()
        judged = [(int(number), float(value)) for number, value in data["search.judged"]]
        best = dict(zip(data["search.kept"].tolist(), data["search.best"], strict=True))
        return cls(
            statistics, data["search.table"], data["search.average"], generation, steps, improved_at, judged_at,
            episode_steps, bool(is_over), bool(is_flat), length, judged, best,
        )  # fmt: skip


def augmented_random_search(
    statistics: FeatureStatistics,
    start: np.ndarray,
    actions: Actions,
    runner: Runner,
    settings: DirectSearchSettings,
    seed: int,
    max_steps: int | None = None,
    threshold: float | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    beyond_threshold: bool = False,
    step_price: float = 0.0,
) -> Iterator[SearchProgress]:
    """Search from the policy with parameters `start` [size] for features standardised by `statistics`.

    Parameters of a progress are a policy's raw weights and biases, [k · (n + 1)] (`raw_policy`). The search learns from
    an episode's return less `step_price` per step: where every step is rewarded for not having failed yet, doing
    nothing is a trap, and a policy that gives some of that up to earn more is found more easily. Judgements are of the
    return itself. For `runner` and what follows see `direct_search`; `settings.population` and `episodes` are not used.
    """
    search = _Search(statistics, start, np.zeros(len(start))) if state is None else _Search.from_arrays(state)
    n = len(statistics.mean)
    referee = Referee(runner, lambda raw: raw_policy(raw, actions), settings, seed, max_steps)

    def progress(**more: bool) -> SearchProgress:
        generation = search.best_generation
        value = dict(search.judged).get(generation, -np.inf)
        return SearchProgress(search.steps, value, search.best.get(generation), search.arrays(), **more)

    def is_affordable() -> bool:
        return search.generation == 0 or search.steps + referee.final_steps(search.episode_steps) < settings.steps

    while not search.is_over and is_affordable():
        affordable = int(settings.steps / (2 * MIN_GENERATIONS * search.episode_steps))
        directions = int(np.clip(min(len(start) // 4, affordable), MIN_DIRECTIONS, MAX_DIRECTIONS))
        used = int(BEST_DIRECTIONS_SHARE * directions)
        search.generation += 1
        rng = np.random.default_rng([seed, 0, search.generation])
        scaling = search.statistics.scaling(actions)
        drawn = rng.normal(size=(directions, len(start)))
        seeds = episode_seeds(int(rng.integers(2**31)), directions)
        share = 1.0 - (1.0 - FINAL_STEP_AND_NOISE_SHARE) * min(1.0, search.steps / settings.steps)
        moved = [search.table + sign * share * FIRST_NOISE_DEVIATION * each for each in drawn for sign in (1.0, -1.0)]
        results = runner.run([
            EpisodeRequest(scaling.policy(each), seeds[k // 2 : k // 2 + 1], 0.0, max_steps, k < STATISTICS_POLICIES)
            for k, each in enumerate(moved)
        ])  # fmt: skip
        search.steps += sum(result.steps for result in results)
        gained = np.array([result.returns[0] - step_price * result.lengths[0] for result in results]).reshape(-1, 2)
        least = MIN_RETURN_DEVIATION_SHARE * float(np.abs(gained).mean())
        best = _best_directions(gained, least)[:used]
        deviation = float(gained[best].std())
        if deviation > 0.0:
            search.is_flat = False
            deviation = max(deviation, least)
            moved_by = (gained[best] @ [1.0, -1.0]) @ drawn[best]
            search.table = search.table + share * FIRST_STEP_SIZE / (used * deviation) * moved_by
        policy = scaling.policy(search.table)
        search.statistics.add(np.concatenate([result.states[:, :n] for result in results[:STATISTICS_POLICIES]]))
        search.table = search.statistics.scaling(actions).parameters(policy)
        search.episode_steps = float(np.mean([result.lengths[0] for result in results]))
        raw = search.present(actions)
        search.average = (
            raw
            if search.generation == 1
            else (1 - NEW_POLICY_SHARE_OF_AVERAGE) * search.average + NEW_POLICY_SHARE_OF_AVERAGE * raw
        )
        if not referee.is_due(search.generation, search.steps - search.judged_at):
            continue
        affordable = int(JUDGING_EPISODES_SHARE * (search.steps - search.judged_at) / search.episode_steps)
        episodes = min(settings.judge_episodes, max(MIN_JUDGING_EPISODES, affordable))
        judged = referee.run([raw], (2, search.generation), episodes)[0]
        search.steps, search.length = search.steps + judged.steps, float(judged.lengths.mean())
        search.judged_at = search.steps
        search.judge(float(judged.returns.mean()), raw, settings.finalists - 1)
        is_met = is_enough(judged.returns, threshold, beyond_threshold)
        search.is_over = is_met or search.steps - search.improved_at > settings.patience * settings.steps
        yield progress(is_flat=search.is_flat)
    if not search.best:
        yield progress(is_final=True)
        return
    chosen, value, steps = referee.choose([*search.best.values(), search.average], search.episode_steps)
    search.steps += steps
    yield SearchProgress(search.steps, value, chosen, search.arrays(), is_final=True)


def _best_directions(gained: np.ndarray, least: float) -> np.ndarray:
    """Return the order of directions by the better of the two returns in `gained` [directions, 2].

    Of those that are as good, within `least`, the ones with the larger difference come first: once most policies do as
    well as possible, what is left to learn from is where the other one fails.

    >>> _best_directions(np.array([[9.0, 9.1], [4.0, 8.0], [9.0, 1.0]]), least=0.5).tolist()
    [2, 0, 1]
    """
    better = np.rint(gained.max(axis=1) / least) if least > 0.0 else np.zeros(len(gained))
    return np.lexsort((-np.abs(np.diff(gained)[:, 0]), -better))


def raw_policy(raw: np.ndarray, actions: Actions) -> LinearPolicy:
    """Return the policy of raw weights and biases, [k · (n + 1)], the bias last in each row."""
    table = raw.reshape(actions.n if actions.discrete else actions.size, -1)
    return LinearPolicy(table[:, :-1], table[:, -1], actions)
