"""MDP files: there and back, and one clear line for each way of being wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import custard
from custard.planning.env import FiniteEnv
from custard.planning.evaluate import policy_value
from custard.planning.optimal_tree import best_tree
from custard.planning.store import from_json, load, save, to_json
from tests.planning.random_mdp import random_mdp

WALK: dict[str, Any] = {
    "format": "custard-mdp", "version": 1, "gamma": 1.0, "horizon": None,
    "features": [{"name": "x", "kind": "integer", "low": 0, "high": 2}],
    "actions": {"kind": "discrete", "names": ["left", "right"]},
    "x": [[0], [1], [2]], "start": [1, 0, 0], "terminal": [2],
    "transitions": [[0, 0, 0, 1.0], [1, 0, 1, 1.0], [0, 1, 0, 1.0], [1, 1, 2, 0.5], [1, 1, 1, 0.5]],
    "rewards": [[-1, -1], [-1, -1], [0, 0]],
}  # fmt: skip


def test_a_hand_written_file_is_solved(tmp_path: Path) -> None:
    (tmp_path / "walk.json").write_text(json.dumps(WALK))
    found = best_tree(load(tmp_path / "walk.json"), 2)
    assert (found.value, found.tree.n_leaves) == (pytest.approx(-3.0), 1)
    run = custard.learn(FiniteEnv, "plan", max_depth=1, env_kwargs={"path": str(tmp_path / "walk.json")})
    assert run.value == pytest.approx(-3.0)


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_save_then_load_is_identity(tmp_path: Path, ending: str) -> None:
    mdp = random_mdp(3, 3, seed=4, horizon=9)
    save(mdp, tmp_path / f"mdp.{ending}")
    again = load(tmp_path / f"mdp.{ending}")
    assert to_json(again) == to_json(mdp)
    choice = np.random.default_rng(0).integers(3, size=mdp.n_states)
    assert policy_value(choice, again) == policy_value(choice, mdp)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transitions": WALK["transitions"][1:]}, "row 0 sums to 0 instead of 1"),
        ({"transitions": [*WALK["transitions"], [0, 0, 1, 0.2]]}, "sums to 1.2"),
        ({"transitions": [*WALK["transitions"], [0, 0, 1, -0.2], [0, 0, 0, 0.2]]}, "probability -0.2"),
        ({"transitions": [*WALK["transitions"], [0, 7, 1, 1.0]]}, "does not exist"),
        ({"transitions": [*WALK["transitions"], [0, 2, 1, 1.0]]}, "state 2 is terminal but has a transition"),
        ({"transitions": [[0, 0]]}, "rows of action"),
        ({"rewards": [[-1, -1], [-1, -1], [0, 1]]}, "terminal but has rewards"),
        ({"rewards": [[-1], [-1], [0]]}, "2 columns"),
        ({"x": [[0], [1]]}, "3 states"),
        ({"x": [[0], [None], [2]]}, "lacks a number|must be numbers"),
        ({"start": [0.5, 0, 0]}, "sums to 0.5"),
        ({"start": [0, 0, 1]}, "every start state is terminal"),
        ({"terminal": [5]}, "does not exist"),
        ({"terminal": []}, "sums to 0|no policy reaches"),
        ({"gamma": 1.5}, "gamma"),
        ({"gamma": "one"}, "gamma"),
        ({"horizon": 0}, "horizon"),
        ({"features": [{"name": "x"}]}, "features must be"),
        ({"actions": {"kind": "box", "names": ["a"], "low": [0], "high": [1]}}, "discrete|columns"),
        ({"format": "other"}, "not a custard MDP"),
        ({"version": 9}, "version"),
        ({"rewards": "many"}, "must be numbers"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    (tmp_path / "bad.json").write_text(json.dumps({**WALK, **change}))
    with pytest.raises(custard.CustardError, match=words) as caught:
        load(tmp_path / "bad.json")
    assert "\n" not in str(caught.value)


def test_missing_parts_and_files(tmp_path: Path) -> None:
    with pytest.raises(custard.CustardError, match="lacks features"):
        from_json({key: value for key, value in WALK.items() if key != "features"})
    with pytest.raises(custard.CustardError, match="cannot read"):
        load(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"format"')
    with pytest.raises(custard.CustardError, match="cannot be read"):
        load(tmp_path / "cut.json")
    with pytest.raises(custard.CustardError, match=r"\.json or \.npz"):
        save(random_mdp(2, 2, seed=0), tmp_path / "mdp.pkl")


def test_a_trap_that_goes_on_losing_is_named() -> None:
    trap = {**WALK, "transitions": [*WALK["transitions"][:3], [1, 1, 1, 1.0]]}
    trap["transitions"][2] = [0, 1, 1, 1.0]
    with pytest.raises(custard.CustardError, match="state 1 can never be left"):
        from_json(trap)
