"""A time limit only cuts episodes, so that more would follow; or it ends them (`bootstrap_at_limit=False`)."""

from dataclasses import replace

import numpy as np
import pytest

from custard.core.spaces import describe
from custard.solvers.mfec import mfec
from custard.task.problem import Problem
from custard.task.settings import settings_for
from custard.task.source import source

PREREQ = "custard/PrereqWorld-v0"  # m = 7 takes five steps, so that three never reach its goal


def problem_of(compiled, limit=3):
    where = source(PREREQ, {"max_episode_steps": limit})
    where = where if compiled else replace(where, make_compiled=None)
    problem = Problem(where, describe(where.make_vec(1)), 0, 2)
    assert bool(problem.is_compiled) == compiled
    return problem


@pytest.mark.parametrize("preset", ["tuned", "paper"])
@pytest.mark.parametrize("compiled", [True, False])
def test_mfec(preset, compiled):
    worst = {}
    for bootstrap in (True, False):
        given = {"budget": 10_000, "gamma_b": 0.9, "bootstrap_at_limit": bootstrap, "capacity": 4000, "splits": 1}
        *_, last = mfec.solve(problem_of(compiled, 1), settings_for(mfec, PREREQ, preset, given))
        worst[bootstrap] = last.state()["states.q_o" if preset == "tuned" else "q_o.value"].min()
    assert worst[False] == pytest.approx(-1.0, abs=0.05)  # one step and two questions
    assert worst[True] < -1.5  # endless steps cost 10


@pytest.mark.parametrize("preset", ["tuned", "paper"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_dqn(preset, compiled, bootstrap):
    pytest.importorskip("jax")
    from custard.solvers.dqn import dqn

    problem = problem_of(compiled)
    given = {"budget": 2000, "warmup": 1000, "hidden": 8, "bootstrap_at_limit": bootstrap}
    *_, last = dqn.solve(problem, settings_for(dqn, PREREQ, preset, given))
    ended = last.state()["memory.ended"]
    third = np.flatnonzero(ended)
    assert ended.any() == (not bootstrap)
    if preset == "tuned" and not bootstrap:  # rows are base actions only: every third one is the last
        assert (third % 3 == 2).all()
        assert len(third) == len(ended) // 3


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_ppo(compiled, bootstrap):
    pytest.importorskip("jax")
    from custard.solvers.ppo import ppo

    given = {
        "budget": 4000,
        "num_envs": 4,
        "num_steps": 16,
        "hidden": 8,
        "bootstrap_at_limit": bootstrap,
        "sampled_trees": 0,
    }
    learner = ppo.Learner(problem_of(compiled), settings_for(ppo, PREREQ, "tuned", given))
    learner.advance()
    rows = learner.rollouts.rows
    terminated, done = rows.terminated[rows.has_action], rows.done[rows.has_action]
    assert done.any()
    assert np.array_equal(terminated, done & (not bootstrap))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_ppo_as_written(compiled, bootstrap):
    pytest.importorskip("jax")
    from custard.ibmdp.splits import Rules
    from custard.nn.networks import make_network
    from custard.solvers.ppo.paper import Rollouts, make_steps
    from custard.solvers.ppo.policy import PolicyNetwork
    from custard.solvers.ppo.rollouts import make_environments

    problem = problem_of(compiled)
    rules = Rules(problem.base.features, problem.base.actions, 1, -0.01, 1.0, 1.0, 2)
    actor = make_network(np.random.default_rng(0), (2 * rules.features.n, 8, 8, rules.n_actions), 0.1)
    seeds = problem.seeds("learner", "environment")
    envs = make_environments(problem, 1, seeds["environment"], limit_terminates=not bootstrap)
    rollouts = Rollouts(rules, envs, actor, seeds["learner"])
    steps = make_steps(rollouts.rules, 50, 1)
    rollouts.collect(PolicyNetwork(actor, 0), steps)
    assert steps.done.any()
    assert np.array_equal(steps.terminated, steps.done & (not bootstrap))


@pytest.mark.parametrize("method", ["mfec", "dqn", "ppo"])
def test_the_papers_cartpole_ends_at_its_limit_and_nothing_else_does(method):
    pytest.importorskip("jax")
    from custard.lab.methods import method as find_method

    module = find_method(method)[1]
    for env, ends in (("custard/CartPole-v0", True), (PREREQ, False), ("custard/PotholeWorld-v0", False)):
        assert settings_for(module, env, "paper", {}).bootstrap_at_limit is not ends
        assert settings_for(module, env, "tuned", {}).bootstrap_at_limit
