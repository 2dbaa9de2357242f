"""List the trials of the paper's three experiments, the numbers it printed and the limits that are proved."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from custard.core.errors import CustardError
from custard.lab.methods import method as find_method
from custard.lab.trials import Trial

__all__ = [
    "DEPTH_LIMITS",
    "EXPERIMENTS",
    "FULL_TRIALS",
    "METHODS",
    "METHOD_TITLES",
    "OWN_TREES",
    "PAPER_TABLE1",
    "PREREQ_SIZES",
    "PRESETS",
    "QUICK_TRIALS",
    "WORLDS",
    "Cell",
    "experiment_file",
    "pothole_limits",
    "smallest_trees",
    "trials_of",
]  # fmt: skip

EXPERIMENTS = ("table1", "size", "depth")
PRESETS = ("paper", "own", "tuned")  # "own": tuned, but only the policies' own trees are judged
FIRST_SEED = 1000  # of the trials; settings were chosen on other seeds
FULL_TRIALS, QUICK_TRIALS = 50, 5  # per cell

METHOD_TITLES = {
    "viper-dqn": "VIPER (DQN)", "viper-bi": "VIPER (BI)", "dqn": "CUSTARD (DQN)", "ppo": "CUSTARD (PPO)",
    "mfec": "CUSTARD (MFEC)", "tpi": "tree policy iteration", "random": "random search",
}  # fmt: skip
METHODS = {"table1": tuple(METHOD_TITLES), "size": ("viper-bi", "mfec", "tpi"), "depth": ("viper-bi", "mfec", "tpi")}


class World(NamedTuple):
    """An environment of Table 1 and its depth limit."""

    env: str
    kwargs: dict[str, Any]
    max_depth: int | None


WORLDS = {
    "CartPole": World("custard/CartPole-v0", {}, 2),
    "PrereqWorld": World("custard/PrereqWorld-v0", {"m": 7}, None),
    "PotholeWorld": World("custard/PotholeWorld-v0", {}, None),
}
PREREQ_SIZES = (4, 5, 6, 7, 8, 9, 10)  # m of PrereqWorld
DEPTH_LIMITS = (1, 2, 3, 4, 5, 6)  # depth limits on PotholeWorld; 5 is enough for the best return


class Cell(NamedTuple):
    """A mean and a standard deviation over the paper's 50 trials."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.std:.2f})"


#: The paper's Table 1: reward, and depth where it is given.
PAPER_TABLE1: dict[str, dict[str, tuple[Cell, Cell | None]]] = {
    "viper-dqn": {"CartPole": (Cell(200.00, 0.00), None), "PrereqWorld": (Cell(-4.00, 0.00), Cell(5.70, 0.62)),
                  "PotholeWorld": (Cell(46.30, 0.39), Cell(6.00, 0.61))},
    "viper-bi": {"CartPole": (Cell(200.00, 0.00), None), "PrereqWorld": (Cell(-4.00, 0.00), Cell(6.00, 0.00)),
                 "PotholeWorld": (Cell(46.31, 1.32), Cell(9.18, 1.08))},
    "dqn": {"CartPole": (Cell(198.72, 4.74), None), "PrereqWorld": (Cell(-4.08, 0.34), Cell(4.28, 0.67)),
            "PotholeWorld": (Cell(46.92, 2.14), Cell(5.36, 1.41))},
    "ppo": {"CartPole": (Cell(199.32, 3.23), None), "PrereqWorld": (Cell(-4.04, 0.20), Cell(4.16, 0.47)),
            "PotholeWorld": (Cell(45.39, 0.42), Cell(1.04, 0.75))},
    "mfec": {"CartPole": (Cell(200.00, 0.00), None), "PrereqWorld": (Cell(-4.00, 0.00), Cell(3.92, 0.27)),
             "PotholeWorld": (Cell(49.18, 1.04), Cell(9.74, 0.49))},
}  # fmt: skip

#: What leaves a tuned learner nothing to judge but the trees of its own policy: nothing drawn, pruned or changed.
OWN_TREES: dict[str, dict[str, Any]] = {
    "dqn": {"sampled_trees": 0, "leaf_prices": []}, "ppo": {"sampled_trees": 0},
    "mfec": {"sampled_trees": 0, "max_changes": 0},
}  # fmt: skip

#: Environment steps of MFEC in the paper's form: far fewer than the appendix's 10^6, or 2,000 * 2^m, episodes.
MFEC_PAPER_STEPS = {"custard/CartPole-v0": 200_000, "custard/PotholeWorld-v0": 60_000}
MFEC_PAPER_STEPS_PER_STATE = 1_000  # of the 2^m states of PrereqWorld

