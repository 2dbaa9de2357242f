"""The forms of trees that are searched, the shares of the phases, and what a search keeps between two units of work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.spaces import Base
from custard.solvers.common.evolve import Arm
from custard.task.policies import policy_data, policy_from_data
from custard.tree.tree import Tree

__all__ = ["CHANGES_PER_EVOLUTION", "PLAIN", "SUMS", "Ends", "Forms", "Incumbent", "SearchState"]

PLAIN, SUMS = "plain tests", "sums"  # forms of trees
CHANGES_PER_EVOLUTION = 4  # comparisons of changed trees between two searches for all numbers


@dataclass(frozen=True)
class Forms:
    """Which forms of trees are searched."""

    has_plain: bool  # plain tests and constant leaves
    has_sums: bool  # weighted sums in tests or leaves
    leaves_are_linear: bool  # whether trees with sums have linear leaves
    max_terms: int | None = None  # features per sum
    max_gains: int | None = None  # features per component of a linear leaf

    @classmethod
    def of(cls, tests: str, leaves: str, actions: Actions) -> Forms:
        """Return the forms that settings `tests` and `leaves` ask for."""
        tests, max_terms = _kind_and_limit(tests)
        leaves, max_gains = _kind_and_limit(leaves)
        if leaves == "linear" and actions.kind != "box":
            raise CustardError(f"linear leaves need real-valued (Box) actions, and these are {actions.kind}")
        if actions.kind == "box":
            wants_sums, max_terms = leaves != "constant", 1 if tests == "axis" else max_terms
            found = cls(leaves != "linear" and tests != "linear", wants_sums, wants_sums, max_terms, max_gains)
        else:
            found = cls(tests != "linear", tests != "axis" and actions.discrete, False, max_terms)
        if not found.has_plain and not found.has_sums:
            need = "leaves that are linear too" if actions.kind == "box" else "discrete or real-valued (Box) actions"
            raise CustardError(f"linear tests need {need}, and here actions are {actions.kind}, leaves {leaves}")
        return found


def _kind_and_limit(text: str) -> tuple[str, int | None]:
    """Return the two parts of a text such as linear:3.

    >>> _kind_and_limit("linear:3"), _kind_and_limit("axis")
    (('linear', 3), ('axis', None))
    """
    kind, _, limit = text.partition(":")
    return kind, int(limit) if limit else None


class Ends(NamedTuple):
    """Shares of the budget at which phases are over."""

    expert: float
    imitation: float
    race: float
    sums: float
    refinement: float
    search: float  # what is left is for choosing, up to CHOICE_END_BUDGET_SHARE, and for judging

    @classmethod
    def of(cls, forms: Forms, is_discrete: bool) -> Ends:
        """Return the shares for what is searched; action vectors need more refinement."""
        if not forms.has_plain:
            return cls(0.4, 0.4, 0.4, 0.85, 0.85, 0.89)
        if forms.has_sums:
            return cls(0.4, 0.46, 0.56, 0.72, 0.85, 0.89)
        race = 0.78 if is_discrete else 0.58
        return cls(0.3, 0.4, race, race, 0.88, 0.91)


@dataclass(eq=False)
class Incumbent:
    """The best tree of a form, and its returns over episodes that chose nothing."""

    tree: Tree
    judged: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def mean(self) -> float:
        """The mean of these returns; minus infinity if there are none."""
        return float(self.judged.mean()) if len(self.judged) else -np.inf


@dataclass(eq=False)
class SearchState:
    """What the next unit of work depends on."""

    budget: int  # environment steps
    phase: str = "constants"
    counts: tuple[int, int, int] = (0, 0, 0)  # steps used, lists of fresh seeds drawn, longest episode so far
    constant_return: float = -np.inf  # of the best tree of one leaf
    recent_length: float = 1.0  # steps per episode of what ran last
    has_masks: bool = False  # whether the environment says which actions are allowed
    states: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # [M, n_raw]: some that were met
    incumbents: dict[str, Incumbent] = field(default_factory=dict)  # by form
    references: list[Tree] = field(default_factory=list)  # the first tree of sums and the best since, however large
    chosen_form: str = ""  # at the end
    linear_search: dict[str, np.ndarray] = field(default_factory=dict)  # of the search for a linear policy
    linear_plan: dict[str, Any] = field(default_factory=dict)  # its settings
    expert_step: str = "linear"  # what is done next to find an expert
    linear_weights: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # [k, n_raw + 1], the bias last
    linear_return: float = -np.inf  # of the best linear policy
    is_extended: bool = False  # whether the search for it was given the steps that are left
    is_guided: bool = False  # whether the search for it began near the trained expert
    trained_return: float = -np.inf  # of the DQN
    has_trained_expert: bool = False  # whether a DQN was trained
    arms: list[Arm] = field(default_factory=list)  # trees that race
    has_raced_sums: bool = False  # whether a race of random trees with linear leaves has begun
    race_end: float = 0.0  # the share of the budget at which it is over
    rounds: dict[str, int] = field(default_factory=dict)  # by form: attempts to improve its tree
    losses: dict[str, float] = field(default_factory=dict)  # by form: what smaller trees have lost and not won back
    failures: dict[str, int] = field(default_factory=dict)  # by form: searches for all numbers in a row without success

    @property
    def expert_return(self) -> float:
        """The mean return of the best expert; minus infinity if there is none yet."""
        return max(self.linear_return, self.trained_return)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return everything as arrays."""
        data = {"arm_counts": np.array([(arm.seed, arm.steps) for arm in self.arms], dtype=np.int64).reshape(-1, 2)}
        for k, arm in enumerate(self.arms):
            data |= _tree_arrays(f"arm{k}.start", arm.start) | _tree_arrays(f"arm{k}.tree", arm.tree)
            data |= {f"arm{k}.search/{key}": entry for key, entry in arm.search.items()}
        for form, incumbent in self.incumbents.items():
            data |= {f"judged/{form}": incumbent.judged, **_tree_arrays(f"incumbent.{form}", incumbent.tree)}
        for k, tree in enumerate(self.references):
            data |= _tree_arrays(f"reference{k}", tree)
        data |= {f"linear_search/{key}": entry for key, entry in self.linear_search.items()}
        for name in ("linear_plan", "rounds", "losses", "failures"):
            data |= {f"{name}/{key}": np.array(entry) for key, entry in getattr(self, name).items()}
        plain = [entry.name for entry in fields(self) if not isinstance(getattr(self, entry.name), dict | list)]
        return data | {name: np.array(getattr(self, name)) for name in plain}

    @classmethod
    def from_arrays(cls, data: Mapping[str, np.ndarray], base: Base) -> SearchState:
        """Return the state that `to_arrays` was called of."""
        state = cls(int(data["budget"]))
        for name in (entry.name for entry in fields(cls)):
            if name in data:
                value = data[name]
                setattr(state, name, value.item() if value.ndim == 0 else value)
        state.counts = tuple(data["counts"].tolist())
        state.linear_search = _entries_below("linear_search/", data)
        for name in ("linear_plan", "rounds", "losses", "failures"):
            setattr(state, name, {key: entry.item() for key, entry in _entries_below(f"{name}/", data).items()})
        for form, judged in _entries_below("judged/", data).items():
            state.incumbents[form] = Incumbent(_tree(f"incumbent.{form}", data, base), judged)
        state.references = [
            _tree(name, data, base) for name in ("reference0", "reference1") if _entries_below(f"{name}/", data)
        ]
        for k, (seed, steps) in enumerate(data["arm_counts"].tolist()):
            start, tree = (_tree(f"arm{k}.{part}", data, base) for part in ("start", "tree"))
            state.arms.append(Arm(start, tree, seed, steps, _entries_below(f"arm{k}.search/", data)))
        return state


def _entries_below(prefix: str, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): value for key, value in data.items() if key.startswith(prefix)}


def _tree_arrays(name: str, tree: Tree) -> dict[str, np.ndarray]:
    data = policy_data(tree)
    if "derived" in data:
        data["derived"] = json.dumps(data["derived"])
    return {f"{name}/{key}": np.asarray(value) for key, value in data.items()}


def _tree(name: str, data: Mapping[str, np.ndarray], base: Base) -> Tree:
    parts: dict[str, Any] = dict(_entries_below(f"{name}/", data))
    if "derived" in parts:
        parts["derived"] = json.loads(str(parts["derived"]))
    found = policy_from_data({**parts, "kind": str(parts["kind"])}, base.features, base.actions)
    assert isinstance(found, Tree)
    return found
