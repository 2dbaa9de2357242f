"""Augmented random search: one step by the paper's formula, the states that standardise, the trap of doing nothing."""

import numpy as np

from custard.core.actions import Actions
from custard.experts.augmented_random_search import (
    FIRST_NOISE_DEVIATION,
    FIRST_STEP_SIZE,
    MIN_DIRECTIONS,
    FeatureStatistics,
    Scaling,
    _best_directions,
    augmented_random_search,
)
from custard.experts.direct_search import DirectSearchSettings
from custard.task.episodes import Episodes

PUSH = Actions("box", ("push",), low=np.array([-1.0]), high=np.array([1.0]))
SETTINGS = DirectSearchSettings(steps=20_000, judge_every=1, judge_episodes=1, final_episodes=1, patience=1.0)


class Scored:
    """A runner whose episodes' returns and lengths are functions of the policy's bias alone."""

    def __init__(self, value_of, length_of=lambda bias: 10):
        self.value_of, self.length_of, self.biases = value_of, length_of, []

    def run(self, requests):
        self.biases += [float(request.policy.bias[0]) for request in requests]
        return [self.episodes(request, float(request.policy.bias[0])) for request in requests]

    def episodes(self, request, bias):
        count = len(request.seeds)
        flags, none = np.zeros(count, dtype=bool), np.zeros(count, dtype=np.int64)
        states = np.tile([[1.0], [3.0]], (count, 1)) if request.keep_states else np.zeros((0, 1))
        returns, lengths = np.full(count, self.value_of(bias)), np.full(count, self.length_of(bias))
        return Episodes(
            returns, lengths.astype(np.int64), flags, ~flags, none, states, np.zeros((len(states), 0), bool)
        )


def unscaled():
    return FeatureStatistics(1.0, np.zeros(1), np.ones(1))


def search(runner, start=(0.0, 0.0), **more):
    return augmented_random_search(unscaled(), np.array(start), PUSH, runner, SETTINGS, 5, **more)


def test_one_generation_follows_the_formula():
    runner = Scored(lambda bias: 7.0 * bias - bias**3)
    first = next(search(runner))
    plus, minus = np.array(runner.biases[: 2 * MIN_DIRECTIONS]).reshape(-1, 2).T
    directions = (plus - minus) / (2 * FIRST_NOISE_DEVIATION)  # of the bias
    returns = np.array([[runner.value_of(each) for each in pair] for pair in zip(plus, minus, strict=True)])
    best = np.argsort(-returns.max(axis=1))[: MIN_DIRECTIONS // 2]
    moved = (
        FIRST_STEP_SIZE
        / (len(best) * returns[best].std())
        * sum((returns[k, 0] - returns[k, 1]) * directions[k] for k in best)
    )
    assert np.isclose(first.parameters[1], moved)


def test_new_statistics_leave_the_policy_as_it_is():
    old = Scaling(np.array([4.0, -1.0]), np.array([2.0, 0.5]), PUSH)
    new = Scaling(np.array([3.0, 7.0]), np.array([0.1, 5.0]), PUSH)
    policy, x = old.policy(np.array([0.3, -2.0, 0.7])), np.random.default_rng(0).normal(size=(20, 2))
    assert np.allclose(new.policy(new.parameters(policy)).scores(x), policy.scores(x))


def test_of_directions_that_are_as_good_the_one_that_may_fail_says_most():
    gained = np.array([[9.0, 9.0], [9.1, 9.0], [9.0, 1.0], [12.0, 2.0], [3.0, 0.0]])
    assert _best_directions(gained, 0.5).tolist() == [3, 2, 1, 0, 4]


def test_statistics_are_those_of_all_states():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(count, 3)) * [1.0, 5.0, 0.0] + [0.0, 9.0, 2.0] for count in (7, 40, 3)]
    statistics = FeatureStatistics.of(parts[0].mean(axis=0), parts[0].std(axis=0), len(parts[0]))
    for part in parts[1:]:
        statistics.add(part)
    every = np.concatenate(parts)
    assert np.allclose(statistics.mean, every.mean(axis=0))
    assert np.allclose(statistics.deviation, [*every.std(axis=0)[:2], 1.0])  # what does not vary is left as it is


def test_a_policy_for_standardised_features_is_folded_back():
    policy = Scaling(np.array([4.0]), np.array([2.0]), Actions("discrete", ("a", "b"))).policy(np.array([3, 1, 0, 0.5]))
    assert policy.scores(np.array([[6.0]])).tolist() == [[3.0 * (6 - 4) / 2 + 1, 0.5]]


def test_the_search_climbs():
    *_, last = search(Scored(lambda bias: -abs(bias - 0.6)))
    assert last.is_final
    assert last.value > -0.05


def test_where_every_step_is_rewarded_a_price_leads_out_of_doing_nothing():
    def length(bias):  # a little courage fails early, more does not
        return 100 - 40 * np.clip(bias, 0, 1) + 40 * np.clip(bias - 1, 0, 1)

    def value(bias):
        return length(bias) * (1.0 + 0.3 * bias)

    *_, trapped = search(Scored(value, length))
    *_, free = search(Scored(value, length), step_price=1.0)
    assert trapped.value < 105
    assert free.value > 130


def test_it_goes_on_from_any_judgement():
    def value(bias):
        return -abs(bias - 0.6)

    whole = list(search(Scored(value)))
    for progress in whole[3:40:12]:
        *_, again = search(Scored(value), state=progress.state)
        assert np.array_equal(again.parameters, whole[-1].parameters)
        assert (again.steps, again.value) == (whole[-1].steps, whole[-1].value)
