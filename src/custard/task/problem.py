"""What a method receives and what it hands back, so that running, showing, saving and resuming are written once.

A method is a module with a documented dataclass `Settings`, a dictionary `PRESETS` and a generator function

    solve(problem, settings, state=None) -> Iterator[Snapshot]

that yields a snapshot every so often (about ten times a second at the most) until it is done. `state` is what an
earlier snapshot's `state()` returned: a method that gets it goes on exactly as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.wrappers import TransformReward

from custard.core.errors import CustardError
from custard.core.spaces import Base
from custard.task.probe import Look, first_look
from custard.task.source import DEFAULT_LIMIT, Source
from custard.tree.tree import Tree

__all__ = ["Problem", "Snapshot", "final_seed"]


@dataclass(frozen=True)
class Problem:
    """What is to be solved: base environments, their features and actions, and what the user asked for."""

    source: Source
    base: Base  # its features may still lack bounds: `custard.core.spaces.estimate_bounds`, `Features.require_bounded`
    seed: int = 0
    max_depth: int | None = None
    encoder: Callable[[Any], Any] | None = None  # the user's features= function

    @property
    def native(self) -> bool:
        """Whether compiled code can step the environment and see the features: not if a Python function makes those."""
        return self.source.native is not None and self.encoder is None

    @property
    def preset(self) -> str:
        """The name by which presets know the environment; none, if the features are not its own."""
        return self.source.preset if self.encoder is None else ""

    def require_discrete_actions(self, method: str) -> None:
        """Raise for a method that cannot do with any others."""
        if not self.base.actions.discrete:
            raise CustardError(
                f"{method} needs discrete actions, but this environment has {self.base.actions.kind} ones"
            )

    @cached_property
    def look(self) -> Look:
        """What a random episode shows."""
        env = self.source.make()
        seen = first_look(env, self.seeds("look")["look"])
        if not self.source.lone:
            env.close()
        return seen

    @property
    def unit(self) -> float:
        """What rewards are divided by where they are far from 1; compiled environments have none such."""
        return 1.0 if self.native else self.look.unit

    @cached_property
    def scaled(self) -> Problem:
        """The same with rewards of ordinary size, for networks to learn from."""
        if self.unit == 1.0:
            return self
        make, unit = self.source.make, self.unit
        learned = replace(self.source, make=lambda: TransformReward(make(), lambda reward: float(reward) / unit))
        return replace(self, source=learned)

    @property
    def looked(self) -> int:
        """Steps that the look takes; where environments are compiled there is none."""
        return 0 if self.native else self.look.steps

    def longest(self, budget: float) -> int:
        """Steps after which episodes are cut while learning, so that one without an end does not take the budget."""
        if self.source.limit or self.native:
            return self.source.limit or DEFAULT_LIMIT
        return int(np.clip(budget / (50 if self.look.ended else 500), 100, DEFAULT_LIMIT))

    @property
    def gamma_b(self) -> float:
        """A discount of base actions: none (1) where episodes terminate by themselves and have no time limit."""
        return 1.0 if not self.source.limit and (self.native or self.look.terminated) else 0.99

    def seeds(self, *purposes: str) -> dict[str, int]:
        """An independent seed for each purpose, the same for the same problem seed whatever the order."""
        return self.seeds_of(self.seed, *purposes)

    @staticmethod
    def seeds_of(seed: int, *purposes: str) -> dict[str, int]:
        """The seeds for purposes that a problem seed gives."""
        return {
            purpose: int(np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1)[0]) for purpose in purposes
        }


@dataclass(frozen=True)
class Snapshot:
    """Where a method stands."""

    steps: int  # environment steps used so far, those for judging trees included
    tree: Tree | None  # the best tree so far
    value: float  # its mean return over selection episodes (NaN if there is none yet)
    budget: int | None = None  # environment steps this run may use, if it is limited so
    metrics: Mapping[str, float] = field(default_factory=dict)  # a row of metrics.csv
    final: Tree | None = None  # the tree of the present policy, where it differs from the best
    message: str = ""  # why the method stopped, or what it is doing
    state: Callable[[], dict[str, np.ndarray]] | None = None  # everything needed to go on


def final_seed(seed: int) -> int:
    """The seed of a run's final evaluation: apart from all that learning and selection used."""
    return Problem.seeds_of(seed, "evaluation")["evaluation"]
