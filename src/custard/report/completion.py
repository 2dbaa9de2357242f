"""Complete a run's directory: the final evaluation on fresh episodes, the picture and the report."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.files import write_atomically
from custard.lab.progress import waiting
from custard.lab.run import Run
from custard.planning.evaluate import states_visited
from custard.planning.model import model_of
from custard.task.evaluate import Evaluation, evaluate
from custard.task.history import remembered
from custard.task.problem import final_seed
from custard.task.runners import run_episodes
from custard.task.source import episode_seeds, source
from custard.tree.certificate import certificate_of, is_discounted
from custard.tree.tree import Tree

__all__ = ["complete_run", "states_met"]

FIRST_EPISODES, MAX_EPISODES = 50, 1000  # of a final evaluation whose number of episodes is not given
EVALUATION_SHARE, MIN_EVALUATION_SECONDS = 0.1, 10.0  # of the time that learning took


def states_met(tree: Tree, env: Any, kwargs: Mapping[str, Any], seed: int, episodes: int = 20) -> np.ndarray:
    """Return the states [N, n] that a tree meets in some episodes."""
    seeds = episode_seeds(final_seed(seed), episodes)
    runs = run_episodes(tree, source(env, kwargs), seeds, record_states=True)
    assert runs.states is not None
    return np.concatenate(runs.states)


def _final_evaluation(run: Run, env: Any, kwargs: Mapping[str, Any], episodes: int | None, seed: int) -> Evaluation:
    """Evaluate a run's tree on so many episodes, or on as many as a tenth of its learning time allows."""
    begun = time.perf_counter()
    is_search = run.config["method"] in ("direct", "tpi")  # elsewhere gamma is the learner's own
    gamma = run.config.get("settings", {}).get("gamma", 1.0) if is_search else 1.0
    result = evaluate(run.tree, env, episodes or FIRST_EPISODES, seed, env_kwargs=kwargs, gamma=gamma)
    if episodes is not None:
        return result
    allowed = max(MIN_EVALUATION_SECONDS, EVALUATION_SHARE * run.seconds)
    affordable = int(FIRST_EPISODES * allowed / max(1e-9, time.perf_counter() - begun))
    total = min(MAX_EPISODES, affordable)  # the first ones are among them, since a longer list begins with the shorter
    if total <= FIRST_EPISODES:
        return result
    return evaluate(run.tree, env, total, seed, env_kwargs=kwargs, gamma=gamma)


def complete_run(
    run: Run, env: Any, kwargs: Mapping[str, Any], episodes: int | None, progress: bool = False
) -> tuple[Evaluation | None, list[Path]]:
    """Evaluate the tree, complete the run directory, and return the evaluation and the files to show to a person.

    Unless `episodes` are given, they are 1,000, or fewer if these take longer than a tenth of the learning. A planned
    tree of a discounted model is not run: its return is known exactly, and its episodes may have no end. `progress`
    shows on standard error what is being done.
    """
    title = f"{run.config['method']} on {run.config['env']}"
    is_exact = is_discounted(run.tree)
    seed = final_seed(run.config["seed"])
    is_wanted = episodes != 0 and not is_exact
    with waiting(title, "evaluating the tree on fresh episodes", progress and is_wanted):
        result = _final_evaluation(run, env, kwargs, episodes, seed) if is_wanted else None
    files: list[Path] = []
    if run.directory is None:
        return result, files
    if result is not None:
        write_atomically(run.directory / "evaluation.json", json.dumps(result.to_json()) + "\n")
        files.append(run.directory / "evaluation.json")
    from custard.report import write_report
    from custard.tree.draw import save_picture
    from custard.tree.explain import node_visits

    with waiting(title, "drawing the tree and writing the report", progress):
        picture = run.directory / "tree.svg"
        if is_exact:
            where, _ = remembered(run.tree, source(env, kwargs))
            gamma = (certificate_of(run.tree) or {}).get("gamma", 1.0)
            met = states_visited(run.tree, model_of(where, gamma=gamma))
        else:
            met = states_met(run.tree, env, kwargs, run.config["seed"])
        save_picture(run.tree, picture, node_visits(run.tree, met))
        return result, [run.directory / "tree.json", picture, write_report(run.directory), *files]
