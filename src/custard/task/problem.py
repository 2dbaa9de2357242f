"""The contract of every method: what it receives and what it yields. Running, saving and resuming are written once.

A method is a module with a documented dataclass `Settings`, a dictionary `PRESETS` and a generator function

    solve(problem, settings, state=None) -> Iterator[Snapshot]

that yields snapshots, at most about ten per second, until it is done. `state` is what an earlier snapshot's `state()`
returned: a method that gets it continues exactly as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from gymnasium.wrappers import TransformReward

from custard.core.errors import CustardError
from custard.core.features import is_expressions
from custard.core.spaces import Base, FeaturesArgument
from custard.task.probe import MAX_PROBE_STEPS, Probe, probe_environment
from custard.task.source import DEFAULT_TIME_LIMIT, Source
from custard.tree.tree import Tree

__all__ = ["DEFAULT_STEP_TIMEOUT", "Problem", "Snapshot", "final_seed"]

DEFAULT_STEP_TIMEOUT = 300.0  # seconds that one step or reset may take before its worker process is given up

MAX_PROBE_BUDGET_SHARE = 0.1  # of a given budget


@dataclass(frozen=True)
class Problem:
    """What is to be solved: base environments, their features and actions, and what the user asked for."""

    source: Source
    base: Base  # its features may still lack bounds: `custard.core.spaces.estimate_bounds`, `Features.require_bounded`
    seed: int = 0
    max_depth: int | None = None
    encoder: FeaturesArgument = None  # the user's features=: a function, or expressions
    workers: int | None = None  # processes that step environments: one per core unless given; results are the same
    step_timeout: float | None = DEFAULT_STEP_TIMEOUT
    budget: int | None = None  # environment steps that the user allows, if that was said
    engine: str = "local"  # where workers are: processes on this machine, or actors of a cluster ("ray")
    address: str | None = None  # the cluster's

    @property
    def is_compiled(self) -> bool:
        """Whether compiled code can step the environment and compute its features; a Python `encoder` rules it out."""
        return self.source.make_compiled is not None and self.encoder is None

    @property
    def preset_key(self) -> str:
        """The name under which presets list the environment; empty if its features are the user's own."""
        return self.source.preset_key if self.encoder is None or is_expressions(self.encoder) else ""

    def require_discrete_actions(self, method: str) -> None:
        """Raise if a method that handles only discrete actions would meet others."""
        if not self.base.actions.discrete:
            raise CustardError(
                f"{method} needs discrete actions, but this environment has {self.base.actions.kind} ones"
            )

    @cached_property
    def probe(self) -> Probe:
        """What one random episode shows."""
        env = self.source.make()
        max_steps = MAX_PROBE_STEPS
        if self.budget is not None:
            max_steps = min(max_steps, max(1, int(MAX_PROBE_BUDGET_SHARE * self.budget)))
        probe = probe_environment(env, self.seeds("look")["look"], max_steps)  # the purpose's name is part of the seed
        if not self.source.is_single_instance:
            env.close()
        return probe

    @property
    def probe_steps(self) -> int:
        """Environment steps the probe takes; compiled environments are not probed."""
        return 0 if self.is_compiled else self.probe.steps

    @property
    def reward_scale(self) -> float:
        """What rewards are divided by where their size is far from 1; compiled environments need none."""
        return 1.0 if self.is_compiled else self.probe.reward_scale

    @cached_property
    def with_scaled_rewards(self) -> Problem:
        """The same problem with rewards divided by `reward_scale`, for networks to learn from."""
        if self.reward_scale == 1.0:
            return self
        make, scale = self.source.make, self.reward_scale
        scaled = replace(self.source, make=lambda: TransformReward(make(), lambda reward: float(reward) / scale))
        return replace(self, source=scaled)

    def episode_cap(self, budget: float) -> int:
        """Return the steps after which learning cuts an episode: the time limit, or a cap if there is none.

        Without a time limit one endless episode could use up the budget (environment steps).
        """
        if self.source.time_limit or self.is_compiled:
            return self.source.time_limit or DEFAULT_TIME_LIMIT
        min_cap = max(1, min(100, budget / 10))
        return int(np.clip(budget / (50 if self.probe.ended else 500), min_cap, DEFAULT_TIME_LIMIT))

    @property
    def default_gamma_b(self) -> float:
        """The discount of base actions: 1 where episodes terminate by themselves and have no time limit, else 0.99."""
        return 1.0 if not self.source.time_limit and (self.is_compiled or self.probe.terminated) else 0.99

    def seeds(self, *purposes: str) -> dict[str, int]:
        """Return an independent seed per purpose; it depends on the problem's seed and the purpose's name only."""
        return self.seeds_of(self.seed, *purposes)

    @staticmethod
    def seeds_of(seed: int, *purposes: str) -> dict[str, int]:
        """Return the seed per purpose that a problem's seed gives."""
        return {
            purpose: int(np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1)[0]) for purpose in purposes
        }


@dataclass(frozen=True)
class Snapshot:
    """A method's progress so far."""

    steps: int  # environment steps used so far, including those that judged trees
    tree: Tree | None  # the best tree so far
    value: float  # its mean return over selection episodes (NaN if there is none yet)
    budget: int | None = None  # environment steps this run may use, if it is limited so
    metrics: Mapping[str, float] = field(default_factory=dict)  # a row of metrics.csv
    final: Tree | None = None  # the tree of the present policy, where it differs from the best
    message: str = ""  # why the method stopped, or what it is doing
    state: Callable[[], dict[str, np.ndarray]] | None = None  # returns everything needed to resume
    end_without_progress: float | None = (
        None  # steps at which the run stops unless it finds a better tree; None: not known
    )
    is_foreseeable: bool = True  # whether steps tell how long the run still takes; not before a network learns, say
    ended: bool = False  # whether it is the last one for sure: a run that is killed after it has nothing left to do
    slow_until: float | None = None  # steps until which they take longer than most, as a network learns; inf: not known


def final_seed(seed: int) -> int:
    """Return the seed of a run's final evaluation; learning and selection use other seeds."""
    return Problem.seeds_of(seed, "evaluation")["evaluation"]
