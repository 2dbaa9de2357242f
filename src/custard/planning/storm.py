"""Models of the model-checking world as finite MDPs: PRISM, JANI and DRN files, read by Storm.

A property says what is optimised: `Pmax=? [F "goal"]`, `Pmin=? [!"bad" U<=20 "goal"]`, `R{"cost"}min=? [F "done"]`, or
with a discount below one `R{"gain"}max=? [C]`. What is minimised counts as a negative reward. Target states are
terminal, and a step bound becomes the horizon.

The state variables are the features. The actions are the labels of choices. A state with a single choice makes it
whatever the tree says; in other states a label that is not there is the worst choice: it ends a reachability problem
without success, and costs for ever where rewards are summed up.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import BINARY, INTEGER, REAL, Features
from custard.core.mdp import FiniteMDP
from custard.core.memory import available_memory

__all__ = ["SUFFIXES", "load_with_storm"]

SUFFIXES = (".prism", ".nm", ".pm", ".jani", ".drn")
MAX_MEMORY_SHARE = 0.8  # of what is free, for Storm to build a model in
MAX_TRANSITIONS = 500_000_000  # of all actions together: about 12 GB


class _Objective(NamedTuple):
    """What a property asks for."""

    is_probability: bool
    sign: float  # 1 to maximise, -1 to minimise
    reward_name: str | None
    keeps: Any  # the formula that must hold until then; None for any
    target: Any  # the formula of target states; None for total rewards
    horizon: int | None


def load_with_storm(
    path: str | Path, objective: str, *, constants: Mapping[str, Any] | None = None, gamma: float = 1.0
) -> FiniteMDP:
    """Return the finite MDP of a PRISM, JANI or DRN file and a property.

    path       ends in .prism, .nm, .pm, .jani or .drn
    objective  a property with min or max, such as 'R{"cost"}min=? [F "done"]'
    constants  values of the model's undefined constants
    gamma      discount of rewards per step
    """
    path = Path(path)
    stormpy = _stormpy()
    if path.suffix not in SUFFIXES:
        raise CustardError(f"a model for Storm ends in {', '.join(SUFFIXES)}, not {path.suffix!r}")
    if not path.is_file():
        raise CustardError(f"cannot read {path}: there is no such file")
    try:
        with _silence():
            model, formula = _build(stormpy, path, objective, constants or {})
            asked = _objective(formula, gamma)
            if asked.reward_name not in (None, *model.reward_models):
                known = ", ".join(model.reward_models) or "none"
                raise CustardError(f"{path} has no rewards {asked.reward_name!r}; it has {known}")
            keeps = _holds(stormpy, model, asked.keeps, default=True)
            target = _holds(stormpy, model, asked.target, default=False)
    except CustardError:
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, stormpy.exceptions.StormError) as error:
        says = _first_line(error)
        if "undefined constants" in says:
            raise CustardError(f"{path} has undefined constants: give them as --constants N=3 (constants=)") from None
        raise CustardError(f"{path}: Storm cannot read this model or property: {says}") from None
    return _finite_mdp(model, asked, keeps, target, gamma)


def _stormpy() -> Any:
    try:
        import stormpy
    except ImportError:
        raise CustardError('reading PRISM, JANI and DRN files needs Storm: pip install "custard[storm]"') from None
    return stormpy


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Send what Storm prints itself nowhere: what matters of it is in the exception."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    """Let this process have no more than the memory that is free: Storm then raises instead of being killed."""
    free = available_memory()
    try:
        import resource

        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        kept = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError, ValueError):  # elsewhere than on Linux
        free = None
    if free is None:
        yield
        return
    free = int(MAX_MEMORY_SHARE * free)
    limit = mapped + free
    resource.setrlimit(resource.RLIMIT_AS, (limit if kept[1] < 0 else min(limit, kept[1]), kept[1]))
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            raise CustardError(
                f"the model needs more than {free / 2**30:.1f} GiB of memory, which is what is free"
            ) from None
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_AS, kept)


def _build(stormpy: Any, path: Path, objective: str, constants: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return Storm's sparse model and the property's formula."""
    if path.suffix == ".drn":
        options = stormpy.io.DirectEncodingParserOptions()
        options.build_choice_labeling = True
        properties = stormpy.parse_properties(objective)
        with _limited_memory():
            model = stormpy.build_model_from_drn(str(path), options=options)
    else:
        if path.suffix == ".jani":
            program, _ = stormpy.parse_jani_model(str(path))
        else:
            program = stormpy.parse_prism_program(str(path))
        properties = stormpy.parse_properties(objective, program)
        if constants:
            text = ",".join(f"{name}={str(value).lower()}" for name, value in constants.items())
            program, properties = stormpy.instantiate_constants(program, text, properties)
        options = stormpy.BuilderOptions([one.get_raw_formula() for one in properties])
        options.set_build_state_valuations()
        options.set_build_choice_labels()
        options.set_build_all_reward_models()
        options.set_build_all_labels()
        with _limited_memory():
            model = stormpy.build_model(program, options=options)
    if len(properties) != 1:
        raise CustardError(f"give one property, not {len(properties)}")
    if not model.is_nondeterministic_model or not model.is_discrete_time_model or model.is_partially_observable:
        raise CustardError(f"{path} holds a {str(model.model_type).rpartition('.')[2]}, plan needs an MDP")
    if model.nr_transitions > MAX_TRANSITIONS:
        raise CustardError(f"{path} has {model.nr_transitions:,} transitions, plan handles {MAX_TRANSITIONS:,}")
    return model, properties[0].get_raw_formula()


