"""The report of a tree with sums and linear leaves: sliders move the observation's own features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from custard.report import write_report
from custard.tree.explain import counterfactuals
from custard.tree.tree import Tree
from tests.report.pages import Page, data_of, run_directory
from tests.tree.linear_trees import observations_for, random_linear_tree, random_nonlinear_tree


def page_of(tree: Tree, path: Path) -> Path:
    return write_report(run_directory(path / "run", tree, env="nowhere/Missing-v0"))


def test_the_report_states_the_number_of_coefficients(tmp_path: Path) -> None:
    tree = random_linear_tree(3)
    data = data_of(page_of(tree, tmp_path))
    assert ["Coefficients", str(tree.n_coefficients), ""] in data["facts"]
    assert [row["name"] for row in data["features"] if "sum" in row] == list(tree.features.names[5:])


@pytest.mark.parametrize("tree", [random_linear_tree(3), random_nonlinear_tree(1)])
def test_sliders_find_the_leaf_past_sums(browser: Any, tree: Tree, tmp_path: Path) -> None:
    shown = Page(browser, page_of(tree, tmp_path))
    points = observations_for(tree, 200, 5)
    points = points[np.isfinite(points).all(axis=1) & (np.abs(points) < 1e6).all(axis=1)][:5]
    assert shown.page.locator("input[type=range][data-feature]").count() == tree.features.n_raw
    shown.page.evaluate("folded.clear(); redraw()")  # so that every node of a path is drawn
    for x in points:
        for feature, value in enumerate(x.tolist()):
            shown.set(feature, value)
        assert shown.leaf() == tree.path(x)[-1]
        assert shown.lit() == tree.path(x)
        expected = counterfactuals(tree, x)
        leaves = shown.page.evaluate("counterfactuals(x).map(c => [c.leaf, Math.sqrt(c.sum)])")
        found = dict(leaves)
        for change in expected[:2]:
            if change.leaf in found:
                assert found[change.leaf] == pytest.approx(change.distance, rel=1e-4, abs=1e-8)
        if expected and leaves:
            assert min(found.values()) == pytest.approx(expected[0].distance, rel=1e-4, abs=1e-8)
    if tree.gains is not None:
        x = points[-1]
        said = shown.page.evaluate("told(pathOf(x).pop(), x)")
        action = tree.act(x)
        values = [float(part.split("=")[1].replace("−", "-")) for part in said.split(", ")]
        assert values == pytest.approx(action.tolist(), rel=1e-3)
    shown.close()
