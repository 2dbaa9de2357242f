"""What someone who must answer for a policy asks: purpose, data, version, metrics, limits, proofs, oversight.

The headings follow the technical documentation that Annex IV of the EU AI Act (Regulation 2024/1689) asks for. Only
what the run shows is stated; the intended purpose, which no file can know, is the user's own words or named as open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.version import VERSION
from custard.tree.certificate import certificate_of, certificate_text, is_discounted
from custard.tree.explain import deciding_features
from custard.tree.text import one_line, plural
from custard.tree.tree import LEAF, Tree

__all__ = ["audit_sections", "stored_proofs"]

MAX_LISTED_NAMES = 40
MAX_LEAVES_FOR_DECIDING = 400  # comparing every two leaves takes the square of their number
NEAR_SHARE = 0.01  # of a feature's visited range: nearer to a threshold than this, small errors may change a decision

Item = list[str]  # a term and what is said about it


def audit_sections(
    tree: Tree,
    config: Mapping[str, Any],
    *,
    evaluation: Mapping[str, Any] | None,
    judged: Sequence[str],
    states: np.ndarray | None,
    proofs: Sequence[Mapping[str, Any]],
    steps: float | None,
    seconds: str,
    fingerprint: str,
    purpose: str = "",
) -> list[dict[str, Any]]:
    """Return the sections, each a title and items of a term and a text; commands in it stand between backticks.

    tree         the policy
    config       what config.json holds
    evaluation   of the tree, as `Evaluation.to_json` returns it; None if there is none
    judged       sentences that compare the return with others
    states       visited states [N, n]; None if no episode could be run
    proofs       results of `custard verify --json`
    steps        environment steps learned from
    seconds      how long that took, as text
    fingerprint  SHA-256 of tree.json; "" if there is no file
    purpose      what the policy is for, in the user's words
    """
    return [
        {"title": "Purpose", "items": _purpose(tree, config, purpose)},
        {"title": "Version", "items": _version(tree, config, fingerprint)},
        {"title": "Data it was learned from", "items": _data(tree, config, steps, seconds)},
        {"title": "Metrics", "items": _metrics(tree, evaluation, judged)},
        {"title": "What was verified", "items": _verified(tree, proofs)},
        {"title": "Limits", "items": _limits(tree, states)},
        {"title": "How to oversee it", "items": _oversight(tree, states)},
    ]


def stored_proofs(path: Path) -> list[dict[str, Any]]:
    """Return what `custard verify RUN --json > RUN/verification.json` proved; [] if the file is missing or invalid."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(results, list):
        return []
    return [entry for entry in results if isinstance(entry, dict) and isinstance(entry.get("says"), str)]


def _purpose(tree: Tree, config: Mapping[str, Any], purpose: str) -> list[Item]:
    env = config.get("env") or tree.origin.get("env") or "its environment"
    n, depth = tree.features.n_raw, tree.depth
    chosen = f"one of {tree.actions.n} actions" if tree.actions.discrete else f"{tree.actions.size} action values"
    names = _listed([one_line(name) for name in tree.actions.names])
    does = f"At every step of {env} it chooses {chosen} ({names}) from {n} {plural('feature', n)}."
    decides = (
        f"By a decision tree of {tree.n_leaves} {plural('leaf', tree.n_leaves)} and depth {depth}: at most {depth} "
        f"{plural('comparison', depth)} per decision, all of them on this page. It does not change while it is in use."
    )
    stated = purpose or 'Not stated. `custard report RUN --purpose "…"` writes it here.'
    return [["What it does", does], ["How it decides", decides], ["Intended purpose", stated]]


def _version(tree: Tree, config: Mapping[str, Any], fingerprint: str) -> list[Item]:
    versions = config.get("versions") or tree.origin.get("versions") or {}
    learned = ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, dict) else ""
    items = [["Tree file", f"SHA-256 {fingerprint}"]] if fingerprint else []
    items += [["Learned with", learned]] if learned else []
    return [*items, ["Report", f"custard {VERSION}"]]


def _data(tree: Tree, config: Mapping[str, Any], steps: float | None, seconds: str) -> list[Item]:
    method = config.get("method") or tree.origin.get("method") or "an unknown method"
    env, kwargs = config.get("env") or tree.origin.get("env"), config.get("env_kwargs") or {}
    arguments = ", ".join(f"{key} = {value}" for key, value in kwargs.items()) if isinstance(kwargs, dict) else ""
    of = f"{env or 'the environment'}{f' ({arguments})' if arguments else ''}"
    certificate = certificate_of(tree)
    is_planned = certificate is not None and not steps
    is_traced = certificate is not None and "scope" in certificate
    source = f"Episodes of {of} from fixed starts" if is_traced else f"The exact model of {of}"
    source = source if is_planned else f"Interaction with {of}"
    items = [["Source", f"{source}; no data set was read."]]
    if is_planned:
        amount = "As many steps as the search took" if is_traced else "No environment step"
        items.append(["Amount", f"{amount}{f'; planned in {seconds}' if seconds else ''}"])
    elif steps is not None:
        items.append(["Amount", f"{int(steps):,} environment steps{f' in {seconds}' if seconds else ''}"])
    if steps_back := config.get("history") or tree.origin.get("history"):
        what = "the features and actions of so many past steps, which whoever runs it must keep"
        items.append(["Memory", f"{steps_back}: {what}; exported C, Rust and Python files do."])
    seed = config.get("seed", tree.origin.get("seed"))
    again = "" if seed is None else f", seed {seed}: the same command gives the same tree"
    items.append(["Method", f"{method}{again}"])
    settings = config.get("settings")
    expert = settings.get("expert") if isinstance(settings, dict) else None
    if expert not in (None, "none"):
        items.append(["Expert", f"It was shown the decisions of an expert ({expert}), whose faults it may repeat."])
    return items