def _objective(formula: Any, gamma: float) -> _Objective:
    """Return what a property asks for."""
    example = 'such as Pmax=? [F "goal"] or R{"cost"}min=? [F "done"]'
    is_probability = formula.is_probability_operator_formula
    if not (is_probability or formula.is_reward_operator_formula) or not formula.has_optimality_type:
        raise CustardError(f"the property {formula} is no probability or reward to minimise or maximise, {example}")
    sign = -1.0 if "min" in str(formula.optimality_type).lower() else 1.0
    named = not is_probability and formula.has_reward_model_name
    name = formula.reward_name if named else None
    path = formula.subformula
    if path.is_eventually_formula:
        return _Objective(is_probability, sign, name, None, path.subformula, None)
    if path.is_until_formula or path.is_bounded_until_formula:
        horizon = None
        if path.is_bounded_until_formula:
            if path.is_multi_dimensional or path.has_lower_bound:
                raise CustardError(f"the property {formula} has bounds other than one upper bound of steps")
            horizon = int(path.upper_bound_expression.evaluate_as_int())
        return _Objective(is_probability, sign, name, path.left_subformula, path.right_subformula, horizon)
    if not is_probability and str(path) == "C":
        if gamma >= 1.0:
            raise CustardError(f"the property {formula} sums up rewards without an end: give a discount below 1")
        return _Objective(False, sign, name, None, None, None)
    raise CustardError(f"the property {formula} is not supported: ask for F, U, U<=k or C, {example}")


def _holds(stormpy: Any, model: Any, formula: Any, default: bool) -> np.ndarray:
    """Return in which states a state formula holds, [S] bool."""
    if formula is None:
        return np.full(model.nr_states, default)
    found = np.zeros(model.nr_states, dtype=bool)
    found[[int(s) for s in stormpy.model_checking(model, formula).get_truth_values_vector()]] = True
    return found


def _features(model: Any) -> tuple[np.ndarray, Features]:
    """Return the values of the state variables [S, n] and the features; the state's number where there are none."""
    count = model.nr_states
    names: list[str] = []
    columns: list[np.ndarray] = []
    kinds: list[str] = []
    if model.has_state_valuations():
        valuations, labels = model.state_valuations, model.labeling.get_labels()
        for variable in sorted(valuations.get_all_variables(), key=lambda one: one.name):
            if variable.has_boolean_type():
                column, kind = np.zeros(count), BINARY
                column[[int(s) for s in valuations.get_boolean_values(variable)]] = 1.0
            elif variable.has_integer_type():
                column, kind = np.array(valuations.get_int64_values(variable), dtype=np.float64), INTEGER
            else:
                column, kind = np.array(valuations.get_double_values(variable), dtype=np.float64), REAL
            if column.min() < column.max() and variable.name not in labels:  # JANI keeps labels as variables
                names.append(variable.name)
                columns.append(column)
                kinds.append(kind)
    if not columns:
        names, columns, kinds = ["state"], [np.arange(count, dtype=np.float64)], [INTEGER]
    x = np.stack(columns, axis=1)
    return x, Features(tuple(names), x.min(axis=0), x.max(axis=0), tuple(kinds))


