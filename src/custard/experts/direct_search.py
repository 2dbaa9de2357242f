"""Direct search: find parameters of a policy by the returns of whole episodes alone.

Separable CMA-ES proposes generations of parameters; every policy of a generation runs the same few fresh episodes, and
their mean returns are all the optimiser learns from. Now and then the centre of the search is judged on episodes of its
own; at the end the best centres are judged again on fresh ones, so that the value reported is not the maximum of noisy
numbers. The optimiser is rebuilt from the returns it was told, so a search can stop and go on after any generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from custard.core.errors import require_least
from custard.task.episodes import EpisodeRequest, Episodes, Runner
from custard.task.halving import successive_halving
from custard.task.policies import Policy
from custard.task.source import episode_seeds

__all__ = ["DirectSearchSettings", "Referee", "SearchProgress", "direct_search", "is_enough"]

MAX_COVARIANCE_PARAMETERS = 200  # parameters up to which the optimiser learns how they depend on each other
MAX_STEPS_SHARE_BETWEEN_JUDGEMENTS = 0.05  # of all steps, between two judgements of the search's centre
FINAL_JUDGING_STEPS_SHARE, MIN_FINAL_JUDGING_EPISODES = 0.1, 2  # of all steps; episodes of each best centre
CHOOSING_SHARE_OF_FINAL_EPISODES = 0.75  # which choose among the centres; the others judge the one chosen
NOISE_MEASURING_GENERATIONS = 5  # over which noise and differences between policies are measured


@dataclass(frozen=True)
class DirectSearchSettings:
    """How long and on how many episodes to search."""

    steps: int = 1_000_000  # environment steps, judging included
    population: int = 40  # policies per generation
    episodes: int = 3  # episodes of each at first; more where their noise hides the differences between policies
    max_episodes: int = 12
    initial_deviation: float = 0.5  # of every parameter
    judge_every: int = 5  # generations between two judgements of the search's centre, or fewer where these are long
    judge_episodes: int = 20
    finalists: int = 8  # centres that are judged again at the end: the best ones, and the last one
    final_episodes: int = 30  # fresh ones per finalist at the most, for choosing among them and judging the one chosen
    patience: float = 0.6  # share of the steps without a better centre after which the search stops

    def __post_init__(self) -> None:
        require_least(self, 1, "population", "episodes", "max_episodes", "judge_every", "judge_episodes", "finalists")
        require_least(self, 1, "final_episodes")


@dataclass(frozen=True, eq=False)
class SearchProgress:
    """Where a search stands."""

    steps: int  # environment steps used
    value: float  # mean return of the best centre; once `is_final`, over episodes that chose nothing
    parameters: np.ndarray | None  # the best centre so far
    state: dict[str, np.ndarray]  # all that is needed to go on
    is_flat: bool = False  # whether no policy so far returned anything else than the others
    is_final: bool = False


@dataclass(eq=False)
class _History:
    """Everything that came of the environment."""

    fitness: list[np.ndarray] = field(default_factory=list)  # [population] mean returns, per generation
    variance: list[float] = field(default_factory=list)  # of returns within a policy, mean per generation
    judged: list[tuple[int, float]] = field(default_factory=list)  # generation, mean return of the centre then
    steps: int = 0
    improved_at: int = 0  # steps when the best centre was found
    judged_at: int = 0  # steps when a centre was judged last
    length: float = 1.0  # steps per episode of the last generation
    is_over: bool = False  # whether the search stops before its steps are used

    @property
    def best(self) -> tuple[int, float]:
        """The generation of the best centre and its mean return."""
        return max(self.judged, key=lambda entry: entry[1], default=(0, -np.inf))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the history as arrays."""
        return {
            "search.fitness": np.array(self.fitness), "search.variance": np.array(self.variance),
            "search.judged": np.array(self.judged).reshape(-1, 2),
            "search.steps": np.array([self.steps, self.improved_at, self.judged_at, self.length, self.is_over]),
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, data: Mapping[str, np.ndarray]) -> _History:
        """Return the history that `arrays` was made of."""
        judged = [(int(generation), float(value)) for generation, value in data["search.judged"]]
        steps, improved_at, judged_at = (int(entry) for entry in data["search.steps"][:3])
        length, is_over = float(data["search.steps"][3]), bool(data["search.steps"][4])
        fitness, variance = list(data["search.fitness"]), data["search.variance"].tolist()
        return cls(fitness, variance, judged, steps, improved_at, judged_at, length, is_over)

    def episodes_needed(self, settings: DirectSearchSettings) -> int:
        """Return how many episodes make the differences between policies larger than their noise, within limits."""
        if len(self.fitness) < NOISE_MEASURING_GENERATIONS:
            return settings.episodes
        noise = float(np.mean(self.variance[-NOISE_MEASURING_GENERATIONS:]))
        differences = float(np.mean([row.var() for row in self.fitness[-NOISE_MEASURING_GENERATIONS:]]))
        needed = int(np.ceil(2.0 * noise / differences)) if differences > 0.0 else settings.episodes
        return int(np.clip(needed, settings.episodes, settings.max_episodes))


