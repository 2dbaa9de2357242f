"""What trees imitate: a linear policy found by direct search, a DQN that races against it, or the user's expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.actions import Actions
from custard.experts.direct_search import DirectSearchSettings
from custard.experts.expert import Expert
from custard.experts.linear import Guide, fitted_policy, search_linear_policy
from custard.experts.numbered_actions import choice_of_vectors, with_numbered_actions
from custard.solvers.common.race import BudgetUsed
from custard.solvers.direct.imitate import Teacher
from custard.task.policies import LinearPolicy
from custard.task.problem import Problem, Snapshot
from custard.task.runners import visited_states
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.direct.direct import DirectSearch, Settings

__all__ = ["linear_policy", "load", "may_train_another", "search", "teachers", "train", "training_seconds"]

FIRST_LINEAR_SEARCH_END = 0.25  # share of the budget for a first search, where a DQN may race against what it finds
MAX_DQN_STEPS, MIN_DQN_STEPS, DQN_BUDGET_SHARE = 100_000, 20_000, 0.1
COMPILED_DQN_BUDGET_SHARE = 0.002  # where an update takes hundreds of times as long as a step
DQN_SECONDS_PER_STEP = 5e-4  # of a step with its update, about
NEARLY_SOLVED_SHARE = 0.9  # share of the way from a constant action to the reward threshold
MIN_SECOND_SEARCH_BUDGET_SHARE = 0.02
GUIDE_EPISODES = 20  # of the trained expert, for a linear policy to begin near it
GUIDE_BUDGET_SHARE = 0.05
FITTED_POLICY_EPISODES = 8  # that show whether a search near the trained expert begins better than the first one ended
MIN_TEACHER_GAIN_SHARE = 0.5  # share of the best teacher's gain over constants that another one must have
NEARLY_IMITATED_GAIN_SHARE = 0.9  # share of the expert's gain over constants with which trees imitate well enough
FULL_SEARCH_STEPS_SHARE = 0.8  # a search that took less of its steps was stopped as nothing better was found


def search(run: DirectSearch) -> Iterator[Snapshot]:
    """Find the expert that the settings ask for: a linear policy, a DQN, a better linear policy near the DQN."""
    given, state = run.settings.expert, run.state
    wants_linear = run.problem.base.actions.kind != "multi" and (given in (None, "linear") or run.forms.has_sums)
    may_train = given is None and _can_train_dqn(run.problem, run.settings, run.budget)
    if state.expert_step == "linear":
        if wants_linear and given in (None, "linear"):
            yield from _search_linear(run, FIRST_LINEAR_SEARCH_END if may_train else run.ends.expert)
        yield from _begin_expert_step(run, "training")
    if state.expert_step == "training":
        if given == "dqn" or (may_train and not _is_nearly_solved(run)):
            yield from train(run)
        yield from _begin_expert_step(run, "guided")
    if state.expert_step == "guided":
        if wants_linear and run.steps_left(run.ends.expert) > MIN_SECOND_SEARCH_BUDGET_SHARE * run.budget:
            yield from _search_linear_again(run)
        yield from _begin_expert_step(run, "found")


def _begin_expert_step(run: DirectSearch, name: str) -> Iterator[Snapshot]:
    run.state.expert_step = name
    run.save()
    yield run.snapshot("searching an expert")


def _search_linear(run: DirectSearch, end: float, guide: Guide | None = None) -> Iterator[Snapshot]:
    """Search for a linear policy until a share of the budget is used; it is kept if it is the best so far."""
    state, racer = run.state, run.racer
    if not state.linear_plan:
        planned = run.search_settings(run.steps_left(end), run.problem.base.features.n_raw + 1)
        state.linear_plan = asdict(planned)
    settings, begun = DirectSearchSettings(**state.linear_plan), state.linear_search or None
    found = None
    try:
        for found in search_linear_policy(
            run.problem, racer, settings, run.seed, racer.max_steps, begun, guide, beyond_threshold=run.forms.has_sums
        ):
            state.linear_search = found.state
            if not found.search.is_final:
                run.save()
            yield run.snapshot(f"searching a linear policy, now about {found.search.value:.4g}")
    finally:  # also where the budget ends before the last judgements
        if found is not None and found.policy is not None and found.search.value > state.linear_return:
            state.linear_weights = np.column_stack([found.policy.weights, found.policy.bias])
            state.linear_return = found.search.value


def _search_linear_again(run: DirectSearch) -> Iterator[Snapshot]:
    """Search for a linear policy near a better expert, or go on with the first search if it was not at its end."""
    state = run.state
    if not state.is_extended and _has_better_expert(run):
        guide = None if state.is_guided else _expert_guide(run)
        if guide is None or _is_guide_a_better_start(run, guide):
            if guide is not None:
                state.linear_search, state.linear_plan, state.is_guided = {}, {}, True
            yield from _search_linear(
                run, run.ends.expert, None if state.linear_search else guide or _expert_guide(run)
            )
            return
    if state.linear_search and not state.is_extended:
        used, planned = int(state.linear_search["steps"]), state.linear_plan["steps"]
        if used < FULL_SEARCH_STEPS_SHARE * planned:
            return
        state.linear_plan["steps"] = max(planned, used + run.steps_left(run.ends.expert))
    state.is_extended = True
    yield from _search_linear(run, run.ends.expert)


def _has_better_expert(run: DirectSearch) -> bool:
    has_expert = run.state.has_trained_expert or run.trained_expert is not None
    return has_expert and (run.settings.expert is not None or run.state.trained_return > run.state.linear_return)


def _is_guide_a_better_start(run: DirectSearch, guide: Guide) -> bool:
    """Return whether the linear policy fitted to a guide returns more than the best one found without it."""
    found = run.racer.screen([fitted_policy(guide, run.problem)], FITTED_POLICY_EPISODES)[0]
    return float(found.returns.mean()) > run.state.linear_return


def _expert_guide(run: DirectSearch) -> Guide:
    """Run episodes of the trained expert."""
    found = _teacher_of_expert(run, _trained_expert(run))
    affordable = GUIDE_BUDGET_SHARE * run.budget / (run.racer.longest or 1)
    states, _ = found.states(int(np.clip(affordable, 1, GUIDE_EPISODES)))
    return Guide(states, found.predict(states))


def _can_train_dqn(problem: Problem, settings: Settings, budget: int) -> bool:
    """Return whether a DQN can be trained, and its returns compared."""
    is_affordable = _dqn_steps(problem, budget) >= MIN_DQN_STEPS
    has_jax = bool(find_spec("jax") and find_spec("optax"))
    is_comparable = problem.source.vector is None and settings.gamma == 1.0  # its returns are undiscounted
    return is_affordable and has_jax and is_comparable


def training_seconds(problem: Problem, settings: Settings, budget: int, seconds_per_step: float) -> float:
    """Return about how long networks are trained, their environment's steps in this process included."""
    if settings.expert == "dqn" or (settings.expert is None and _can_train_dqn(problem, settings, budget)):
        return _dqn_steps(problem, budget) * (DQN_SECONDS_PER_STEP + seconds_per_step)
    return 0.0


