"""`plan` beside the peer's method on the thirteen models, depth 3: value, bound and CPU seconds, in one run.

python benchmarks/run_plan_peer.py --seconds 20 --out results/plan_peer.csv
python benchmarks/run_plan_peer.py --models xor traffic              some of it, printed only; with --out these rows
                                                                       replace those of the CSV
python benchmarks/run_plan_peer.py --page results/plan_peer.csv      the table of results/plan.md and what it shows

The peer is search over state-action constraints (Lipa, 2026), twice: `peer_…` is `state_action_search`, measured here
in turns with `plan` (it needs pystreed); `published_…` are figures of an earlier measurement of the published method,
20 CPU seconds. Both count as proved within 1e-4. Values and bounds are normalised: 0 is a random policy's return, 1 the
best policy's. What takes less than a second is timed three times and the fastest counts, on both sides.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from pathlib import Path

import omdt_models
import state_action_search
from bench_plan_suite import compile_first
from timing import fastest

from custard.planning.optimal_tree import best_tree

DEPTH = 3
TOLERANCE = 1e-4  # the gap, normalised, at which the peer counts as proved
PROVED = "proved"
MAX_SLOWDOWN = 1.5  # of the rewritten method over the published figures, for it to stand for the peer

#: Value, bound and CPU seconds of the published method. Proved: the value is the best there is.
PUBLISHED = {
    "xor": (PROVED, PROVED, 0.05), "blackjack": (PROVED, PROVED, 0.34), "3d_navigation": (PROVED, PROVED, 0.04),
    "frozenlake_4x4": (PROVED, PROVED, 0.12), "frozenlake_8x8": (PROVED, PROVED, 7.4),
    "frozenlake_12x12": (0.687, 0.792, 20.0), "inventory": (PROVED, PROVED, 0.44), "traffic": (PROVED, PROVED, 7.5),
    "sysadmin_1": (0.908, 0.986, 20.0), "sysadmin_2": (0.644, 0.892, 20.0), "sysadmin_tree": (0.685, 0.944, 20.0),
    "tiger_vs_antelope": (0.567, 1.0, 20.0), "tictactoe_vs_random": (0.844, 1.0, 20.0),
}  # fmt: skip

COLUMNS = ("model", "max_depth", "seconds_limit", "value", "bound", "proved", "cpu_seconds", "peer_value", "peer_bound",
           "peer_proved", "peer_cpu_seconds", "peer_nodes", "published_value", "published_bound",
           "published_cpu_seconds")  # fmt: skip


def measured(name: str, seconds: float, seed: int) -> dict[str, object]:
    """Return one row."""
    mdp = omdt_models.MODELS[name]()
    low = omdt_models.random_return(mdp)
    ours, our_seconds = fastest(lambda: best_tree(mdp, DEPTH, seed=seed, seconds=seconds, fewest_leaves=False))
    scale = ours.optimum - low
    gap = TOLERANCE * scale
    peer, peer_seconds = fastest(lambda: state_action_search.search(mdp, DEPTH, seconds, gap))
    assert peer.value <= ours.bound + gap, "one of the two is wrong: the peer's tree is above our bound"
    assert ours.value <= peer.bound + gap, "one of the two is wrong: our tree is above the peer's bound"
    numbers = [round((number - low) / scale, 6) for number in (ours.value, ours.bound, peer.value, peer.bound)]
    return dict(zip(COLUMNS, (
        name, DEPTH, seconds, *numbers[:2], int(ours.optimal), round(our_seconds, 3), *numbers[2:],
        int(peer.bound - peer.value <= gap), round(peer_seconds, 3), peer.explored, *PUBLISHED[name],
    ), strict=True))  # fmt: skip


def line(row: dict[str, str]) -> str:
    """Return a row of the page's table."""
    ours = f"{_standing(row['value'], row['bound'], row['proved'])} | {float(row['cpu_seconds']):.2f}"
    peer = (
        f"{_standing(row['peer_value'], row['peer_bound'], row['peer_proved'])} | {float(row['peer_cpu_seconds']):.2f}"
    )
    told = PROVED if row["published_value"] == PROVED else f"{row['published_value']} / {row['published_bound']}"
    return f"| {row['model']} | {ours} | {peer} | {told} | {float(row['published_cpu_seconds']):g} |"


def _standing(value: str, bound: str, proved: str) -> str:
    return f"{float(value):.4f} / " + (PROVED if int(proved) else f"{float(bound):.4f}")


def page(rows: list[dict[str, str]]) -> str:
    """Return the table and, in words, what it shows."""
    lines = ["| model | plan: value / bound | CPU s | peer, rewritten | CPU s | peer, published | CPU s |"]
    lines += ["|---" * 7 + "|", *(line(row) for row in rows), ""]
    published = [row for row in rows if row["published_value"] == PROVED]
    slowdown = [float(row["peer_cpu_seconds"]) / float(row["published_cpu_seconds"]) for row in published]
    kept = sum(bool(int(row["peer_proved"])) and ratio <= MAX_SLOWDOWN for row, ratio in zip(published, slowdown))
    lines.append(
        f"- The rewritten peer repeats {kept} of {len(published)} published proofs within {MAX_SLOWDOWN} times their "
        f"CPU time; the largest ratio is {max(slowdown):.2f}."
    )
    theirs = [row for row in rows if int(row["peer_proved"]) or row["published_value"] == PROVED]
    ours = [row for row in theirs if int(row["proved"])]
    lines.append(
        f"- `plan` proves {sum(int(row['proved']) for row in rows)} of {len(rows)} models; of the {len(theirs)} that "
        f"the peer proves it proves {len(ours)}."
    )
    both = [row for row in ours if int(row["peer_proved"])]
    medians = [statistics.median(float(row[name]) for row in both) for name in ("cpu_seconds", "peer_cpu_seconds")]
    ratio = statistics.median(float(row["cpu_seconds"]) / float(row["peer_cpu_seconds"]) for row in both)
    lines.append(
        f"- Median CPU time of these proofs: {medians[0]:.2f} s against the rewritten peer's {medians[1]:.2f} s; "
        f"median ratio {ratio:.2f}."
    )
    worse = [row["model"] for row in rows if float(row["value"]) < _best_known(row) - TOLERANCE]
    lines.append(f"- Values below the better of both peers: {', '.join(worse) or 'none'}.")
    return "\n".join(lines)


def _best_known(row: dict[str, str]) -> float:
    told = row["published_value"]
    return max(float(row["peer_value"]), 0.0 if told == PROVED else float(told))


def main() -> None:
    """Measure, print a line per row, and write the CSV row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(omdt_models.MODELS), choices=list(omdt_models.MODELS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0, help="of plan's climbing; the peer has no randomness")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    rows: dict[str, dict] = {}
    path = given.page or given.out
    if path is not None and path.exists():
        with path.open(newline="") as file:
            rows = {row["model"]: row for row in csv.DictReader(file)}
    if given.page is not None:
        print(page(list(rows.values())))
        return
    state_action_search.require_streed()
    time.monotonic = time.process_time  # the limit counts CPU time
    compile_first()
    for name in given.models:
        rows[name] = measured(name, given.seconds, given.seed)
        print(line({key: str(value) for key, value in rows[name].items()}), flush=True)
        if given.out is not None:
            with given.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows[key] for key in omdt_models.MODELS if key in rows)


if __name__ == "__main__":
    main()
