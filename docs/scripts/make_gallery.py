"""Learn the trees of the gallery and write their pages: one tree, picture, return and command per environment.

python docs/scripts/make_gallery.py                 learn what docs/gallery/gallery.csv lacks, then write all pages
python docs/scripts/make_gallery.py cartpole taxi   learn these again
python docs/scripts/make_gallery.py --pages         learn nothing, only write the pages from what is stored

Each run is small: the budgets below are chosen so that all of them together take about an hour on two cores.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
TABLE = GALLERY / "gallery.csv"
RANDOM_EPISODES = 200
COLUMNS = (
    "name", "env", "method", "seed", "leaves", "coefficients", "depth", "return", "ci_low", "ci_high", "episodes",
    "random", "steps", "seconds", "version", "command",
)  # fmt: skip


@dataclass(frozen=True)
class Exhibit:
    """One page of the gallery."""

    name: str
    title: str
    about: str  # what the environment asks for, and what to see in the tree
    words: str  # of the command, without `custard train` and --out


EXHIBITS = (
    Exhibit(
        "cartpole",
        "CartPole",
        "Keep a pole upright on a cart for 500 steps by pushing left or right.",
        "CartPole-v1 --max-depth 2 --seed 0",
    ),
    Exhibit(
        "mountain-car",
        "MountainCar",
        "Rock a weak car out of a valley. The return is minus the number of steps until the flag.",
        "MountainCar-v0 --max-leaves 5 --seed 0",
    ),
    Exhibit(
        "acrobot",
        "Acrobot",
        "Swing a two-link arm above a line. The return is minus the number of steps until it gets there.",
        "Acrobot-v1 --max-leaves 6 --seed 0",
    ),
    Exhibit(
        "pendulum",
        "Pendulum",
        "Swing a pendulum up and hold it there with a real-valued torque: leaves may be linear in the features, and "
        "are clipped to the torque's range.",
        "Pendulum-v1 --budget 50000000 --seed 0",
    ),
    Exhibit(
        "mountain-car-continuous",
        "MountainCarContinuous",
        "The same valley with a real-valued force that costs fuel. Doing nothing returns 0, which beats random "
        "actions, and most learners stop there. Gymnasium calls 90 solved.",
        "MountainCarContinuous-v0 --leaves constant --max-leaves 4 --budget 5000000 --episodes 500 --seed 0",
    ),
    Exhibit(
        "frozen-lake",
        "FrozenLake 4×4",
        "Cross a slippery lake without falling into a hole. The tree is proved to be the best of its depth.",
        "FrozenLake-v1 --method plan --max-depth 3 --set seconds=30 --seed 0",
    ),
    Exhibit(
        "frozen-lake-8x8",
        "FrozenLake 8×8",
        "The same on a larger lake, learned from episodes.",
        "FrozenLake8x8-v1 --budget 200000 --seed 0",
    ),
    Exhibit(
        "cliff-walking",
        "CliffWalking",
        "Walk along a cliff to the goal. Every step costs 1, falling costs 100. 13 steps are the fewest.",
        "CliffWalking-v1 --method plan --max-depth 3 --env-args max_episode_steps=200 --set seconds=30 --seed 0",
    ),
    Exhibit(
        "blackjack",
        "Blackjack",
        "Ask for another card or stop. The tree finds the player's well-known thresholds by itself.",
        "Blackjack-v1 --max-depth 3 --budget 200000 --seed 0",
    ),
    Exhibit(
        "taxi",
        "Taxi",
        "Fetch a passenger and drop them off elsewhere. Position, place and destination are features of their own.",
        "Taxi-v4 --budget 300000 --seed 0",
    ),
    Exhibit(
        "lunar-lander",
        "LunarLander",
        "Land softly between two flags with three engines. Gymnasium calls 200 solved. Each test compares a weighted "
        "sum of features with a number.",
        "LunarLander-v3 --tests linear --budget 20000000 --episodes 500 --seed 0",
    ),
    Exhibit(
        "lunar-lander-plain",
        "LunarLander with plain tests",
        "The same with tests of one feature each: more leaves, and less return.",
        "LunarLander-v3 --tests axis --max-leaves 32 --budget 20000000 --episodes 500 --seed 0",
    ),
    Exhibit(
        "paper-cartpole",
        "The paper's CartPole",
        "CartPole with the paper's limit of 200 steps, learned by the paper's own method (MFEC).",
        "custard/CartPole-v0 --method mfec --max-depth 2 --seed 0",
    ),
    Exhibit(
        "prereq-world",
        "PrereqWorld",
        "Make an item that needs other items first. The paper's environment; the tree has the fewest leaves possible.",
        "custard/PrereqWorld-v0 --env-args m=7 --seed 0",
    ),
    Exhibit(
        "pothole-world",
        "PotholeWorld",
        "Drive along a road and change lanes before potholes. The paper's environment; 50 is the most possible.",
        "custard/PotholeWorld-v0 --budget 20000000 --seed 0",
    ),
)


def learn(exhibit: Exhibit) -> dict[str, object] | None:
    """Run the exhibit's command, store its tree, and return its row; None if the run failed."""
    from custard import evaluate, load
    from custard.core.version import VERSION
    from custard.task.source import source

    out = ROOT / "runs" / "gallery" / exhibit.name
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "custard", "train", *exhibit.words.split(), "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        print(f"{exhibit.name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    result, tree = json.loads(done.stdout), load(out)
    tree.save(GALLERY / f"{exhibit.name}.json")
    judged = result["evaluation"]
    random = evaluate(_random_policy(tree, source(tree.origin["env"], tree.origin["env_kwargs"])), tree.origin["env"],
                      RANDOM_EPISODES, seed=1, env_kwargs=tree.origin["env_kwargs"])  # fmt: skip
    low, high = judged["ci95"] or (judged["mean"], judged["mean"])
    return {
        "name": exhibit.name, "env": tree.origin["env"], "method": tree.origin["method"], "seed": tree.origin["seed"],
        "leaves": tree.n_leaves, "coefficients": tree.n_coefficients, "depth": tree.depth, "return": judged["mean"],
        "ci_low": low, "ci_high": high, "episodes": judged["episodes"], "random": random.mean, "steps": result["steps"],
        "seconds": round(result["seconds"], 1), "version": VERSION, "command": f"custard train {exhibit.words}",
    }  # fmt: skip


def _random_policy(tree: object, where: object) -> object:
    """Return a policy that draws actions evenly from the action space."""
    import numpy as np

    actions = tree.actions  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)

    def act(x: np.ndarray) -> np.ndarray:
        if actions.discrete:
            return rng.integers(actions.start, actions.start + actions.n, size=len(x))
        drawn = rng.uniform(actions.low, actions.high, size=(len(x), actions.size))
        return drawn if actions.kind == "box" else np.floor(drawn + 0.5)

    return act


