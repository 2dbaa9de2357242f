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
    average_rate: float
    batch: int
    batch_rollouts: int
    best_action_weight: float
    bootstrap_at_limit: bool
    buffer: int
    capacity: int
    choose: str
    climbing: float
    clip: float
    criterion: str
    critic: str
    critic_frequencies: int
    critic_updates: int
    default_max_depth: int
    digits: int | None
    entropy: float
    episodes: int | None
    epochs: int
    epsilon: float | None
    epsilon_end: float
    epsilon_steps: int
    evaluations: int
    expert: str | Callable[..., Any] | None
    expert_depth: int
    expert_out: str | None
    expert_preset: str
    expert_settings: dict[str, Any]
    experts: int
    exploration_deviation: float
    exploring_share: float
    exploring_share_end: float
    fewest_leaves: bool
    final_rate: float
    final_rollouts: int
    final_slack: float
    first_cycle_steps: int
    first_epsilon: float
    fit_variants: bool
    follow_best_tree: bool
    frequencies: int | None
    fringe: int
    gamma: float
    gamma_b: float | None
    gamma_w: float
    greedy_share: float
    grid_cells: int
    hidden: int
    iterations: int
    iterations_per_extraction: int
    k: int
    kappa: float
    keep_best: bool
    leaf_history: int
    leaf_ladder: bool
    leaf_prices: tuple[float, ...]
    learning_rate: float
    leaves: str
    margin: float
    mask_useless: bool
    max_changes: int | None
    max_judging_share: float
    max_leaves: int | None
    max_p_value: float
    max_samples: int
    max_splits_per_node: int
    max_tested: int
    memory: int
    min_instances: int
    min_leaf: int
    min_probability: float
    min_side: int
    min_split_gain: float
    min_split_gain_decay: float
    min_states_per_node: int
    minibatches: int
    n_steps: int
    normalise: str | None
    num_envs: int
    num_steps: int
    optimistic: bool
    patience: int | float | None
    phase_steps: int | None
    random_action_share: float
    rate_decay: float
    remember_outcomes: bool
    resample: bool
    sampled_trees: int
    seconds: float
    shape: str
    snapshots: int
    split_spread: float
    split_test: str
    splits: Any
    standardise: bool
    start: str | None
    start_seed: int | None
    step: float
    steps_per_update: int | None
    sweep_every: int
    target: str
    target_every: int
    target_rate: float
    tau: float
    test_every: int | None
    test_rollouts: int
    tests: str
    thresholds_per_feature: int | None
    ties: str
    time_limit: bool
    trace: float
    train_share: float
    tree_state_share: float
    uniform_weight: float
    uniform_weight_end: float
    updates_per_step: float
    valued_states: int | None
    variance_gain: float
    visit_decay: float
    visits_per_random_split: int
    warmup: float | int
    weights: str
    zeta: float | None


class LearnKeywords(LearnOptions, MethodSettings, total=False):
    """All keywords of `custard.learn` but `seeds`."""
