// The tree as a drawing: nodes at a size that can be read, down from the root or, where that is too wide, to the right.
const tree = $("tree"), MAX_SCALE = 1.6;
let compact = false;  // narrower nodes with more lines, where the whole tree does not fit
let view = null, home = null, nodeAt = new Map(), dots = [], shape = "down", lightened = () => {};
const measured = new Map();
const nowText = (leaf) => `▸ now ${clip(T.label[leaf], 16)}`, foldedText = (n) => `▸ ${below[n]} leaves${T.share ? `, ${T.share[n] ? percent(T.share[n]) : "unvisited"}` : ""}`;
const longestNow = Math.max(...leaves.map((n) => textWidth(nowText(n), SMALL)));
// A linear leaf's formula, each component of the action on lines of its own; cut where there are many leaves.
function formulaLines(n) {
  const parts = T.label[n].split(/, (?=[^\s,=]+=)/), most = Math.max(3, Math.floor((leaves.length > 4 ? 6 : 24) / parts.length));
  return parts.flatMap((part) => wrap(part.replace(/([+−]) /g, "$1\u00a0"), 216, BOLD, most)).map((line) => line.replaceAll("\u00a0", " "));
}
// A node's box: its lines of text and its size.
function measure(n) {
  const key = `${n} ${folded.has(n)} ${compact}`;
  if (measured.has(key)) return measured.get(key);
  let box;
  if (isLeaf(n)) {
    const lines = T.linear && T.linear[n] ? formulaLines(n) : wrap(T.label[n], compact ? 120 : 176, BOLD, 5), widest = Math.max(...lines.map((line) => textWidth(line, BOLD)));
    const share = T.share ? textWidth(percent(T.share[n]), SMALL) + 22 : 0;
    box = { lines, w: Math.max(compact ? 70 : 86, share, widest + (compact ? 18 : 28)), h: 17 * lines.length + (T.share ? 28 : 19) };
  } else {
    const isSum = Boolean(F[T.feature[n]].sum), [lo, hi] = rangeTexts(T.feature[n]);
    const text = isSum ? question(n).replace(/([+−≤]) /g, "$1\u00a0") : question(n);  // a sign stays with its term
    const lines = wrap(text, isSum ? (compact ? 215 : 250) : compact ? 122 : 216, FONT, isSum ? 9 : compact ? 5 : 3).map((line) => line.replaceAll("\u00a0", " "));
    const bar = textWidth(lo, SMALL) + textWidth(hi, SMALL) + (compact ? 64 : 84);
    box = { lines, w: Math.max(bar, ...lines.map((line) => textWidth(line, FONT) + 28)), h: 17 * lines.length + 32 };
    if (folded.has(n)) { box.w = Math.max(box.w, longestNow + 28, textWidth(foldedText(n), SMALL) + 24); box.h += 26; }
  }
  measured.set(key, box);
  return box;
}
const rangeTexts = (c) => F[c].shown.map((v) => fmt(Number(v.toPrecision(3))));
function visibleNodes() {
  const found = [], stack = [[0, 0]];
  while (stack.length) {
    const [n, d] = stack.pop();
    found.push([n, d]);
    if (!isLeaf(n) && !folded.has(n)) stack.push([T.right[n], d + 1], [T.left[n], d + 1]);
  }
  return found;
}
// Where nodes go, [x, y] of each middle: every subtree has a strip of its own, so that nothing can overlap.
function layout(kind, shown) {
  const down = kind === "down", gap = down ? (compact ? 8 : 18) : 13, across = (n) => (down ? measure(n).w : measure(n).h) + gap;
  const strip = new Map(), levels = [];
  const open = (n) => !isLeaf(n) && !folded.has(n);
  for (const [n, d] of [...shown].reverse()) {
    strip.set(n, open(n) ? Math.max(across(n), strip.get(T.left[n]) + strip.get(T.right[n])) : across(n));
    levels[d] = Math.max(levels[d] || 0, down ? measure(n).h : measure(n).w);
  }
  const start = [0], at = new Map(), from = new Map([[0, 0]]);
  levels.forEach((size, d) => { start[d + 1] = start[d] + size + (down ? 58 : 38); });
  for (const [n] of shown) {
    if (!open(n)) continue;
    const [l, r] = [T.left[n], T.right[n]], spare = (strip.get(n) - strip.get(l) - strip.get(r)) / 2;
    from.set(l, from.get(n) + spare);
    from.set(r, from.get(n) + spare + strip.get(l));
  }
  const middle = new Map();
  for (const [n] of [...shown].reverse()) middle.set(n, open(n) ? (middle.get(T.left[n]) + middle.get(T.right[n])) / 2 : from.get(n) + strip.get(n) / 2);
  // A wide question over narrow children stays within its strip.
  for (const [n] of shown) if (open(n)) middle.set(n, Math.min(Math.max(middle.get(n), from.get(n) + across(n) / 2), from.get(n) + strip.get(n) - across(n) / 2));
  for (const [n, d] of shown) {
    const { w, h } = measure(n);
    at.set(n, down ? [middle.get(n), start[d] + (isLeaf(n) ? h / 2 : levels[d] / 2)] : [start[d] + w / 2, middle.get(n)]);
  }
  return at;
}
function extent(at) {
  let box = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [n, [px, py]] of at) { const { w, h } = measure(n); box = [Math.min(box[0], px - w / 2), Math.min(box[1], py - h / 2), Math.max(box[2], px + w / 2), Math.max(box[3], py + h / 2)]; }
  return box;
}
// How the visible nodes fit into the panel at full size: the kind of drawing, and how much it must shrink (1: not at all).
function bestLayout() {
  const shown = visibleNodes(), margin = innerWidth < 560 ? 8 : 20, room = panelRoom();
  const found = ["down", "right"].map((kind) => {
    const at = layout(kind, shown), [x0, y0, x1, y1] = extent(at);
    return { kind, at, scale: Math.min(room.width / (x1 - x0 + 2 * margin), room.height / (y1 - y0 + 2 * margin)), box: [x0 - margin, y0 - margin, x1 - x0 + 2 * margin, y1 - y0 + 2 * margin] };
  });
  const few = shown.filter(([n]) => isLeaf(n) || folded.has(n)).length <= 8;
  return found[0].scale >= 1 && few ? found[0] : found[1].scale >= 1 || !few ? found[1] : found[0].scale >= found[1].scale ? found[0] : found[1];
}
function panelRoom() {
  const narrow = matchMedia("(max-width: 940px)").matches;
  return { width: tree.clientWidth || tree.parentNode.clientWidth - 40, height: narrow || $("grid").classList.contains("expanded") ? 720 : Math.max(480, tree.clientHeight) };
}
function drawTree() {
  const { kind, at, box } = bestLayout(), shown = visibleNodes(), down = kind === "down";
  shape = kind;
  nodeAt = at;
  dots = [];
  const edges = svg("g"), nodes = svg("g");
  for (const [n, depth] of shown) {
    nodes.append(isLeaf(n) ? leafNode(n, depth) : questionNode(n, depth));
    if (!isLeaf(n) && !folded.has(n)) drawEdges(edges, n, down);
  }
  tree.replaceChildren(edges, nodes);
  home = box;  // the whole drawing: what Fit shows
  const narrow = matchMedia("(max-width: 940px)").matches || $("grid").classList.contains("expanded");
  if (narrow) tree.style.height = `${Math.max(200, Math.min(720, home[3] * Math.max(1, Math.min(1.25, tree.clientWidth / home[2]))))}px`;
  else tree.style.height = "";
  const room = tree.getBoundingClientRect(), scale = Math.min(room.width / home[2], room.height / home[3]);
  // A small tree is not blown up beyond a comfortable size; one that does not fit opens at its root, at full size.
  const limit = Math.max(1, Math.min(scale, MAX_SCALE)), w = room.width / limit, h = room.height / limit;
  // What is left over of the height goes below: the drawing begins where the page does.
  if (scale > 1) home = [home[0] - (w - home[2]) / 2, home[1] - (h - home[3]) * (down ? 0.3 : 0.04), w, h];
  const [rx, ry] = nodeAt.get(0);
  view = scale >= 1 ? home.slice() : down ? [rx - w / 2, home[1], w, h] : [home[0], home[3] < h ? home[1] : ry - h / 2, w, h];
  zoom();
}
function nodeGroup(n, depth, kind, says) {
  const [px, py] = nodeAt.get(n), { w, h } = measure(n);
  const g = svg("g", { class: `node ${kind}`, "data-node": n, transform: `translate(${px},${py})`, tabindex: n === 0 ? "0" : "-1", role: "treeitem", "aria-level": depth + 1, "aria-label": says });
  g.append(svg("rect", { class: "ring", x: -w / 2 - 5, y: -h / 2 - 5, width: w + 10, height: h + 10, rx: 16 }), svg("rect", { class: "shape", x: -w / 2, y: -h / 2, width: w, height: h, rx: 12 }));
  return g;
}
function textLines(g, lines, top, attrs = {}) {
  const text = svg("text", { "text-anchor": "middle", ...attrs });
  lines.forEach((line, k) => text.append(svg("tspan", { x: 0, y: top + 17 * k }, k < lines.length - 1 ? `${line} ` : line)));
  g.append(text);
}
function leafNode(n, depth) {
  const { lines, h } = measure(n), ink = inkOn(T.colour[n]);
  const g = nodeGroup(n, depth, "leaf", T.label[n] + (T.share ? `, ${percent(T.share[n])}` : ""));
  const box = g.querySelector(".shape");
  box.style.fill = box.style.stroke = T.colour[n];
  if (T.share && T.share[n] === 0) g.classList.add("never");
  else g.style.setProperty("--text", ink);
  textLines(g, lines, -h / 2 + 22);
  if (T.share) g.append(svg("text", { class: "small", "text-anchor": "middle", y: h / 2 - 8 }, percent(T.share[n])));
  return g;
}
function questionNode(n, depth) {
  const { lines, w, h } = measure(n), c = T.feature[n], [lo, hi] = F[c].shown, texts = rangeTexts(c);
  const g = nodeGroup(n, depth, "inner", question(n) + (T.share ? `, ${percent(T.share[n])}` : ""));
  g.setAttribute("aria-expanded", String(!folded.has(n)));
  textLines(g, lines, -h / 2 + 20);
  // The feature's range, the part of it that can still come here, where the question cuts it, and where the state is.
  const y = -h / 2 + 17 * lines.length + 17, left = -w / 2 + 14 + textWidth(texts[0], SMALL) + 7, right = w / 2 - 14 - textWidth(texts[1], SMALL) - 7;
  const place = (v) => left + (right - left) * Math.min(1, Math.max(0, (v - lo) / (hi - lo || 1)));
  const [from, to] = boxOf(n).get(c) || [-Infinity, Infinity], dot = svg("circle", { class: "dot", r: 4, cy: y, cx: left });
  g.append(svg("text", { class: "small", x: left - 7, y: y + 4, "text-anchor": "end" }, texts[0]), svg("text", { class: "small", x: right + 7, y: y + 4 }, texts[1]),
    svg("line", { class: "bar", x1: left, x2: right, y1: y, y2: y }), svg("line", { class: "span", x1: place(from), x2: place(to), y1: y, y2: y }),
    svg("line", { class: "cut", x1: place(T.threshold[n]), x2: place(T.threshold[n]), y1: y - 6, y2: y + 6 }), dot);
  dots.push([dot, c, place]);
  if (folded.has(n)) {
    g.append(svg("text", { class: "small folded", "text-anchor": "middle", y: h / 2 - 17 }, foldedText(n)));
    let at = -w / 2 + 14;
    for (const [colour, share] of actionMix(n)) { const wide = share * (w - 28); g.append(svg("rect", { x: at, y: h / 2 - 10, width: wide, height: 4, fill: colour })); at += wide; }
  }
  return g;
}
// How the leaves under a node share its states (or, where none came, each other) by action: [[colour, share]].
function actionMix(node) {
  const mix = new Map(), weigh = T.share && T.share[node] > 0 ? (n) => T.share[n] / T.share[node] : () => 1 / below[node], stack = [node];
  while (stack.length) {
    const n = stack.pop();
    if (isLeaf(n)) mix.set(T.colour[n], (mix.get(T.colour[n]) || 0) + weigh(n));
    else stack.push(T.left[n], T.right[n]);
  }
  return [...mix].sort((a, b) => b[1] - a[1]);
}
function drawEdges(edges, n, down) {
  const [px, py] = nodeAt.get(n), { w, h } = measure(n), thick = (child) => (T.share ? 1.6 + 10 * T.share[child] : 2);
  const apartBy = (thick(T.left[n]) + thick(T.right[n])) / 4 + 1;
  for (const [child, side, answer] of [[T.left[n], -1, "yes"], [T.right[n], 1, "no"]]) {
    const [cx, cy] = nodeAt.get(child), size = measure(child), width = thick(child), off = side * apartBy;
    const top = cy - size.h / 2, near = cx - size.w / 2, bottom = py + h / 2, out = px + w / 2;
    const path = down ? `M${px + off},${bottom}C${px + off},${(bottom + top) / 2} ${cx},${(bottom + top) / 2} ${cx},${top}`
      : `M${out},${py + off}C${out + 20},${py + off} ${near - 20},${cy} ${near},${cy}`;
    edges.append(svg("path", { class: "edge", d: path, style: `--wide: ${width}px`, "data-to": child }));
    const label = down ? { x: cx + side * (width / 2 + 6), y: top - 8, "text-anchor": side < 0 ? "end" : "start" } : { x: near - 5, y: cy + side * (width / 2 + 8) + 4, "text-anchor": "end" };
    edges.append(svg("text", { class: "answer", ...label }, answer));
  }
}

