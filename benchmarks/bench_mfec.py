"""How fast MFEC learns: learning steps per second as tables fill, nearest neighbours by three means, peak memory.

    python benchmarks/bench_mfec.py

A learning step is a visit to a node, in which all of the node's actions are learned, or a base action. Times are the
processor's, so that other programs do not count. Ratios are against the first row of each table.
"""

from __future__ import annotations

import resource
import time

import numpy as np
from scipy.spatial import cKDTree

from custard.core.spaces import describe
from custard.solvers.common.key_table import insert, make_keys, nearest
from custard.solvers.mfec.mfec import CYCLE_KINDS, Learner, Settings, set_schedule
from custard.task.problem import Problem
from custard.task.source import source


def learning(env: str, kwargs: dict | None = None, max_depth: int | None = None, window: int = 1_000_000) -> None:
    where = source(env, kwargs)
    learner = Learner(Problem(where, describe(where.make_vec(1)), 0, max_depth), Settings(budget=10**9))
    tables = learner.tables
    middle_of_cycle = 0.5  # all through
    set_schedule(tables, learner.settings, middle_of_cycle, 1, CYCLE_KINDS[0], learner.rules.gamma_b)
    learner.run(1000)  # compile
    assert tables.schedule[0].learns_tree
    print(f"{env} {kwargs or ''}")
    first, total = 0.0, 0
    for goal in (10**5, 10**6, 10**7):
        while total < goal - min(window, goal // 2):
            total += _burst(learner)[0]
        done, seconds = 0, 0.0
        while done < min(window, goal // 2):
            steps, took = _burst(learner)
            done, seconds = done + steps, seconds + took
        total += done
        speed = done / seconds
        first = first or speed
        print(
            f"  at {goal:>10,} learning steps: {speed / 1e6:5.2f} M/s ({speed / first:4.2f} of the first row), "
            f"{int(tables.bounds.keys.size[0]):,} nodes, {int(tables.state_keys.size[0]):,} base states"
        )


def _burst(learner: Learner) -> tuple[int, float]:
    counters = learner.tables.counters[0]
    before, started = counters.node_visits + counters.base_actions, time.process_time()
    learner.run(5000)
    return int(counters.node_visits + counters.base_actions - before), time.process_time() - started


def neighbours(size: int = 20_000, width: int = 4, queries: int = 2000, k: int = 5) -> None:
    rng = np.random.default_rng(0)
    keys, asked = rng.random((size, width)), rng.random((queries, width))
    table = make_keys(size, width, neighbours=True)
    for key in keys:
        insert(table, key)
    rows, distances = np.empty(k, dtype=np.int64), np.empty(k)
    nearest(table, asked[0], rows, distances)

    def own() -> None:
        for query in asked:
            nearest(table, query, rows, distances)

    tree = cKDTree(keys)

    def scipy() -> None:
        for query in asked:
            tree.query(query, k)

    def brute() -> None:
        for query in asked:
            np.argpartition(((keys - query) ** 2).sum(axis=1), k)[:k]

    print(f"{k} nearest of {size:,} keys of {width} numbers, one query at a time")
    first = 0.0
    for name, function in (("grown k-d tree, compiled", own), ("scipy cKDTree", scipy), ("NumPy, all keys", brute)):
        started = time.process_time()
        function()
        each = (time.process_time() - started) / queries * 1e6
        first = first or each
        print(f"  {name:<26} {each:8.1f} µs ({each / first:5.1f} times the first row)")
    started = time.process_time()
    cKDTree(keys)
    print(f"  (building cKDTree anew after one insertion: {(time.process_time() - started) * 1e6:.0f} µs)")


if __name__ == "__main__":
    learning("custard/PrereqWorld-v0", {"m": 7})
    learning("custard/PotholeWorld-v0")
    learning("CartPole-v1", max_depth=2)
    neighbours()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
