"""The peer's method in `benchmarks`: as good as trying every tree, or the comparison with it means nothing."""

from __future__ import annotations

import pytest

from benchmarks.state_action_search import search
from tests.planning.exhaustive import best_tree_exhaustive
from tests.planning.random_mdp import random_mdp

pytest.importorskip("pystreed", reason="pystreed is not installed", exc_type=ImportError)


@pytest.mark.parametrize("seed", range(12))
def test_it_proves_the_best_tree(seed: int) -> None:
    mdp = random_mdp(3, 3, seed=seed, gamma=0.9, ending=0.1 * (seed % 2))
    for depth in (1, 2):
        _, best = best_tree_exhaustive(mdp, depth)
        found = search(mdp, depth, seconds=20.0, gap=1e-6)
        assert found.value == pytest.approx(best, abs=1e-6)
        assert best - 1e-9 <= found.bound <= best + 2e-6


def test_a_search_without_time_has_a_sound_bound() -> None:
    mdp = random_mdp(4, 3, seed=2, gamma=0.95, ending=0.0)
    found = search(mdp, 2, seconds=0.02, gap=1e-6)
    assert found.bound >= search(mdp, 2, seconds=20.0, gap=1e-6).value - 1e-9