def _finite_mdp(model: Any, asked: _Objective, keeps: np.ndarray, target: np.ndarray, gamma: float) -> FiniteMDP:
    """Return Storm's model as a finite MDP: actions are labels, and one state more ends what goes wrong."""
    count = model.nr_states
    first = np.asarray(model.nondeterministic_choice_indices, dtype=np.int64)
    state_of = np.repeat(np.arange(count), np.diff(first))
    source, after, probability = _transitions(model)
    terminal = np.append(target | ~keeps, True)
    earned = _choice_rewards(model, asked, state_of, source, after, probability, target)
    names, action_of = _actions(model, first, state_of)
    n_actions, sink = len(names), count
    choice = np.full((count, n_actions), -1, dtype=np.int64)
    choice[state_of, action_of] = np.arange(len(state_of))
    single = np.diff(first) == 1
    choice[single] = first[:-1][single, None]
    rewards = np.zeros((count + 1, n_actions))
    s, a = np.nonzero(choice >= 0)
    rewards[s, a] = earned[choice[s, a]]
    missing = choice < 0
    worst = -max(1.0, float(np.abs(earned).max(initial=0.0)))
    rewards[:count][missing] = min(asked.sign, 0.0) if asked.is_probability else worst
    rewards[terminal] = 0.0
    pointer = np.searchsorted(source, np.arange(len(state_of) + 1))
    parts = []
    for action in range(n_actions):
        own = np.flatnonzero((choice[:, action] >= 0) & ~terminal[:count])
        chosen = choice[own, action]
        sizes = pointer[chosen + 1] - pointer[chosen]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        entries = np.repeat(pointer[chosen], sizes) + within
        parts.append(np.stack([
            np.full(len(entries), action), np.repeat(own, sizes), after[entries], probability[entries],
        ], axis=1))  # fmt: skip
        lost = np.flatnonzero(missing[:, action] & ~terminal[:count])
        where = np.full(len(lost), sink) if asked.is_probability else lost
        parts.append(np.stack([np.full(len(lost), action), lost, where, np.ones(len(lost))], axis=1))
        ends = np.flatnonzero(terminal)
        parts.append(np.stack([np.full(len(ends), action), ends, ends, np.ones(len(ends))], axis=1))
    x, features = _features(model)
    start = np.zeros(count + 1)
    initial = [int(state) for state in model.initial_states]
    start[initial] = 1.0 / len(initial)
    return FiniteMDP.from_entries(
        np.concatenate(parts), rewards, terminal=terminal, start=start, gamma=gamma, x=np.vstack([x, x[:1]]),
        features=features, actions=Actions("discrete", names), horizon=asked.horizon,
    )  # fmt: skip


def _transitions(model: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return choice, next state and probability of every transition, in the order of choices."""
    rows = [
        (row, entry.column, float(entry.value))
        for row in range(model.nr_choices)
        for entry in model.transition_matrix.get_row(row)
    ]
    data = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return data[:, 0].astype(np.int64), data[:, 1].astype(np.int64), data[:, 2]


def _choice_rewards(
    model: Any, asked: _Objective, state_of: np.ndarray, source: np.ndarray, after: np.ndarray,
    probability: np.ndarray, target: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return what each choice earns on average, [C]: the probability to enter a target, or rewards; signed."""
    if asked.is_probability:
        return asked.sign * np.bincount(source, probability * target[after], minlength=len(state_of))
    names = list(model.reward_models)
    if asked.reward_name is None and len(names) != 1:
        raise CustardError(f"the property must name one of the rewards {', '.join(names) or '(there are none)'}")
    rewards = model.reward_models[asked.reward_name or names[0]]
    earned = np.zeros(len(state_of))
    if rewards.has_state_rewards:
        earned += np.array([float(r) for r in rewards.state_rewards])[state_of]
    if rewards.has_state_action_rewards:
        earned += np.array([float(r) for r in rewards.state_action_rewards])
    if rewards.has_transition_rewards:
        chance = {(c, t): p for c, t, p in zip(source.tolist(), after.tolist(), probability.tolist(), strict=True)}
        for row in range(model.nr_choices):
            for entry in rewards.transition_rewards.get_row(row):
                earned[row] += chance.get((row, entry.column), 0.0) * float(entry.value)
    return asked.sign * earned


def _actions(model: Any, first: np.ndarray, state_of: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the actions and the number of each choice's action, [C].

    Choices without a label, and those that share one in the same state, are numbered.
    """
    labels: list[str] = []
    for c, s in enumerate(state_of.tolist()):
        own = sorted(model.choice_labeling.get_labels_of_choice(c)) if model.has_choice_labeling() else []
        name = ",".join(own) or f"choice {c - int(first[s])}"
        earlier = labels[int(first[s]) : c]
        base, k = name, 2
        while name in earlier:
            name, k = f"{base} ({k})", k + 1
        labels.append(name)
    several = {label for label, s in zip(labels, state_of.tolist(), strict=True) if first[s + 1] - first[s] > 1}
    names = tuple(sorted(several)) or (labels[0] if labels else "wait",)
    number = {name: k for k, name in enumerate(names)}
    return names, np.array([number.get(label, 0) for label in labels], dtype=np.int64)
