"""PPO where base actions are vectors: reals (Box) and whole numbers (MultiDiscrete)."""

from __future__ import annotations

from itertools import islice

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import custard
from custard.core.actions import Actions
from custard.core.spaces import describe
from custard.envs.pcg64 import streams
from custard.task.problem import Problem
from custard.task.settings import settings_for
from custard.task.source import source

ppo = pytest.importorskip("custard.solvers.ppo.ppo", reason="needs the extra neural")

from custard.solvers.ppo.policy import ExtractablePolicy, vector_action, vector_components  # noqa: E402
from custard.solvers.ppo.rollouts import Exploration  # noqa: E402
from custard.solvers.ppo.traversal import choose_action, vector_component  # noqa: E402

SMALL = dict(num_envs=4, num_steps=16, minibatches=2, epochs=2, hidden=8)


class Follow(gym.Env):
    """One step: reward is minus the squared distance of the action from (1, 0) if x > 0.2, else from (0, 2)."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

    def __init__(self, whole=False):
        self.action_space = (
            spaces.MultiDiscrete([2, 3]) if whole else spaces.Box(np.float32([-1, -1]), np.float32([1, 3]))
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1.0, 1.0, 2)
        return self.x, {}

    def step(self, action):
        assert self.action_space.contains(action)
        wanted = (1.0, 0.0) if self.x[0] > 0.2 else (0.0, 2.0)
        return self.x, -float(((np.asarray(action) - wanted) ** 2).sum()), True, False, {}


def problem_of(env, seed=0, max_depth=None):
    where = source(env)
    return Problem(where, describe(where.make_vec(1)), seed, max_depth)


def learner_of(env, seed=0, max_depth=None, **given):
    settings = settings_for(ppo, "Pendulum-v1", None, {"budget": 20_000, **SMALL, **given})
    return ppo.Learner(problem_of(env, seed, max_depth), settings)


def test_outputs_become_actions_between_their_bounds():
    box = vector_components(Actions("box", ("a", "b", "c"), low=[-2, -np.inf, 0], high=[4, np.inf, np.inf]))
    z = np.array([[-1.0, -7.0, -1.0], [0.0, 0.0, 0.5], [1.0, 7.0, 2.0], [9.0, 0.0, 0.0]])
    assert vector_action(z, box).tolist() == [[-2, -7, 0], [1, 0, 0.5], [4, 7, 2], [4, 0, 0]]
    whole = vector_components(Actions("multi", ("a",), low=[1], high=[3]))
    assert vector_action(np.array([-5.0, -0.4, -0.3, 0.0, 0.3, 0.4]), whole).tolist() == [1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("whole", [False, True])
def test_compiled_components_equal_numpys(whole):
    learner = learner_of(lambda: Follow(whole))
    components, outputs = vector_components(learner.rules.actions), np.random.default_rng(0).normal(size=(50, 2))
    got = [[vector_component(components, j, row[j]) for j in range(2)] for row in outputs]
    assert np.array_equal(got, vector_action(outputs, components))


def test_masked_splits_are_never_chosen():
    learner = learner_of("Pendulum-v1", max_depth=2)
    node, rules, policy = learner.rollouts.node, learner.rollouts.rules, learner.policy
    rng, picks, policy = streams([0])[0], np.random.default_rng(0), policy._replace(v_spread=3.0, vector_spread=3.0)
    node.normalised_bounds[:] = rules.root_bounds
    for _ in range(1000):
        node.mask[1:] = picks.random(3) < 0.3
        node.mask[0] = True
        for sampled in (True, False):
            assert node.mask[choose_action(rules, policy, node, rng, sampled)]
        assert abs(node.vector[0]) <= 2.0


def test_rows_hold_the_vectors_of_the_tree():
    learner = learner_of("Pendulum-v1", max_depth=3)
    for _ in range(4):
        learner.advance()
    rules, rows, policy = learner.rules, learner.rollouts.rows, ExtractablePolicy(learner.policy, learner.rules)
    tree = custard.extract(policy, rules)
    only_greedy = Exploration(epsilon=0.5, greedy_share=1.0, random_shares=np.zeros(4))
    learner.rollouts.collect(learner.policy, only_greedy)
    next_state = rows.next_base_state[rows.has_action] * rules.width + rules.features.low
    agree = np.isclose(2.0 * rows.next_vector[rows.has_action], tree.predict(next_state), atol=1e-5)
    assert agree.mean() > 0.9  # rows hold states as float32
    compiled, vectors = learner.rollouts.rules, rows.leaf_vectors
    at_root = (rows.normalised_bounds == compiled.root_bounds).all(axis=-1) & rows.trains_actor
    root = policy(compiled.root_bounds[None], compiled.root_mask[None])
    assert vectors[at_root][:, 0] == pytest.approx(np.repeat(root["base"] / 2.0, at_root.sum(), axis=0), abs=1e-5)
    assert vectors[at_root][:, 1].std() > 0.0
    choice = int(root["choice"][0])
    if choice:
        x = rows.base_state[at_root] * rules.width + rules.features.low
        agree = np.isclose(2.0 * vectors[at_root][:, 1 + choice], tree.predict(x), atol=1e-5)
        assert agree.mean() > 0.9


@pytest.mark.parametrize("whole", [False, True])
def test_the_known_tree_of_vectors(whole):
    run = custard.learn(lambda: Follow(whole), "ppo", seed=0, max_depth=2, budget=40_000)
    near = 0.0 if whole else 0.3
    right = run.tree.predict([[0.9, 0.0], [0.9, 0.9]]) - [1.0, 0.0]
    left = run.tree.predict([[-0.9, 0.0], [-0.9, -0.9]]) - [0.0, 2.0]
    assert max(np.abs(right).max(), np.abs(left).max()) <= near
    assert run.value > -0.3


@pytest.mark.parametrize("env", ["Pendulum-v1", lambda: Follow(True)])
def test_a_resumed_run_ends_as_an_uninterrupted_one(env):
    settings = settings_for(ppo, "Pendulum-v1", None, {"budget": 40_000 if isinstance(env, str) else 2000, **SMALL})
    whole = list(islice(ppo.solve(problem_of(env, 5, 2), settings), 5))
    again = list(islice(ppo.solve(problem_of(env, 5, 2), settings), 5))
    rest = list(islice(ppo.solve(problem_of(env, 5, 2), settings, whole[1].state()), 3))
    assert len(rest) == 3
    for a, b, c in zip(whole[2:], rest, again[2:], strict=True):
        for other in (b, c):
            assert (a.steps, a.value, a.tree, a.final) == (other.steps, other.value, other.tree, other.final)
    for name, array in whole[-1].state().items():
        assert np.array_equal(array, rest[-1].state()[name], equal_nan=True), name
