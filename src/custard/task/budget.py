"""Budgets in environment steps from a time: what a step costs is measured once, then the steps decide.

>>> rounded_budget(3_400_000), rounded_budget(999), rounded_budget(0.4)
(2000000, 500, 1)
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from custard.core.clusters import cluster_cores, connected
from custard.core.compile_time import seconds_compiled
from custard.core.errors import CustardError
from custard.core.processes import cores
from custard.task.episodes import EpisodeRequest, action_mask, random_action
from custard.task.problem import Problem, Snapshot
from custard.tree.leaf_actions import LeafActions
from custard.tree.tree import Tree

__all__ = ["budget_for", "budget_of_time", "parse_time", "rounded_budget", "seconds_per_step"]

DEFAULT_RUN_SECONDS, COMPILED_DEFAULT_RUN_SECONDS = 300.0, 180.0  # that a run may take: stepped by Python, compiled
SECONDS_MEASURING_STEPS, MAX_MEASURED_STEPS = 0.7, 20_000  # for measuring what a step costs
MEASURED_STEP_PARTS = 10  # the median of which counts: first steps are slow, and something else may run meanwhile
SEARCH_STEPS_PER_MEASURED_STEP = 0.8  # in the same time: a search also makes and compares policies
COMPILED_SEARCH_STEPS_PER_MEASURED_STEP = 0.5  # compiled steps cost less than making the policies
COMPILED_STEP_MEASURING_POLICIES = 16  # constant actions that measure what a compiled step costs
STARTUP_SECONDS, MAX_STARTUP_TIME_SHARE = 5.0, 0.2  # for what is done once: compiling, worker processes; of the time
FIRST_TRIAL_BUDGET, TRIAL_BUDGET_FACTOR = 1000, 10  # of runs that show what a method's steps cost
MIN_LEARNING_TIME_SHARE = 0.5  # however long a first run compiles
MEASURING_TRIALS_TIME_SHARE = 0.35  # for such runs
SECONDS_PER_TIME_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def parse_time(text: str | float) -> float:
    """Return seconds from a number of them or a text such as 90, 45s, 10m or 1.5h.

    >>> parse_time("10m"), parse_time("1.5h"), parse_time(30)
    (600.0, 5400.0, 30.0)
    """
    if not isinstance(text, str):
        seconds = float(text)
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)(?:in|ec)?\s*", text)
        if match is None:
            raise CustardError(f"time {text!r} is not understood: give seconds, or a number with s, m or h such as 10m")
        seconds = float(match[1]) * SECONDS_PER_TIME_UNIT[match[2]]
    if not 0 < seconds < np.inf:
        raise CustardError(f"time must be more than nothing, not {text!r}")
    return seconds


def rounded_budget(steps: float) -> int:
    """Return the largest of 1, 2, 5, 10, 20, 50, … that is not above a number of steps."""
    power = 10 ** int(np.floor(np.log10(max(1.0, steps))))
    return int(max(factor for factor in (1, 2, 5) if factor * power <= max(1.0, steps)) * power)


def seconds_per_step(problem: Problem) -> float:
    """Measure what a step of random actions takes in this process, with its share of the resets.

    Episodes of good policies are often longer than those of random actions, so that resets cost less
    (`_good_policy_length_ratio`).
    """
    env = problem.source.make()
    leaf_actions, rng = LeafActions(problem.base.actions), np.random.default_rng(problem.seed)
    _, info = env.reset(seed=0)
    is_discrete = problem.base.actions.discrete
    steps, resets, reset_seconds, seconds = 0, 1, 0.0, list[float]()  # of every step
    begun = time.perf_counter()
    while steps < MAX_MEASURED_STEPS and (steps < 1 or time.perf_counter() - begun < SECONDS_MEASURING_STEPS):
        step_begun = time.perf_counter()
        action = random_action(leaf_actions, rng, action_mask(env, info) if is_discrete else None)
        observation, _, terminated, truncated, info = env.step(problem.base.action(action))
        problem.base.observe(observation)
        seconds.append(time.perf_counter() - step_begun)
        steps += 1
        if terminated or truncated:
            resets, step_begun = resets + 1, time.perf_counter()
            _, info = env.reset()
            reset_seconds += time.perf_counter() - step_begun
    if not problem.source.is_single_instance:
        env.close()
    parts = np.array_split(seconds, min(steps, MEASURED_STEP_PARTS))
    return float(np.median([part.mean() for part in parts])) + reset_seconds / steps / _good_policy_length_ratio(
        problem, steps / resets
    )


def _compiled_seconds_per_step(problem: Problem) -> float:
    """Measure what a step takes in compiled code on all cores, by episodes of constant actions.

    Most of it is the making of policies, so that longer episodes of better ones cost less per step.
    """
    from custard.task.compiled_runner import CompiledRunner  # compiled code loads when it is used

    runner, rng = CompiledRunner(problem), np.random.default_rng(problem.seed)
    leaf_actions, base = LeafActions(problem.base.actions), problem.base
    trees = [
        Tree.leaf(leaf_actions.random(rng), base.features, base.actions)
        for _ in range(COMPILED_STEP_MEASURING_POLICIES)
    ]
    requests = [EpisodeRequest(tree, np.arange(2), max_steps=problem.episode_cap(np.inf)) for tree in trees]
    runner.run(requests)  # compiles
    steps, episodes, begun = 0, 0, time.perf_counter()
    while steps < 1 or time.perf_counter() - begun < SECONDS_MEASURING_STEPS / 2:
        results = runner.run(requests)
        steps, episodes = steps + sum(result.steps for result in results), episodes + 2 * len(results)
    seconds = time.perf_counter() - begun
    runner.close()
    return seconds / steps / _good_policy_length_ratio(problem, steps / episodes)


def _good_policy_length_ratio(problem: Problem, length: float) -> float:
    """Return how much longer episodes of good policies may be than these: halfway to the time limit, by ratio."""
    return float(np.sqrt(max(1.0, (problem.source.time_limit or length) / length)))


def budget_of_time(module: Any, problem: Problem, settings: Any, seconds: float) -> int | None:
    """Return the environment steps that a method takes in a number of seconds; None if it is done before.

    Direct search has its own way to know. Other methods run with small budgets to find out, each ten times the one
    before, and begin again afterwards. What they compile meanwhile is not what steps cost: some parts of a method run
    in large budgets only, and are compiled then.
    """
    if not hasattr(settings, "budget"):
        name = module.__name__.rpartition(".")[2]
        raise CustardError(f"{name} has no budget of environment steps, so a time cannot be given for it")
    if hasattr(module, "searches_directly") and module.searches_directly(problem, settings):
        return int(module.budget_for_time(problem, settings, seconds))

    def trial(budget: int, seconds: float) -> _Trial:
        return _run_trial(module.solve(problem, dataclasses.replace(settings, budget=budget)), seconds)

    begun = time.perf_counter()
    trial(FIRST_TRIAL_BUDGET, seconds)  # compiles what the method needs, so it says little about later steps
    end = max(begun + seconds, time.perf_counter() + MIN_LEARNING_TIME_SHARE * seconds)
    trials_end = _time_without_compiling() + MEASURING_TRIALS_TIME_SHARE * (end - time.perf_counter())
    runs, budget = list[_Trial](), FIRST_TRIAL_BUDGET
    while not runs or (runs[-1].is_whole and _time_without_compiling() + runs[-1].seconds < trials_end):
        runs.append(trial(budget, trials_end - _time_without_compiling()))
        is_done = runs[-1].is_whole and runs[-1].steps < budget / 2
        if is_done and len(runs) > 1 and runs[-1].steps < 2 * runs[-2].steps:
            return None  # a larger budget changes nothing
        budget *= TRIAL_BUDGET_FACTOR
    last = runs[-1]
    per_step = last.seconds_per_step
    if not last.is_timed and len(runs) > 1 and last.steps > runs[-2].steps and last.seconds > runs[-2].seconds:
        per_step = (last.seconds - runs[-2].seconds) / (last.steps - runs[-2].steps)
    recompiled = min(run.compiling for run in runs[-2:]) if len(runs) > 1 else 0.0  # for every budget anew
    fixed = max(0.0, last.seconds - per_step * last.steps) + recompiled
    left = max(end - time.perf_counter(), MIN_LEARNING_TIME_SHARE * seconds)
    return rounded_budget(max(last.steps, (left - fixed) / per_step))


def _time_without_compiling() -> float:
    """Return the time of a clock that stands still while anything is compiled."""
    return time.perf_counter() - seconds_compiled()


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A run of a method that only shows what its steps cost."""

    steps: int
    seconds: float  # without compiling
    compiling: float  # seconds
    seconds_per_step: float  # after what is done once
    is_whole: bool
    is_timed: bool  # whether most of its steps came after the first snapshot, so that their pace is known