def read_rows() -> dict[str, dict[str, str]]:
    """Return the stored rows by name."""
    if not TABLE.exists():
        return {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def write_rows(rows: dict[str, dict]) -> None:
    """Store the rows in the order of the exhibits."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[exhibit.name] for exhibit in EXHIBITS if exhibit.name in rows)


def write_pages(rows: dict[str, dict[str, str]]) -> None:
    """Write a picture and a page for each stored tree, and the gallery's first page."""
    from custard import load
    from custard.tree.svg import MAX_LEAVES_DRAWN, to_svg

    for old in GALLERY.glob("*.md"):
        old.unlink()
    entries = []
    for exhibit in (exhibit for exhibit in EXHIBITS if exhibit.name in rows):
        row, tree = rows[exhibit.name], load(GALLERY / f"{exhibit.name}.json")
        if tree.n_leaves <= MAX_LEAVES_DRAWN:
            (GALLERY / f"{exhibit.name}.svg").write_text(to_svg(tree) + "\n", encoding="utf-8")
            shown = f"![The tree for {exhibit.title}]({exhibit.name}.svg)"
        else:
            shown = f"```text\n{tree}\n```"
        (GALLERY / f"{exhibit.name}.md").write_text(page(exhibit, row, shown), encoding="utf-8")
        leaves = leaves_text(row)
        value, random = (f"{float(row[key]):,.2f}" for key in ("return", "random"))
        entries.append(f"| [{exhibit.title}]({exhibit.name}.md) | `{row['method']}` | {leaves} | {value} | {random} |")
    head = """# Gallery

One tree per environment, each learned by the command on its page: a single run with seed 0, so another seed may give a
better or a worse tree. Returns are means over fresh episodes that were not used for learning or choosing. Beside each
stands the mean return of random actions on 200 episodes. The version that learned a tree is in its file, under
`origin`; a later one may learn another tree by the same command.

All pages are made by `python docs/scripts/make_gallery.py`; the numbers are in `docs/gallery/gallery.csv`.

| environment | method | tree | return | random actions |
|---|---|---|---|---|
"""
    (GALLERY / "index.md").write_text(head + "\n".join(entries) + "\n", encoding="utf-8")


def leaves_text(row: dict[str, str]) -> str:
    """Return a row's number of leaves, and of coefficients if there are any, in words."""
    leaves = f"{row['leaves']} {'leaf' if str(row['leaves']) == '1' else 'leaves'}"
    return leaves + (f", {row['coefficients']} coefficients" if str(row.get("coefficients") or 0) != "0" else "")


def page(exhibit: Exhibit, row: dict[str, str], shown: str) -> str:
    """Return an exhibit's page."""
    value, low, high, random = (f"{float(row[key]):,.2f}" for key in ("return", "ci_low", "ci_high", "random"))
    return f"""# {exhibit.title}

{exhibit.about}

{shown}

| | |
|---|---|
| environment | `{row["env"]}` |
| return | {value} (95 % interval {low} to {high}, {int(row["episodes"]):,} fresh episodes) |
| random actions | {random} |
| tree | depth {row["depth"]}, {leaves_text(row)} |
| learned by | `{row["method"]}`, {int(row["steps"]):,} environment steps, {float(row["seconds"]):,.0f} s |

```
{row["command"]} --out runs/{exhibit.name}
```

The command also writes `runs/{exhibit.name}/report.html`: the tree with an episode to replay. The tree itself is
[{exhibit.name}.json]({exhibit.name}.json).
"""


def main(words: list[str]) -> None:
    """Learn what is asked for or missing, then write the pages."""
    GALLERY.mkdir(exist_ok=True)
    rows: dict[str, dict] = dict(read_rows())
    if "--pages" not in words:
        names = {exhibit.name for exhibit in EXHIBITS}
        if unknown := set(words) - names:
            sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(sorted(names))}")
        for exhibit in EXHIBITS:
            if exhibit.name in words or (not words and exhibit.name not in rows):
                row = learn(exhibit)
                if row is not None:
                    rows[exhibit.name] = row
                    write_rows(rows)
                    print(f"{exhibit.name}: {row['return']:.2f}, {row['leaves']} leaves, {row['seconds']} s")
    write_pages(read_rows())


if __name__ == "__main__":
    main(sys.argv[1:])
