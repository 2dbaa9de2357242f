"""Choose the best of several candidates whose returns are noisy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["successive_halving"]


def successive_halving(
    returns_of: Callable[[list[int], int], Sequence[np.ndarray]], count: int, keep: int, rounds: int
) -> list[int]:
    """Return the numbers of the `keep` best of `count` candidates, best first.

    The worse half drops out in each round, until `keep` are left. `returns_of(numbers, k)` runs the episodes of round k
    and gives the returns [episodes] of these candidates. They add up: who is left has run more and more episodes, so
    that a candidate that fails rarely is told from one that never does.

    >>> successive_halving(lambda numbers, k: [np.array([10.0 * i]) for i in numbers], count=5, keep=1, rounds=3)
    [4]
    """
    left, returns = np.arange(count), [np.zeros(0)] * count
    for k in range(rounds):
        for i, found in zip(left.tolist(), returns_of(left.tolist(), k), strict=True):
            returns[i] = np.append(returns[i], found)
        order = np.argsort([-float(returns[i].mean()) for i in left.tolist()], kind="stable")
        left = left[order[: max(keep, len(left) // 2)]]
        if len(left) <= keep:
            break
    return left[:keep].tolist()
