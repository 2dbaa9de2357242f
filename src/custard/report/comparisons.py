"""Is this return good? Compare it with random actions, constant actions, the expert, the threshold and the optimum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.task.evaluate import Evaluation, evaluate
from custard.task.source import Source
from custard.tree.tree import Tree

__all__ = ["compare_exactly", "compare_return", "judgement"]

MAX_COMPARED_EPISODES = 100
MAX_STEPPED_EPISODES, MIN_STEPPED_EPISODES = 30, 5  # per policy, where Python steps the environment
MAX_COMPARED_STEPS = 6_000  # per policy, if its episodes are as long as the tree's
LEAST_EPISODES = 2  # of random actions, however long they take
MAX_CONSTANT_ACTIONS = 8
MAX_PLANNED_STATES = 5_000  # of a finite MDP whose optimum is computed for the report


def compare_return(
    tree: Tree,
    where: Source,
    evaluation: Mapping[str, Any],
    rows: Sequence[Mapping[str, float]],
    seed: int,
    *,
    affordable_steps: float = np.inf,
    say: Callable[[str], Any] = lambda doing: None,
) -> list[dict[str, Any]]:
    """Return what the tree's return is to be read beside, one entry per policy or mark, lowest mean first.

    tree              the policy
    where             makes its environment
    evaluation        of the tree, as `Evaluation.to_json` returns it
    rows              of metrics.csv; the expert's return is in the column "expert"
    seed              where the episodes' seeds come from
    affordable_steps  that all policies together should take; where these are few, constant actions are left out
    say               called with what is being done

    Each entry has "kind" (random, constant, expert, tree, threshold or optimum), "name", "mean", "ci95" and "episodes"
    (None where nothing was sampled).
    """
    episodes, chosen = MAX_COMPARED_EPISODES, _constant_actions(tree.actions)
    if where.make_compiled is None:
        length = max(1.0, float(evaluation["mean_length"]))
        episodes = int(np.clip(MAX_COMPARED_STEPS / length, MIN_STEPPED_EPISODES, MAX_STEPPED_EPISODES))
        if affordable_steps / length < MIN_STEPPED_EPISODES * (1 + len(chosen)):
            chosen = []
        episodes = int(np.clip(affordable_steps / (length * (1 + len(chosen))), LEAST_EPISODES, episodes))
    say(f"running random actions for comparison, {episodes} episodes")
    entries = [_entry("random", "random actions", evaluate(_random_policy(tree.actions, seed), where, episodes, seed))]
    constants = []
    known = {key: tree.origin[key] for key in ("features", "feature_names") if key in tree.origin}
    for value in chosen:
        name = tree.actions.name(value)
        say(f"running always {name} for comparison, {episodes} episodes")
        leaf = Tree.leaf(value, tree.features, tree.actions).with_origin(**known)
        judged = evaluate(leaf, where, episodes, seed)
        constants.append((name, judged))
    if constants:
        name, best = max(constants, key=lambda pair: pair[1].mean)
        entries.append(_entry("constant", f"always {name}", best))
    expert = next((row["expert"] for row in reversed(rows) if np.isfinite(row.get("expert", np.nan))), None)
    if expert is not None:
        entries.append(_mark("expert", "the expert it learned from", expert))
    if where.reward_threshold is not None:
        entries.append(_mark("threshold", "reward threshold", where.reward_threshold))
    say("computing the optimum, if there is a model")
    optimum = _optimum(where)
    if optimum is not None:
        entries.append(_mark("optimum", "optimum of all policies", optimum))
    own = {"mean": evaluation["mean"], "ci95": evaluation["ci95"], "episodes": evaluation["episodes"]}
    entries.append({"kind": "tree", "name": "this tree", **own})
    return sorted(entries, key=lambda entry: (entry["mean"], entry["kind"] == "tree"))


def compare_exactly(tree: Tree, where: Source, certificate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the same for a tree planned for a discounted return, by exact values: no episode is run.

    "bound" is one more kind: no tree of the depth returns more. [] where the model is too large.
    """
    from custard.planning.evaluate import policy_value, random_value
    from custard.planning.model import model_of

    mdp = model_of(where, gamma=certificate["gamma"])
    if mdp.n_states > MAX_PLANNED_STATES or certificate["value"] is None:
        return []
    entries = [_mark("random", "random actions", random_value(mdp)), _mark("tree", "this tree", certificate["value"])]
    if mdp.actions.n <= MAX_CONSTANT_ACTIONS:
        values = [policy_value(np.full(mdp.n_states, action), mdp) for action in range(mdp.actions.n)]
        best = int(np.argmax(values))
        entries.append(_mark("constant", f"always {mdp.actions.names[best]}", values[best]))
    if certificate["bound"] is not None and not certificate.get("proved"):
        entries.append(
            _mark("bound", f"bound for trees of depth ≤ {certificate.get('max_depth')}", certificate["bound"])
        )
    if certificate["optimum"] is not None:
        entries.append(_mark("optimum", "optimum of all policies", certificate["optimum"]))
    return sorted(entries, key=lambda entry: (entry["mean"], entry["kind"] == "tree"))


