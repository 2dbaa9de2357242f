"""What trees imitate, and how: rounds on all states, rounds on random parts of them, several teachers."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from custard.experts.expert import Expert
from custard.solvers import direct
from custard.solvers.common.race import Racer
from custard.solvers.direct import experts, plain
from custard.solvers.direct.direct import DirectSearch
from custard.solvers.direct.imitate import ALL_SIZES_ROUNDS, Teacher, imitations
from custard.task.episodes import InProcess
from custard.task.workers import make_runner
from custard.tree.tree import Tree
from tests.experts.test_linear import Choose
from tests.solvers.direct.test_direct import problem_of


def rounds_of(max_steps, sizes=(2, 4, 8)):
    problem = problem_of(Choose)
    racer = Racer(InProcess(problem.source.make(), problem.base), 0, None, 10**9)

    def scores(x):
        return np.column_stack([-x[:, 0], x[:, 0], 0.1 * x[:, 1]])

    def states(count):
        policy = Tree.leaf(0, problem.base.features, problem.base.actions)
        result = racer.screen([policy], count, keep_states=True)[0]
        return result.states, result.masks

    teacher = Teacher(lambda x: scores(x).argmax(axis=1), scores, states)
    return list(imitations(teacher, problem.base, racer, sizes, 7, 0, max_steps)), racer.steps


def test_trees_of_random_parts_follow_those_of_all_states():
    rounds, _ = rounds_of(1e6)
    counts = [len(one.states) for one in rounds]
    last = counts.index(counts[-1])
    assert ALL_SIZES_ROUNDS < last < len(rounds) - 1  # rounds that add states, then rounds that add none
    assert all(before < after for before, after in pairwise(counts[: last + 1]))
    thresholds = {tree.threshold.tobytes() for one in rounds[last + 1 :] for _, tree in one.trees}
    assert len(thresholds) > 20  # parts differ, and so do the trees


@pytest.mark.parametrize("max_steps", [300, 3000])
def test_imitation_keeps_to_its_steps(max_steps):
    rounds, steps = rounds_of(max_steps)
    assert rounds
    assert steps < 1.6 * max_steps  # the last round may exceed them


def run_with(linear_return, trained_return, expert=None, **more):
    problem = problem_of(Choose)
    run = DirectSearch(problem, direct.Settings(budget=10**6, expert=expert, **more), make_runner(problem))
    run.state.constant_return = 0.0
    if linear_return is not None:
        run.state.linear_return, run.state.linear_weights = linear_return, np.ones((2, problem.base.features.n_raw + 1))
    if trained_return is not None:
        run.state.trained_return, run.state.has_trained_expert = trained_return, True
        run.trained_expert = Expert("dqn", lambda x: np.zeros(len(x), int), lambda x: np.tile([7.0, 0.0], (len(x), 1)))
    return run


@pytest.mark.parametrize(
    ("linear", "trained", "expert", "found"),
    [
        (10.0, 6.0, None, ["linear", "dqn"]),
        (10.0, 4.0, None, ["linear"]),
        (4.0, 10.0, None, ["dqn"]),
        (10.0, None, None, ["linear"]),
        (10.0, 6.0, "dqn", ["dqn"]),
        (10.0, None, "none", []),
        (None, None, None, []),
    ],
)
def test_who_is_imitated(linear, trained, expert, found):
    assert [teacher.name for teacher in experts.teachers(run_with(linear, trained, expert))] == found


def test_another_teacher_is_trained_where_trees_imitate_badly():
    pytest.importorskip("jax")
    run = run_with(10.0, None, tests="axis")
    assert experts.may_train_another(run, best=5.0)
    assert not experts.may_train_another(run, best=9.5)
    assert not experts.may_train_another(run_with(10.0, 6.0, tests="axis"), best=5.0)
    assert not experts.may_train_another(run_with(10.0, None), best=5.0)  # sums are searched too


def test_the_best_of_each_size_is_among_the_finalists():
    small = SimpleNamespace(n_leaves=2)
    large = [SimpleNamespace(n_leaves=8) for _ in range(100)]
    chosen = plain._best_candidates([(-1.0, small), *((float(k), tree) for k, tree in enumerate(large))], [2, 8])
    assert chosen[0] is large[-1]
    assert chosen[-1] is small
    assert len(chosen) == plain.FINALISTS + 1


def test_a_compiled_environment_has_few_steps_for_networks():
    pytest.importorskip("jax")
    python, compiled = problem_of(Choose), problem_of("Pendulum-v1")
    assert compiled.is_compiled
    settings = direct.Settings()
    times = [experts.training_seconds(problem, settings, 1_000_000, 1e-6) for problem in (python, compiled)]
    assert times[0] > 40.0  # 100,000 steps
    assert times[1] == 0.0  # 0.2 % are too few to begin with
    assert experts.training_seconds(compiled, settings, 50_000_000, 1e-6) == times[0]
