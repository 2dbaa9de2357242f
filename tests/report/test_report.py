"""The report: what it holds, that nothing from outside becomes markup, and that it works in a browser, offline."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import custard
from custard import CustardError, Features, Tree
from custard.report import write_report
from custard.report.episodes import record_episodes
from custard.report.html_page import metrics_rows, page
from custard.report.page_data import encode_frames
from custard.tree.explain import counterfactuals
from tests.report.pages import (
    BASE,
    CARTPOLE,
    COLLISIONS,
    HIDDEN_NODES,
    HOSTILE,
    SMALLEST_TEXT,
    Page,
    data_of,
    full_tree,
    run_directory,
)
from tests.strategies import hard_points


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(run_directory(tmp_path_factory.mktemp("run"), CARTPOLE), episodes=50)


def test_the_file_is_complete_and_small(report: Path) -> None:
    text = report.read_text()
    assert report.name == "report.html"
    assert report.stat().st_size < 3_000_000
    for outside in ("http://", "https://", "<link", "@import", "src="):
        assert outside not in text.replace("http://www.w3.org/2000/svg", "")
    data = data_of(report)
    assert len(data["replay"]["x"]) == len(data["replay"]["index"]) == len(data["replay"]["total"])
    assert data["replay"]["frames"][0].startswith("data:image/webp;base64,")
    assert data["evaluation"]["episodes"] == 50
    assert sum(data["evaluation"]["histogram"]["counts"]) == 50
    assert data["tree"]["visits"][0] > 1000
    assert {"python", "c", "rust", "json", "dot", "text", "sklearn", "smt2"} <= {e["format"] for e in data["exports"]}
    assert data["curves"][0]["series"][0]["values"][-1] is None
    assert ["splits", "3"] in data["settings"]


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    where = run_directory(tmp_path / "run", CARTPOLE, env="nowhere/Missing-v0")
    (where / "metrics.csv").unlink()
    data = data_of(write_report(where))
    assert data["replay"] is None
    assert data["evaluation"] is None
    assert data["curves"] == []
    assert data["tree"]["share"] is None
    with pytest.raises(CustardError, match="holds no run"):
        write_report(tmp_path)
    (where / "config.json").write_text("[1]")
    with pytest.raises(CustardError, match="does not hold an object"):
        write_report(where)
    (where / "config.json").write_text("{")
    with pytest.raises(CustardError, match="cannot read"):
        write_report(where)


def test_the_runs_own_evaluation_is_shown(tmp_path: Path) -> None:
    where = run_directory(tmp_path / "run", CARTPOLE, env="nowhere/Missing-v0")
    result = custard.evaluate(CARTPOLE, "CartPole-v1", 7, 5).to_json()
    (where / "evaluation.json").write_text(json.dumps(result))
    shown = data_of(write_report(where))["evaluation"]
    assert (shown["episodes"], shown["seed"], shown["mean"]) == (7, 5, result["mean"])
    assert sum(shown["histogram"]["counts"]) == 7
    for broken in ("{}", "[]", "nonsense", '{"returns": ["a"]}'):
        (where / "evaluation.json").write_text(broken)
        assert data_of(write_report(where))["evaluation"] is None


def test_one_episode_has_no_interval(tmp_path: Path) -> None:
    where = run_directory(tmp_path / "run", CARTPOLE)
    (where / "evaluation.json").write_text(json.dumps(custard.evaluate(CARTPOLE, "CartPole-v1", 1).to_json()))
    shown = data_of(write_report(where))
    assert (shown["evaluation"]["episodes"], shown["evaluation"]["ci95"]) == (1, None)
    assert shown["facts"][0][2] == "in one episode"


def test_environments_that_draw_nothing_still_replay(tmp_path: Path) -> None:
    mdp = gym.make("custard/PrereqWorld-v0", m=3).unwrapped.mdp()
    tree = Tree.stump(2, 0.5, 2, 0, mdp.features, mdp.actions)
    runs = record_episodes(tree, "custard/PrereqWorld-v0", {"m": 3}, pictures=1, max_steps=7)
    assert len(runs[0].frames) == len(runs[0].x) + 1
    assert record_episodes(tree, "custard/PrereqWorld-v0", {"m": 3}, max_steps=7)[0].frames == ()
    where = run_directory(tmp_path / "run", tree, env="custard/PrereqWorld-v0", env_kwargs={"m": 3})
    data = data_of(write_report(where, episodes=5))
    assert len(data["replay"]["frames"]) < len(data["replay"]["x"]) or len(data["replay"]["x"]) < 4


def test_pictures_fit_their_budget() -> None:
    rng = np.random.default_rng(0)
    noisy = [rng.integers(256, size=(400, 600, 3), dtype=np.uint8) for _ in range(6)]
    assert encode_frames(noisy, 1000) == ([], [])
    pictures, index = encode_frames([noisy[0]] * 5 + [noisy[1]])
    assert len(pictures) == 2
    assert index == [0, 0, 0, 0, 0, 1]


def test_metrics_are_read_as_numbers(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("steps,value,note\n1,2.5,hello\n2,,\n")
    assert metrics_rows(tmp_path / "m.csv") == [{"steps": 1.0, "value": 2.5}, {"steps": 2.0}]
    assert metrics_rows(tmp_path / "none.csv") == []


def test_hostile_text_cannot_end_its_element() -> None:
    hostile = "</script><script>window.hurt=1</script><!-- @SCRIPT@ @DATA@ \u2028"
    text = page({"title": hostile, "note": hostile})
    assert "<script>window.hurt" not in text
    assert text.count("<script") == 2
    assert text.count("</script>") == 2


def test_an_environment_that_breaks_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, action: int) -> None:
        raise RuntimeError("motor on fire")

    monkeypatch.setattr(CartPoleEnv, "step", broken)
    with pytest.raises(CustardError, match="'CartPole-v1' raised RuntimeError at step 1: motor on fire"):
        record_episodes(CARTPOLE, "CartPole-v1")


def test_an_environment_that_draws_nothing_is_not_asked_to(recwarn: pytest.WarningsRecorder) -> None:
    class Blind(CartPoleEnv):
        metadata: dict[str, Any] = {"render_modes": []}
        feature_names = CARTPOLE.features.names

    gym.register("Blind-v0", Blind, max_episode_steps=5)
    try:
        (episode,) = record_episodes(CARTPOLE, "Blind-v0", pictures=1)
    finally:
        del gym.registry["Blind-v0"]
    assert (len(episode.x), episode.frames) == (5, ())
    assert not [str(warning.message) for warning in recwarn if "render_mode" in str(warning.message)]


# -- in a browser -----------------------------------------------------------------------------------------------------


def test_replay_lights_the_path_of_each_step(browser: Any, report: Path) -> None:
    shown = Page(browser, report)
    states = np.array(data_of(report)["replay"]["x"])
    for step in range(6):
        assert shown.leaf() == CARTPOLE.path(states[step])[-1]
        assert shown.lit() == CARTPOLE.path(states[step])
        assert f"step {step} of" in shown.page.inner_text("#clock")
        shown.page.click("#forward")
    picture = shown.page.get_attribute("#frame", "src")
    shown.page.click("#play")
    shown.page.wait_for_function("before => document.getElementById('frame').src !== before", arg=picture)
    assert "Pause" in shown.page.inner_text("#play")
    shown.page.click("#play")
    shown.page.eval_on_selector("#scrub", "e => { e.value = 40; e.dispatchEvent(new Event('input')); }")
    assert shown.leaf() == CARTPOLE.path(states[40])[-1]
    shown.close()


def test_sliders_find_the_leaf_and_the_counterfactual(browser: Any, report: Path) -> None:
    shown = Page(browser, report)
    rng = np.random.default_rng(0)
    points = hard_points(CARTPOLE, 400)
    points = points[np.isfinite(points).all(axis=1)][:16]
    for x in [*points, *rng.uniform([-2, -1, -0.2, -2], [2, 1, 0.2, 2], (8, 4))]:
        for feature, value in enumerate(x.tolist()):
            shown.set(feature, value)
        assert shown.leaf() == CARTPOLE.path(x)[-1]
        assert shown.lit() == CARTPOLE.path(x)
        assert shown.page.inner_text("#verdict") == BASE.actions.name(CARTPOLE.act(x))
        leaves = shown.page.evaluate("counterfactuals(x).map(c => [c.leaf, Math.sqrt(c.sum)])")
        expected = counterfactuals(CARTPOLE, x)
        assert [leaf for leaf, _ in leaves] == [change.leaf for change in expected]
        np.testing.assert_allclose([d for _, d in leaves], [change.distance for change in expected], rtol=1e-9)
    # The slider itself, by keyboard.
    shown.page.focus("#feature-2")
    shown.page.keyboard.press("Home")
    lowest = float(shown.page.input_value("#feature-2"))
    assert shown.leaf() == CARTPOLE.path([*x[:2], lowest, x[3]])[-1]
    assert not shown.page.is_hidden("#resume")
    shown.page.click("#resume")
    assert shown.page.is_hidden("#resume")
    shown.close()


@pytest.mark.filterwarnings("ignore:.*not within the observation space")
def test_states_that_are_not_finite_are_shown_and_followed(browser: Any, tmp_path: Path) -> None:
    class Broken(CartPoleEnv):
        feature_names = BASE.features.names

        def step(self, action: int) -> Any:
            _, *rest = super().step(action)
            return np.array([0, np.inf, -np.inf, 0], dtype=np.float32), *rest

    gym.register("Broken-v0", Broken, max_episode_steps=3)
    try:
        path = write_report(run_directory(tmp_path / "run", CARTPOLE, env="Broken-v0"), episodes=2)
    finally:
        del gym.registry["Broken-v0"]
    data = data_of(path)
    assert data["replay"]["x"][1] == [0, {"float": "Infinity"}, {"float": "-Infinity"}, 0]
    # No environment may give NaN, but a tree takes it: every state there is.
    points = hard_points(CARTPOLE, 400)
    points = points[~np.isfinite(points[:, 1:3]).all(axis=1)][:30]
    assert np.isnan(points[:, 1:3]).any()
    data["replay"] |= {"x": points.tolist(), "total": [0.0] * len(points), "frames": [], "index": []}
    path.write_text(page(data))
    shown = Page(browser, path)
    for x in points:
        assert shown.lit() == CARTPOLE.path(x)
        leaves = shown.page.evaluate("counterfactuals(x).map(c => c.leaf)")
        assert leaves == [change.leaf for change in counterfactuals(CARTPOLE, x)]
        said = shown.page.get_attribute('[data-exact="1"]', "placeholder")
        assert said == {"nan": "NaN", "inf": "∞", "-inf": "−∞"}.get(str(x[1]), said)
        shown.page.click("#forward")
    shown.close()


def test_a_change_names_the_threshold_itself(browser: Any, tmp_path: Path) -> None:
    tree = Tree.stump(3, 0.0, 0, 1, BASE.features, BASE.actions)
    shown = Page(browser, write_report(run_directory(tmp_path / "run", tree, env="nowhere/Missing-v0")))
    shown.set(3, -1.0)
    assert shown.page.inner_text("#others") == "push_right if pole_velocity rose above 0"
    shown.set(3, 1.0)
    assert shown.page.inner_text("#others") == "push_left if pole_velocity fell to 0"
    shown.close()


def test_a_change_is_told_with_the_digits_it_needs(browser: Any, tmp_path: Path) -> None:
    tree = Tree.stump(3, 0.123456, 0, 1, BASE.features, BASE.actions)  # 0.1235 would be on the other side
    shown = Page(browser, write_report(run_directory(tmp_path / "run", tree, env="nowhere/Missing-v0")))
    shown.set(3, 0.5)
    assert "fell to 0.123456" in shown.page.inner_text("#others")
    shown.set(3, 0.1)
    assert "rose above 0.1235" in shown.page.inner_text("#others")
    shown.close()


def test_sliders_of_whole_numbers_give_whole_numbers(browser: Any, tmp_path: Path) -> None:
    features = Features(("count", "b"), [-np.inf, 0], [np.inf, 1], ("integer", "binary"))
    tree = Tree.stump(0, 3.4, 0, 1, features, BASE.actions)
    shown = Page(browser, write_report(run_directory(tmp_path / "run", tree, env="nowhere/Missing-v0")))
    for feature in (0, 1):
        shown.page.focus(f"#feature-{feature}")
        for key in ("Home", "ArrowRight", "End", "ArrowLeft"):
            shown.page.keyboard.press(key)
            value = shown.page.evaluate("c => x[c]", feature)
            assert value == round(value)
            assert float(shown.page.input_value(f"#feature-{feature}")) == value
    shown.page.evaluate("document.activeElement.blur()")
    shown.set(0, 3.4)
    assert shown.page.input_value('[data-exact="0"]') == "3"
    shown.close()


def test_keyboard_folds_and_walks_the_tree(browser: Any, report: Path) -> None:
    shown = Page(browser, report)
    shown.page.focus('[data-node="0"]')
    shown.page.keyboard.press("ArrowRight")
    assert shown.page.evaluate("document.activeElement.dataset.node") == "2"
    shown.page.keyboard.press("Enter")
    assert shown.page.locator(".node").count() == 3
    assert shown.page.get_attribute('[data-node="2"]', "aria-expanded") == "false"
    shown.page.click("#unfold")
    assert shown.page.locator(".node").count() == 5
    shown.page.click('[data-node="0"]')
    assert shown.page.locator(".node").count() == 1
    shown.page.click('[data-node="0"]')
    shown.page.hover('[data-node="3"]')
    assert "pole_angle ≤ 0.01526" in shown.page.inner_text("#tip")
    before = shown.page.get_attribute("#tree", "viewBox")
    shown.page.click("#zoom-in")
    assert shown.page.get_attribute("#tree", "viewBox") != before
    shown.page.click("#fit")
    assert shown.page.get_attribute("#tree", "viewBox") == before
    shown.close()


def test_exports_are_downloaded(browser: Any, report: Path, tmp_path: Path) -> None:
    shown = Page(browser, report)
    shown.page.click('[data-format="python"]')
    with shown.page.expect_download() as download:
        shown.page.click("#download")
    download.value.save_as(tmp_path / "tree.py")
    done = subprocess.run(
        [sys.executable, "-c", "import tree; print(tree.act([0, 0, 0.1, 0]))"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "1"
    shown.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_no_sideways_scroll(browser: Any, report: Path, scheme: str) -> None:
    shown = Page(browser, report, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    shown.page.click("#theme")
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    shown.close()


@pytest.mark.parametrize(("width", "height"), [(500, 1000), (1300, 940)])
def test_a_tree_of_six_leaves_opens_whole_and_readable(browser: Any, tmp_path: Path, width: int, height: int) -> None:
    names = tuple(f"a_feature_with_a_long_name_{c}" for c in range(4))
    features = Features(names, BASE.features.low, BASE.features.high, BASE.features.kinds)
    tree = Tree(
        [2, 3, 3, -1, 1, -1, 1, -1, -1, -1, -1], [0.0, 0.5, -0.5, 0, -0.3, 0, 0.2, 0, 0, 0, 0],
        [1, 3, 5, -1, 7, -1, 9, -1, -1, -1, -1], [2, 4, 6, -1, 8, -1, 10, -1, -1, -1, -1],
        [0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1], features, BASE.actions,
    )  # fmt: skip
    where = run_directory(tmp_path / "run", tree, env="nowhere/Missing-v0")
    shown = Page(browser, write_report(where), viewport={"width": width, "height": height})
    page = shown.page
    assert page.locator(".node").count() == tree.n_nodes
    assert page.evaluate(HIDDEN_NODES) == []
    assert page.evaluate(SMALLEST_TEXT)[0] >= 11
    shown.close()


# What of the tree lies outside its drawing, by the names of its elements.
OUTSIDE = """() => {
  const r = tree.getBoundingClientRect();
  return [...tree.querySelectorAll("rect, text, path")].filter((e) => {
    const b = e.getBoundingClientRect();
    return b.left < r.left - 1 || b.right > r.right + 1 || b.top < r.top - 1 || b.bottom > r.bottom + 1;
  }).map((e) => e.textContent || e.tagName);
}"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # 256 leaves, and nothing is known of its visits.
    return write_report(run_directory(tmp_path_factory.mktemp("large"), full_tree(8), env="nowhere/Missing-v0"))


