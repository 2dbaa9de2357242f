"""What a direct search depends on between two units of work, as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from custard.core.spaces import Base
from custard.solvers.direct.evolve import Arm
from custard.task.policies import policy_data, policy_from_data
from custard.tree.tree import Tree

__all__ = ["SearchState"]

TREE_MARK, SEARCH_MARK = "tree.", "search."


@dataclass(eq=False)
class SearchState:
    """What the next unit of work depends on."""

    tree: Tree  # the best so far
    phase: str = "constants"
    steps: int = 0  # environment steps used
    draws: int = 0  # lists of fresh seeds drawn
    constant_return: float = -np.inf  # of the best tree of one leaf
    episode_length: float = 1.0  # steps, of the episodes judged last
    states: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # [M, n]: some that were met
    judged: np.ndarray = field(default_factory=lambda: np.zeros(0))  # its returns over episodes that chose nothing
    expert_search: dict[str, np.ndarray] = field(default_factory=dict)  # of the search for a linear policy
    expert_return: float = -np.inf
    expert_weights: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))  # [k, n + 1], the bias last
    arms: list[Arm] = field(default_factory=list)  # trees that race
    rung: int = 0  # how often the worse half dropped out
    round: int = 0  # of refinement

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return everything as arrays."""
        data: dict[str, np.ndarray] = {}
        for name in (entry.name for entry in fields(self)):
            value = getattr(self, name)
            if name == "arms":
                data["arms"] = np.array([arm.steps for arm in value], dtype=np.int64)
                for k, arm in enumerate(value):
                    data |= _tree_arrays(f"arm{k}.start", arm.start) | _tree_arrays(f"arm{k}.tree", arm.tree)
                    data |= {f"arm{k}.{SEARCH_MARK}{key}": entry for key, entry in arm.search.items()}
            elif isinstance(value, dict):
                data |= {f"{name}.{key}": entry for key, entry in value.items()}
            elif name == "tree":
                data |= _tree_arrays(name, value)
            else:
                data[name] = np.array(value)
        return data

    @classmethod
    def from_arrays(cls, data: Mapping[str, np.ndarray], base: Base) -> SearchState:
        """Return the state that `to_arrays` was called of."""
        state = cls(_tree("tree", data, base))
        for name in (entry.name for entry in fields(cls)):
            if name in ("arms", "tree") or isinstance(getattr(state, name), dict):
                continue
            value = data[name]
            setattr(state, name, value.item() if value.ndim == 0 else value)
        state.expert_search = _below("expert_search.", data)
        for k, steps in enumerate(data["arms"].tolist()):
            start, tree = (_tree(f"arm{k}.{part}", data, base) for part in ("start", "tree"))
            state.arms.append(Arm(start, tree, steps, _below(f"arm{k}.{SEARCH_MARK}", data)))
        return state


def _below(prefix: str, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): value for key, value in data.items() if key.startswith(prefix)}


def _tree_arrays(name: str, tree: Tree) -> dict[str, np.ndarray]:
    return {f"{name}.{TREE_MARK}{key}": np.asarray(value) for key, value in policy_data(tree).items()}


def _tree(name: str, data: Mapping[str, np.ndarray], base: Base) -> Tree:
    parts = _below(f"{name}.{TREE_MARK}", data)
    found = policy_from_data({**parts, "kind": str(parts["kind"])}, base.features, base.actions)
    assert isinstance(found, Tree)
    return found
