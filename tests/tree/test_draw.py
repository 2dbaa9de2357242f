"""Pictures: they are made for every shape of tree, say what they should and come out the same every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from custard import Actions, CustardError, Features, Tree
from custard.tree.draw import draw, draw_partition, save_picture, short, shown_ranges
from custard.tree.palette import leaf_colours

ACTIONS = Actions("discrete", ("left", "stay", "right"))


def grown(leaves: int, n: int = 4, actions: Actions = ACTIONS, names: tuple[str, ...] = ()) -> Tree:
    rng = np.random.default_rng(leaves)
    zero = 0 if actions.discrete else np.zeros(actions.size)
    nodes, ends = [[-1, 0.0, -1, -1, zero]], [0]
    while len(ends) < leaves:
        at = ends.pop(int(rng.integers(len(ends))))
        nodes[at] = [int(rng.integers(n)), float(rng.standard_normal()), len(nodes), len(nodes) + 1, zero]
        ends += [len(nodes), len(nodes) + 1]
        nodes += [
            [-1, 0.0, -1, -1, int(rng.integers(3)) if actions.discrete else rng.random(actions.size)] for _ in range(2)
        ]
    features = Features(names or tuple(f"feature_{c}" for c in range(n)), [-3] * n, [3] * n)
    return Tree(*(np.array(column) for column in zip(*nodes, strict=True)), features, actions)


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("leaves", [1, 2, 3, 9, 10, 25, 60])
def test_every_node_is_named_and_inside_the_picture(leaves: int) -> None:
    tree = grown(leaves)
    visits = np.arange(tree.n_nodes)[::-1]
    figure = draw(tree, visits)
    said = texts(figure)
    assert sum(text in ACTIONS.names for text in said) == leaves
    assert sum(" ≤ " in text for text in said) == leaves - 1
    assert said.count("yes") == said.count("no") == leaves - 1
    axes = figure.axes[0]
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    for text in axes.texts:
        x, y = text.get_position()
        assert x0 < x < x1
        assert y0 < y < y1
    if leaves <= 25:
        boxes = _boxes(figure)
        for k, a in enumerate(boxes):
            assert not any(_overlap(a, b) for b in boxes[k + 1 :])


def _boxes(figure) -> list[tuple[float, float, float, float]]:
    from matplotlib.patches import FancyBboxPatch

    found = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    return [(p.get_x(), p.get_y(), p.get_x() + p.get_width(), p.get_y() + p.get_height()) for p in found]


def _overlap(a: tuple, b: tuple) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_files_come_out_the_same(tmp_path: Path) -> None:
    tree = grown(5)
    for name in ("a.svg", "b.svg", "a.png", "a.pdf"):
        save_picture(tree, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(CustardError, match="must end in"):
        save_picture(tree, tmp_path / "tree.gif")
    with pytest.raises(CustardError, match="cannot write"):
        save_picture(tree, tmp_path / "nowhere" / "tree.svg")
    with pytest.raises(CustardError, match="a count for each of 9 nodes"):
        draw(tree, [1, 2])


def test_hostile_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    names = ("$\\frac{1}{0}$", "</text><script>", "a\nb", "x" * 500)
    tree = grown(12, names=names)
    said = texts(draw(tree))
    assert any(text.startswith("$\\frac{1}{0}$ ≤") for text in said)
    assert not any("\n" in text for text in said)
    save_picture(tree, tmp_path / "tree.svg")
    assert "<script" not in (tmp_path / "tree.svg").read_text()


def test_partitions(tmp_path: Path) -> None:
    for n in (1, 2):
        tree = grown(6, n=n)
        path = np.random.default_rng(0).standard_normal((50, n))
        figure = draw_partition(tree, [path, path + 0.1])
        area = sum(p.get_width() * p.get_height() for p in figure.axes[0].patches)
        assert area == pytest.approx(6.0 * (6.0 if n == 2 else 1.0), rel=1e-6)  # the leaves tile the plane
    for tree in (grown(1), grown(20, n=4)):
        with pytest.raises(CustardError, match="one or two features"):
            draw_partition(tree)


def test_vector_actions_are_coloured_by_value() -> None:
    tree = grown(8, actions=Actions("box", ("torque", "brake"), low=[-2, -2], high=[2, 2]))
    colours = [colour for colour in leaf_colours(tree) if colour]
    assert len(set(colours)) > 2
    assert all(len(colour) == 7 and colour[0] == "#" for colour in colours)
    draw(tree)
    # One colour for each distinct vector, also where only the second component differs.
    vectors = [[0, 0], [0, 0], [0, 0], [0, 1], [2, 0]]
    actions = Actions("multi", ("valve", "heater"), low=[0, 0], high=[2, 1])
    columns = ([0, 1, -1, -1, -1], [0.0, 0.0, 0, 0, 0], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1], vectors)
    three = leaf_colours(Tree(*columns, Features(("a", "b"), [-1, -1], [1, 1]), actions))
    assert len(set(three[2:])) == 3


def test_ranges_are_what_a_person_wants() -> None:
    features = Features(("a", "b", "c"), [-np.inf, -1, -3.4e38], [np.inf, 1, 3.4e38])
    tree = Tree(
        [0, -1, 1, -1, -1], [2.0, 0, 0.5, 0, 0], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], [0] * 5, features, ACTIONS
    )
    plain = shown_ranges(tree)
    assert plain[0][0] < 0 < 2 < plain[0][1]
    assert plain[1].tolist() == [-1, 1]
    seen = shown_ranges(tree, np.random.default_rng(0).normal(5, 1, (1000, 3)))
    assert seen[0][0] < 2 < seen[0][1] < 10
    assert np.isfinite(seen).all()
    assert short(-0.34990) == "−0.3499"


def test_ranges_of_whole_numbers_are_whole() -> None:
    features = Features(("a", "b", "c"), [-np.inf, 0, 0], [np.inf, 1, np.inf], ("integer", "binary", "integer"))
    tree = Tree.stump(0, 3.4, 0, 1, features, ACTIONS)
    for seen in (None, np.tile(np.arange(9.0)[:, None], 3)):
        ranges = shown_ranges(tree, seen)
        assert (ranges == np.round(ranges)).all()
        assert ranges[0, 0] < 3.4 < ranges[0, 1]
        assert ranges[1].tolist() == [0, 1]
