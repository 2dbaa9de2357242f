"""PotholeWorld: the most mean return that trees of a given mean depth can have, with given spreads of both.

    python benchmarks/pothole_mean_depth.py

The paper's PPO has 45.39 (0.42) at depth 1.04 (0.75). A distribution over depths and over returns up to each depth's
proved limit (results/plan_pothole.csv) with this depth and these spreads is a linear programme for each mean return.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

LIMITS = (45.0, 45.25, 46.44, 47.77, 49.64, 50.0)  # of depths 0 to 5
DEPTH, DEPTH_SPREAD, SPREAD = 1.04, 0.75, 0.42


def possible(mean: float, depth: float) -> bool:
    """Whether some distribution has these means and no larger spreads."""
    pairs = np.array([(d, r) for d, limit in enumerate(LIMITS) for r in np.linspace(42.0, limit, 600)])
    d, r = pairs.T
    spreads = np.array([d**2 - depth**2, r**2 - mean**2])
    means = np.array([np.ones(len(pairs)), d - depth, r - mean])
    found = linprog(np.zeros(len(pairs)), spreads, [DEPTH_SPREAD**2, SPREAD**2], means, [1.0, 0.0, 0.0])
    return found.status == 0


def main() -> None:
    means = np.arange(45.0, 46.0, 0.01)
    best = max(mean for depth in np.linspace(0.5, DEPTH, 10) for mean in means if possible(mean, depth))
    print(f"at a mean depth of at most {DEPTH} ({DEPTH_SPREAD}): at most {best:.2f} ({SPREAD})")


if __name__ == "__main__":
    main()
