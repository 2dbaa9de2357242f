"""Linear policies as experts: a score per action, linear in the features, found by direct search on the return.

Weights are searched for standardised features (`direct_search`) and folded back, so that the policy takes raw ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from custard.core.actions import Actions
from custard.experts.direct_search import DirectSearchSettings, SearchProgress, direct_search
from custard.experts.expert import Expert, Progress
from custard.task.episodes import EpisodeRequest, Runner
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem
from custard.task.source import episode_seeds
from custard.task.workers import make_runner
from custard.tree.leaf_actions import LeafActions

__all__ = ["Guide", "LinearProgress", "search_linear_policy", "train"]

STARTS = 2  # searches that begin, fewer where they would have few generations in the first rung of the race
MIN_GENERATIONS_PER_RUNG = 8
RUNG_SHARE = 0.1  # of all steps for each search in the race, before the worse half drops out; the last has the rest
FIRST_POLICIES, MIN_FIRST_POLICIES = 32, 4  # random linear policies: an episode of each tells how features are scaled
FIRST_SHARE = 0.2  # of all steps that these may take


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


@dataclass(frozen=True, eq=False)
class Guide:
    """What another policy did: a search may begin near it, with features scaled by the states that it met."""

    states: np.ndarray  # [M, n]
    actions: np.ndarray  # [M], or [M, k] vectors


@dataclass(frozen=True, eq=False)
class LinearProgress:
    """Where the search for a linear policy stands."""

    search: SearchProgress
    policy: LinearPolicy | None  # the best so far
    state: dict[str, np.ndarray]  # all that is needed to go on


@dataclass(eq=False)
class Race:
    """Several searches, of which the worse half drops out again and again."""

    mean: np.ndarray  # [n] of features
    deviation: np.ndarray  # [n] of features
    centre: np.ndarray  # [size]: parameters that all searches begin at
    first_steps: int  # that showed how features are scaled
    rung: int = 0
    running: list[int] = field(default_factory=list)  # numbers of the starts
    searches: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # by start: what it needs to go on

    @property
    def steps(self) -> int:
        """Environment steps used so far."""
        return self.first_steps + sum(map(self.used, self.searches))

    def used(self, start: int) -> int:
        """Return the environment steps that one search has used."""
        return int(self.searches[start]["search.steps"][0]) if start in self.searches else 0

    def best_value(self, start: int) -> float:
        """Return the largest value that one search has found."""
        return float(self.searches[start]["search.judged"][:, 1].max(initial=-np.inf))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything as arrays."""
        data = {f"start{k}/{name}": value for k, search in self.searches.items() for name, value in search.items()}
        numbers = {"first_steps": self.first_steps, "rung": self.rung, "running": self.running, "steps": self.steps}
        return data | {name: np.array(value) for name, value in numbers.items()} | {
            "mean": self.mean, "deviation": self.deviation, "centre": self.centre
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, data: Mapping[str, np.ndarray]) -> Race:
        """Return the race that `arrays` was made of."""
        race = cls(data["mean"], data["deviation"], data["centre"], int(data["first_steps"]), int(data["rung"]))
        race.running = data["running"].tolist()
        for key, value in data.items():
            start, slash, name = key.partition("/")
            if slash:
                race.searches.setdefault(int(start.removeprefix("start")), {})[name] = value
        return race