def test_fit_shows_the_whole_tree(browser: Any, large: Path) -> None:
    shown = Page(browser, large)
    assert shown.page.evaluate(OUTSIDE) == []  # it opens with as much unfolded as can be read
    shown.page.click("#unfold")
    assert shown.page.evaluate(OUTSIDE) != []
    shown.page.click("#fit")
    assert shown.page.evaluate(OUTSIDE) == []
    # Edges are still seen where a pixel is many units wide.
    thinnest = """all => Math.min(...all.map((e) => parseFloat(getComputedStyle(e).strokeWidth))) / toView()[0]"""
    assert shown.page.eval_on_selector_all(".edge", thinnest) == pytest.approx(0.6, abs=0.01)
    shown.close()


def test_nothing_hides_how_much_is_folded(browser: Any, large: Path) -> None:
    shown = Page(browser, large)
    marks = shown.page.locator(".folded").all_text_contents()
    assert len(marks) == shown.page.evaluate("folded.size") >= 4
    lit = shown.page.locator(".node.on .folded").all_text_contents()
    assert len(lit) == 1  # the folded part that decides says what it decides
    assert lit[0] in ("▸ now push_left", "▸ now push_right")
    hidden = shown.page.evaluate("[...folded].map((n) => below[n])")
    assert sorted(set(marks) - set(lit)) == sorted({f"▸ {count} leaves" for count in hidden})
    assert shown.page.evaluate(COLLISIONS) == []
    shown.close()


