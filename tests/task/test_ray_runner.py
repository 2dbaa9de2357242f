"""Ray actors: the same episodes and the same tree as in one process, a lost actor's episodes run again."""

import os
from dataclasses import replace

import numpy as np
import pytest

import custard
from custard import CustardError
from custard.task.episodes import EpisodeRequest, InProcess
from custard.task.ray_runner import EpisodeActor, RayRunner
from custard.task.source import episode_seeds
from custard.task.workers import make_runner
from tests.task.test_workers import Walk, policies, problem_of


@pytest.fixture(scope="module")
def cluster():
    """One connection to a small cluster, which all tests here share."""
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    yield ray
    ray.shutdown()


def test_the_same_episodes_and_a_lost_actor_is_replaced(cluster, tmp_path):
    problem, seeds = problem_of(), episode_seeds(3, 9)
    requests = [EpisodeRequest(policy, seeds, 0.2, 20, keep_states=True) for policy in policies(problem)]
    expected = InProcess(problem.source.make(), problem.base).run(requests)
    once = problem_of(Walk, mishap="kill", at=3, marker=str(tmp_path / "once"))
    runner = make_runner(replace(once, engine="ray"))
    try:
        assert isinstance(runner, RayRunner)
        assert runner.count == 2
        for result, wanted in zip(runner.run(requests), expected, strict=True):
            for name in ("returns", "lengths", "terminated", "truncated", "states"):
                assert np.array_equal(getattr(result, name), getattr(wanted, name)), name
        assert (tmp_path / "once").exists(), "an actor died"
    finally:
        runner.close()
    assert cluster.is_initialized(), "a connection that was there before stays"


def test_the_same_tree_as_in_one_process(cluster):
    here = custard.learn(Walk, "direct", budget=3000, seed=1, workers=0, expert="none", max_leaves=4)
    there = custard.learn(Walk, "direct", budget=3000, seed=1, engine="ray", expert="none", max_leaves=4)
    assert (there.raw, there.value, there.steps) == (here.raw, here.value, here.steps)


def test_what_ray_cannot_do_is_one_line():
    with pytest.raises(CustardError, match="an address goes with the engine ray"):
        custard.learn(Walk, "direct", address="127.0.0.1:1")
    with pytest.raises(CustardError, match="unknown engine 'rya'"):
        custard.learn(Walk, "direct", engine="rya")
    with pytest.raises(CustardError, match="mfec on CartPole-v1 does not"):
        custard.learn("CartPole-v1", "mfec", engine="ray")
    with pytest.raises(CustardError, match="several seeds at once run on this machine"):
        custard.learn("CartPole-v1", "direct", engine="ray", seeds=2)


@pytest.mark.parametrize(("mishap", "message"), [("raise", "out of fuel"), ("exit", "SystemExit"), ("hang", "0.6 sec")])
def test_an_actor_answers_failures_in_one_line(mishap, message):
    actor, problem = EpisodeActor([]), problem_of(Walk, mishap=mishap, at=2)
    assert actor.start({**problem.source.make.recipe, "features": None}) == {}
    chunk = make_chunk(policies(problem)[0])
    error = actor.run(chunk, 0.6, "Walk")["error"]
    assert message in error
    assert "\n" not in error


def make_chunk(policy):
    """A chunk of two episodes."""
    from custard.task.chunks import chunks_of

    return chunks_of([EpisodeRequest(policy, episode_seeds(0, 2))], 0)[0][1]
