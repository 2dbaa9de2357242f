"""Write the paper's experiments as a page: tables beside the paper's numbers and the proved limits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from custard.core.errors import CustardError, one_line
from custard.core.files import write_atomically
from custard.lab.paper import (
    DEPTH_LIMITS,
    METHOD_TITLES,
    METHODS,
    PAPER_TABLE1,
    PREREQ_SIZES,
    WORLDS,
    pothole_limits,
    smallest_trees,
)
from custard.lab.summary import markdown, mean_and_std, summary

__all__ = ["relative_link", "section", "write_page"]

Rows = Sequence[Mapping[str, Any]]
TITLES = {
    "table1": "Table 1: reward and depth", "size": "Tree size against PrereqWorld's size",
    "depth": "Reward against the depth limit on PotholeWorld",
}  # fmt: skip
PRESET_TITLES = {
    "paper": "The paper's form: preset `paper`",
    "own": "Our learners, nothing but their policies' own trees",
    "tuned": "With trees drawn, pruned and changed: preset `tuned`",
}


def section(experiment: str, rows: Mapping[str, Rows], files: Mapping[str, str], picture: str, command: str) -> str:
    """Return an experiment's tables in Markdown, from the rows of each preset."""
    parts = [f"```\n{command}\n```", f"![{TITLES[experiment]}]({picture})"]
    for preset, preset_rows in rows.items():
        if preset_rows:
            parts.append(
                f"### {PRESET_TITLES[preset]}\n\n"
                f"From [`{files[preset]}`]({files[preset]}), {_trials_text(preset_rows)}."
            )
            parts.append({"table1": _table1, "size": _size, "depth": _depth}[experiment](preset_rows))
    return "\n\n".join(parts) + "\n"


def write_page(page: Path, experiment: str, text: str) -> None:
    """Replace an experiment's section between its marks on the page; the rest of the page stays."""
    begin, end = f"<!-- generated: {experiment} -->", f"<!-- end: {experiment} -->"
    try:
        old = page.read_text(encoding="utf-8") if page.exists() else "# The paper's experiments\n"
    except (OSError, UnicodeDecodeError) as error:
        raise CustardError(f"cannot read {page}: {one_line(error)}") from None
    marked = f"{begin}\n{text}{end}"
    if begin in old and end in old:
        new = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: marked, old, flags=re.S)
    else:
        new = f"{old.rstrip()}\n\n## {TITLES[experiment]}\n\n{marked}\n"
    write_atomically(page, new)


def relative_link(path: Path, page: Path) -> str:
    """Return a path relative to the page, as its links need it."""
    return Path(os.path.relpath(path, page.parent)).as_posix()


def _trials_text(rows: Rows) -> str:
    """Say how many trials there are, how many failed, and which versions made them."""
    wrong = sum(row["error"] != "" for row in rows)
    versions = ", ".join(sorted({row["version"] for row in rows}))
    codes = len({row["code"] for row in rows})
    return (
        f"{len(rows)} trials" + (f", {wrong} failed" if wrong else "") + f", version {versions}"
        f" ({codes} {'state' if codes == 1 else 'states'} of the code, see the column `code`)"
    )  # fmt: skip


def _summary_where(rows: Rows, **entries: Any) -> dict[str, Any] | None:
    """Return the summary of the rows with these entries, or None if there are none."""
    matching = [row for row in rows if all(row[name] == value for name, value in entries.items())]
    return summary(matching, group=())[0] if matching else None


