"""Worker processes: the same episodes however many run them, lost workers replaced, every failure one line."""

import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from custard import CustardError
from custard.core.actions import Actions
from custard.core.processes import Worker
from custard.core.spaces import describe
from custard.task import workers as workers_module
from custard.task.episodes import EpisodeRequest, InProcess, play_episodes
from custard.task.policies import LinearPolicy, policy_data, policy_from_data
from custard.task.problem import Problem
from custard.task.recipes import function_recipe, recipe_function
from custard.task.source import episode_seeds, source
from custard.task.workers import LateWorkers, WorkerPool, make_judging_runner, make_runner
from custard.tree.tree import Tree


class Walk(gym.Env):
    """A random walk with a drift; actions may be told to misbehave at a step."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2)

    def __init__(self, mishap="", at=5, marker=""):
        self.mishap, self.at, self.marker = mishap, at, marker

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=2), 0
        return self.x.astype(np.float32), {}

    def step(self, action):
        self.t += 1
        if self.mishap and self.t == self.at and not (self.marker and os.path.exists(self.marker)):
            if self.marker:
                open(self.marker, "w").close()
            if self.mishap == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.mishap == "hang":
                time.sleep(60)
            if self.mishap == "raise":
                raise RuntimeError("out of\nfuel")
            if self.mishap == "exit":
                raise SystemExit(0)
        self.x = np.clip(self.x + self.np_random.normal(size=2) + 0.2 * (2 * action - 1), -9, 9)
        return self.x.astype(np.float32), float(-abs(self.x[0])), abs(self.x[0]) > 5, self.t >= 30, {}


class Masked(Walk):
    """Says that action 1 is forbidden."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"action_mask": np.array([1, 0], dtype=np.int8)}

    def step(self, action):
        *result, _ = super().step(action)
        return (*result, {"action_mask": np.array([1, 0], dtype=np.int8)})


def problem_of(env=Walk, **kwargs):
    where = source(env, kwargs)
    return Problem(where, describe(where.make()))


def policies(problem):
    tree = Tree.stump(0, 0.0, 1, 0, problem.base.features, problem.base.actions)
    rng = np.random.default_rng(0)
    return [tree, LinearPolicy(rng.normal(size=(2, 2)), rng.normal(size=2), problem.base.actions)]


def test_the_same_episodes_with_any_number_of_workers():
    problem, seeds = problem_of(), episode_seeds(3, 13)
    requests = [
        EpisodeRequest(policy, seeds, noise, 20, keep_states=True)
        for policy in policies(problem) for noise in (0.0, 0.3)
    ]  # fmt: skip
    here = make_runner(replace(problem, workers=0))
    assert isinstance(here, InProcess)
    expected = here.run(requests)
    for count in (1, 3):
        pool = make_runner(replace(problem, workers=count))
        assert isinstance(pool, WorkerPool)
        for result, wanted in zip(pool.run(requests), expected, strict=True):
            for name in ("returns", "lengths", "terminated", "truncated", "forbidden", "states", "masks"):
                assert np.array_equal(getattr(result, name), getattr(wanted, name)), name
        pool.close()
    assert expected[0].truncated.any()
    assert len(expected[0].states) == expected[0].steps
    assert not np.array_equal(expected[0].returns, expected[1].returns)  # noise


def test_a_lost_worker_is_replaced_and_its_episodes_run_again(tmp_path):
    problem, seeds = problem_of(), episode_seeds(0, 8)
    request = EpisodeRequest(policies(problem)[0], seeds)
    expected = make_runner(replace(problem, workers=0)).run([request])[0]
    pool = make_runner(replace(problem_of(Walk, mishap="kill", at=3, marker=str(tmp_path / "once")), workers=2))
    assert np.array_equal(pool.run([request])[0].returns, expected.returns)
    pool.close()


@pytest.mark.parametrize(
    ("mishap", "message"),
    [
        ("kill", "ended its worker process: the process was killed by SIGKILL"),
        ("raise", "raised RuntimeError at step 5: out of fuel"),
        ("exit", "SystemExit"),
        ("hang", "took more than 1 seconds for one step"),
    ],
)
def test_failures_are_one_clear_line(mishap, message):
    problem = problem_of(Walk, mishap=mishap)
    limit = 1.0 if mishap == "hang" else 60.0  # the first step waits for the process to start, which may take long
    pool = make_runner(replace(problem, workers=2, step_timeout=limit))
    with pytest.raises(CustardError, match=message) as caught:
        pool.run([EpisodeRequest(policies(problem)[0], episode_seeds(0, 4))])
    assert "\n" not in str(caught.value)
    pool.close()


