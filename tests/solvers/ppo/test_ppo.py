"""PPO: its targets by hand, its masks, seeds, checkpoints, and the known answers of small environments."""

from __future__ import annotations

from itertools import islice

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.errors import CustardError
from custard.core.spaces import describe
from custard.envs.pcg64 import streams
from custard.envs.prereq_world import PrereqWorld
from custard.ibmdp.splits import Rules
from custard.planning.evaluate import tree_value
from custard.solvers.reference import Schedule, omniscient_agent
from custard.task.problem import Problem
from custard.task.settings import settings_for
from custard.task.source import source

ppo = pytest.importorskip("custard.solvers.ppo.ppo", reason="needs the extra neural")
ppo_update = pytest.importorskip("custard.solvers.ppo.update", reason="needs the extra neural")

from custard.nn.networks import forward, forward_row, make_layer_outputs, make_network  # noqa: E402
from custard.solvers.ppo.policy import ExtractablePolicy  # noqa: E402
from custard.solvers.ppo.rollouts import Exploration, make_environments  # noqa: E402
from custard.solvers.ppo.traversal import choose_action  # noqa: E402

PREREQ = "custard/PrereqWorld-v0"
SMALL = dict(num_envs=4, num_steps=16, minibatches=2, epochs=2, hidden=8)


def problem_of(env, kwargs=None, seed=0, max_depth=None):
    where = source(env, kwargs)
    return Problem(where, describe(where.make_vec(1)), seed, max_depth)


def learner_of(env, kwargs=None, seed=0, max_depth=None, **given):
    settings = settings_for(ppo, env, None, {"budget": 20_000, **SMALL, **given})
    return ppo.Learner(problem_of(env, kwargs, seed, max_depth), settings)


# -- targets ----------------------------------------------------------------------------------------------------------

ZETA, GAMMA_B, GAMMA_W = -0.1, 0.5, 0.9
AFTER = np.array([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]], dtype=np.float32)  # Q_o at the next base states


def three_steps(last):
    """Three base actions; the policy then takes actions 1, 0, 1 after 2, 0 and 1 splits."""
    rows = ppo_update.make_rows(learner_of(PREREQ, {"m": 4}).rollouts.rules, 1, 4)
    for t, reward, next_action, n_splits in ((0, 1.0, 1, 2), (2, 2.0, 0, 0), (3, 3.0, 1, 1)):  # row 1 is a node only
        rows.has_action[0, t], rows.reward[0, t], rows.on_policy[0, t] = True, reward, True
        rows.next_action[0, t], rows.next_splits[0, t] = next_action, n_splits
    rows.terminated[0, 3], rows.done[0, 3] = last == "terminated", last != "goes on"
    after = np.zeros((1, 4, 2), dtype=np.float32)
    after[0, [0, 2, 3]] = AFTER
    return rows, after


@pytest.mark.parametrize("last", ["terminated", "truncated", "goes on"])
@pytest.mark.parametrize("trace", [0.0, 1.0])
def test_targets_of_base_actions_by_hand(last, trace):
    rows, after = three_steps(last)
    got = np.asarray(ppo_update.critic_targets(rows, after, ZETA, GAMMA_B, GAMMA_W, trace))[0, [0, 2, 3]]
    third = 3.0 if last == "terminated" else 3.0 + 0.5 * (-0.1 + 0.9 * 60.0)  # one split, then Q_o = 60
    second = 2.0 + 0.5 * (third if trace else 30.0)
    first = 1.0 + 0.5 * (-0.1 - 0.09 + 0.81 * (second if trace else 20.0))  # two splits, then the next base action
    assert got == pytest.approx([first, second, third], rel=1e-5)


def test_a_random_action_cuts_the_trace():
    rows, after = three_steps("terminated")
    rows.on_policy[0, 2] = False
    got = np.asarray(ppo_update.critic_targets(rows, after, ZETA, GAMMA_B, GAMMA_W, 1.0))[0, 0]
    assert got == pytest.approx(1.0 + 0.5 * (-0.19 + 0.81 * 20.0), rel=1e-5)


def test_values_of_splits_by_hand():
    q = np.array([[10.0, 20.0]], dtype=np.float32)
    leaf, n_splits = np.array([[0, 1, 1]]), np.array([[0, 0, 2]])
    got = np.asarray(ppo_update.split_values(q, leaf, n_splits, ZETA, GAMMA_W))[0]
    assert got == pytest.approx([-0.1 + 9.0, -0.1 + 18.0, -0.1 * (1 + 0.9 + 0.81) + 0.729 * 20.0], rel=1e-5)


# -- rollouts ---------------------------------------------------------------------------------------------------------


def test_compiled_networks_equal_numpys():
    rng = np.random.default_rng(0)
    for sizes in ((5, 3), (5, 8, 3), (5, 8, 6, 3)):
        weights, x = make_network(rng, sizes), rng.random((20, sizes[0])).astype(np.float32)
        got = np.stack([forward_row(weights, row, make_layer_outputs(weights), False).copy() for row in x])
        np.testing.assert_allclose(got, forward(weights, x, np.tanh), atol=2e-6)


