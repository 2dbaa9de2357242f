"""The certificate of a planned tree: told in a line, refused where it is no longer true or was never valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import custard
from custard.planning.optimal_tree import best_tree
from custard.tree.certificate import certificate_items, certificate_of, certificate_text, is_discounted
from custard.tree.store import fingerprint
from tests.command_line import call
from tests.planning.random_mdp import random_mdp


@pytest.fixture(scope="module")
def tree() -> custard.Tree:
    found = best_tree(random_mdp(3, 2, seed=1, gamma=0.9), max_depth=1).tree
    return found.with_origin(fingerprint=fingerprint(found))


def test_a_planned_tree_tells_value_bound_tolerance_and_how(tree: custard.Tree) -> None:
    certificate = certificate_of(tree)
    assert certificate is not None
    text = str(certificate_text(tree))
    assert f"return {certificate['value']:.9g} (exact); proved: no tree of depth ≤ 1 returns more" in text
    assert certificate["how"] in text
    assert is_discounted(tree)
    assert [term for term, _ in certificate_items(tree)] == ["Value", "Bound", "Gap", "Tolerance", "How", "Best policy"]


def test_what_is_not_proved_says_so(tree: custard.Tree) -> None:
    stored = {**tree.origin["certificate"], "proved": False, "bound": tree.origin["certificate"]["value"] + 0.5}
    loose = tree.with_origin(certificate=stored)
    assert dict(certificate_items(loose))["Gap"] == "0.5: not proved to be the best tree"
    assert f"no tree of depth ≤ 1 returns more than {stored['bound']:.9g}" in str(certificate_text(loose))


def told(tree: custard.Tree, **changed: Any) -> tuple[str, dict[str, str], bool]:
    other = tree.with_origin(certificate={**tree.origin["certificate"], **changed})
    return str(certificate_text(other)), dict(certificate_items(other)), is_discounted(other)


def test_what_kind_of_return_it_is_is_said(tree: custard.Tree) -> None:
    _, items, discounted = told(tree, gamma=0.9, horizon=None, zeta=0.0)
    assert discounted
    assert "the exact expected return, discounted by 0.9 per step; no episode" in items["Value"]
    _, items, discounted = told(tree, gamma=1.0, horizon=None, zeta=0.0)
    assert not discounted
    assert "the exact expected return; no episode" in items["Value"]
    _, items, discounted = told(tree, gamma=0.9, horizon=7, zeta=-0.25)
    assert not discounted  # episodes end
    assert "discounted by 0.9 per step, less 0.25 per question asked; no" in items["Value"]


def test_only_what_is_proved_is_claimed(tree: custard.Tree) -> None:
    text, items, _ = told(tree, proved=True, fewest_leaves=True)
    assert "returns more, and none of fewer leaves as much" in text
    assert items["Gap"].endswith("returns more, and none of fewer leaves as much")
    text, items, _ = told(tree, proved=True, fewest_leaves=False)
    assert "none of fewer leaves" not in text + items["Gap"]
    assert "Gap" not in told(tree, proved=False, value=None)[1]
    assert "Gap" not in told(tree, proved=False, bound=None)[1]
    assert told(tree, proved=False, max_depth=None)[1]["Bound"].endswith("no tree of any depth has more")


def scope_of(counts: dict[str, list[Any]], **changed: Any) -> dict[str, Any]:
    return {"start_seed": 3, "episodes": 2, "steps": 200, "thresholds": counts, **changed}


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        (scope_of({"x": [9, -0.5, 0.5]}),
         "from the starts of seeds 3…4, at most 200 steps, thresholds: x 9 from -0.5 to 0.5"),
        (scope_of({"x": [1, 0.5, 0.5]}, episodes=1),
         "from the start of seed 3, at most 200 steps, thresholds: x at 0.5"),
        (scope_of({"x": [0], "y": [2, 1, 4]}, episodes=5),
         "from the starts of seeds 3…7, at most 200 steps, thresholds: y 2 from 1 to 4"),
        (scope_of({"x": [0]}), "from the starts of seeds 3…4, at most 200 steps, thresholds: none"),
        (scope_of({f"x{k}": [1, k] for k in range(8)}),
         "from the starts of seeds 3…4, at most 200 steps, thresholds: " + ", ".join(f"x{k} at {k}" for k in range(8))),
        (scope_of({f"x{k}": [1, k] for k in range(10)}),
         "from the starts of seeds 3…4, at most 200 steps, thresholds: "
         + ", ".join(f"x{k} at {k}" for k in range(8)) + ", …"),
    ],
)  # fmt: skip
def test_what_a_proof_from_fixed_starts_is_about_is_said_in_full(tree: custard.Tree, scope: dict, text: str) -> None:
    line, items, _ = told(tree, scope=scope)
    assert line.endswith(f"; {text}")
    assert items["Holds for"] == text
    assert "no tree of depth ≤ 1 over these thresholds returns more" in line
    assert items["Bound"].endswith("no tree of depth ≤ 1 over these thresholds has more")
    assert "the exact return" in items["Value"]


@pytest.mark.parametrize("scope", [None, 7, "seeds", {}, scope_of({"x": []}), scope_of({"x": [2, 0.5]}),
                                   scope_of({}, episodes="many")])  # fmt: skip
def test_a_scope_that_is_none_is_left_out(tree: custard.Tree, scope: Any) -> None:
    line, items, _ = told(tree, scope=scope)
    assert "seed" not in line
    assert "over these thresholds" not in line
    assert "Holds for" not in items
    assert "the exact expected return" in items["Value"]


def test_show_prints_it(tree: custard.Tree, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tree.save(tmp_path / "tree.json")
    code, out, _ = call(capsys, "show", tmp_path / "tree.json")
    assert code == 0
    assert out.splitlines()[-1] == certificate_text(tree)


def test_a_changed_tree_has_none(tree: custard.Tree, tmp_path: Path) -> None:
    value = tree.value.copy()
    value[-1] = 1 - value[-1]
    other = custard.Tree(
        tree.feature, tree.threshold, tree.children_left, tree.children_right, value, tree.features, tree.actions
    ).with_origin(**tree.origin)
    assert certificate_of(other) is None
    assert certificate_items(other) == []
    other.save(tmp_path / "tree.json")
    assert certificate_text(custard.Tree.load(tmp_path / "tree.json")) is None


@pytest.mark.parametrize("wrong", [7, {"value": "a lot"}, {"value": np.nan}, {"gamma": None}, {"bound": [1.0]}])
def test_a_certificate_that_is_none_is_ignored(tree: custard.Tree, wrong: Any) -> None:
    stored = {**tree.origin["certificate"], **wrong} if isinstance(wrong, dict) else wrong
    assert certificate_of(tree.with_origin(certificate=stored)) is None


def test_pothole_world_has_one_too() -> None:
    run = custard.learn("custard/PotholeWorld-v0", "plan", max_depth=2, progress=False)
    certificate = certificate_of(run.tree)
    assert certificate is not None
    assert (certificate["value"], certificate["bound"]) == (run.value, run.value)
    assert "depth ≤ 2" in str(certificate_text(run.tree))
    assert "grid of 0.002" in str(certificate_text(run.tree))
