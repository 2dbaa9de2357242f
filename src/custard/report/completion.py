"""Complete a run's directory: the final evaluation on fresh episodes, the picture and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.files import write_atomically
from custard.lab.run import Run
from custard.task.evaluate import Evaluation, evaluate
from custard.task.problem import final_seed
from custard.task.runners import run_episodes
from custard.task.source import episode_seeds, source
from custard.tree.tree import Tree

__all__ = ["complete_run", "states_met"]


def states_met(tree: Tree, env: Any, kwargs: Mapping[str, Any], seed: int, episodes: int = 20) -> np.ndarray:
    """Return the states [N, n] that a tree meets in some episodes."""
    seeds = episode_seeds(final_seed(seed), episodes)
    runs = run_episodes(tree, source(env, kwargs), seeds, record_states=True)
    assert runs.states is not None
    return np.concatenate(runs.states)


def complete_run(run: Run, env: Any, kwargs: Mapping[str, Any], episodes: int) -> tuple[Evaluation | None, list[Path]]:
    """Evaluate the tree, complete the run directory, and return the evaluation and the files to show to a person."""
    result = evaluate(run.tree, env, episodes, final_seed(run.config["seed"]), env_kwargs=kwargs) if episodes else None
    files: list[Path] = []
    if run.directory is None:
        return result, files
    if result is not None:
        write_atomically(run.directory / "evaluation.json", json.dumps(result.to_json()) + "\n")
        files.append(run.directory / "evaluation.json")
    from custard.report import write_report
    from custard.tree.draw import save_picture
    from custard.tree.explain import node_visits

    picture = run.directory / "tree.svg"
    save_picture(run.tree, picture, node_visits(run.tree, states_met(run.tree, env, kwargs, run.config["seed"])))
    return result, [run.directory / "tree.json", picture, write_report(run.directory), *files]
