"""Planning from fixed starts: equal to trying every tree, bounds that hold, certificates that say what is proved."""

from __future__ import annotations

import itertools
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import custard
from benchmarks.trace_enumeration import enumerate_trees
from custard.core.actions import Actions, numbered
from custard.core.features import INTEGER, Features
from custard.core.mdp import FiniteMDP
from custard.planning.agreement import agrees
from custard.planning.env import FiniteEnv
from custard.planning.fixed_starts import fixed_starts, plan_from_starts
from custard.planning.plans import Plan
from custard.planning.trace_search import TraceSearch, agrees_after
from custard.planning.trace_world import run_heap
from custard.task.source import source
from custard.tree.certificate import certificate_items, certificate_text
from tests.planning.exhaustive import best_tree_exhaustive


def random_world(seed: int, values: int, n_actions: int, horizon: int, gamma: float) -> FiniteMDP:
    """A grid of two features; each action leads to a random state or ends the episode."""
    rng = np.random.default_rng(seed)
    count = values**2
    x = np.stack(np.unravel_index(np.arange(count), (values, values)), axis=1).astype(np.float64)
    after = rng.integers(count + 1, size=(n_actions, count))
    entries = [(a, s, after[a, s], 1.0) for a in range(n_actions) for s in range(count)]
    entries += [(a, count, count, 1.0) for a in range(n_actions)]
    rewards = rng.integers(-2, 3 if seed % 2 else 1, size=(count + 1, n_actions)).astype(np.float64)
    rewards[count] = 0.0
    start = np.zeros(count + 1)
    start[int(rng.integers(count))] = 1.0
    return FiniteMDP.from_entries(
        np.array(entries), rewards, terminal=np.arange(count + 1) == count, start=start, gamma=gamma,
        x=np.vstack([x, np.zeros((1, 2))]), actions=Actions("discrete", numbered("a", n_actions)), horizon=horizon,
        features=Features(numbered("x", 2), np.zeros(2), np.full(2, values - 1.0), (INTEGER,) * 2),
    )  # fmt: skip


def plans(env: Any, depth: int, **how: Any) -> list[Plan]:
    kwargs = how.pop("kwargs", {})
    return list(plan_from_starts(source(env, kwargs), depth, **{"start_seed": 0, "seconds": 60.0, **how}))


def check_bounds(found: list[Plan]) -> None:
    """Values only rise, bounds only fall, and none is ever below the best tree's return."""
    assert all(b.value >= a.value and b.bound <= a.bound for a, b in itertools.pairwise(found))
    assert all(each.bound >= found[-1].value for each in found)


@given(
    seed=st.integers(0, 100_000), values=st.integers(2, 4), actions=st.integers(2, 3), depth=st.integers(0, 2),
    horizon=st.integers(1, 30), gamma=st.sampled_from([1.0, 0.9]),
)  # fmt: skip
@settings(max_examples=30, deadline=None, derandomize=True)
def test_equal_to_trying_every_tree(
    seed: int, values: int, actions: int, depth: int, horizon: int, gamma: float
) -> None:
    mdp = random_world(seed, values if depth < 2 else min(values, 3), actions, horizon, gamma)
    found = plans(FiniteEnv(mdp), depth, gamma=gamma)
    _, value = best_tree_exhaustive(mdp, depth)
    assert found[-1].optimal
    assert found[-1].value == pytest.approx(value, abs=1e-9)
    assert found[-1].tree.depth <= depth
    check_bounds(found)


@pytest.mark.parametrize(
    ("env", "splits", "depth", "episodes", "kwargs"),
    [("MountainCar-v0", 4, 2, 1, {}), ("MountainCar-v0", 9, 1, 3, {}), ("CartPole-v1", 2, 2, 2, {}),
     ("CartPole-v1", 9, 1, 4, {}), ("custard/RobotNav-v0", 2, 2, 2, {"hole": "random"}),
     ("custard/PrereqWorld-v0", 1, 2, 1, {"m": 5})],
)  # fmt: skip
def test_compiled_environments_equal_to_trying_every_tree(
    env: str, splits: int, depth: int, episodes: int, kwargs: dict
) -> None:
    """Also to the published enumeration that skips thresholds which cannot change the trace."""
    found = plans(env, depth, splits=splits, episodes=episodes, kwargs=kwargs, start_seed=3)
    task = fixed_starts(source(env, kwargs), 3, episodes, splits)
    search = TraceSearch(task.world, depth)
    trees = itertools.product(
        *[range(len(search.splits))] * (2**depth - 1), *[range(task.actions.n)] * 2**depth
    )  # fmt: skip
    best, inner = -np.inf, 2**depth - 1
    for tree in itertools.islice(trees, 0, None, 1 if depth < 2 else 47):  # some of the larger ones
        heap = np.array(tree, dtype=np.int64)
        best = max(best, run_heap(task.world, search.features, search.ranks, heap[:inner], heap[inner:]))
    enumerated = enumerate_trees(task.world, depth, 60.0)
    assert enumerated.is_finished
    assert enumerated.value == found[-1].value * episodes
    assert best <= enumerated.value
    assert depth == 2 or best == enumerated.value
    assert found[-1].optimal
    check_bounds(found)