#: Smaller budgets, the same code: what `--quick` sets.
QUICK_SETTINGS: dict[str, dict[str, Any]] = {
    "viper-dqn": {"iterations": 15, "test_rollouts": 50, "final_rollouts": 200, "expert_settings": {"steps": 30_000}},
    "viper-bi": {"iterations": 15, "test_rollouts": 50, "final_rollouts": 200},
    "dqn": {"budget": 1_000_000}, "ppo": {"budget": 400_000}, "mfec": {"budget": 1_000_000},
    "tpi": {"budget": 10_000_000}, "random": {"budget": 1_000_000},
}  # fmt: skip


def trials_of(experiment: str, preset: str, count: int, quick: bool = False) -> list[Trial]:
    """Return the trials of an experiment, ordered by seed, environment and method; `preset` is one of `PRESETS`.

    >>> len(trials_of("size", "tuned", 50)), sorted({trial.method for trial in trials_of("depth", "paper", 1)})
    (1050, ['mfec', 'viper-bi'])
    """
    if experiment == "table1":
        cells = [(world, name) for world in WORLDS.values() for name in METHODS[experiment]]
    elif experiment == "size":
        world = WORLDS["PrereqWorld"]
        cells = [(World(world.env, {"m": m}, None), name) for m in PREREQ_SIZES for name in METHODS[experiment]]
    else:
        world = WORLDS["PotholeWorld"]
        cells = [(World(world.env, {}, limit), name) for limit in DEPTH_LIMITS for name in METHODS[experiment]]
    return [
        Trial(world.env, name, seed, world.kwargs, "paper" if preset == "paper" else "tuned", world.max_depth,
              {**(OWN_TREES[name] if preset == "own" else {}), **_budget(world, name, preset, quick)},
              experiment=experiment)
        for seed in range(FIRST_SEED, FIRST_SEED + count)  # outermost, so that the table fills evenly
        for world, name in cells if _has_preset(name, preset, experiment)
    ]  # fmt: skip


def _budget(world: World, name: str, preset: str, quick: bool) -> dict[str, Any]:
    """Return the settings of `--quick`, or the steps of MFEC in the paper's form, with PrereqWorld's size as there."""
    if quick:
        return QUICK_SETTINGS[name]
    if preset == "paper" and name == "mfec":
        return {"budget": MFEC_PAPER_STEPS.get(world.env) or MFEC_PAPER_STEPS_PER_STATE * 2 ** world.kwargs["m"]}
    return {}


def _has_preset(name: str, preset: str, experiment: str) -> bool:
    """Return whether a method has a preset; True for one that cannot be loaded here, since its rows will say so."""
    if preset == "own":
        return name in OWN_TREES and experiment == "table1"
    try:
        return preset in getattr(find_method(name)[1], "PRESETS", {})
    except (CustardError, ImportError):
        return True


def experiment_file(out: Path, experiment: str, preset: str) -> Path:
    """Return the path of the CSV that holds an experiment's trials."""
    return out / f"{experiment}-{preset}.csv"


@functools.cache
def smallest_trees(sizes: Sequence[int] = PREREQ_SIZES) -> dict[int, tuple[float, int, int]]:
    """Return the proved best return per PrereqWorld size m, with depth and leaves of the smallest tree that has it."""
    import gymnasium as gym

    from custard.planning.optimal_tree import best_tree

    found = {}
    for m in sizes:
        plan = best_tree(gym.make("custard/PrereqWorld-v0", m=m).unwrapped.mdp())  # type: ignore[attr-defined]
        if not (plan.optimal and plan.fewest):
            raise CustardError(f"the smallest tree of PrereqWorld m={m} was not proved in time")
        found[m] = (plan.value, plan.tree.depth, plan.tree.n_leaves)
    return found


@functools.cache
def pothole_limits() -> tuple[dict[int, float], int]:
    """Return the best return per depth limit on PotholeWorld, and the leaves that the best return of all takes."""
    import gymnasium as gym

    from custard.planning.pothole import best_intervals

    road = gym.make(WORLDS["PotholeWorld"].env).unwrapped
    best = best_intervals(road, 2 ** max(DEPTH_LIMITS))
    leaves = int((best.values < best.values[-1] - 1e-6).sum()) + 1
    return dict(enumerate(best.by_depth(max(DEPTH_LIMITS)))), leaves