// ---- moving about ----
const toView = () => { const r = tree.getBoundingClientRect(); return [Math.max(view[2] / r.width, view[3] / r.height), r]; };
function zoom(factor, cx, cy) {
  if (factor) {
    cx = cx ?? view[0] + view[2] / 2; cy = cy ?? view[1] + view[3] / 2;
    view = [cx - (cx - view[0]) * factor, cy - (cy - view[1]) * factor, view[2] * factor, view[3] * factor];
  }
  tree.style.setProperty("--pixel", `${toView()[0]}px`);  // a pixel of the screen, so that no line gets too thin to see
  // Where a part of the tree lies outside, a finger moves the tree; else it scrolls the page.
  const [left, top, right, bottom] = seen();
  const outside = left > home[0] + 1 || top > home[1] + 1 || right < home[0] + home[2] - 1 || bottom < home[1] + home[3] - 1;
  tree.style.touchAction = outside ? "none" : "pan-y";
  tree.setAttribute("viewBox", view.join(" "));
  lightened();
}
// The part of the plane that can be seen: the view, and what the panel adds on both sides and below.
function seen() {
  const [s, r] = toView(), cx = view[0] + view[2] / 2;
  return [cx - (r.width * s) / 2, view[1], cx + (r.width * s) / 2, view[1] + r.height * s];
}
function inSight(n) {
  if (!nodeAt.has(n)) return false;
  const [px, py] = nodeAt.get(n), [left, top, right, bottom] = seen();
  return px >= left && px <= right && py >= top && py <= bottom;
}
function revealInTree(n) {
  const [px, py] = nodeAt.get(n), [left, top, right, bottom] = seen(), w = measure(n).w / 2 + 12, h = measure(n).h / 2 + 14;
  view[0] += px - w < left ? px - w - left : Math.max(0, px + w - right);
  view[1] += py - h < top ? py - h - top : Math.max(0, py + h - bottom);
  zoom();
}
function lightTree(path, leaf) {
  const on = new Set(path);
  tree.querySelectorAll(".node").forEach((g) => {
    const n = Number(g.dataset.node), lit = on.has(n), says = g.querySelector(".folded");
    g.classList.toggle("on", lit);
    if (says) says.textContent = lit ? nowText(leaf) : foldedText(n);
  });
  tree.querySelectorAll(".edge").forEach((e) => {
    const lit = on.has(Number(e.dataset.to));
    e.classList.toggle("on", lit);
    if (lit) e.parentNode.insertBefore(e, e.parentNode.querySelector(".answer"));
  });
  for (const [dot, c, place] of dots) {
    const v = valueOf(c, x);
    dot.style.display = Number.isNaN(v) ? "none" : "";
    if (!Number.isNaN(v)) dot.setAttribute("cx", place(v));
  }
}
// A question that was folded or unfolded stays under the pointer; what was unfolded comes into view.
function foldInTree(n) {
  const keep = view.slice(), [ax, ay] = nodeAt.get(n);
  drawTree();
  const [bx, by] = nodeAt.get(n);
  view = [keep[0] + bx - ax, keep[1] + by - ay, keep[2], keep[3]];
  for (const shown of folded.has(n) ? [n] : [T.right[n], T.left[n], n]) revealInTree(shown);
}
let grip = null;
tree.addEventListener("pointerdown", (e) => { grip = { x: e.clientX, y: e.clientY, view: view.slice(), moved: false, node: nodeOf(e) }; });
addEventListener("pointermove", (e) => {
  if (!grip) return;
  const dx = e.clientX - grip.x, dy = e.clientY - grip.y;
  if (!grip.moved && Math.hypot(dx, dy) < 5) return;
  grip.moved = true;
  tree.classList.add("drag");
  const [s] = toView();
  view = [grip.view[0] - dx * s, grip.view[1] - dy * s, grip.view[2], grip.view[3]];
  zoom();
});
addEventListener("pointerup", (e) => {
  if (grip && !grip.moved && grip.node) press(Number(grip.node.dataset.node), e.pointerType, grip.node);
  grip = null;
  tree.classList.remove("drag");
});
addEventListener("pointercancel", () => { grip = null; tree.classList.remove("drag"); });
tree.addEventListener("wheel", (e) => {
  if (!e.ctrlKey && !e.metaKey) return;
  e.preventDefault();
  const [s, r] = toView();
  zoom(Math.exp(e.deltaY * 0.002), view[0] + view[2] / 2 + (e.clientX - r.left - r.width / 2) * s, view[1] + (e.clientY - r.top) * s);
}, { passive: false });
$("zoom-in").onclick = () => zoom(0.8);
$("zoom-out").onclick = () => zoom(1.25);
$("fit").onclick = () => { view = home.slice(); zoom(); };
