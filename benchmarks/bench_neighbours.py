"""Compare nearest-neighbour searches on the keys that MFEC's Q_o meets on CartPole: writes results/neighbours.csv.

    python benchmarks/bench_neighbours.py [number of keys ...]

Keys are stored one after the other in the order they were met; then further ones are stored and looked up in turn, one
at a time, as learning does. `recall` is the share of the 9 true nearest keys that are found. Needs hnswlib, faiss-cpu
and pynndescent, which custard itself does not.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from custard.core.spaces import describe
from custard.solvers.common.action_memory import KEY_DISTANCE_BETWEEN_ACTIONS
from custard.solvers.common.key_table import insert, make_keys, nearest, restore_keys
from custard.solvers.mfec import mfec, paper
from custard.task.problem import Problem
from custard.task.settings import settings_for
from custard.task.source import source

OUT = Path(__file__).parents[1] / "results" / "neighbours.csv"
K, TURNS = 9, 500


def met_keys(count: int) -> np.ndarray:
    """Return the first keys [count, w] that Q_o stores while MFEC learns CartPole at depth 2."""
    env = "custard/CartPole-v0"
    where = source(env)
    problem = Problem(where, describe(where.make_vec(1)), 0, 2)
    settings = settings_for(mfec, env, "paper", {"capacity": count // 10, "budget": 2 * count, "evaluations": 20})
    kept: list[np.ndarray] = []
    for snapshot in paper.solve(problem, settings):
        state = snapshot.state()  # type: ignore[misc]
        kept = [state["q_o.keys"]]
        if len(kept[0]) >= count:
            break
    return np.ascontiguousarray(kept[0][:count])


@njit(cache=True)
def store_and_look_up(keys, more, queries, rows, distances):
    """Store and look up keys in turn in the compiled k-d tree."""
    for i in range(len(more)):
        insert(keys, more[i])
        nearest(keys, queries[i], rows[i], distances[i])


def kd_tree(stored: np.ndarray, more: np.ndarray, queries: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return seconds to store, seconds of the turns, and the rows found."""
    keys = make_keys(len(stored) + len(more), stored.shape[1], neighbours=True)
    rows, distances = np.zeros((len(queries), K), np.int64), np.zeros((len(queries), K))
    store_and_look_up(make_keys(9, stored.shape[1], neighbours=True), stored[:9], queries[:9], rows[:9], distances[:9])
    start = time.perf_counter()
    restore_keys(keys, stored)
    middle = time.perf_counter()
    store_and_look_up(keys, more, queries, rows, distances)
    return middle - start, time.perf_counter() - middle, rows


def hnsw(stored: np.ndarray, more: np.ndarray, queries: np.ndarray) -> tuple[float, float, np.ndarray]:
    """The same by hnswlib."""
    import hnswlib

    index: Any = hnswlib.Index(space="l2", dim=stored.shape[1])
    index.init_index(max_elements=len(stored) + len(more), M=12, ef_construction=60)
    index.set_num_threads(1)
    start = time.perf_counter()
    index.add_items(stored)
    middle = time.perf_counter()
    rows = np.zeros((len(queries), K), np.int64)
    for i in range(len(more)):
        index.add_items(more[i : i + 1], [len(stored) + i])
        rows[i] = index.knn_query(queries[i : i + 1], K)[0][0]
    return middle - start, time.perf_counter() - middle, rows


def faiss_index(
    kind: str, stored: np.ndarray, more: np.ndarray, queries: np.ndarray
) -> tuple[float, float, np.ndarray]:
    """The same by Faiss: brute force ("flat") or its HNSW."""
    import faiss

    faiss.omp_set_num_threads(1)
    index: Any = faiss.IndexFlatL2(stored.shape[1]) if kind == "flat" else faiss.IndexHNSWFlat(stored.shape[1], 12)
    start = time.perf_counter()
    index.add(stored.astype(np.float32))
    middle = time.perf_counter()
    rows = np.zeros((len(queries), K), np.int64)
    for i in range(len(more)):
        index.add(more[i : i + 1].astype(np.float32))
        rows[i] = index.search(queries[i : i + 1].astype(np.float32), K)[1][0]
    return middle - start, time.perf_counter() - middle, rows


def descent(stored: np.ndarray, more: np.ndarray, queries: np.ndarray) -> tuple[float, float, np.ndarray]:
    """The same by pynndescent, which cannot store one key at a time without building anew: look-ups only."""
    from pynndescent import NNDescent

    start = time.perf_counter()
    index: Any = NNDescent(stored.astype(np.float32), n_neighbors=15, n_jobs=1, random_state=0)
    index.prepare()
    index.query(queries[:1].astype(np.float32), k=K)
    middle = time.perf_counter()
    rows = np.array([index.query(query[None].astype(np.float32), k=K)[0][0] for query in queries])
    return middle - start, time.perf_counter() - middle, rows


SEARCHES = {
    "compiled k-d tree": kd_tree, "hnswlib": hnsw, "faiss flat": lambda *a: faiss_index("flat", *a),
    "faiss HNSW": lambda *a: faiss_index("hnsw", *a), "pynndescent": descent,
}  # fmt: skip


def main() -> None:
    """Measure every search at every size."""
    sizes = [int(word) for word in sys.argv[1:]] or [100_000, 1_000_000]
    keys = met_keys(max(sizes) + TURNS)
    keys[:, 0] /= KEY_DISTANCE_BETWEEN_ACTIONS / 10.0  # single precision must still tell neighbours of one action apart
    rows = []
    for size in sizes:
        stored, more = keys[:size], keys[size : size + TURNS]
        queries = more + np.random.default_rng(0).normal(0.0, 0.01, more.shape) * (np.arange(more.shape[1]) > 0)
        everything = keys[: size + TURNS]
        true = []
        for i, query in enumerate(queries):
            distance = ((everything[: size + i + 1] - query) ** 2).sum(axis=1)
            true.append(set(np.argpartition(distance, K)[:K].tolist()))
        for name, search in SEARCHES.items():
            storing, turns, found = search(stored, more, queries)
            recall = float(np.mean([len(true[i] & set(found[i].tolist())) / K for i in range(len(queries))]))
            rows.append({
                "search": name, "keys": size, "store_microseconds": round(1e6 * storing / size, 3),
                "turn_microseconds": round(1e6 * turns / TURNS, 2), "recall": round(recall, 4),
            })  # fmt: skip
            print(rows[-1], flush=True)
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
