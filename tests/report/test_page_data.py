"""What the report says beside the tree: comparisons, the audit, which features decide, typical states."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import Actions, Features, Tree
from custard.core.metadata import feature_units
from custard.report import write_report
from custard.report.audit import stored_proofs
from custard.report.comparisons import compare_return, judgement
from custard.report.visits import deciding_shares, leaf_visits, sample_states
from custard.task.source import source
from tests.report.pages import BASE, CARTPOLE, data_of, run_directory


def compared(tree: Tree, env: str, kwargs: dict[str, Any] | None = None, rows: Any = ()) -> list[dict[str, Any]]:
    where = source(env, kwargs)
    return compare_return(tree, where, custard.evaluate(tree, where, 20, 1).to_json(), rows, 1)


def test_cartpole_is_compared_with_random_constant_and_threshold() -> None:
    entries = {
        entry["kind"]: entry for entry in compared(CARTPOLE, "CartPole-v1", rows=[{"steps": 1, "expert": 321.0}])
    }
    assert set(entries) == {"random", "constant", "tree", "threshold", "expert"}
    assert 18 < entries["random"]["mean"] < 27  # known: about 22
    assert 9 < entries["constant"]["mean"] < 10
    assert (entries["threshold"]["mean"], entries["expert"]["mean"], entries["tree"]["mean"]) == (475, 321, 500)
    says = judgement(list(entries.values()))
    assert says[0] == "It is above the environment's reward threshold of 475: the environment counts as solved."
    assert says[1] == "It returns more than its expert."
    assert says[2].startswith("It is clearly better than random and constant actions")


def test_where_steps_are_slow_less_is_compared() -> None:
    where, evaluation = source(lambda: gym.make("CartPole-v1").env), {"mean": 9.0, "ci95": None, "mean_length": 100.0}
    said: list[str] = []

    def kinds(steps: float) -> dict[str, Any]:
        entries = compare_return(
            CARTPOLE, where, {**evaluation, "episodes": 1}, [], 1, affordable_steps=steps, say=said.append
        )
        return {entry["kind"]: entry["episodes"] for entry in entries if entry["kind"] != "threshold"}

    assert kinds(3000) == {"random": 10, "constant": 10, "tree": 1}
    assert kinds(1000) == {"random": 10, "tree": 1}
    assert kinds(0) == {"random": 2, "tree": 1}
    assert said[0] == "running random actions for comparison, 10 episodes"


def test_the_optimum_of_a_finite_mdp_is_known() -> None:
    mdp = gym.make("custard/PrereqWorld-v0", m=4).unwrapped.mdp()  # type: ignore[attr-defined]
    best = custard.learn("custard/PrereqWorld-v0", env_kwargs={"m": 4}, method="plan").tree
    good = {entry["kind"]: entry for entry in compared(best, "custard/PrereqWorld-v0", {"m": 4})}
    assert good["optimum"]["mean"] == pytest.approx(-2)
    assert "attains the optimum" in judgement(list(good.values()))[0]
    worst = compared(Tree.leaf(0, mdp.features, mdp.actions), "custard/PrereqWorld-v0", {"m": 4})
    assert any("clearly worse than random actions" in sentence for sentence in judgement(worst))


class Gauge(gym.Env):
    """Three steps; the reward is the action itself."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 3
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(1, dtype=np.float32), float(action[0]), self.left == 0, False, {}


def test_vector_actions_are_compared_too() -> None:
    gym.register("Gauge-v0", Gauge, reward_threshold=5.0)
    try:
        base = custard.describe(gym.make("Gauge-v0"))
        tree = Tree.leaf(np.array([1.5]), base.features, base.actions)
        entries = {entry["kind"]: entry for entry in compared(tree, "Gauge-v0")}
    finally:
        del gym.registry["Gauge-v0"]
    assert -3 < entries["random"]["mean"] < 3
    assert (entries["constant"]["mean"], entries["tree"]["mean"]) == (6, 4.5)
    says = judgement(list(entries.values()))
    assert says[0] == "It is below the environment's reward threshold of 5."
    assert says[1:] == [
        "It is clearly worse than the best constant action.",
        "It is clearly better than random actions.",
    ]


def test_features_that_decide_are_found() -> None:
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (2000, 4))
    shares = deciding_shares(CARTPOLE, states)
    assert shares[0] == shares[3] == 0.0
    assert shares[2] > shares[1] > 0.1
    assert deciding_shares(CARTPOLE, None) == [0.0, 1.0, 1.0, 0.0]


def test_typical_states_reach_their_leaf() -> None:
    rng = np.random.default_rng(0)
    episodes = [rng.normal(0, 0.5, (50, 4)) for _ in range(6)]
    episodes[0][3, 1] = np.inf
    found = leaf_visits(CARTPOLE, episodes)
    assert sorted(found) == [1, 3, 4]
    for leaf, entry in found.items():
        assert CARTPOLE.path(entry["typical"])[-1] == leaf
        assert 1 <= entry["episodes"] <= 6
    assert len(sample_states(np.concatenate(episodes))) == 299  # not the one that is infinite
    assert sample_states(None) == []


