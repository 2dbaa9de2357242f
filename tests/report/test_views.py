"""The report's parts in a browser: trees of every size, outline, search, explained leaves, the plane, sums, paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from custard import Tree
from custard.report import write_report
from custard.report.html_page import page
from tests.report.pages import (
    BASE,
    CARTPOLE,
    COLLISIONS,
    HIDDEN_NODES,
    SMALLEST_TEXT,
    Page,
    data_of,
    grown_tree,
    run_directory,
)

SIZES = (3, 12, 30, 150)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Tree, Path]]:
    trees = {leaves: CARTPOLE if leaves == 3 else grown_tree(leaves) for leaves in SIZES}
    where = tmp_path_factory.mktemp("sizes")
    return {n: (tree, write_report(run_directory(where / str(n), tree), episodes=5)) for n, tree in trees.items()}


@pytest.mark.parametrize("leaves", SIZES)
def test_every_size_of_tree_can_be_read(browser: Any, reports: dict[int, tuple[Tree, Path]], leaves: int) -> None:
    tree, path = reports[leaves]
    shown = Page(browser, path, viewport={"width": 1280, "height": 844}, color_scheme="dark")
    # The action in the state shown stands on top.
    assert shown.page.inner_text("#now-action") == BASE.actions.name(tree.act(data_of(path)["replay"]["x"][0]))
    for width in (1280, 800, 390):
        shown.page.set_viewport_size({"width": width, "height": 844})
        for view in ("tree", "outline"):
            shown.page.click(f"#view-{view}")
            size, text = shown.page.evaluate(SMALLEST_TEXT)
            assert size >= 11, (width, view, text)
            assert shown.page.evaluate(COLLISIONS) == [], (width, view)
            if view == "tree" and width > 390:
                assert shown.page.evaluate(HIDDEN_NODES) == [], width
        assert shown.page.locator("#outline .node").count() >= min(tree.n_nodes, 30)
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shown.close()
    phone = Page(browser, path, viewport={"width": 390, "height": 844}, color_scheme="light")
    assert phone.page.evaluate("viewName") == ("tree" if leaves == 3 else "outline")
    assert phone.page.evaluate(SMALLEST_TEXT)[0] >= 11
    phone.close()


def test_what_most_states_meet_is_unfolded(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    shown = Page(browser, reports[150][1], viewport={"width": 1280, "height": 900})
    # A question that is folded although its parent is open has fewer states than the busiest that is open beside it.
    order = shown.page.evaluate("""() => {
      const open = visibleNodes().map(([n]) => n).filter((n) => !isLeaf(n) && !folded.has(n));
      return [Math.max(...[...folded].map((n) => T.share[n])), open.map((n) => T.share[n]).sort((a, b) => b - a)];
    }""")
    assert order[0] < order[1][1]
    counted = "[...folded].reduce((sum, n) => sum + below[n], 0) + visibleNodes().filter(([n]) => isLeaf(n)).length"
    assert shown.page.evaluate(counted) == 150  # every leaf is drawn or counted in one folded part
    shown.close()


def test_the_outline_shows_the_same_path(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    tree, path = reports[12]
    shown = Page(browser, path)
    states = np.array(data_of(path)["replay"]["x"])
    shown.page.click("#view-outline")
    shown.page.evaluate("folded.clear(); redraw()")
    for x in states[:5]:
        assert shown.lit() == sorted(tree.path(x))
        shown.page.click("#forward")
    # By keyboard: down the rows, fold, unfold.
    shown.page.focus('#outline [data-node="0"]')
    shown.page.keyboard.press("ArrowDown")
    assert shown.page.evaluate("document.activeElement.dataset.node") == str(tree.children_left[0])
    shown.page.keyboard.press("ArrowLeft")
    shown.page.keyboard.press("Home")
    shown.page.keyboard.press("Enter")
    assert shown.page.locator("#outline .node").count() == 1
    shown.page.keyboard.press("ArrowRight")
    assert shown.page.locator("#outline .node").count() > 1
    shown.close()


def test_the_outline_follows_the_episode_on_a_phone(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    tree, path = reports[30]
    states = np.array(data_of(path)["replay"]["x"])
    reached = tree.apply(states)
    step = int(np.argmax(reached != reached[0]))
    shown = Page(browser, path, viewport={"width": 390, "height": 844})
    assert shown.page.evaluate("[viewName, outline.scrollTop]") == ["outline", 0]  # the root is on top at first
    for _ in range(step):
        shown.page.click("#forward")
    row = shown.page.locator("#outline .node.on").last.bounding_box()
    frame = shown.page.locator("#outline").bounding_box()
    assert row is not None
    assert frame is not None
    assert frame["y"] <= row["y"]
    assert row["y"] + row["height"] <= frame["y"] + frame["height"]
    shown.close()


def test_search_leads_to_folded_nodes(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    tree, path = reports[150]
    shown = Page(browser, path)
    shown.page.fill("#search", "pole_angle")
    assert shown.page.inner_text("#found") == f"{int((tree.feature == 2).sum())} matches"
    leaf = shown.page.evaluate("leaves.find((n) => ancestors(n).some((above) => folded.has(above)))")
    assert shown.page.locator(f'#tree [data-node="{leaf}"]').count() == 0
    shown.page.fill("#search", f"leaf {leaf}")
    shown.page.press("#search", "Enter")
    assert shown.page.evaluate("n => inSight(n)", leaf)
    assert shown.page.locator(f'#tree [data-node="{leaf}"].current').count() == 1
    assert shown.page.inner_text("#leaf-title") == f"Leaf {leaf}"
    shown.page.fill("#search", "nothing like this")
    assert shown.page.inner_text("#found") == "no match"
    shown.page.press("#search", "Escape")
    assert shown.page.locator(".hit").count() == 0
    shown.close()


def test_a_leaf_explains_itself(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    shown = Page(browser, reports[3][1])
    shown.page.click('#tree [data-node="3"]')
    says = shown.page.inner_text("#leaf-says")
    assert says.startswith("When cart_velocity > −0.3499 m/s and pole_angle ≤ 0.01526 rad, the action is push_left.")
    assert "of the visited states come here, in 20 of 20 episodes" in says
    assert shown.page.locator("#leaf-ranges .range").count() == 2
    assert shown.page.inner_text("#leaf-changes").startswith("push_right if ")
    shown.page.click('#tree [data-node="1"]')
    shown.page.click("#leaf-try")
    assert shown.leaf() == 1
    shown.page.click("#leaf-close")
    assert shown.page.is_hidden("#leaf")
    shown.page.click("#leaf-now")
    assert shown.page.get_attribute("#leaf", "data-leaf") == "1"
    shown.close()


def test_the_overview_leads_to_a_leaf_that_no_state_visits(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    tree, path = reports[150]
    shown = Page(browser, path)
    assert shown.page.locator("#overview .part").count() == tree.n_nodes
    leaf = shown.page.evaluate("leaves.find((n) => T.share[n] === 0 && pointIn(n))")
    shown.page.eval_on_selector(
        f'#overview [data-node="{leaf}"]', "e => e.dispatchEvent(new MouseEvent('click', { bubbles: true }))"
    )
    assert "what it does is untested" in shown.page.inner_text("#leaf-says")
    shown.page.click("#leaf-try")
    assert shown.leaf() == leaf
    assert shown.page.locator(f'#tree [data-node="{leaf}"]').count() == 1
    shown.close()


# The leaf whose area on the plane holds a point, for points of the plane: [across, up, leaf, what the tree says].
AREAS = """count => {
  const inside = (p, points) => points.every((a, k) => {
    const b = points[(k + 1) % points.length];
    return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]) >= 0;
  });
  const [A, B] = [F[axisA].shown, F[axisB].shown], found = [];
  const areas = partition(0, [[A[0], B[0]], [A[1], B[0]], [A[1], B[1]], [A[0], B[1]]], []);
  for (let k = 0; k < count; k++) {
    const p = [A[0] + (((k * 0.754877) % 1) * (A[1] - A[0])), B[0] + (((k * 0.569840) % 1) * (B[1] - B[0]))];
    const state = x.slice();
    [state[axisA], state[axisB]] = p;
    found.push([areas.filter(([, points]) => inside(p, points)).map(([n]) => n), leafOf(state)]);
  }
  return found;
}"""


def test_the_plane_shows_what_the_tree_decides(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    shown = Page(browser, reports[3][1])
    assert shown.page.input_value("#axis-a") == "2"  # pole_angle decides most
    assert shown.page.input_value("#axis-b") == "1"
    assert shown.page.locator("#regions .areas polygon").count() == 3
    assert shown.page.locator("#regions .states circle").count() == 400
    shown.page.locator("#regions").scroll_into_view_if_needed()
    box = shown.page.locator("#regions .frame").bounding_box()
    shown.page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 0.1 * box["height"])
    angle, velocity = shown.page.evaluate("[x[2], x[1]]")
    assert angle > 0.01526
    assert velocity > -0.3499
    assert shown.leaf() == 4
    assert not shown.page.is_hidden("#resume")
    shown.page.select_option("#axis-b", "3")
    assert shown.page.locator("#regions .name").all_text_contents() == ["pole_angle in rad", "pole_velocity in rad/s"]
    shown.close()
    other = Page(browser, reports[30][1])
    for step in (0, 3):
        other.page.evaluate("k => goTo(k)", step)
        for areas, leaf in other.page.evaluate(AREAS, 200):
            assert areas == [leaf]
    other.close()


def with_sums(path: Path, where: Path) -> Path:
    """Write CartPole's report with the root's question over a sum of all four features, as trees with sums have it."""
    data = data_of(path)
    name = "0.25*cart_position + 0.5*cart_velocity - 3.125*pole_angle + 0.0625*pole_velocity"
    terms = [[0, 0.25], [1, 0.5], [2, -3.125], [3, 0.0625]]
    derived = {
        **data["features"][1],
        "name": name,
        "sum": {"terms": terms, "constant": 0.125},
        "unit": "",
        "used": False,
    }
    for feature in data["features"]:
        feature["used"] = True
    data["features"].append({**derived, "shown": [-1, 1]})
    data["tree"]["feature"][0] = 4
    where.write_text(page(data))
    return where


def test_questions_over_sums_are_followed_and_drawn(
    browser: Any, reports: dict[int, tuple[Tree, Path]], tmp_path: Path
) -> None:
    shown = Page(browser, with_sums(reports[3][1], tmp_path / "sums.html"))
    assert shown.page.locator("#sliders .slider").count() == 4  # what moves are the observation's own features
    assert shown.page.text_content('#tree [data-node="0"] text').startswith("0.25·cart_position + 0.5·cart_velocity − ")
    assert shown.page.evaluate(COLLISIONS) == []
    rng = np.random.default_rng(0)
    for x in rng.uniform(-1, 1, (8, 4)):
        for feature, value in enumerate(x.tolist()):
            shown.set(feature, value)
        total = 0.125 + 0.25 * x[0] + 0.5 * x[1] - 3.125 * x[2] + 0.0625 * x[3]
        leaf = 1 if total <= -0.3499 else 3 if x[2] <= 0.01526 else 4
        assert shown.leaf() == leaf
        changes = shown.page.evaluate("counterfactuals(x).map((c) => [c.leaf, c.to || null, c.moves])")
        assert changes
        for other, to, moves in changes:
            moved = np.array(to if to else x)
            for feature, value, _ in moves:
                moved[feature] = value
            assert shown.page.evaluate("x => leafOf(x)", moved.tolist()) == other != leaf
    for areas, leaf in shown.page.evaluate(AREAS, 200):
        assert areas == [leaf]
    shown.close()


def test_a_leaf_that_weighs_features_says_its_action(
    browser: Any, reports: dict[int, tuple[Tree, Path]], tmp_path: Path
) -> None:
    data = data_of(reports[3][1])
    own = {"name": "force", "value": 0.25, "terms": [[0, 0.5], [2, -2.0]], "low": -1, "high": 1}
    data["tree"]["linear"] = [None, None, None, [own], None]
    data["tree"]["label"][3] = "force = 0.25 + 0.5·cart_position − 2·pole_angle"
    (tmp_path / "linear.html").write_text(page(data))
    shown = Page(browser, tmp_path / "linear.html")
    for feature, value in enumerate((0.5, 0.0, -0.125, 0.0)):
        shown.set(feature, value)
    assert shown.page.inner_text("#verdict") == "force=0.75"
    shown.set(0, 10.0)
    assert shown.page.inner_text("#verdict") == "force=1"  # clipped
    assert shown.page.evaluate(COLLISIONS) == []
    shown.close()


def test_the_clock_counts_what_has_been_earned(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    shown = Page(browser, reports[3][1])
    assert shown.page.inner_text("#clock") == "step 0 of 500 · return 0"
    shown.page.click("#forward")
    assert shown.page.inner_text("#clock") == "step 1 of 500 · return 1"
    shown.page.evaluate("goTo(1000)")
    assert shown.page.inner_text("#clock") == "step 500 of 500 · return 500 · time limit"
    shown.close()


def test_the_return_stands_beside_others(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    shown = Page(browser, reports[3][1])
    assert shown.page.locator(".rival .who").all_inner_texts() == [
        "this tree", "reward threshold", "random actions", "always push_left"
    ]  # fmt: skip
    places = shown.page.eval_on_selector_all(".rival .point", "all => all.map((e) => e.getBoundingClientRect().x)")
    assert places[0] > places[1] > places[2] > places[3]
    assert "counts as solved" in shown.page.inner_text("#good-says")
    shown.close()


def test_focus_is_seen_apart_from_the_path(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    shown = Page(browser, reports[3][1])
    ring = "e => getComputedStyle(e).stroke"
    shown.page.click("#fit")
    for _ in range(2):
        shown.page.keyboard.press("Tab")
        if shown.page.evaluate("document.activeElement.dataset.node") == "0":
            break
    assert shown.page.evaluate("document.activeElement.dataset.node") == "0"
    assert shown.page.eval_on_selector('#tree [data-node="0"] .ring', ring) == "rgb(26, 102, 214)"
    assert shown.page.eval_on_selector('#tree [data-node="1"] .ring', ring) == "none"
    shown.close()


def test_paper_has_every_leaf_and_the_screen_comes_back(browser: Any, reports: dict[int, tuple[Tree, Path]]) -> None:
    tree, path = reports[30]
    shown = Page(browser, path, color_scheme="dark")
    before = shown.page.evaluate("[viewName, folded.size]")
    assert before[0] == "tree"
    shown.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert shown.page.locator("#outline .node").count() == tree.n_nodes
    shown.page.emulate_media(media="print", color_scheme="dark")
    assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for hidden in ("#what-if", "#export", "#search"):
        assert shown.page.is_hidden(hidden)
    for there in ("#outline", "#audit", "#good", "#settings"):
        assert shown.page.is_visible(there)
    shown.page.emulate_media(media="screen", color_scheme="dark")
    shown.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert shown.page.evaluate("[viewName, folded.size]") == before
    shown.close()
    small = Page(browser, reports[3][1])
    assert small.page.pdf(format="A4").startswith(b"%PDF")
    small.close()
