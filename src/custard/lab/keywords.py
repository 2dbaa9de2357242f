"""The keywords of `custard.learn` with their types, so that type checkers and editors know every one of them.

`MethodSettings` holds the settings of all methods together: which ones a method reads is checked when it runs
(`custard.settings(method)` lists them). A test holds both classes equal to what `learn` and the methods accept;
`python docs/scripts/write_keywords.py` prints this file anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from custard.core.spaces import FeaturesArgument
from custard.lab.callbacks import Progress

__all__ = ["LearnKeywords", "LearnOptions", "MethodSettings"]


class LearnOptions(TypedDict, total=False):
    """What every method takes."""

    max_depth: int | None
    seed: int
    budget: int | None
    time: str | float | None
    preset: str | None
    low: Any
    high: Any
    features: FeaturesArgument
    feature_names: Sequence[str] | None
    history: int | None
    env_kwargs: Mapping[str, Any] | None
    out: str | Path | None
    resume: bool
    progress: bool | Literal["auto"]
    on_progress: Callable[[Progress], Any] | None
    log: str | Sequence[str] | None
    workers: int | None
    step_timeout: float | None
    engine: str
    address: str | None


class MethodSettings(TypedDict, total=False):
    """The settings of all methods; each method reads its own."""

    action_spread: float
    all_actions: bool
    alpha: float
    alpha_b: float
    alpha_o: float
    averaging: float
    bar: float
    bar_decay: float
    batch: int
    batch_rollouts: int
    bootstrap_at_limit: bool
    buffer: int
    candidates: int
    capacity: int
    cells: int
    changes: int
    choose: str
    climbing: float
    clip: float
    criterion: str
    critic: str
    critic_frequencies: int
    critic_updates: int
    cuts: int | None
    cycle: int
    deepest: int
    depth: int
    deviation: float
    digits: int | None
    draws: int
    entropy: float
    episodes: int | None
    epochs: int
    epsilon: float | None
    epsilon_end: float
    epsilon_steps: int
    evaluations: int
    every: int
    expand: int
    expert: str | Callable[..., Any] | None
    expert_depth: int
    expert_out: str | None
    expert_preset: str
    expert_settings: dict[str, Any]
    experts: int
    explore: float
    explore_end: float
    fewest_leaves: bool
    final_rate: float
    final_rollouts: int
    first_epsilon: float
    floor: float
    followed: float
    frequencies: int | None
    fringe: int
    gamma: float
    gamma_b: float | None
    gamma_w: float
    greedy: float
    guided: bool
    hidden: int
    iterations: int
    judging: float
    k: int
    kappa: float
    keep: bool
    leaf_history: int
    leaf_ladder: bool
    learning_rate: float
    leaves: str
    margin: float
    mask: bool
    max_leaves: int | None
    max_samples: int
    max_tested: int
    memory: int
    min_instances: int
    min_leaf: int
    min_side: int
    minibatches: int
    mu: float
    n_steps: int
    noise: float
    normalise: str | None
    num_envs: int
    num_steps: int
    optimistic: bool
    p: float
    patience: int | float | None
    phase: int | None
    polish: int | None
    prices: tuple[float, ...]
    questions: int
    random: float
    rate_decay: float
    recall: bool
    resample: bool
    samples: int
    seconds: float
    shape: str
    slack: float
    snapshots: int
    split_test: str
    splits: Any
    spread: float
    standardise: bool
    start: str | None
    start_seed: int | None
    states: int | None
    step: float
    steps_per_update: int | None
    stretch: int
    sweep_every: int
    target: str
    target_every: int
    target_rate: float
    tau: float
    test_every: int | None
    test_rollouts: int
    tests: str
    ties: str
    time_limit: bool
    trace: float
    train_share: float
    uniform: float
    uniform_end: float
    updates_per_step: float
    variance_gain: float
    variants: bool
    visit_decay: float
    warmup: float | int
    weights: str
    zeta: float | None


class LearnKeywords(LearnOptions, MethodSettings, total=False):
    """All keywords of `custard.learn` but `seeds`."""