def test_masked_actions_are_never_chosen():
    learner = learner_of("custard/CartPole-v0", max_depth=2)
    node, rules, rng = learner.rollouts.node, learner.rollouts.rules, streams([0])[0]
    node.normalised_bounds[:] = rules.root_bounds
    picks = np.random.default_rng(0)
    for _ in range(2000):
        node.mask[:] = picks.random(len(node.mask)) < 0.3
        node.mask[: learner.rules.n_base] = True
        assert node.mask[choose_action(rules, learner.policy, node, rng, True)]
        assert node.mask[choose_action(rules, learner.policy, node, rng, False)]


@pytest.mark.parametrize("splits", [3, "parameterised"])
def test_rows_hold_what_the_tree_does(splits):
    """The leaf action behind the root's split is the extracted tree's."""
    learner = learner_of("custard/CartPole-v0", max_depth=2, splits=splits)
    learner.advance()
    policy, rows, rules = ExtractablePolicy(learner.policy, learner.rules), learner.rollouts.rows, learner.rules
    tree = custard.extract(policy, rules)
    learner.rollouts.collect(learner.policy, Exploration(0.5, 0.0, np.zeros(4)))
    x = rows.base_state * rules.width + rules.features.low
    root = learner.rollouts.rules.root_bounds, learner.rollouts.rules.root_mask
    at_root = (rows.normalised_bounds == root[0]).all(axis=-1)
    assert at_root.sum() > 10
    assert rows.mask[at_root].all()
    deep = rows.mask[~at_root]
    assert not deep.all()
    if tree.n_leaves > 1:
        answer = policy(root[0][None], root[1][None])
        choice = int(np.ravel(answer["choice"] if rules.parameterised else answer)[0])
        agree = rows.leaf_action[at_root][:, choice] == tree.predict(x[at_root])
        assert agree.mean() > 0.99  # rows hold states as float32


# -- runs -------------------------------------------------------------------------------------------------------------


def test_prereq_world_gets_the_smallest_tree():
    run = custard.learn(PREREQ, "ppo", env_kwargs={"m": 4}, seed=1, budget=150_000)
    assert (run.value, run.tree.depth, run.tree.n_leaves) == (-2.0, 2, 3)