@pytest.mark.parametrize(("env", "seed"), [("CartPole-v1", 0), ("MountainCar-v0", 5), ("Acrobot-v1", 2)])
def test_the_value_is_what_the_environment_returns(env: str, seed: int) -> None:
    found = plans(env, 2, start_seed=seed, episodes=3, seconds=3.0)[-1]
    returns = []
    for k in range(3):
        world = gym.make(env)
        observation, _ = world.reset(seed=seed + k)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = world.step(int(found.tree.act(observation)))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    assert np.mean(returns) == found.value


def test_known_answers() -> None:
    assert plans("CartPole-v1", 2)[-1].value == 500.0
    prereq = plans("custard/PrereqWorld-v0", 3, kwargs={"m": 7})[-1]
    assert (prereq.value, prereq.optimal) == (-4.0, True)
    lake = plans("FrozenLake-v1", 2, kwargs={"is_slippery": False})[-1]
    assert (lake.value, lake.optimal) == (1.0, True)
    cliff = plans("CliffWalking-v1", 2)[-1]
    assert (cliff.value, cliff.tree.n_leaves, cliff.optimal) == (-13.0, 3, True)


def test_the_time_limit_is_kept_and_the_gap_told() -> None:
    plans("MountainCar-v0", 1)  # compiles
    began = time.process_time()
    found = plans("MountainCar-v0", 4, splits=99, seconds=1.0)
    assert time.process_time() - began < 2.0
    assert not found[-1].optimal
    assert found[-1].gap > 0
    assert "gap" in found[-1].message
    check_bounds(found)


def test_begins_from_a_tree_whose_thresholds_are_not_on_the_grid(tmp_path: Any) -> None:
    task = fixed_starts(source("MountainCar-v0"), 0)
    tree = custard.Tree.stump(1, 0.0123, 0, 2, task.features, task.actions)
    tree.save(tmp_path / "tree.json")
    found = plans("MountainCar-v0", 1, start=str(tmp_path / "tree.json"))[-1]
    assert found.optimal
    assert found.tree.origin["certificate"]["scope"]["thresholds"]["velocity"][0] == 10
    with pytest.raises(custard.CustardError, match="more than max_depth=0"):
        plans("MountainCar-v0", 0, start=str(tmp_path / "tree.json"))


def test_the_certificate_says_what_was_proved() -> None:
    tree = plans("MountainCar-v0", 1, episodes=2)[-1].tree
    text = certificate_text(tree)
    assert text is not None
    for part in ("no tree of depth ≤ 1 over these thresholds", "from the starts of seeds 0…1", "at most 200 steps",
                 "position 9 from -1.02 to 0.42"):  # fmt: skip
        assert part in text
    items = dict(map(tuple, certificate_items(tree)))  # type: ignore[arg-type]
    assert items["Holds for"].startswith("from the starts of seeds 0…1")
    assert "the exact return" in items["Value"]


@pytest.mark.parametrize(
    ("env", "kwargs", "how", "message"),
    [("Pendulum-v1", {}, {}, "takes discrete actions"), ("custard/PotholeWorld-v0", {}, {}, "steps are random"),
     ("custard/PrereqWorld-v0", {"m": 5, "rho": 0.2}, {}, "steps are random"),
     ("FrozenLake-v1", {}, {}, "has several outcomes"), ("Blackjack-v1", {}, {}, "has no exact model"),
     ("CartPole-v1", {}, {"depth": None}, "needs max_depth"), ("CartPole-v1", {}, {"depth": 11}, "needs max_depth"),
     ("CartPole-v1", {}, {"splits": 0}, "splits=0"), ("CartPole-v1", {}, {"episodes": 0}, "episodes=0"),
     ("CartPole-v1", {}, {"start_seed": -1}, "start_seed=-1")],
)  # fmt: skip
def test_mistakes(env: str, kwargs: dict, how: dict, message: str) -> None:
    with pytest.raises(custard.CustardError, match=message):
        plans(env, how.pop("depth", 1), kwargs=kwargs, **how)


@given(
    seed=st.integers(0, 100_000), n=st.integers(1, 3), values=st.integers(2, 5), actions=st.integers(2, 3),
    depth=st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=100, deadline=None, derandomize=True)
def test_what_is_known_of_earlier_cells_changes_no_answer(
    seed: int, n: int, values: int, actions: int, depth: int
) -> None:
    rng = np.random.default_rng(seed)
    codes = np.unique(rng.integers(values, size=(12, n)), axis=0).astype(np.int32)
    codes = codes[rng.permutation(len(codes))]
    sizes, count = np.full(n, values), len(codes)
    action, words, highest, root = np.zeros(count, np.int64), np.zeros((count, 1), np.uint64), sizes - 2, 0
    work, scratch = np.array([10**12]), np.zeros((2, n), np.int32)
    for k in range(count):
        for a in rng.permutation(actions):
            action[k], words[k, 0] = a, 1 << int(a)
            mine = highest.copy()
            trace = codes, sizes, words, action, scratch, scratch.copy()
            found = agrees_after(trace, k + 1, depth, mine, root, work)
            assert (found >= 0) == agrees(codes, sizes, words, np.arange(k + 1), depth, work)
            if found >= 0:
                highest, root = mine, found
                break