def _dqn_steps(problem: Problem, budget: int) -> int:
    return int(min(MAX_DQN_STEPS, (COMPILED_DQN_BUDGET_SHARE if problem.is_compiled else DQN_BUDGET_SHARE) * budget))


def _is_nearly_solved(run: DirectSearch) -> bool:
    """Return whether the linear policy is near the environment's reward threshold."""
    state, threshold = run.state, run.problem.source.reward_threshold
    if threshold is None:
        return False
    return state.linear_return - state.constant_return >= NEARLY_SOLVED_SHARE * (threshold - state.constant_return)


def load(run: DirectSearch) -> Expert | None:
    """Return the expert that the user gave, if it need not be trained; a mistake shows before anything is run."""
    given = run.settings.expert
    if given in (None, "linear", "dqn", "none"):
        return None
    *_, expert = _expert_training(run, given)
    return expert


def train(run: DirectSearch) -> Iterator[Snapshot]:
    """Train a DQN."""
    state, racer = run.state, run.racer
    begun = racer.steps
    end = begun + _dqn_steps(run.problem, run.budget)
    for item in _expert_training(run, "dqn"):
        if isinstance(item, Expert):
            run.trained_expert = item
            break
        racer.steps, state.trained_return = begun + item.steps, item.value
        yield replace(run.snapshot(f"training dqn, now about {item.value:.4g}"), slow_until=end)
    state.has_trained_expert = True