@pytest.mark.parametrize(
    ("env", "kwargs", "given"),
    [
        (
            "custard/CartPole-v0",
            None,
            {"splits": "parameterised", "max_judging_share": 0.5, "sampled_trees": 4, "episodes": 64},
        ),
        ("FrozenLake-v1", {"is_slippery": False}, {}),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(env, kwargs, given):
    budget = 4000 if "CartPole" in env else 8000  # judging takes half of the steps
    settings = settings_for(ppo, env, None, {"budget": budget, **SMALL, **given})
    whole = list(ppo.solve(problem_of(env, kwargs, 5, 2), settings))
    again = list(ppo.solve(problem_of(env, kwargs, 5, 2), settings))
    assert len(whole) > 3
    state = list(islice(ppo.solve(problem_of(env, kwargs, 5, 2), settings), 2))[-1].state()
    assert all(isinstance(value, np.ndarray) and value.dtype != object for value in state.values())
    rest = list(ppo.solve(problem_of(env, kwargs, 5, 2), settings, state))
    assert len(rest) == len(whole) - 2
    for a, b, c in zip(whole[2:], rest, again[2:], strict=True):
        for other in (b, c):
            assert (a.steps, a.value, a.message) == (other.steps, other.value, other.message)
            assert a.tree == other.tree
            assert a.final == other.final
    for name, array in whole[-1].state().items():
        assert np.array_equal(array, rest[-1].state()[name], equal_nan=True), name


def test_a_linear_network_on_one_hot_bounds_agrees_with_the_tabular_agent():
    """PrereqWorld's bounds are binary: without hidden layers actor and critic are linear in indicators."""
    base = PrereqWorld(m=3)
    mdp = base.mdp()
    env = custard.IBMDP(gym.wrappers.TimeLimit(base, 20), splits=1, gamma_b=1.0, max_depth=2)
    reference = tree_value(omniscient_agent(env, Schedule(episodes=600, seed=0)), mdp)
    run = custard.learn(
        PREREQ, "ppo", env_kwargs={"m": 3}, seed=0, max_depth=2, hidden=0, gamma_b=1.0, budget=150_000, num_envs=8
    )
    assert tree_value(run.tree, mdp) == pytest.approx(reference) == -2.0


# -- as the paper writes it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["terminated", "truncated", "goes on"])
def test_returns_of_both_kinds_of_action_by_hand(last):
    """A split, a base action and a split: gamma_w, gamma_b, gamma_w; nothing after termination."""
    from custard.solvers.ppo.paper import Steps, lambda_returns

    reward = np.array([[-0.1], [2.0], [-0.1]], dtype=np.float32)
    discount = np.array([[0.9], [0.5], [0.9]], dtype=np.float32)
    value = np.array([[10.0], [20.0], [30.0]], dtype=np.float32)  # V after each step
    terminated, done = np.zeros((3, 1), dtype=bool), np.zeros((3, 1), dtype=bool)
    terminated[1], done[1] = last == "terminated", last != "goes on"
    steps = Steps(None, None, None, reward, discount, None, None, terminated, done)
    got = np.asarray(lambda_returns(steps, value, 0.5))[:, 0]
    third = -0.1 + 0.9 * (0.5 * 30.0 + 0.5 * 30.0)
    second = 2.0 + 0.5 * {"terminated": 0.0, "truncated": 20.0, "goes on": 0.5 * 20.0 + 0.5 * third}[last]
    first = -0.1 + 0.9 * (0.5 * 10.0 + 0.5 * second)
    assert got == pytest.approx([first, second, third], rel=1e-5)


@pytest.mark.parametrize(("env", "max_depth"), [("custard/CartPole-v0", 2), (PREREQ, None)])
def test_the_papers_compiled_steps_are_those_of_the_ibmdp(env, max_depth):
    """The same actions in a VectorIBMDP over the same environment: observations, masks, rewards, discounts, ends."""
    from custard.solvers.ppo.paper import Rollouts, make_steps
    from custard.solvers.ppo.policy import PolicyNetwork

    kwargs = {"m": 4} if env == PREREQ else None
    given = {"low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4]} if max_depth else {}
    where = source(env, kwargs)
    problem = Problem(where, describe(where.make_vec(1), **given), 3, max_depth)
    base = problem.base
    rules = Rules(base.features, base.actions, 3 if max_depth else 1, -0.01, 0.9, 0.8, max_depth or 1000)
    actor = make_network(np.random.default_rng(0), (2 * base.features.n, 8, 8, rules.n_actions), 0.1)
    seeds = problem.seeds("learner", "environment")
    rollouts = Rollouts(rules, make_environments(problem, 1, seeds["environment"], False), actor, seeds["learner"])
    policy = PolicyNetwork(actor, 0)
    venv = custard.VectorIBMDP(
        where.make_vec(1), rules.splits, zeta=-0.01, gamma_b=0.9, gamma_w=0.8, max_depth=rules.max_depth, **given
    )
    obs, info = venv.reset(seed=problem.seeds("environment")["environment"])
    base_actions = ends = 0
    for _ in range(60):  # traversals go on from one call to the next
        steps = make_steps(rollouts.rules, 7, 1)
        base_actions += rollouts.collect(policy, steps)
        for t in range(7):
            assert np.array_equal(steps.obs[t], obs)
            assert np.array_equal(steps.mask[t], info["action_mask"])
            obs, reward, terminated, truncated, info = venv.step(steps.action[t])
            assert np.array_equal(steps.next_obs[t], obs)
            assert np.array_equal(steps.next_mask[t], info["action_mask"])
            assert steps.reward[t] == np.float32(reward)
            assert steps.discount[t] == np.float32(info["discount"])
            assert (steps.terminated[t], steps.done[t]) == (terminated, terminated | truncated)
            base_actions -= int(steps.action[t, 0] < rules.n_base)
            if terminated[0] or truncated[0]:
                ends += 1
                obs, info = venv.reset(options={"reset_mask": terminated | truncated})
    assert base_actions == 0
    assert ends > 0


@pytest.mark.parametrize(("env", "kwargs"), [(PREREQ, {"m": 3}), ("FrozenLake-v1", {"is_slippery": False})])
def test_the_papers_preset_runs_and_resumes(env, kwargs):
    settings = settings_for(ppo, env, "paper", {"budget": 3000, "num_steps": 16, "hidden": 8})
    whole = list(ppo.solve(problem_of(env, kwargs, 1), settings))
    assert len(whole) > 2
    rest = list(ppo.solve(problem_of(env, kwargs, 1), settings, whole[0].state()))
    assert [(a.steps, a.value, a.tree == b.tree) for a, b in zip(whole[1:], rest, strict=True)] == [
        (b.steps, b.value, True) for b in rest
    ]
    for name, array in whole[-1].state().items():
        assert np.array_equal(array, rest[-1].state()[name], equal_nan=True), name


def test_the_papers_preset_has_settings_of_its_own():
    with pytest.raises(
        CustardError, match="'sampled_trees' is not read under the preset 'paper', which reads budget, splits"
    ):
        settings_for(ppo, PREREQ, "paper", {"sampled_trees": 1})


def test_the_papers_preset_needs_discrete_splits():
    settings = settings_for(ppo, "custard/CartPole-v0", "paper", {"splits": "parameterised"})
    with pytest.raises(CustardError, match="whole number"):
        next(ppo.solve(problem_of("custard/CartPole-v0"), settings))
