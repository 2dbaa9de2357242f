"""Linear policies as experts: a score per action, linear in the features, found by direct search on the return.

Weights are searched for standardised features and folded back, so that the policy takes raw ones. CMA-ES
(`direct_search`) explores widely; augmented random search takes fewer episodes where there are many weights. Each is
tried with a part of the steps, and the one that found the best policy goes on. When that one slows down the other kind
has its turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from custard.experts.augmented_random_search import (
    MIN_DIRECTIONS,
    FeatureStatistics,
    Scaling,
    augmented_random_search,
    raw_policy,
)
from custard.experts.direct_search import DirectSearchSettings, Referee, SearchProgress, direct_search
from custard.experts.expert import Expert, Progress
from custard.task.episodes import EpisodeRequest, Runner
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem
from custard.task.source import episode_seeds
from custard.task.workers import make_runner
from custard.tree.leaf_actions import LeafActions

__all__ = ["Guide", "LinearProgress", "fitted_policy", "search_linear_policy", "train"]

CMA, AUGMENTED, PRICED = "CMA-ES", "augmented random search", "augmented random search, steps priced"
#: Of all steps, for the trials of a kind. Augmented random search follows small differences of return, which scores of
#: discrete actions seldom make; CMA-ES, which only ranks policies, has the longer trial there.
TRIAL_STEP_SHARES = {CMA: 0.1, AUGMENTED: 0.3, PRICED: 0.3}
DISCRETE_TRIAL_STEP_SHARES = {CMA: 0.4, AUGMENTED: 0.2, PRICED: 0.2}
FURTHER_TRIAL_STEPS_SHARE = 0.1  # of all steps, for each augmented random search after the first
#: Generations that the first of these needs before it is compared, too, and those after it.
AUGMENTED_GENERATIONS_TO_COMPARE, FURTHER_GENERATIONS_TO_COMPARE = 25, 12
MAX_AUGMENTED_SEARCHES = 3  # with other random numbers, for real actions: some get stuck early
MIN_AUGMENTED_GENERATIONS_TO_TRY = 5  # without which it is not tried
MAX_TRIAL_SHARE_OF_STEPS_LEFT = 0.5  # of the steps left, that its trial may take
MAX_STANDSTILL_GAIN_SHARE = 0.05  # share of all its gain that a search makes in the later half, if it stands still
MAX_SLOWDOWN_GAIN_SHARE = 0.2  # the same, if it slows down
MIN_JUDGEMENTS_TO_TELL_STANDSTILL = 3  # and whether a search slows down
TURN_STEPS_SHARE = 0.1  # of all steps, that a search's turn takes
LAST_TURN_START_SHARE = 0.8  # of all steps, after which the best search has the rest
MAX_FIRST_LENGTH_SHARE = 0.5  # of the time limit: episodes that were longer at first never fail
FIRST_RANDOM_POLICIES, MIN_FIRST_RANDOM_POLICIES = 32, 4  # an episode of each says how features are scaled
MAX_FIRST_POLICIES_STEPS_SHARE = 0.2  # of all steps that these may take
TRIAL_ARRAYS = "kinds", "mean", "deviation", "centre"  # fields of `Trials`, in order, and those that follow
TRIAL_NUMBERS = "state_count", "own_steps", "first_length", "tried", "turn", "turn_end"


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
class Trials:
    """Several searches, each of which is tried in turn; the best one goes on."""

    kinds: tuple[str, ...]  # of the searches
    mean: np.ndarray  # [n] of features
    deviation: np.ndarray  # [n] of features
    centre: np.ndarray  # [size]: parameters that all searches begin at
    state_count: int  # of the states that showed how features are scaled
    own_steps: int  # that no search counts: of the first policies, and of choosing the best of several searches'
    first_length: int = 0  # steps per episode of the first policies
    tried: int = 0  # how many trials are over
    turn: int = -1  # the number of the search whose turn it is, once all trials are over
    turn_end: int = 0  # how many steps that search has used when its turn is over
    searches: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # by number: what it needs to go on
    best_policies: dict[int, np.ndarray] = field(default_factory=dict)  # by number: weights and biases, raw, in a row

    @property
    def steps(self) -> int:
        """Environment steps used so far."""
        return self.own_steps + sum(map(self.used, self.searches))

    @property
    def is_decided(self) -> bool:
        """Whether all trials are over."""
        return self.tried == len(self.kinds)

    @property
    def best(self) -> int:
        """The number of the search that has found the best policy."""
        return max(self.searches, key=self.best_value)

    def used(self, number: int) -> int:
        """Return the environment steps that one search has used."""
        return int(self.searches[number]["search.steps"][0]) if number in self.searches else 0

    def generations(self, number: int) -> int:
        """Return how many generations one augmented random search has had."""
        return int(self.searches[number]["search.steps"][1]) if number in self.searches else 0

    def episode_steps(self, number: int) -> float:
        """Return how long the last episodes of one search were, on average."""
        search = self.searches[number]
        return float(search["search.steps"][3] if self.kinds[number] == CMA else search["search.lengths"][1])

    def best_value(self, number: int) -> float:
        """Return the largest value that one search has found."""
        return float(self.searches[number]["search.judged"][:, 1].max(initial=-np.inf))

    def trial_is_over(self, steps: int, shares: Mapping[str, float]) -> bool:
        """Return whether the present search was tried for long enough.

        `steps` are those for all searches, `shares` of them are for the trials of each kind.
        """
        used, kind = self.used(self.tried), self.kinds[self.tried]
        if kind == CMA:
            return used >= shares[kind] * steps
        left = steps - self.steps + used  # of which the best search should have a part afterwards
        is_further = kind == AUGMENTED and AUGMENTED in self.kinds[: self.tried]
        least_generations = FURTHER_GENERATIONS_TO_COMPARE if is_further else AUGMENTED_GENERATIONS_TO_COMPARE
        needed = least_generations / max(1, self.generations(self.tried)) * used
        share = FURTHER_TRIAL_STEPS_SHARE if is_further else shares[kind]
        return used >= min(max(share * steps, needed), MAX_TRIAL_SHARE_OF_STEPS_LEFT * left)

    def end_trial(self, time_limit: float) -> None:
        """Go on to the next trial: of a search in which steps have a price where the one before is trapped."""
        self.tried += 1
        is_first = self.kinds[: self.tried].count(AUGMENTED) == 1
        if self.kinds[self.tried - 1] == AUGMENTED and is_first and self.is_trapped(time_limit):
            self.kinds = (*self.kinds[: self.tried], PRICED)

    def is_trapped(self, time_limit: float) -> bool:
        """Return whether the best search without a price may be trapped: its policy has learned not to fail.

        Where every step is rewarded for not having failed yet, that may be all it ever learns.
        """
        lasts = float(self.searches[self.best_augmented]["search.lengths"][0]) >= time_limit
        return lasts and self.first_length < MAX_FIRST_LENGTH_SHARE * time_limit

    @property
    def best_augmented(self) -> int:
        """The number of the best augmented random search without a price."""
        numbers = [number for number in self.searches if self.kinds[number] == AUGMENTED]
        return max(numbers, key=self.best_value)

    @property
    def step_price(self) -> float:
        """What a step earns with the best policy of these searches."""
        length = float(self.searches[self.best_augmented]["search.lengths"][0])
        return max(0.0, self.best_value(self.best_augmented) / max(1.0, length))

    def late_gain(self, number: int) -> float:
        """Return the share of all its gain that a search has made in the later half of its judgements."""
        judged = self.searches[number]["search.judged"][:, 1]
        if len(judged) < MIN_JUDGEMENTS_TO_TELL_STANDSTILL:
            return 1.0
        best, before = judged.max(), judged[: (len(judged) + 1) // 2].max()
        return float((best - before) / (best - judged[0])) if best > judged[0] else 0.0

    def stands_still(self, number: int) -> bool:
        """Return whether a search has gained next to nothing of late."""
        return self.late_gain(number) <= MAX_STANDSTILL_GAIN_SHARE

    def next_turn(self, steps: int) -> int:
        """Return the number of the search that goes on; `steps` are those for all searches.

        It is the best one unless it slows down, and at the end in any case. Otherwise it is one of the kind that has
        had the fewest steps: the best that does not stand still, or a new one.
        """
        if self.turn in self.searches and self.used(self.turn) < self.turn_end:
            return self.turn
        is_last, turn_steps = self.steps >= LAST_TURN_START_SHARE * steps, int(TURN_STEPS_SHARE * steps)
        if is_last or self.late_gain(self.best) > MAX_SLOWDOWN_GAIN_SHARE:
            self.turn, turn_steps = self.best, steps if is_last else turn_steps
        else:
            kind = min(sorted(set(self.kinds)), key=self.steps_of_kind)
            numbers = [number for number in self.searches if self.kinds[number] == kind]
            moving = [number for number in numbers if not self.stands_still(number)]
            self.turn = max(moving, key=self.best_value) if moving else len(self.kinds)
        if self.turn == len(self.kinds):
            self.kinds, self.tried = (*self.kinds, kind), self.tried + 1
        self.turn_end = self.used(self.turn) + turn_steps
        return self.turn

    def steps_of_kind(self, kind: str) -> int:
        """Return the environment steps that all searches of a kind have used."""
        return sum(self.used(number) for number in self.searches if self.kinds[number] == kind)

    def turn_is_over(self, steps: int) -> bool:
        """Return whether another search may go on now."""
        return self.used(self.turn) >= self.turn_end or (
            self.turn != self.best and self.steps >= LAST_TURN_START_SHARE * steps
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything as arrays."""
        data = {f"search{k}/{name}": value for k, search in self.searches.items() for name, value in search.items()}
        data |= {f"best_policies/{k}": table for k, table in self.best_policies.items()}
        names = *TRIAL_ARRAYS, *TRIAL_NUMBERS, "steps"
        return data | {name: np.array(getattr(self, name)) for name in names}

    @classmethod
    def from_arrays(cls, data: Mapping[str, np.ndarray]) -> Trials:
        """Return the trials that `arrays` was made of."""
        kinds, mean, deviation, centre = (data[name] for name in TRIAL_ARRAYS)
        trials = cls(tuple(kinds.tolist()), mean, deviation, centre, int(data["state_count"]), int(data["own_steps"]))
        for name in TRIAL_NUMBERS:
            setattr(trials, name, int(data[name]))
        for key, value in data.items():
            number, slash, name = key.partition("/")
            if number == "best_policies":
                trials.best_policies[int(name)] = value
            elif slash:
                trials.searches.setdefault(int(number.removeprefix("search")), {})[name] = value
        return trials


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

    Yields after every judgement.
    """
    if state is not None:
        trials = Trials.from_arrays(state)
    elif guide is not None:
        trials = _begin_near_guide(guide, problem)
    else:
        trials = _begin_with_random_policies(problem, runner, settings, seed, max_steps)
    actions, time_limit = problem.base.actions, problem.source.time_limit or max_steps or np.inf
    scaling = Scaling(trials.mean, trials.deviation, actions)
    shares = DISCRETE_TRIAL_STEP_SHARES if actions.discrete else TRIAL_STEP_SHARES

    def of_raw(parameters: np.ndarray) -> LinearPolicy:
        return raw_policy(parameters, actions)

    def policy_of(parameters: np.ndarray) -> LinearPolicy:
        return scaling.policy(trials.centre + parameters)

    def search(number: int, steps: int) -> Iterator[tuple[SearchProgress, LinearPolicy | None]]:
        """Go on with one search."""
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        limits = runner, replace(settings, steps=max(1, steps)), own_seed
        goal = max_steps, problem.source.reward_threshold, trials.searches.get(number)
        if trials.kinds[number] == CMA:
            for found in direct_search(policy_of, scaling.size, *limits, *goal, beyond_threshold):
                yield found, None if found.parameters is None else policy_of(found.parameters)
            return
        price = trials.step_price if trials.kinds[number] == PRICED else 0.0
        statistics = FeatureStatistics.of(trials.mean, trials.deviation, trials.state_count)
        for found in augmented_random_search(
            statistics, trials.centre, actions, *limits, *goal, beyond_threshold, price
        ):
            yield found, None if found.parameters is None else raw_policy(found.parameters, actions)

    shown: LinearProgress | None = None
    while True:
        if not trials.is_decided and trials.trial_is_over(settings.steps, shares):
            trials.end_trial(time_limit)
            continue
        is_decided = trials.is_decided
        number = trials.next_turn(settings.steps) if is_decided else trials.tried
        steps = trials.used(number) + settings.steps - trials.steps if is_decided else settings.steps
        for found, policy in search(number, steps):
            trials.searches[number] = found.state
            if policy is not None:
                trials.best_policies[number] = np.column_stack([policy.weights, policy.bias]).ravel()
            if found.is_final:  # the steps are used, or every episode earns what was asked for
                referee = Referee(runner, of_raw, settings, seed, max_steps)
                raw, found = _best_policy_of_searches(trials, number, found, referee)
                policy = None if raw is None else of_raw(raw)
            if shown is None or found.value >= shown.search.value or found.is_final:
                shown = LinearProgress(found, policy, {})
            yield replace(shown, search=replace(shown.search, steps=trials.steps), state=trials.arrays())
            if found.is_final:
                return
            if trials.turn_is_over(settings.steps) if is_decided else trials.trial_is_over(settings.steps, shares):
                break


def _best_policy_of_searches(
    trials: Trials, number: int, found: SearchProgress, referee: Referee
) -> tuple[np.ndarray | None, SearchProgress]:
    """Return the policy, for raw features, of a search that is over, or a better one of a search that was broken off.

    Trials judge on few episodes, so that luck may decide which search goes on.
    """
    own = trials.best_policies.get(number)
    rivals = [k for k in trials.best_policies if k != number and trials.best_value(k) >= found.value]
    if own is None or not rivals:
        return own, found
    finalists = [own, *(trials.best_policies[k] for k in rivals)]
    chosen, value, steps = referee.choose(finalists, trials.episode_steps(number))
    trials.own_steps += steps
    return chosen, replace(found, value=value)


def _begin_with_random_policies(
    problem: Problem, runner: Runner, settings: DirectSearchSettings, seed: int, max_steps: int | None
) -> Trials:
    """Run random linear policies, whose states say how features are scaled; decide which searches are tried."""
    actions, n = problem.base.actions, problem.base.features.n_raw
    rng, neutral = np.random.default_rng([seed, 0]), Scaling(np.zeros(n), np.ones(n), actions)
    seeds = episode_seeds(int(rng.integers(2**31)), FIRST_RANDOM_POLICIES)
    requests = [
        EpisodeRequest(neutral.policy(rng.normal(size=neutral.size)), seeds[k : k + 1], 0.0, max_steps, True)
        for k in range(FIRST_RANDOM_POLICIES)
    ]
    results = runner.run(requests[:MIN_FIRST_RANDOM_POLICIES])
    affordable = (
        MAX_FIRST_POLICIES_STEPS_SHARE
        * settings.steps
        * MIN_FIRST_RANDOM_POLICIES
        / sum(result.steps for result in results)
    )
    results += runner.run(requests[MIN_FIRST_RANDOM_POLICIES : max(MIN_FIRST_RANDOM_POLICIES, int(affordable))])
    met = [result.states[:, :n] for result in results]
    mean = np.mean([states.mean(axis=0) for states in met], axis=0)  # a long episode counts no more than a short one
    deviation = np.sqrt(np.mean([((states - mean) ** 2).mean(axis=0) for states in met], axis=0))
    first_steps, centre = sum(map(len, met)), np.zeros(neutral.size)
    kinds = _affordable_searches(settings, first_steps / len(met), 1 if actions.discrete else MAX_AUGMENTED_SEARCHES)
    length = first_steps // len(met)
    return Trials(kinds, mean, _nonzero_deviation(deviation, mean), centre, first_steps, first_steps, length)


def _affordable_searches(settings: DirectSearchSettings, episode_steps: float, max_augmented: int) -> tuple[str, ...]:
    """Return the kinds of searches whose trials can have enough generations."""
    generations = MAX_TRIAL_SHARE_OF_STEPS_LEFT * settings.steps / (2 * MIN_DIRECTIONS * episode_steps)
    if generations < MIN_AUGMENTED_GENERATIONS_TO_TRY:
        return (CMA,)
    starts = int(np.clip(generations / FURTHER_GENERATIONS_TO_COMPARE, 1, max_augmented))
    return CMA, *starts * (AUGMENTED,)


def _begin_near_guide(guide: Guide, problem: Problem) -> Trials:
    """Scale features by the states of a guide, and begin with the scores that fit its actions best (least squares)."""
    actions, n = problem.base.actions, problem.base.features.n_raw
    states = guide.states[:, :n]
    mean, deviation = states.mean(axis=0), _nonzero_deviation(states.std(axis=0), states.mean(axis=0))
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
    kinds = CMA, AUGMENTED  # nothing says that a search near a guide may be trapped
    return Trials(kinds, mean, deviation, table.ravel(), len(states), 0, first_length=np.iinfo(np.int64).max)


def fitted_policy(guide: Guide, problem: Problem) -> LinearPolicy:
    """Return the linear policy that a search near a guide begins with."""
    trials = _begin_near_guide(guide, problem)
    return Scaling(trials.mean, trials.deviation, problem.base.actions).policy(trials.centre)


def _nonzero_deviation(deviation: np.ndarray, mean: np.ndarray) -> np.ndarray:
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
