"""What trees imitate: a linear policy found by direct search, a DQN that races against it, or the user's expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.actions import Actions
from custard.experts.direct_search import DirectSearchSettings
from custard.experts.expert import Expert
from custard.experts.linear import search_linear_policy
from custard.experts.numbered_actions import choice_of_vectors, with_numbered_actions
from custard.solvers.direct.imitate import Teacher
from custard.task.policies import LinearPolicy
from custard.task.problem import Snapshot
from custard.task.runners import visited_states
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.direct.direct import DirectSearch

__all__ = ["linear_policy", "load", "search", "teacher"]

MAX_DQN_STEPS, MIN_DQN_STEPS, DQN_SHARE = 100_000, 20_000, 0.1
NEARLY_SOLVED = 0.9  # share of the way from a constant action to the reward threshold


def search(run: DirectSearch) -> Iterator[Snapshot]:
    """Find the expert that the settings ask for."""
    given = run.settings.expert
    needs_linear = given in (None, "linear") or run.forms.has_sums
    if needs_linear and run.problem.base.actions.kind != "multi" and not run.state.has_linear_policy:
        yield from _search_linear(run)
        run.save()
        yield run.snapshot("found a linear policy")
    if given == "dqn" or (given is None and _should_race_dqn(run)):
        yield from _train(run)


def _search_linear(run: DirectSearch) -> Iterator[Snapshot]:
    state, racer = run.state, run.racer
    if not state.linear_search:
        planned = run.search_settings(run.steps_left(run.ends.expert), run.problem.base.features.n_raw + 1)
        state.linear_plan = asdict(planned)
    settings = DirectSearchSettings(**state.linear_plan)
    for found in search_linear_policy(
        run.problem, racer, settings, run.seed, racer.max_steps, state.linear_search or None
    ):
        state.linear_search, state.expert_return = found.state, found.search.value
        if found.policy is not None:
            state.expert_weights = np.column_stack([found.policy.weights, found.policy.bias])
        if not found.search.is_final:
            run.save()
        yield run.snapshot(f"searching a linear policy, now about {found.search.value:.4g}")
    state.has_linear_policy, state.linear_return = True, state.expert_return


def _should_race_dqn(run: DirectSearch) -> bool:
    """Return whether a DQN is worth its time: it learns where a linear policy fails, but slowly."""
    state, threshold = run.state, run.problem.source.reward_threshold
    nearly = -np.inf if threshold is None else NEARLY_SOLVED * (threshold - state.constant_return)
    is_solved = threshold is not None and state.expert_return - state.constant_return >= nearly
    affordable = DQN_SHARE * run.budget >= MIN_DQN_STEPS
    has_jax = bool(find_spec("jax") and find_spec("optax"))
    is_comparable = run.problem.source.vector is None and run.settings.gamma == 1.0  # its returns are undiscounted
    return run.forms.has_plain and affordable and not is_solved and has_jax and is_comparable


def load(run: DirectSearch) -> Expert | None:
    """Return the expert that the user gave, if it need not be trained; a mistake shows before anything is run."""
    given = run.settings.expert
    if given in (None, "linear", "dqn", "none"):
        return None
    *_, expert = _training(run, given)
    return expert


def _train(run: DirectSearch) -> Iterator[Snapshot]:
    """Train a DQN; it becomes the teacher if it returns more than the linear policy, or was asked for."""
    state, racer = run.state, run.racer
    begun, best = racer.steps, -np.inf
    for item in _training(run, "dqn"):
        if isinstance(item, Expert):
            run.trained_expert = item
            break
        racer.steps, best = begun + item.steps, item.value
        yield run.snapshot(f"training dqn, now about {item.value:.4g}")
    if best < state.expert_return and run.settings.expert is None:
        run.trained_expert = None
    else:
        state.expert_return = best
    state.has_trained_expert = run.trained_expert is not None


def _training(run: DirectSearch, given: Any) -> Iterator[Any]:
    """Yield the progress of an expert's training, then the expert."""
    from custard.experts import dqn
    from custard.experts.kinds import experts
    from custard.task.settings import settings_for

    problem = run.problem
    if given == "dqn":
        action = run.leaf_actions.random(np.random.default_rng(0))
        problem, _ = with_numbered_actions(problem, Tree.leaf(action, problem.base.features, problem.base.actions))
    steps = int(min(MAX_DQN_STEPS, DQN_SHARE * run.budget))
    training = {
        "steps": steps, "steps_per_update": 1.0, "standardise": True, "checks": 8, "check_rollouts": 10, "judging": 0.4,
        "check_steps": run.racer.max_steps,
    }  # fmt: skip
    yield from experts(problem, given, settings_for(dqn, problem.preset_key, "tuned", training), run.seed)


def linear_policy(weights: np.ndarray, actions: Actions) -> LinearPolicy:
    """Return the policy of weights [k, n + 1], the bias last."""
    return LinearPolicy(weights[:, :-1], weights[:, -1], actions)


def teacher(run: DirectSearch) -> Teacher | None:
    """Return what trees are to imitate; None if there is nothing."""
    actions, racer = run.problem.base.actions, run.racer
    if run.state.has_trained_expert and run.trained_expert is None:  # the run was resumed: train the same one again
        *_, run.trained_expert = _training(run, "dqn")
    if run.trained_expert is not None:
        return _teacher_of_expert(run, run.trained_expert)
    if not len(run.state.expert_weights) or run.settings.expert == "none":
        return None
    policy = run.linear_policy
    scores = policy.scores if actions.discrete else None

    def states(count: int) -> tuple[np.ndarray, np.ndarray]:
        result = racer.screen([policy], count, keep_states=True)[0]
        return result.states, result.masks

    return Teacher(policy.predict, scores, states)


def _teacher_of_expert(run: DirectSearch, expert: Expert) -> Teacher:
    actions, racer = run.problem.base.actions, run.racer
    chosen_among = choice_of_vectors(actions) if run.settings.expert in (None, "dqn") and not actions.discrete else None

    def predict(x: np.ndarray) -> np.ndarray:
        if actions.discrete:
            return expert.act(x) + actions.start
        return expert.act(x) if chosen_among is None else chosen_among[expert.act(x)]

    def states(count: int) -> tuple[np.ndarray, np.ndarray]:
        met, results = visited_states(predict, run.problem, racer.fresh_seeds(count), racer.max_steps)
        racer.steps += int(results.lengths.sum())
        racer.recent_length = float(results.lengths.mean())
        return met, np.ones((len(met), 0), dtype=bool)

    scores = (expert.q or expert.log_policy) if actions.discrete else None
    return Teacher(predict, scores, states)
