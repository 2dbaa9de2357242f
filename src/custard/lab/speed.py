"""Measure how fast a tree decides on this machine, and how fast its environment steps with it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError, one_line
from custard.task.evaluate import evaluate
from custard.task.runners import run_episodes
from custard.task.source import episode_seeds, source
from custard.tree.export.c import to_c
from custard.tree.tree import Tree

__all__ = ["Speed", "c_nanoseconds", "measure"]

BATCH_ROWS = 100_000  # states in a batch
TIMING_REPEATS = 5  # of each measurement; the fastest counts, since other programs slow the rest

TIMING_LOOP_C = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
    long rows = argc == 4 ? atol(argv[2]) : 0, repeats = argc == 4 ? atol(argv[3]) : 0;
    double *x = malloc(sizeof(double) * N * (size_t)rows);
    FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    if (!x || !file || fread(x, sizeof(double) * N, (size_t)rows, file) != (size_t)rows) return 1;
    double best = 1e9;
    volatile double sum = 0;
    for (long r = 0; r < repeats; r++) {
        struct timespec a, b;
        double all = 0;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (long i = 0; i < rows; i++) DECIDE(x + N * i);
        clock_gettime(CLOCK_MONOTONIC, &b);
        double ns = (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
        if (ns / (double)rows < best) best = ns / (double)rows;
        sum = all;
    }
    printf("%.3f %.17g\n", best, sum);
    return 0;
}
"""


@dataclass(frozen=True)
class Speed:
    """Nanoseconds per decision, and environment steps per second."""

    act: float  # one observation, `tree.act`
    predict: float  # a row of a large batch, `tree.predict`
    c: float | None  # the exported C, compiled here; None where there is no compiler
    c_table: float | None  # the same with layout="table"
    steps: float  # environment steps per second, the tree deciding


def measure(tree: Tree, env: Any, env_kwargs: Mapping[str, Any] | None = None, seed: int = 1) -> Speed:
    """Measure on states of the tree's own episodes, so that branches are taken as in use."""
    env_source = source(env, env_kwargs)
    runs = run_episodes(tree, env_source, episode_seeds(seed, 8), record_states=True)
    assert runs.states is not None
    x = np.resize(np.concatenate(runs.states), (BATCH_ROWS, tree.features.n_raw))
    single_rows = list(x[:1000])
    act = _best_seconds(lambda: [tree.act(row) for row in single_rows]) / len(single_rows)
    lengths = evaluate(tree, env_source, 16, seed).lengths
    episodes = int(np.clip(200_000 / lengths.mean(), 16, 1000)) if env_source.make_compiled is not None else 16
    steps = int(evaluate(tree, env_source, episodes, seed).lengths.sum())
    steps_per_second = steps / _best_seconds(lambda: evaluate(tree, env_source, episodes, seed))
    return Speed(
        1e9 * act, 1e9 * _best_seconds(lambda: tree.predict(x)) / BATCH_ROWS, c_nanoseconds(tree, x),
        c_nanoseconds(tree, x, layout="table"), steps_per_second,
    )  # fmt: skip


def _best_seconds(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few calls, after one to warm up."""
    call()
    taken = []
    for _ in range(TIMING_REPEATS):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def c_nanoseconds(tree: Tree, x: np.ndarray, repeats: int = 30, layout: str = "auto") -> float | None:
    """Return nanoseconds per decision of the exported C on rows of states; None where there is no C compiler.

    The sum of its decisions is compared with the tree's own. Rows of a tree with a history hold its past steps too.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    decide = "all += custard_act(X)"
    if not tree.actions.discrete:
        kind = "double" if tree.actions.kind == "box" else "long long"
        decide = f"do {{ {kind} a[{tree.actions.size}]; custard_act(X, a); all += (double)a[0]; }} while (0)"
    head = f"#define _POSIX_C_SOURCE 199309L\n#define N {tree.features.n_raw}\n#define DECIDE(X) {decide}\n"
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "speed.c").write_text(head + to_c(tree.with_origin(history=None), layout) + TIMING_LOOP_C)
        flags = ["-O2", "-std=c99", "-Wall", "-Wextra", "-Werror"]
        built = subprocess.run(
            [compiler, *flags, "-o", directory / "speed", directory / "speed.c", "-lm"], capture_output=True, text=True
        )
        if built.returncode:
            raise CustardError(f"the C compiler {compiler} failed: {one_line(built.stderr)[:200]}")
        np.ascontiguousarray(x, dtype=np.float64).tofile(directory / "x.bin")
        command = [str(directory / "speed"), str(directory / "x.bin"), str(len(x)), str(repeats)]
        nanoseconds, total = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    ours = tree.predict(x) if tree.actions.discrete else tree.predict(x)[:, 0]
    assert np.isclose(float(total), float(ours.sum()), rtol=1e-9), "the C file decided otherwise"
    return float(nanoseconds)