def _run_trial(solving: Iterator[Snapshot], seconds: float) -> _Trial:
    """Run a method for a number of seconds, or to its end."""
    begun, compiled_before, times = _time_without_compiling(), seconds_compiled(), list[tuple[int, float]]()
    for snapshot in solving:
        times.append((snapshot.steps, _time_without_compiling() - begun))
        if times[-1][1] > seconds:
            break
    passed, (first, first_time), (last, last_time) = _time_without_compiling() - begun, times[0], times[-1]
    per_step = (last_time - first_time) / (last - first) if last > first else passed / max(1, last)
    compiling, is_timed = seconds_compiled() - compiled_before, last - first > last / 2
    return _Trial(last, passed, compiling, per_step, last_time <= seconds, is_timed)


def budget_for(problem: Problem, seconds: float | None, training_seconds: Callable[[int, float], float]) -> int:
    """Return the environment steps that a search can take in `seconds`, rounded; by default in a few minutes.

    `training_seconds(budget, seconds per step)` is how long networks are trained, which one process does.
    """
    available = cores()
    if problem.engine == "ray":
        with connected(problem.address) as ray:
            available = cluster_cores(ray)
    processes = max(1, available if problem.workers is None else problem.workers)
    if problem.source.vector is not None:  # measured with all of its parts, which step side by side
        processes = available = problem.source.vector.num_envs
    if problem.is_compiled:
        per_step, by_default = _compiled_seconds_per_step(problem), COMPILED_DEFAULT_RUN_SECONDS
        rate = COMPILED_SEARCH_STEPS_PER_MEASURED_STEP / per_step
    else:
        per_step, by_default = seconds_per_step(problem), DEFAULT_RUN_SECONDS
        rate = SEARCH_STEPS_PER_MEASURED_STEP * min(processes, available) / per_step
    seconds = by_default if seconds is None else seconds
    seconds -= min(STARTUP_SECONDS, MAX_STARTUP_TIME_SHARE * seconds)
    budget = rounded_budget(rate * seconds)
    while budget > 1 and budget / rate + training_seconds(budget, per_step) > seconds:
        budget = rounded_budget(budget - 1)
    return budget
