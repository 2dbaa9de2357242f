"""Plot return against tree size, and list the trees that no other tree beats in both."""

from __future__ import annotations

import ast
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from custard.core.errors import CustardError
from custard.lab.summary import rows_with_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_frontier", "pareto_front", "train_command"]

Rows = Sequence[Mapping[str, Any]]
DOT_WIDTH = 0.014  # of the plot's width: a dot, and a little air


def pareto_front(rows: Rows) -> list[Mapping[str, Any]]:
    """Return the rows whose tree returned more than every tree with as many or fewer leaves, smallest first.

    >>> rows = [{"error": "", "leaves": n, "depth": 1, "return": r} for n, r in ((2, 9.0), (3, 8.0), (4, 10.0))]
    >>> [row["leaves"] for row in pareto_front(rows)]
    [2, 4]
    """
    best: list[Mapping[str, Any]] = []
    for row in sorted(rows_with_results(rows), key=lambda row: (row["leaves"], -row["return"], row["depth"])):
        if not best or row["return"] > best[-1]["return"]:
            best.append(row)
    return best


def train_command(row: Mapping[str, Any]) -> str:
    """Return the command that learns a row's tree again, into a directory that no other row's command names.

    >>> train_command({"env": "E-v1", "env_args": "{}", "method": "tpi", "preset": "tuned", "max_depth": "2",
    ...                "settings": '{"zeta": -0.01}', "seed": "3"})
    'custard train E-v1 --method tpi --max-depth 2 --set zeta=-0.01 --seed 3 --out runs/E-v1-tpi-depth-2-zeta--0.01-3'
    """
    words = ["custard", "train", str(row["env"]), "--method", str(row["method"])]
    words += ["--preset", str(row["preset"])] if row["preset"] != "tuned" else []
    words += ["--max-depth", str(row["max_depth"])] if row["max_depth"] != "" else []
    parts = [row["env"], row["method"], row["preset"] if row["preset"] != "tuned" else ""]
    parts += ["depth", row["max_depth"]] if row["max_depth"] != "" else []
    settings = json.loads(row["settings"])
    history = settings.pop("history", None)  # an option, not a setting
    words += ["--history", str(history)] if history else []
    parts += ["history", history] if history else []
    for option, values in (("--env-args", json.loads(row["env_args"])), ("--set", settings)):
        words += [option, *(f"{name}={_argument_text(value)}" for name, value in values.items())] if values else []
        parts += [part for item in values.items() for part in item]
    out = re.sub(r"[^\w.-]+", "-", "-".join(str(part) for part in [*parts, row["seed"]] if part != ""))
    return shlex.join([*words, "--seed", str(row["seed"]), "--out", f"runs/{out}"])


def _argument_text(value: Any) -> str:
    """Return a value as the command line takes it: text in quotes only where it would be read as something else."""
    try:
        return repr(value) if isinstance(value, str) and ast.literal_eval(value) != value else str(value)
    except (ValueError, SyntaxError):
        return str(value)


def draw_frontier(rows: Rows, title: str) -> Figure:
    """Draw every trial as a dot with its 95 % interval, coloured by its depth limit, and join the best trees."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from custard.lab.plotting import plain_axis

    best = pareto_front(rows)
    if not best:
        raise CustardError("there is no finished trial to draw")
    good = rows_with_results(rows)
    drawn = Figure(figsize=(8.2, 4.6), layout="constrained")
    panel = drawn.subplots()
    # Sizes that span decades stand on a logarithmic axis; points go aside by a share of their size there.
    is_log = max(row["leaves"] for row in good) > 8 * min(row["leaves"] for row in good)
    places = _places(good, is_log)
    limits = sorted({str(row["max_depth"]) for row in good}, key=lambda limit: int(limit or 1000))
    shades = mpl.colormaps["viridis"]
    for k, limit in enumerate(limits):
        some = [i for i, row in enumerate(good) if str(row["max_depth"]) == limit]
        label = f"depth ≤ {limit}" if limit else "no depth limit"
        colour = shades(0.9 * k / max(1, len(limits) - 1))
        x, y = [places[i] for i in some], [good[i]["return"] for i in some]
        reach = [[max(0.0, side) for side in sides] for sides in zip(*(_reach(good[i]) for i in some), strict=True)]
        panel.errorbar(x, y, reach, fmt="none", ecolor=colour, elinewidth=1, alpha=0.45, zorder=2)
        panel.plot(x, y, "o", color=colour, alpha=0.85, markersize=5, markeredgewidth=0, label=label, zorder=3)
    panel.plot([row["leaves"] for row in best], [row["return"] for row in best], "-", color="black", linewidth=1.2,
               drawstyle="steps-post", label="best of these", zorder=1)  # fmt: skip
    bounds = [float(row["bound"]) for row in good if row["bound"] != "" and math.isfinite(float(row["bound"]))]
    if bounds:
        panel.axhline(max(bounds), color="black", linestyle=":", linewidth=1, label="no tree returns more")
    panel.set_xlabel("leaves")
    panel.set_ylabel("mean return with its 95 % interval")
    if is_log:
        panel.set_xscale("log")
    plain_axis(panel.xaxis, integral=True, log=is_log)
    plain_axis(panel.yaxis)
    panel.set_title(title, fontsize=10)
    panel.grid(alpha=0.25)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    drawn.legend(frameon=False, fontsize=8, loc="outside right upper")
    return drawn


def _places(rows: Rows, is_log: bool) -> list[float]:
    """Return where each row's point stands across: at its number of leaves, beside others of about the same return."""
    from custard.lab.plotting import side_by_side

    returns = [float(row["return"]) for row in rows]
    height = max(returns) - min(returns)
    places = [math.log(row["leaves"]) if is_log else float(row["leaves"]) for row in rows]
    breadth = max(places) - min(places) or 1.0
    for place in sorted(set(places)):
        same = [i for i, other in enumerate(places) if other == place]
        room = 0.7 / float(rows[same[0]]["leaves"]) if is_log else 0.7  # no nearer to the next whole number
        aside = side_by_side([returns[i] for i in same], height, width=room, step=DOT_WIDTH * breadth)
        for i, off in zip(same, aside.tolist(), strict=True):
            places[i] = math.exp(place + off) if is_log else place + off
    return places


def _reach(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return how far a row's interval goes below and above its mean; nothing where it has none."""
    if row.get("ci_low", "") == "" or row.get("ci_high", "") == "":
        return 0.0, 0.0
    mean = float(row["return"])
    return mean - float(row["ci_low"]), float(row["ci_high"]) - mean
