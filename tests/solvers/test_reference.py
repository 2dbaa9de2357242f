"""The paper's three derivations find a tree as good as the best of all trees."""

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.mdp import FiniteMDP
from custard.envs.prereq_world import PrereqWorld
from custard.planning.env import FiniteEnv
from custard.planning.evaluate import tree_value
from custard.solvers.reference import Schedule, merged_agent, omniscient_agent, two_agents

AGENTS = [two_agents, merged_agent, omniscient_agent]


def switches(n: int, gamma: float) -> FiniteMDP:
    """n binary features; the action that matches the rule of the first two is rewarded, the rest is noise."""
    states = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    right = states[:, 0] ^ (states[:, 1] if n > 1 else 0)
    rewards = np.where(np.arange(2)[None] == right[:, None], 1.0, 0.0)
    count = 2**n
    entries = np.array([(a, s, t, 1.0 / count) for a in range(2) for s in range(count) for t in range(count)])
    return FiniteMDP.from_entries(
        entries, rewards, terminal=np.zeros(count, dtype=bool), start=np.full(count, 1 / count), gamma=gamma,
        x=states.astype(float),
        features=custard.Features(tuple(f"bit_{i}" for i in range(n)), np.zeros(n), np.ones(n), ("binary",) * n),
        actions=custard.Actions("discrete", ("zero", "one")),
    )  # fmt: skip


def best_value(mdp: FiniteMDP, max_depth: int) -> float:
    from tests.planning.exhaustive import best_tree_exhaustive

    return best_tree_exhaustive(mdp, max_depth)[1]


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.__name__)
@pytest.mark.parametrize(("n", "depth"), [(2, 2), (3, 2)])
def test_switches(agent, n, depth):
    mdp = switches(n, gamma=0.5)
    env = custard.IBMDP(gym.wrappers.TimeLimit(FiniteEnv(mdp), 30), splits=1, gamma_b=0.5, max_depth=depth)
    tree = agent(env, Schedule(episodes=250, seed=1))
    assert tree_value(tree, mdp) == pytest.approx(best_value(mdp, depth))
    assert custard.simplify(tree).n_leaves == 4


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.__name__)
@pytest.mark.parametrize("m", [3, 4])
def test_prereq_world(agent, m):
    base = PrereqWorld(m=m)
    mdp = base.mdp()
    env = custard.IBMDP(gym.wrappers.TimeLimit(base, 20), splits=1, gamma_b=1.0, max_depth=2)
    tree = agent(env, Schedule(episodes=600, seed=0))
    assert tree_value(tree, mdp) == pytest.approx(best_value(mdp, 2)) == -2.0
