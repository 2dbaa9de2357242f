"""Complete a run's directory: the final evaluation on fresh episodes, the picture and the report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from custard.core.files import write_atomically
from custard.lab.progress import waiting
from custard.lab.run import Run
from custard.planning.evaluate import states_visited
from custard.planning.model import model_of
from custard.task.evaluate import Evaluation, evaluate
from custard.task.history import remembered
from custard.task.problem import final_seed
from custard.task.source import source
from custard.tree.certificate import certificate_of, is_discounted

__all__ = ["complete_run"]

EVALUATING = "evaluating the tree on fresh episodes"
MAX_EPISODES = 1000  # of a final evaluation whose number of episodes is not given
EVALUATION_SHARE, MIN_EVALUATION_SECONDS = 0.1, 10.0  # of the time that learning took


def _final_evaluation(
    run: Run, env: Any, kwargs: Mapping[str, Any], episodes: int | None, seed: int, say: Callable[[str], Any]
) -> Evaluation:
    """Evaluate a run's tree on so many episodes, or on as many as a tenth of its learning time allows."""
    is_search = run.config["method"] in ("direct", "tpi")  # elsewhere gamma is the learner's own
    gamma = run.config.get("settings", {}).get("gamma", 1.0) if is_search else 1.0
    most = "" if episodes else "at most "
    return evaluate(
        run.tree, env, episodes or MAX_EPISODES, seed, env_kwargs=kwargs, gamma=gamma,
        seconds=math.inf if episodes else max(MIN_EVALUATION_SECONDS, EVALUATION_SHARE * run.seconds),
        on_progress=lambda done, of: say(f"{EVALUATING}, {done:,} of {most}{of:,}"),
    )  # fmt: skip


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
    with waiting(title, EVALUATING, progress and (is_wanted or run.directory is not None)) as display:
        result = _final_evaluation(run, env, kwargs, episodes, seed, display.say) if is_wanted else None
        files = (
            [] if run.directory is None else _complete_directory(run, run.directory, env, kwargs, result, display.say)
        )
    return result, files


def _complete_directory(
    run: Run, directory: Path, env: Any, kwargs: Mapping[str, Any], result: Evaluation | None, say: Callable[[str], Any]
) -> list[Path]:
    """Write what completes a run's directory; returns the files to show to a person."""
    from custard.report.html_page import run_data, write_page
    from custard.tree.draw import save_picture
    from custard.tree.explain import node_visits

    files: list[Path] = []
    if result is not None:
        write_atomically(directory / "evaluation.json", json.dumps(result.to_json()) + "\n")
        files.append(directory / "evaluation.json")
    say("writing the report")
    data = run_data(directory, on_progress=lambda doing: say(f"report: {doing}"))
    report = write_page(data, directory / "report.html")
    say("drawing the tree")
    picture, visits = directory / "tree.svg", data["tree"]["visits"]
    if is_discounted(run.tree):
        where, _ = remembered(run.tree, source(env, kwargs))
        gamma = (certificate_of(run.tree) or {}).get("gamma", 1.0)
        visits = node_visits(run.tree, states_visited(run.tree, model_of(where, gamma=gamma)))
    save_picture(run.tree, picture, visits)  # without visits where its environment cannot be made again
    return [directory / "tree.json", picture, report, *files]