@dataclass(frozen=True, eq=False)
class Referee:
    """Runs the episodes of a search, and chooses among its best centres at the end."""

    runner: Runner
    policy_of: Callable[[np.ndarray], Policy]
    settings: DirectSearchSettings
    seed: int
    max_steps: int | None  # that cut episodes

    def run(self, parameters: Sequence[np.ndarray], part: tuple[int, int], episodes: int) -> list[Episodes]:
        """Run the same episodes with every policy; `part` says which: no two parts of a search share any."""
        first = int(np.random.SeedSequence([self.seed, *part]).generate_state(1)[0])
        seeds = episode_seeds(first, episodes)
        return self.runner.run(
            [EpisodeRequest(self.policy_of(each), seeds, 0.0, self.max_steps) for each in parameters]
        )

    def is_due(self, generation: int, unjudged_steps: int) -> bool:
        """Return whether the search's centre is to be judged."""
        settings = self.settings
        return (
            generation % settings.judge_every == 0
            or unjudged_steps > MAX_STEPS_SHARE_BETWEEN_JUDGEMENTS * settings.steps
        )

    def final_episodes(self, length: float) -> int:
        """Return how many episodes judge the finalists, all together, from the steps per episode."""
        settings = self.settings
        affordable = FINAL_JUDGING_STEPS_SHARE * settings.steps / (settings.finalists * length)
        return settings.finalists * min(settings.final_episodes, max(MIN_FINAL_JUDGING_EPISODES, int(affordable)))

    def final_steps(self, length: float) -> float:
        """Return about how many environment steps the judgements at the end take."""
        return self.final_episodes(length) * length

    def choose(self, finalists: Sequence[np.ndarray], length: float) -> tuple[np.ndarray, float, int]:
        """Return the best finalist on fresh episodes, its mean return on others, and the environment steps of both."""
        total, steps = self.final_episodes(length), 0
        rounds = int(np.log2(len(finalists)))

        def returns_of(numbers: list[int], k: int) -> list[np.ndarray]:
            nonlocal steps
            episodes = max(1, int(CHOOSING_SHARE_OF_FINAL_EPISODES * total / (rounds * len(numbers))))
            results = self.run([finalists[i] for i in numbers], (3, k), episodes)
            steps += sum(result.steps for result in results)
            return [result.returns for result in results]

        chosen = finalists[successive_halving(returns_of, len(finalists), 1, rounds)[0]]
        last = self.run([chosen], (4, 0), max(1, int((1 - CHOOSING_SHARE_OF_FINAL_EPISODES) * total)))[0]
        return chosen, float(last.returns.mean()), steps + last.steps