def _table1(rows: Rows) -> str:
    m = WORLDS["PrereqWorld"].kwargs["m"]
    header = ["", "CartPole reward", "paper"]
    for world in ("PrereqWorld", "PotholeWorld"):
        header += [f"{world} reward", "paper", "depth", "paper"]
    body, counts = [], []
    for name, title in METHOD_TITLES.items():
        line = [title]
        for world, (env, _, _) in WORLDS.items():
            entry = _summary_where(rows, env=env, method=name)
            reward, depth = PAPER_TABLE1.get(name, {}).get(world, (None, None))
            line += [mean_and_std(entry) if entry else "–", str(reward or "–")]
            if world != "CartPole":
                line += [mean_and_std(entry, "depth") if entry else "–", str(depth or "–")]
            if entry:
                counts.append([title, world, *_counts(entry)])
        if name in PAPER_TABLE1 or any(row["method"] == name for row in rows):
            body.append(line)
    value, min_depth, leaves = smallest_trees((m,))[m]
    limits, max_leaves = pothole_limits()
    sufficient_limit = min(limit for limit, best in limits.items() if best > limits[max(limits)] - 1e-6)
    body.append(
        ["proved best", "200.00", "", f"{value:.2f}", "", f"{min_depth} ({leaves} leaves)", "",
         f"{max(limits.values()):.2f}", "", f"{sufficient_limit} ({max_leaves} leaves)", ""]
    )  # fmt: skip
    head = ["", "environment", "trials", "failed", "optimum reached", "trivial trees", "traversal limit hit",
            "reward, worst … best", "last policy's own tree", "depth as extracted", "leaves",
            "processor seconds"]  # fmt: skip
    return markdown(header, body) + "\n\n" + markdown(head, counts)


def _counts(entry: Mapping[str, Any]) -> list[str]:
    first = [str(entry["trials"]), str(entry["failures"])]
    if entry["return"] is None:
        return first + ["–"] * 8
    own_return = entry["final_return"]
    return [
        *first, str(entry["optimal"]), str(entry["trivial"]), str(entry["cut"]),
        f"{entry['return_min']:.2f} … {entry['return_max']:.2f}", "–" if own_return is None else f"{own_return:.2f}",
        f"{entry['raw_depth']:.2f}", f"{entry['leaves']:.1f}", f"{entry['cpu_seconds']:.1f}",
    ]  # fmt: skip


def _size(rows: Rows) -> str:
    best = smallest_trees()
    header = ["m", "method", "trials", "reward", "proved best", "depth", "least", "nodes", "fewest",
              "smallest tree found"]  # fmt: skip
    body = []
    for m in PREREQ_SIZES:
        value, depth, leaves = best[m]
        for name in METHODS["size"]:
            args = json.dumps({"m": m})
            entry = _summary_where(rows, env_args=args, method=name)
            if entry is None:
                continue
            good = [row for row in rows if row["env_args"] == args and row["method"] == name and row["error"] == ""]
            reached = sum(row["optimal"] == 1 and row["leaves"] == leaves and row["depth"] == depth for row in good)
            body.append([
                str(m), METHOD_TITLES[name], str(entry["trials"]), mean_and_std(entry), f"{value:.0f}",
                mean_and_std(entry, "depth"), str(depth), mean_and_std(entry, "nodes"), str(2 * leaves - 1),
                f"{reached} of {entry['trials']}",
            ])  # fmt: skip
    return markdown(header, body)


def _depth(rows: Rows) -> str:
    limits, _ = pothole_limits()
    header = ["depth ≤", "method", "trials", "reward", "worst … best", "proved limit", "within 0.2", "leaves",
              "trivial trees"]  # fmt: skip
    body = []
    for limit in DEPTH_LIMITS:
        for name in METHODS["depth"]:
            limit_rows = [row for row in rows if row["max_depth"] == str(limit) and row["method"] == name]
            entry = summary(limit_rows, group=())[0] if limit_rows else None
            if entry is None:
                continue
            near = sum(row["error"] == "" and row["gap"] != "" and row["gap"] <= 0.2 for row in limit_rows)
            shown = entry["return"] is not None
            body.append([
                str(limit), METHOD_TITLES[name], str(entry["trials"]), mean_and_std(entry),
                f"{entry['return_min']:.2f} … {entry['return_max']:.2f}" if shown else "–", f"{limits[limit]:.2f}",
                f"{near} of {entry['trials']}", f"{entry['leaves']:.1f}" if shown else "–",
                str(entry["trivial"]) if shown else "–",
            ])  # fmt: skip
    return markdown(header, body)
