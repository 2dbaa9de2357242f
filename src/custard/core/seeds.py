"""Seeds: one number in, independent and reproducible streams out. No global generators anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from custard.core.errors import CustardError

__all__ = ["seeds_for"]


def seeds_for(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return one seed for each of `count` environments: Gymnasium's rule `seed + i` for a single number.

    >>> seeds_for(3, 2)
    [3, 4]
    """
    if seed is None:
        return [None] * count
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(count)]
    seeds = list(seed)
    if len(seeds) != count:
        raise CustardError(f"{len(seeds)} seeds were given for {count} environments")
    return seeds
