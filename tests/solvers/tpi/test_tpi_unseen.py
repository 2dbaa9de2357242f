"""The default method on an environment it has never seen, against that environment's planned optimum."""

import math
from functools import lru_cache

import gymnasium as gym
import numpy as np
import pytest
from scipy import sparse

import custard
from custard.core.mdp import FiniteMDP
from custard.planning.evaluate import tree_value
from custard.planning.solve import optimal_value

SHELF, ORDERS, WEEKS = 12, (0, 3, 6), 120
SIZES = (SHELF + 1, len(ORDERS), 2, 2)  # stock, what arrives tomorrow, season, price


def demand(season):
    """Probabilities of selling 0…8, Poisson with mean 2 or 5."""
    mean = (2.0, 5.0)[season]
    p = np.array([math.exp(-mean) * mean**k / math.factorial(k) for k in range(9)])
    return p / p.sum()


def outcomes(state, action):
    """What may follow: probability, next state, reward."""
    stock, coming, season, price = state
    stock = min(SHELF, stock + ORDERS[coming])
    bill = ORDERS[action] * (1.0, 2.0)[price]
    for wanted, p in enumerate(demand(season)):
        sold = min(stock, wanted)
        reward = 4.0 * sold - bill - 0.3 * (stock - sold) - 1.0 * (wanted - sold)
        for new_season in (0, 1):
            for new_price in (0, 1):
                chance = (0.8 if new_season == season else 0.2) * (0.6 if new_price == price else 0.4)
                yield p * chance, (stock - sold, action, new_season, new_price), reward


LADDERS = [np.cumsum(demand(season)) for season in (0, 1)]


class Shop(gym.Env):
    """Order stock that arrives tomorrow; seasons and prices change by themselves"""

    observation_space = gym.spaces.MultiDiscrete(SIZES)
    action_space = gym.spaces.Discrete(len(ORDERS))
    feature_names = ("stock", "coming", "season", "price")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = (6, 0, int(self.np_random.integers(2)), int(self.np_random.integers(2)))
        return np.array(self.state), {}

    def step(self, action):
        stock, coming, season, price = self.state
        stock = min(SHELF, stock + ORDERS[coming])
        wanted = int(np.searchsorted(LADDERS[season], self.np_random.random(), side="right"))
        sold = min(stock, wanted)
        reward = 4.0 * sold - ORDERS[action] * (1.0, 2.0)[price] - 0.3 * (stock - sold) - 1.0 * (wanted - sold)
        season = season if self.np_random.random() < 0.8 else 1 - season
        price = price if self.np_random.random() < 0.6 else 1 - price
        self.state = (stock - sold, int(action), season, price)
        return np.array(self.state), reward, False, False, {}


def shop():
    return gym.wrappers.TimeLimit(Shop(), WEEKS)


@pytest.fixture(scope="module")
def plan():
    states = list(np.ndindex(*SIZES))
    index = {state: i for i, state in enumerate(states)}
    rewards = np.zeros((len(states), len(ORDERS)))
    matrices = []
    for action in range(len(ORDERS)):
        matrix = sparse.lil_array((len(states), len(states)))
        for i, state in enumerate(states):
            for p, after, reward in outcomes(state, action):
                matrix[i, index[after]] += p
                rewards[i, action] += p * reward
        matrices.append(sparse.csr_array(matrix))
    start = np.zeros(len(states))
    for season, price in np.ndindex(2, 2):
        start[index[(6, 0, season, price)]] = 0.25
    base = custard.describe(Shop())
    return FiniteMDP(
        tuple(matrices), rewards, np.zeros(len(states), dtype=bool), start, 1.0, np.array(states, dtype=float),
        base.features, base.actions, horizon=WEEKS,
    )  # fmt: skip


def test_an_unseen_shop(plan):
    run = custard.learn(shop, seed=3, budget=300_000)
    best, found = optimal_value(plan), tree_value(run.tree, plan)
    assert best >= found >= best - 0.02 * abs(best)  # the best policy may look at the calendar, a tree cannot
    assert run.steps <= 300_000


class Clinic(gym.Env):
    """Admit guests beside important callers, set the speed of work; the day ends at random"""

    observation_space = gym.spaces.MultiDiscrete([7, 2, 2, 2, 2])
    action_space = gym.spaces.Discrete(4)
    feature_names = ("queue", "caller", "guest", "energy", "rush")
    closing = 0.03

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = (0, 0, 0, 0, 0)
        return np.array(self.state), {}

    @classmethod
    def outcomes(cls, state, action):
        """What may follow, apart from closing: probability, next state, reward."""
        queue, caller, guest, energy, rush = state
        admit, fast = divmod(action, 2)
        added = caller + guest * admit
        reward = 6.0 * caller + 2.5 * guest * admit - 0.5 * queue - (0.3, 1.2)[fast] * (1.0, 2.0)[energy]
        reward -= 8.0 * max(0, queue + added - 6)
        for served, new in np.ndindex(2, 2):
            for came, call in np.ndindex(2, 2):
                p = (0.35, 0.85)[fast] if served else (0.65, 0.15)[fast]
                p *= (0.8 if new == energy else 0.2) * (0.4 if came else 0.6) * (0.3 if call else 0.7)
                after = max(0, min(6, queue + added) - served)
                for turn in (0, 1):
                    yield p * (0.9 if turn == rush else 0.1), (after, call * (1 - turn) + turn, came, new, turn), reward

    def step(self, action):
        ladder, states, rewards = ladder_of(self.state, int(action))
        k = int(np.searchsorted(ladder, self.np_random.random(), side="right"))
        self.state = states[k]
        return np.array(self.state), rewards[k], bool(self.np_random.random() < self.closing), False, {}


@lru_cache(None)
def ladder_of(state, action):
    chances, states, rewards = zip(*Clinic.outcomes(state, action), strict=True)
    return np.cumsum(chances)[:-1], states, rewards


def test_an_unseen_clinic_that_closes_at_random():
    states = list(np.ndindex(7, 2, 2, 2, 2))
    index = {state: i for i, state in enumerate(states)}
    end, rewards, entries = len(states), np.zeros((len(states) + 1, 4)), []
    for action in range(4):
        for i, state in enumerate(states):
            for p, after, reward in Clinic.outcomes(state, action):
                entries.append((action, i, index[after], p * (1 - Clinic.closing)))
                rewards[i, action] += p * reward
            entries.append((action, i, end, Clinic.closing))
        entries.append((action, end, end, 1.0))
    base = custard.describe(Clinic())
    plan = FiniteMDP.from_entries(
        np.array(entries), rewards, terminal=np.arange(end + 1) == end, start=np.eye(end + 1)[0], gamma=1.0,
        x=np.vstack([np.array(states, dtype=float), np.zeros((1, 5))]), features=base.features, actions=base.actions,
    )  # fmt: skip
    run = custard.learn(lambda: Clinic(), seed=3, budget=150_000)
    best, found = optimal_value(plan), tree_value(run.tree, plan)
    assert best >= found >= best - 0.02 * abs(best)