def is_enough(returns: np.ndarray, threshold: float | None, beyond_threshold: bool) -> bool:
    """Return whether every episode earns the threshold; beyond it, whether they all earn the same, too."""
    is_met = threshold is not None and float(returns.min()) >= threshold
    return is_met and not (beyond_threshold and float(np.ptp(returns)) > 0.0)


def direct_search(
    policy_of: Callable[[np.ndarray], Policy],
    size: int,
    runner: Runner,
    settings: DirectSearchSettings,
    seed: int,
    max_steps: int | None = None,
    threshold: float | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    beyond_threshold: bool = False,
) -> Iterator[SearchProgress]:
    """Search around zero; yields after every judgement, and at the end with `is_final`.

    policy_of         function from parameters [size] to a policy
    size              number of parameters
    runner            runs the episodes
    settings          how long and on how many episodes to search
    seed              of proposals and episodes
    max_steps         steps after which an episode is cut where the environment has no time limit
    threshold         the search stops where a judged centre earns this reward in every episode;
    beyond_threshold  if true, only where it earns the same in every episode
    state             a former progress' `state`
    """
    import cmaes

    history = _History() if state is None else _History.from_arrays(state)
    if history.fitness:  # a search goes on as it began
        settings = replace(settings, population=len(history.fitness[0]))
    kind = cmaes.CMA if size <= MAX_COVARIANCE_PARAMETERS else cmaes.SepCMA
    optimiser = kind(
        mean=np.zeros(size), sigma=settings.initial_deviation, population_size=settings.population, seed=seed % 2**32
    )
    centres: dict[int, np.ndarray] = {}  # by generation
    referee = Referee(runner, policy_of, settings, seed, max_steps)

    def ask() -> list[np.ndarray]:
        return [optimiser.ask() for _ in range(settings.population)]

    def tell(asked: list[np.ndarray], fitness: np.ndarray) -> None:
        optimiser.tell([(each, -value) for each, value in zip(asked, fitness.tolist(), strict=True)])
        centres[len(centres) + 1] = np.array(optimiser.mean)

    def progress(**more: bool) -> SearchProgress:
        generation, value = history.best
        return SearchProgress(history.steps, value, centres.get(generation), history.arrays(), **more)

    for fitness in history.fitness:  # to where the search stood
        tell(ask(), fitness)
    while not history.is_over and history.steps + referee.final_steps(history.length) < settings.steps:
        asked, generation = ask(), len(history.fitness) + 1
        results = referee.run(asked, (1, generation), history.episodes_needed(settings))
        history.steps += sum(result.steps for result in results)
        fitness = np.array([result.returns.mean() for result in results])
        history.fitness.append(fitness)
        history.variance.append(float(np.mean([result.returns.var() for result in results])))
        tell(asked, fitness)
        history.length = float(np.mean([result.lengths.mean() for result in results]))
        if not referee.is_due(generation, history.steps - history.judged_at):
            continue
        judged = referee.run([centres[generation]], (2, generation), settings.judge_episodes)[0]
        history.steps += judged.steps
        history.judged_at = history.steps
        value = float(judged.returns.mean())
        if value > history.best[1]:
            history.improved_at = history.steps
        history.judged.append((generation, value))
        is_met = is_enough(judged.returns, threshold, beyond_threshold)
        history.is_over = is_met or history.steps - history.improved_at > settings.patience * settings.steps
        yield progress(is_flat=all(float(np.ptp(row)) == 0.0 for row in history.fitness))
    if not centres:
        yield progress(is_final=True)
        return
    ranked = [generation for generation, _ in sorted(history.judged, key=lambda entry: -entry[1])]
    last = len(centres)  # few episodes judged the others, so the last one may well be the best
    finalists = [centres[k] for k in dict.fromkeys([*ranked[: settings.finalists - 1], last])]
    chosen, value, steps = referee.choose(finalists, history.length)
    history.steps += steps
    yield SearchProgress(history.steps, value, chosen, history.arrays(), is_final=True)
