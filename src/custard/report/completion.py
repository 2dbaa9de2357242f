"""Complete a run's directory: the final evaluation on fresh episodes, the picture and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.files import write_atomically
from custard.lab.run import Run
from custard.planning.evaluate import states_visited
from custard.planning.model import model_of
from custard.task.evaluate import Evaluation, evaluate
from custard.task.problem import final_seed
from custard.task.runners import run_episodes
from custard.task.source import episode_seeds, source
from custard.tree.certificate import certificate_of
from custard.tree.tree import Tree

__all__ = ["complete_run", "states_met"]


def states_met(tree: Tree, env: Any, kwargs: Mapping[str, Any], seed: int, episodes: int = 20) -> np.ndarray:
    """Return the states [N, n] that a tree meets in some episodes."""
    seeds = episode_seeds(final_seed(seed), episodes)
    runs = run_episodes(tree, source(env, kwargs), seeds, record_states=True)
    assert runs.states is not None
    return np.concatenate(runs.states)


def complete_run(run: Run, env: Any, kwargs: Mapping[str, Any], episodes: int) -> tuple[Evaluation | None, list[Path]]:
    """Evaluate the tree, complete the run directory, and return the evaluation and the files to show to a person.

    A planned tree of a discounted model is not run: its return is known exactly, and its episodes may have no end.
    """
    certificate = certificate_of(run.tree) or {}
    is_discounted = certificate.get("gamma", 1.0) < 1.0 and certificate.get("horizon") is None
    seed = final_seed(run.config["seed"])
    result = evaluate(run.tree, env, episodes, seed, env_kwargs=kwargs) if episodes and not is_discounted else None
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
    if is_discounted:
        met = states_visited(run.tree, model_of(source(env, kwargs), gamma=certificate["gamma"]))
    else:
        met = states_met(run.tree, env, kwargs, run.config["seed"])
    save_picture(run.tree, picture, node_visits(run.tree, met))
    return result, [run.directory / "tree.json", picture, write_report(run.directory), *files]