def judgement(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the comparison says, in sentences."""
    by_kind = {entry["kind"]: entry for entry in entries}
    tree, sentences = by_kind["tree"], []
    low, high = tree["ci95"] or (tree["mean"], tree["mean"])
    clearly, sampled = ("clearly ", ", as far as these episodes can tell") if tree["episodes"] else ("", "")
    if optimum := by_kind.get("optimum"):
        span = optimum["mean"] - by_kind["random"]["mean"]
        close = abs(optimum["mean"] - tree["mean"]) <= 1e-9 * max(1.0, abs(optimum["mean"]))
        if close or high >= optimum["mean"]:
            sentences.append(f"It attains the optimum of all policies{sampled}.")
        elif span > 0:
            way = 100 * (tree["mean"] - by_kind["random"]["mean"]) / span
            sentences.append(f"It goes {way:.3g} % of the way from random actions to the optimum of all policies.")
    if threshold := by_kind.get("threshold"):
        says = "above" if low >= threshold["mean"] else "below" if high < threshold["mean"] else "not clearly above"
        solved = ": the environment counts as solved" if says == "above" else ""
        sentences.append(f"It is {says} the environment's reward threshold of {threshold['mean']:g}{solved}.")
    if expert := by_kind.get("expert"):
        says = "more than" if low > expert["mean"] else "less than" if high < expert["mean"] else "about as much as"
        sentences.append(f"It returns {says} its expert.")
    rivals = {"constant": "the best constant action", "random": "random actions"}
    for kind, name in rivals.items():
        other = by_kind.get(kind)
        if other is not None:
            least, most = other["ci95"] or (other["mean"], other["mean"])
            says = f"{clearly}better" if low > most else f"{clearly}worse" if high < least else f"not {clearly}better"
            sentences.append(f"It is {says} than {name}.")
    if len(sentences) > 1 and sentences[-2:] == [f"It is {clearly}better than {name}." for name in rivals.values()]:
        apart = ": the 95 % intervals do not overlap" if tree["episodes"] else ""
        sentences[-2:] = [f"It is {clearly}better than random and constant actions{apart}."]
    return sentences


def _entry(kind: str, name: str, judged: Evaluation) -> dict[str, Any]:
    interval = list(judged.ci95) if judged.episodes > 1 else None
    return {"kind": kind, "name": name, "mean": judged.mean, "ci95": interval, "episodes": judged.episodes}


def _mark(kind: str, name: str, value: float) -> dict[str, Any]:
    return {"kind": kind, "name": name, "mean": float(value), "ci95": None, "episodes": None}


def _random_policy(actions: Actions, seed: int) -> Any:
    """Return a policy that draws every action evenly from the action space."""
    rng = np.random.default_rng(seed)
    if actions.discrete:
        return lambda x: rng.integers(actions.start, actions.start + actions.n, size=len(x))
    low, high = _finite_action_bounds(actions)
    if actions.kind == "multi":
        return lambda x: rng.integers(low.astype(np.int64), high.astype(np.int64) + 1, size=(len(x), len(low)))
    return lambda x: rng.uniform(low, high, size=(len(x), len(low)))


def _constant_actions(actions: Actions) -> list[Any]:
    """Return actions to take for ever: each discrete one, if they are few; the ends and the middle of vectors."""
    if actions.discrete:
        return list(range(actions.start, actions.start + actions.n)) if actions.n <= MAX_CONSTANT_ACTIONS else []
    low, high = _finite_action_bounds(actions)
    if actions.kind == "multi":
        return [low.astype(np.int64), high.astype(np.int64)]
    return [low, (low + high) / 2, high]


def _finite_action_bounds(actions: Actions) -> tuple[np.ndarray, np.ndarray]:
    assert actions.low is not None
    assert actions.high is not None
    return np.maximum(actions.low, -1e6), np.minimum(actions.high, 1e6)


def _optimum(where: Source) -> float | None:
    """Return the best value of all policies where the environment has an exact and small model."""
    from custard.planning.model import model_of
    from custard.planning.solve import optimal_value

    try:
        mdp = model_of(where.without_history or where, limit=True)  # within the time limit: what episodes show
        return float(optimal_value(mdp)) if mdp.n_states <= MAX_PLANNED_STATES else None
    except CustardError:
        return None