def test_units_are_known_or_declared() -> None:
    assert feature_units(gym.make("CartPole-v1"), 4) == ("m", "m/s", "rad", "rad/s")
    assert feature_units(gym.make("MountainCar-v0"), 2) == ("", "")
    made = gym.make("MountainCar-v0")
    made.unwrapped.feature_units = ("m", "m/s")  # type: ignore[attr-defined]
    assert feature_units(made, 2) == ("m", "m/s")
    assert feature_units(made, 3) == ("", "", "")


def sections(path: Path) -> dict[str, dict[str, str]]:
    return {part["title"]: dict(part["items"]) for part in data_of(path)["audit"]}


def test_the_audit_says_what_annex_iv_asks_for(tmp_path: Path) -> None:
    where = run_directory(tmp_path / "run", CARTPOLE, versions={"custard": "9.9", "numpy": "2"})
    proofs = [{"holds": True, "says": "holds: a"}, {"holds": False, "says": "does not\nhold: b"}, {"says": "value 5"}]
    (where / "verification.json").write_text(json.dumps([*proofs, {"holds": None, "says": "undecided: c"}, 7]))
    told = sections(write_report(where, episodes=20, purpose="Balances a pole in a lecture."))
    assert list(told) == [
        "Purpose", "Version", "Data it was learned from", "Metrics", "What was verified", "Limits", "How to oversee it",
    ]  # fmt: skip
    assert told["Purpose"]["Intended purpose"] == "Balances a pole in a lecture."
    assert hashlib.sha256((where / "tree.json").read_bytes()).hexdigest() in told["Version"]["Tree file"]
    assert told["Version"]["Learned with"] == "custard 9.9, numpy 2"
    assert told["Data it was learned from"]["Amount"] == "2,000 environment steps in 2.0 s"
    assert "500" in told["Metrics"]["Mean return"]
    assert told["What was verified"]["Proved"] == "holds: a"
    assert told["What was verified"]["Refuted"] == "does not hold: b"
    assert (told["What was verified"]["Computed"], told["What was verified"]["Undecided"]) == (
        "value 5",
        "undecided: c",
    )
    assert "cart_position, pole_velocity" in told["What was verified"]["Features without influence"]
    assert "reached all 3 leaves" in told["Limits"]["Untested leaves"]
    assert "to" in told["How to oversee it"]["Visited range of pole_angle"]


def test_the_audit_admits_what_it_does_not_know(tmp_path: Path) -> None:
    where = run_directory(tmp_path / "run", CARTPOLE, env="nowhere/Missing-v0")
    told = sections(write_report(where))
    assert told["Purpose"]["Intended purpose"].startswith("Not stated.")
    assert told["Metrics"]["Return"].startswith("Not measured")
    assert told["What was verified"]["Properties of its decisions"].startswith("None stored.")
    assert "Untested leaves" not in told["Limits"]
    for broken in ("{", "7", '{"a": 1}'):
        (where / "verification.json").write_text(broken)
        assert stored_proofs(where / "verification.json") == []


def test_leaves_never_visited_are_counted(tmp_path: Path) -> None:
    beyond = Tree(
        [1, -1, 0, -1, -1], [-0.3499, 0, 1000.0, 0, 0], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], [0, 1, 0, 0, 1],
        BASE.features, BASE.actions,
    )  # fmt: skip
    told = sections(write_report(run_directory(tmp_path / "run", beyond), episodes=5))
    assert told["Limits"]["Untested leaves"].startswith("1 of 3 leaves were not reached")


def test_the_header_names_its_interval_and_the_wall_time(tmp_path: Path) -> None:
    tree = Tree.stump(2, 0.0, 0, 1, BASE.features, BASE.actions)
    facts = {name: (value, beside) for name, value, beside in data_of(
        write_report(run_directory(tmp_path / "run", tree), episodes=20))["facts"]}  # fmt: skip
    assert facts["Return"][1].startswith("95 %: ")
    assert facts["Learned in"] == ("2,000", "steps, 2.0 s")
    assert facts["Leaves"][0] == "2"


def test_a_curve_that_counts_other_leaves_says_why(tmp_path: Path) -> None:
    data = data_of(write_report(run_directory(tmp_path / "run", CARTPOLE, env="nowhere/Missing-v0")))
    assert data["size_note"].startswith("The curve counts leaves as they were learned, 4 at the end;")
    assert data["size_note"].endswith("the tree has 3.")


def test_the_range_shown_is_what_states_and_thresholds_span(tmp_path: Path) -> None:
    wide = Features(BASE.features.names, [-1000.0] * 4, [1000.0] * 4)
    tree = Tree(CARTPOLE.feature, CARTPOLE.threshold, CARTPOLE.children_left, CARTPOLE.children_right, CARTPOLE.value,
                wide, Actions("discrete", BASE.actions.names))  # fmt: skip
    shown = {
        row["name"]: row for row in data_of(write_report(run_directory(tmp_path / "run", tree), episodes=5))["features"]
    }
    low, high = shown["pole_angle"]["shown"]
    assert -0.5 < low < 0.01526 < high < 0.5
    assert shown["pole_angle"]["unit"] == "rad"
