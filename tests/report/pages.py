"""What tests of the report share: run directories, pages in a browser, and what is asked of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import custard
from custard import Tree

BASE = custard.describe(gym.make("CartPole-v1"))
CARTPOLE = Tree(
    [1, -1, 2, -1, -1], [-0.3499, 0, 0.01526, 0, 0], [1, -1, 3, -1, -1], [2, -1, 4, -1, -1], [0, 1, 0, 0, 1],
    BASE.features, BASE.actions,
)  # fmt: skip
HOSTILE = '<img src=x onerror="window.hurt=1">'


def run_directory(where: Path, tree: Tree, env: str = "CartPole-v1", **config: Any) -> Path:
    where.mkdir(exist_ok=True)
    settings = {"env": env, "env_kwargs": {}, "method": "mfec", "seed": 0, "max_depth": 2, "settings": {"splits": 3}}
    (where / "config.json").write_text(json.dumps({**settings, **config}))
    rows = [f"{100 * k},{0.1 * k},{4.5 * k},{1 + k // 5}" for k in range(20)]
    (where / "metrics.csv").write_text("\n".join(["steps,seconds,value,leaves", *rows, "2000,2.0,nan,"]))
    tree.save(where / "tree.json")
    return where


def data_of(path: Path) -> dict[str, Any]:
    text = path.read_text()
    begin = text.index('<script type="application/json" id="data">') + len('<script type="application/json" id="data">')
    return json.loads(text[begin : text.index("</script>", begin)])


def full_tree(depth: int) -> Tree:
    rng = np.random.default_rng(0)
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    node = np.arange(count)
    return Tree(
        np.where(node < inner, rng.integers(4, size=count), -1), rng.uniform(-0.1, 0.1, count),
        np.where(node < inner, 2 * node + 1, -1), np.where(node < inner, 2 * node + 2, -1), node % 2,
        BASE.features, BASE.actions,
    )  # fmt: skip


def grown_tree(leaves: int, seed: int = 0) -> Tree:
    """Return an unbalanced tree of CartPole with that many leaves, thresholds where states are, all leaves possible."""
    rng = np.random.default_rng(seed)
    reach = np.array([1.2, 1.0, 0.12, 1.2])
    feature, threshold, left, right = [-1], [0.0], [-1], [-1]
    boxes = [np.stack([-reach, reach])]
    while feature.count(-1) < leaves:
        ends = [n for n, c in enumerate(feature) if c < 0]
        n = int(rng.choice(ends[-max(6, len(ends) // 2) :]))  # recent leaves: some branches grow long
        c = int(rng.integers(4))
        t = float(rng.uniform(*(boxes[n][:, c] * 0.8 + boxes[n][:, c].mean() * 0.2)))
        feature[n], threshold[n], left[n], right[n] = c, t, len(feature), len(feature) + 1
        for side in (1, 0):
            box = boxes[n].copy()
            box[side, c] = t
            boxes.append(box)
        feature, threshold = [*feature, -1, -1], [*threshold, 0.0, 0.0]
        left, right = [*left, -1, -1], [*right, -1, -1]
    return Tree(feature, threshold, left, right, np.arange(len(feature)) % 2, BASE.features, BASE.actions)


class Page:
    """A page of the report, its complaints and its requests."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def leaf(self) -> int:
        return int(self.page.get_attribute("#verdict", "data-leaf"))

    def lit(self) -> list[int]:
        return sorted(int(n) for n in self.page.eval_on_selector_all(".node.on", "all => all.map(g => g.dataset.node)"))

    def set(self, feature: int, value: float) -> None:
        self.page.eval_on_selector(
            f'[data-exact="{feature}"]', "(e, v) => { e.value = v; e.dispatchEvent(new Event('change')); }", repr(value)
        )

    def close(self) -> None:
        assert self.complaints == []
        outside = [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]
        assert outside == []
        self.page.close()


# The size in pixels of the smallest text on the page, and the text.
SMALLEST_TEXT = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const zoomOf = (m) => Math.hypot(m.a, m.b);
  let least = [Infinity, ""];
  while (walker.nextNode()) {
    const text = walker.currentNode, e = text.parentElement;
    if (!text.data.trim() || ["SCRIPT", "STYLE", "OPTION"].includes(e.tagName) || !e.getClientRects().length) continue;
    const size = parseFloat(getComputedStyle(e).fontSize) * (e.ownerSVGElement ? zoomOf(e.getScreenCTM()) : 1);
    if (size < least[0]) least = [size, text.data];
  }
  return least;
}"""

# Nodes that do not lie in their panel, in the tree or in the outline.
HIDDEN_NODES = """() => {
  const r = holder().getBoundingClientRect();
  return [...holder().querySelectorAll(".node")].filter((e) => {
    const b = (e.querySelector(".shape") || e).getBoundingClientRect();
    return b.left < r.left - 1 || b.right > r.right + 1 || b.top < r.top - 1 || b.bottom > r.bottom + 1;
  }).map((e) => e.textContent);
}"""

# Pairs of nodes that overlap, and nodes whose text runs over their edge.
COLLISIONS = """() => {
  const box = (e) => e.getBoundingClientRect(), nodes = [...holder().querySelectorAll(".node")], found = [];
  const shapes = nodes.map((g) => [g, box(g.querySelector(".shape") || g)]);
  for (const [g, s] of shapes) {
    for (const text of g.querySelectorAll("text, .question, .pill, .share")) {
      const b = box(text);
      if (b.width && (b.left < s.left - 1 || b.right > s.right + 1 || b.top < s.top - 1 || b.bottom > s.bottom + 1)) {
        found.push(["text", text.textContent]);
      }
    }
    for (const [h, t] of shapes) {
      const apart = s.right <= t.left + 1 || t.right <= s.left + 1 || s.bottom <= t.top + 1 || t.bottom <= s.top + 1;
      if (g !== h && !apart) found.push([g.textContent, h.textContent]);
    }
  }
  return found;
}"""