# Whether a node's box is inside the drawing, and where its middle is on the screen.
PLACE = """n => {
  const r = tree.getBoundingClientRect(), b = tree.querySelector(`[data-node="${n}"] .shape`).getBoundingClientRect();
  const inside = b.left >= r.left && b.right <= r.right && b.top >= r.top && b.bottom <= r.bottom;
  return [inside, b.x + b.width / 2, b.y + b.height / 2];
}"""


def test_a_large_tree_is_walked_without_losing_sight_of_it(browser: Any, large: Path) -> None:
    shown = Page(browser, large)
    shown.page.click("#unfold")
    shown.page.focus('#tree [data-node="0"]')
    for key, expected in [("ArrowRight", 1), ("ArrowDown", 2), ("ArrowRight", 5), ("ArrowLeft", 2), ("ArrowUp", 1)]:
        shown.page.keyboard.press(key)
        assert shown.page.evaluate("document.activeElement.dataset.node") == str(expected)
        assert shown.page.evaluate(PLACE, expected)[0]
    # Each question stays under the pointer while what is drawn shrinks around it.
    shown.page.click("#fit")
    for node in (3, 4, 5, 6, 1, 2):
        before = shown.page.evaluate(PLACE, node)[1:]
        shown.page.mouse.click(*before)
        assert shown.page.evaluate(PLACE, node)[1:] == pytest.approx(before, abs=1)
    assert shown.page.evaluate("shape") == "down"
    shown.page.click("#fit")
    shown.page.click('#tree [data-node="2"]')  # unfolds, one question at a time
    assert [shown.page.evaluate(PLACE, node)[0] for node in (2, 5, 6)] == [True, True, True]
    assert shown.page.locator("#tree .node").count() == 5
    shown.close()