def search_linear_policy(
    problem: Problem,
    runner: Runner,
    settings: DirectSearchSettings,
    seed: int,
    max_steps: int | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    guide: Guide | None = None,
    beyond_threshold: bool = False,
) -> Iterator[LinearProgress]:
    """Search for a linear policy, near what a guide does if there is one. `beyond_threshold`: see `direct_search`.

    Yields after every judgement. Some searches get stuck, so several begin, and the better half goes on.
    """
    if state is not None:
        race = Race.from_arrays(state)
    elif guide is not None:
        race = _begun_near(guide, problem)
    else:
        race = _begun(problem, runner, settings, seed, max_steps)
    scaling = Scaling(race.mean, race.deviation, problem.base.actions)

    def policy_of(parameters: np.ndarray) -> LinearPolicy:
        return scaling.policy(race.centre + parameters)

    shown: LinearProgress | None = None
    while True:
        is_last = len(race.running) == 1
        pause_at = np.inf if is_last else (race.rung + 1) * RUNG_SHARE * settings.steps  # of each search
        for k in race.running:
            if race.used(k) >= pause_at:  # before the run was resumed
                continue
            steps = race.used(k) + settings.steps - race.steps if is_last else settings.steps
            number = int(np.random.SeedSequence([seed, k]).generate_state(1)[0])
            for progress in direct_search(
                policy_of, scaling.size, runner, replace(settings, steps=max(1, steps)), number, max_steps,
                problem.source.reward_threshold, race.searches.get(k), pause_at, beyond_threshold,
            ):  # fmt: skip
                race.searches[k] = progress.state
                if shown is None or progress.value >= shown.search.value or progress.is_final:
                    policy = None if progress.parameters is None else policy_of(progress.parameters)
                    shown = LinearProgress(progress, policy, {})
                yield replace(shown, search=replace(shown.search, steps=race.steps), state=race.arrays())
                if progress.is_final:  # the steps are used, or every episode earns what was asked for
                    return
        race.rung += 1
        race.running = sorted(race.running, key=lambda k: -race.best_value(k))[: max(1, len(race.running) // 2)]


def _begun(problem: Problem, runner: Runner, settings: DirectSearchSettings, seed: int, max_steps: int | None) -> Race:
    """Run random linear policies, whose states tell how features are scaled; decide how many searches can begin."""
    actions, n = problem.base.actions, problem.base.features.n_raw
    rng, neutral = np.random.default_rng([seed, 0]), Scaling(np.zeros(n), np.ones(n), actions)
    seeds = episode_seeds(int(rng.integers(2**31)), FIRST_POLICIES)
    requests = [
        EpisodeRequest(neutral.policy(rng.normal(size=neutral.size)), seeds[k : k + 1], 0.0, max_steps, True)
        for k in range(FIRST_POLICIES)
    ]
    results = runner.run(requests[:MIN_FIRST_POLICIES])
    affordable = FIRST_SHARE * settings.steps * MIN_FIRST_POLICIES / sum(result.steps for result in results)
    results += runner.run(requests[MIN_FIRST_POLICIES : max(MIN_FIRST_POLICIES, int(affordable))])
    met = [result.states[:, :n] for result in results]
    mean = np.mean([states.mean(axis=0) for states in met], axis=0)  # a long episode counts no more than a short one
    deviation = np.sqrt(np.mean([((states - mean) ** 2).mean(axis=0) for states in met], axis=0))
    episode_steps = sum(map(len, met)) / len(met)
    generations = RUNG_SHARE * settings.steps / (settings.population * settings.episodes * episode_steps)
    starts = int(np.clip(generations / MIN_GENERATIONS_PER_RUNG * STARTS, 1, STARTS))
    centre = np.zeros(neutral.size)
    return Race(mean, _not_zero(deviation, mean), centre, sum(map(len, met)), running=list(range(starts)))


def _begun_near(guide: Guide, problem: Problem) -> Race:
    """Scale features by the states of a guide, and begin with the scores that fit its actions best (least squares)."""
    actions, n = problem.base.actions, problem.base.features.n_raw
    states = guide.states[:, :n]
    mean, deviation = states.mean(axis=0), _not_zero(states.std(axis=0), states.mean(axis=0))
    x = np.column_stack([(states - mean) / deviation, np.ones(len(states))])
    if actions.discrete:
        target = np.eye(actions.n)[guide.actions - actions.start]
    else:
        box = LeafActions(actions)
        target = (guide.actions - (box.high + box.low) / 2) * 2 / (box.high - box.low)
    table = np.linalg.lstsq(x, target, rcond=None)[0].T  # [k, n + 1]
    if actions.discrete:  # only differences between scores matter, and not their size
        table = table - table.mean(axis=0)
        table /= np.sqrt((table**2).mean()) or 1.0
    return Race(mean, deviation, table.ravel(), 0, running=list(range(STARTS)))


def _not_zero(deviation: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return deviations [n], with one for features that do not vary."""
    return np.where(deviation <= 1e-8 * (1.0 + np.abs(mean)), 1.0, deviation)


def train(problem: Problem, settings: DirectSearchSettings, seed: int) -> Iterator[Progress]:
    """Search for a linear policy with discrete actions as an expert; the last progress holds the best one.

    The scores of its actions, as those of a softmax policy, say how much better one is than another.
    """
    problem.require_discrete_actions("a linear expert")
    runner = make_runner(problem)
    try:
        for found in search_linear_policy(problem, runner, settings, seed, problem.episode_cap(settings.steps)):
            expert = None if found.policy is None else _expert(found.policy)
            yield Progress(found.search.steps, found.search.value, expert)
    finally:
        runner.close()


def _expert(policy: LinearPolicy) -> Expert:
    def log_policy(x: np.ndarray) -> np.ndarray:
        scores = policy.scores(x)
        scores = scores - scores.max(axis=1, keepdims=True)
        return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    return Expert("linear", lambda x: policy.scores(x).argmax(axis=1), None, log_policy)