def test_what_no_other_process_can_make_runs_here_and_says_so():
    for env in (lambda: Walk(), Walk()):
        with pytest.warns(UserWarning, match="is stepped in this process alone"):
            assert isinstance(make_runner(replace(problem_of(env), workers=2)), InProcess)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(make_runner(replace(problem_of(lambda: Walk()), workers=0)), InProcess)


def test_forbidden_actions_are_counted():
    problem = problem_of(Masked)
    leaf = Tree.leaf(1, problem.base.features, problem.base.actions)
    env = problem.source.make()
    result = play_episodes(env, problem.base, EpisodeRequest(leaf, episode_seeds(0, 3)))
    assert np.array_equal(result.forbidden, result.lengths)


def test_no_worker_outlives_its_parent():
    code = """
import sys, time
from dataclasses import replace
from tests.task.test_workers import problem_of, make_runner
pool = make_runner(replace(problem_of(), workers=1))
print(pool.workers[0].process.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the worker is still there")


def test_policies_survive_the_way_to_another_process():
    problem = problem_of()
    x = np.random.default_rng(1).normal(size=(50, 2))
    for policy in policies(problem):
        again = policy_from_data(policy_data(policy), problem.base.features, problem.base.actions)
        assert np.array_equal(policy.predict(x), again.predict(x))
        assert [policy.act(row) for row in x] == policy.predict(x).tolist()
    with pytest.raises(TypeError, match="cannot be sent"):
        policy_data(lambda x: 0)


def test_vectors_are_clipped_and_whole_numbers_rounded():
    box = Actions("box", ("u",), low=[-1.0], high=[1.0])
    assert LinearPolicy(np.array([[2.0]]), np.zeros(1), box).predict(np.array([[-3.0], [0.2]])).tolist() == [
        [-1.0],
        [0.4],
    ]
    multi = Actions("multi", ("u",), low=[0], high=[3])
    assert LinearPolicy(np.array([[1.0]]), np.zeros(1), multi).act(np.array([1.6])).tolist() == [2]


def test_functions_are_found_again_by_name_only():
    assert recipe_function(function_recipe(Walk)) is Walk
    assert function_recipe(lambda: 0) is None
    local = Walk

    def inner():
        return local()

    assert function_recipe(inner) is None


def test_messages_hold_arrays_of_any_shape():
    worker = Worker("tests.task.test_workers:echo", {"times": 2})
    sent = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": [np.zeros((0, 4), dtype=np.int64), None, "text", 1.5],
        "c": np.bool_(1),
    }
    worker.send(sent)
    back = worker.receive()
    assert np.array_equal(back["a"], 2 * sent["a"])
    assert back["b"][0].shape == (0, 4)
    assert back["b"][1:] == [None, "text", 1.5]
    assert back["c"] is True
    assert worker.ticks == 1
    worker.end()


def echo(setup, tick):
    """A worker that doubles an array."""

    def answer(message):
        tick()
        return {**message, "a": setup["times"] * message["a"]}

    return answer


def test_judging_starts_workers_only_once_it_has_taken_long_and_changes_nothing(monkeypatch):
    problem = replace(problem_of(), workers=2)
    tree, seeds = policies(problem)[0], episode_seeds(3, 40)
    request = EpisodeRequest(tree, seeds, keep_states=True)
    here = InProcess(problem.source.make(), problem.base).run([request])[0]
    runner = make_judging_runner(problem)
    assert isinstance(runner, LateWorkers)
    few = runner.run([request])[0]
    assert runner.workers is None
    monkeypatch.setattr(workers_module, "MAX_SECONDS_WITHOUT_WORKERS", 0.0)
    many, nothing = runner.run([request, replace(request, seeds=seeds[:0])])
    assert isinstance(runner.workers, WorkerPool)
    runner.close()
    for found in (few, many):
        assert (found.returns == here.returns).all()
        assert (found.states == here.states).all()
    assert len(nothing.returns) == 0


def test_a_method_that_learns_has_its_trees_judged_by_workers(monkeypatch):
    from custard import learn

    started = []
    monkeypatch.setattr(workers_module, "MAX_SECONDS_WITHOUT_WORKERS", 0.0)
    monkeypatch.setattr(
        WorkerPool, "_start_worker", lambda pool, start=WorkerPool._start_worker: started.append(1) or start(pool)
    )
    runs = [learn(Walk, "mfec", budget=2000, workers=count, seed=1, progress=False) for count in (0, 2)]
    assert len(started) == 2
    assert runs[0].tree == runs[1].tree
    assert runs[0].steps == runs[1].steps