def test_a_finger_reads_folds_and_moves_the_tree(browser: Any, large: Path) -> None:
    shown = Page(browser, large, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert shown.page.evaluate("viewName") == "outline"  # a drawing of it would show three questions and no action
    shown.page.click("#view-tree")
    touch = "tree.style.touchAction"
    shown.page.click("#unfold")
    assert shown.page.evaluate(touch) == "none"
    shown.page.click("#fit")
    assert shown.page.evaluate(touch) == "pan-y"
    shown.page.click("#zoom-in")
    assert shown.page.evaluate(touch) == "none"
    shown.page.click("#refold")
    shown.page.tap('#tree [data-node="0"]')
    assert "every state comes here" in shown.page.inner_text("#tip.show")
    assert shown.page.locator("#tree .node").count() > 1
    shown.page.tap('#tree [data-node="0"]')
    assert shown.page.locator("#tree .node").count() == 1
    shown.close()


def test_many_thresholds_leave_the_slider_to_be_seen(browser: Any, tmp_path: Path) -> None:
    features = Features(("a",), [0], [1])
    count = 2000
    node = np.arange(2 * count + 1)
    inner = (node % 2 == 0) & (node < 2 * count)  # a chain: each no asks the next question
    tree = Tree(
        np.where(inner, 0, -1), np.where(inner, node / (2 * count), 0), np.where(inner, node + 1, -1),
        np.where(inner, node + 2, -1), node // 2 % 2, features, BASE.actions,
    )  # fmt: skip
    shown = Page(browser, write_report(run_directory(tmp_path / "run", tree, env="nowhere/Missing-v0")))
    assert shown.page.locator(".tick").count() <= 501
    on_top = """() => {
      const tick = document.querySelectorAll(".tick")[250], b = tick.getBoundingClientRect();
      for (const t of document.querySelectorAll(".tick")) t.style.pointerEvents = "auto";
      return document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2).id;
    }"""
    shown.page.locator("#feature-0").scroll_into_view_if_needed()
    assert shown.page.evaluate(on_top) == "feature-0"
    shown.close()


@pytest.mark.parametrize("width", [1280, 360])
def test_charts_are_drawn_at_the_size_they_are_seen(browser: Any, report: Path, width: int) -> None:
    shown = Page(browser, report, viewport={"width": width, "height": 740})
    heights = shown.page.eval_on_selector_all(".chart text", "all => all.map((e) => e.getBoundingClientRect().height)")
    heights = [height for height in heights if height]  # where every return is the same, theirs are not drawn
    assert len(heights) > 8
    assert min(heights) > 10
    shown.close()


def test_a_very_large_tree_starts_folded(browser: Any, tmp_path: Path) -> None:
    tree = full_tree(8)
    shown = Page(browser, write_report(run_directory(tmp_path / "run", tree), episodes=5))
    first = shown.page.locator(".node").count()
    assert 3 <= first <= 63
    assert shown.leaf() in tree.leaves()
    shown.page.click("#unfold")
    assert shown.page.locator(".node").count() == tree.n_nodes
    shown.close()


def test_names_cannot_turn_the_direction_of_what_stands_beside_them(browser: Any, tmp_path: Path) -> None:
    features = Features(("a\u202etset", "\u05d0\u05d1\u05d2", "c\u2069\u2067", "d"), [-1] * 4, [1] * 4)
    actions = replace(BASE.actions, names=("left\u202e", "right"))
    tree = replace(CARTPOLE, features=features, actions=actions, feature=[0, -1, 1, -1, -1])
    where = run_directory(tmp_path / "run", tree, env="nowhere/\u202eMissing-v0", settings={"\u202ea": "\u202eb"})
    shown = Page(browser, write_report(where))
    turning = "text => [...text.matchAll(/[\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066\\u2067]/g)].length"
    shown.set(1, 0.9)
    shown.page.hover('[data-node="2"]')
    for tab in range(shown.page.locator("#formats button").count()):
        shown.page.locator("#formats button").nth(tab).click()
        everything = shown.page.evaluate("document.title + document.body.innerText + tree.textContent")
        assert shown.page.evaluate(turning, everything) == 0
    assert shown.page.text_content('[data-node="0"] text') == "a\ufffdtset ≤ −0.3499"
    # A name that does run from right to left leaves the comparison beside it where it was: on the right.
    assert shown.page.text_content('[data-node="2"] text') == "\u2068\u05d0\u05d1\u05d2\u2069 ≤ 0.01526"
    first, last = shown.page.eval_on_selector(
        '[data-node="2"] text',
        "e => [1, e.textContent.length - 1].map((k) => e.getExtentOfChar(k).x)",
    )
    assert first < last
    # What is downloaded is the file as it was written.
    exported = {item["format"]: item for item in data_of(where / "report.html")["exports"]}
    shown.page.click('[data-format="text"]')
    with shown.page.expect_download() as download:
        shown.page.click("#download")
    assert Path(download.value.path()).read_text(encoding="utf-8") == exported["text"]["text"]
    shown.close()


def test_hostile_names_stay_text(browser: Any, tmp_path: Path) -> None:
    features = Features((HOSTILE, "</script><script>window.hurt=1</script>", "`${1}`", "d"), [-1] * 4, [1] * 4)
    actions = replace(BASE.actions, names=(f"left {HOSTILE}", "right"))
    tree = replace(CARTPOLE, features=features, actions=actions, feature=[1, -1, 0, -1, -1])
    where = run_directory(
        tmp_path / "run", tree, env=f"CartPole-v1 {HOSTILE}", method=HOSTILE, settings={HOSTILE: HOSTILE}
    )
    shown = Page(browser, write_report(where))
    assert HOSTILE in shown.page.inner_text("body")
    assert shown.page.evaluate("window.hurt") is None
    assert shown.page.locator("img").count() == 1  # the replay's own
    shown.page.hover('[data-node="3"]')
    assert HOSTILE in shown.page.inner_text("#tip")
    for tab in range(shown.page.locator("#formats button").count()):
        shown.page.locator("#formats button").nth(tab).click()
    shown.set(0, 0.5)
    assert shown.page.evaluate("window.hurt") is None
    shown.close()