def _metrics(tree: Tree, evaluation: Mapping[str, Any] | None, judged: Sequence[str]) -> list[Item]:
    exact = certificate_of(tree) if is_discounted(tree) else None
    if evaluation is None and exact is not None and exact["value"] is not None:
        kind = f"exact, computed from the model; discounted by {exact['gamma']:g} per step"
        items = [["Return", f"{exact['value']:.9g}, {kind}".replace("-", "−")]]
        return [*items, ["In comparison", " ".join(judged)]] if judged else items
    if evaluation is None:
        return [["Return", "Not measured: the environment could not be made where this report was written."]]
    spread = ""
    if evaluation["ci95"]:
        low, high = evaluation["ci95"]
        spread = f", 95 % interval {low:.6g} to {high:.6g}, standard deviation {evaluation['std']:.4g}"
    count = evaluation["episodes"]
    episodes = f"over {count:,} {plural('episode', count)} drawn anew (seed {evaluation['seed']})"
    items = [
        ["Mean return", f"{evaluation['mean']:.6g}{spread}, {episodes}".replace("-", "−")],
        ["Worst and best episode", f"{evaluation['min']:.6g} and {evaluation['max']:.6g}".replace("-", "−")],
    ]
    return [*items, ["In comparison", " ".join(judged)]] if judged else items


def _verified(tree: Tree, proofs: Sequence[Mapping[str, Any]]) -> list[Item]:
    form = "Proved by its form: every observation, NaN and infinity included, reaches exactly one leaf."
    items = [["Every state is decided", form]]
    if (planned := certificate_text(tree)) is not None:
        items.append(["Return and bound", one_line(planned)])
    if tree.n_leaves <= MAX_LEAVES_FOR_DECIDING and not tree.is_linear:
        deciding = deciding_features(tree)
        idle = [one_line(name) for c, name in enumerate(tree.features.names) if c not in deciding]
        says = (
            f"These cannot change a decision: {_listed(idle)}." if idle else "Every feature can change some decision."
        )
        items.append(["Features without influence", f"Checked exactly. {says}"])
    words = {True: "Proved", False: "Refuted", None: "Undecided"}
    for proof in proofs:
        term = words.get(proof["holds"], "Undecided") if "holds" in proof else "Computed"
        items.append([term, one_line(str(proof["says"]))])
    if not proofs:
        how = '`custard verify RUN --assert "…" --json > RUN/verification.json` adds them to the next report.'
        items.append(["Properties of its decisions", f"None stored. {how}"])
    return items


def _limits(tree: Tree, states: np.ndarray | None) -> list[Item]:
    tried = "Only in this environment, with its own starts and its own noise. Elsewhere nothing is known of it."
    items = [["Where it was tried", tried], ["Memory", "None: it decides by the present observation alone."]]
    if states is None:
        return items
    never = tree.n_leaves - len(set(tree.apply(states).tolist()))
    says = f"None: {len(states):,} visited states reached all {tree.n_leaves} {plural('leaf', tree.n_leaves)}."
    if never:
        reached = f"{never} of {tree.n_leaves} leaves were not reached by {len(states):,} visited states"
        says = f"{reached}: what they do is untested."
    items.append(["Untested leaves", says])
    near = _near_a_threshold(tree, states)
    if near is not None:
        says = (
            f"{100 * near:.3g} % of visited states are compared with a threshold that lies within "
            f"{100 * NEAR_SHARE:g} % of the feature's visited range: there a small error may change the action."
        )
        items.append(["Close decisions", says])
    return items


def _oversight(tree: Tree, states: np.ndarray | None) -> list[Item]:
    record = "Log the observation, the leaf's number and the action of every decision: together they explain it."
    stop = "Take over when an observation is NaN or outside the ranges below, or when an unvisited leaf decides."
    items = [
        ["Record", record],
        ["Stop", stop],
        ["After any change", "Evaluate and verify again: an edited tree is another policy."],
    ]
    if states is None:
        return items
    for c in range(min(tree.features.n_raw, MAX_LISTED_NAMES)):
        column = states[:, c][np.isfinite(states[:, c])]
        if len(column):
            visited = f"{column.min():.4g} to {column.max():.4g}".replace("-", "−")
            items.append([f"Visited range of {one_line(tree.features.names[c])}", visited])
    return items


def _near_a_threshold(tree: Tree, states: np.ndarray) -> float | None:
    """Return the share of states for which some comparison on their path is close; None for trees with sums."""
    if tree.is_linear or not len(states):
        return None
    finite = [column[np.isfinite(column)] for column in states.T]
    span = np.array([float(np.ptp(column)) if len(column) else 0.0 for column in finite])
    node, near = np.zeros(len(states), dtype=np.int64), np.zeros(len(states), dtype=bool)
    for _ in range(tree.depth):
        inner = np.flatnonzero(tree.feature[node] != LEAF)
        at = node[inner]
        c, value = tree.feature[at], states[inner, tree.feature[at]]
        with np.errstate(invalid="ignore"):
            near[inner] |= np.abs(value - tree.threshold[at]) <= NEAR_SHARE * span[c]
        node[inner] = np.where(value <= tree.threshold[at], tree.children_left[at], tree.children_right[at])
    return float(near.mean())


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_LISTED_NAMES])
    return shown + (f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else "")