def _expert_training(run: DirectSearch, given: Any) -> Iterator[Any]:
    """Yield the progress of an expert's training, then the expert."""
    from custard.experts import dqn
    from custard.experts.kinds import experts
    from custard.task.settings import settings_for

    problem = run.problem
    if given == "dqn":
        action = run.leaf_actions.random(np.random.default_rng(0))
        problem, _ = with_numbered_actions(problem, Tree.leaf(action, problem.base.features, problem.base.actions))
    training = {
        "steps": _dqn_steps(run.problem, run.budget), "steps_per_update": 1.0, "standardise": True, "checks": 8,
        "check_rollouts": 10, "judging": 0.4, "check_steps": run.racer.max_steps,
    }  # fmt: skip
    yield from experts(problem, given, settings_for(dqn, problem.preset_key, "tuned", training), run.seed)


def linear_policy(weights: np.ndarray, actions: Actions) -> LinearPolicy:
    """Return the policy of weights [k, n + 1], the bias last."""
    return LinearPolicy(weights[:, :-1], weights[:, -1], actions)


def teachers(run: DirectSearch) -> list[Teacher]:
    """Return what trees are to imitate: the linear policy and the DQN if neither is far behind, or the user's expert.

    Trees imitate some policies far better than others that return as much, so there should be a choice.
    """
    state, given, found = run.state, run.settings.expert, list[tuple[float, Teacher]]()
    if len(state.linear_weights) and given in (None, "linear"):
        found.append((state.linear_return, _teacher_of_policy(run, run.linear_policy)))
    if state.has_trained_expert or run.trained_expert is not None:
        found.append((state.trained_return, _teacher_of_expert(run, _trained_expert(run))))
    needed = MIN_TEACHER_GAIN_SHARE * (max((value for value, _ in found), default=0.0) - state.constant_return)
    return [teacher for value, teacher in found if len(found) == 1 or value - state.constant_return >= needed]


def may_train_another(run: DirectSearch, best: float) -> bool:
    """Return whether trees that return `best` leave much to gain from imitating a DQN, which is not trained yet."""
    state = run.state
    may_train = run.settings.expert is None and not run.forms.has_sums  # otherwise plain trees are seldom the result
    may_train = may_train and _can_train_dqn(run.problem, run.settings, run.budget)
    wanted = NEARLY_IMITATED_GAIN_SHARE * (state.expert_return - state.constant_return)
    has_steps = run.steps_left(run.ends.race) > 2 * _dqn_steps(run.problem, run.budget)
    return may_train and not state.has_trained_expert and best - state.constant_return < wanted and has_steps


def _trained_expert(run: DirectSearch) -> Expert:
    """Return the expert that was trained or given; the same one is trained again where the run was resumed."""
    if run.trained_expert is None:
        *_, run.trained_expert = _expert_training(run, "dqn")
    return run.trained_expert


def _teacher_of_policy(run: DirectSearch, policy: LinearPolicy) -> Teacher:
    def states(count: int) -> tuple[np.ndarray, np.ndarray]:
        result = run.racer.screen([policy], count, keep_states=True)[0]
        return result.states, result.masks

    return Teacher(policy.predict, policy.scores if policy.actions.discrete else None, states, "linear")


def _teacher_of_expert(run: DirectSearch, expert: Expert) -> Teacher:
    actions, racer = run.problem.base.actions, run.racer
    chosen_among = choice_of_vectors(actions) if run.settings.expert in (None, "dqn") and not actions.discrete else None

    def predict(x: np.ndarray) -> np.ndarray:
        if actions.discrete:
            return expert.act(x) + actions.start
        return expert.act(x) if chosen_among is None else chosen_among[expert.act(x)]

    def states(count: int) -> tuple[np.ndarray, np.ndarray]:
        if racer.steps >= racer.limit:
            raise BudgetUsed
        count = max(1, min(count, (racer.limit - racer.steps) // (racer.max_steps or racer.longest or 1)))
        met, results = visited_states(predict, run.problem, racer.fresh_seeds(count), racer.max_steps)
        racer.steps += int(results.lengths.sum())
        racer.recent_length = float(results.lengths.mean())
        racer.longest = max(racer.longest, int(results.lengths.max()))
        return met, np.ones((len(met), 0), dtype=bool)

    scores = (expert.q or expert.log_policy) if actions.discrete else None
    return Teacher(predict, scores, states, expert.name)
