"use strict";
// Everything that comes from outside enters the page as text nodes or attribute values, never as markup.
const D = JSON.parse(document.getElementById("data").textContent, read);
function read(key, value) {
  if (typeof value === "string") return key === "text" ? value : visible(value);  // an export stays as it is
  // JSON has no NaN and no infinity: write.py puts them in as {"float": "NaN"}.
  return value && value.float !== undefined ? Number(value.float) : value;
}
// Characters that turn the direction of the text after them are shown, not obeyed.
function visible(text) { return text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd"); }
// A name that runs from right to left would take the numbers beside it along: the marks around it keep it to itself.
function apart(name) { return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u.test(name) ? `\u2068${name}\u2069` : name; }
const $ = (id) => document.getElementById(id);
const T = D.tree, F = D.features, N = T.feature.length;
const RAW = F.filter((f) => !f.sum).length;  // features of the observation itself; derived ones follow
const SVG = "http://www.w3.org/2000/svg";
const isLeaf = (n) => T.feature[n] < 0;
const el = (tag, attrs = {}, text) => make(document.createElement(tag), attrs, text);
const svg = (tag, attrs = {}, text) => make(document.createElementNS(SVG, tag), attrs, text);
function make(node, attrs, text) {
  for (const key in attrs) node.setAttribute(key, attrs[key]);
  if (text !== undefined) node.textContent = text;
  return node;
}
// Four digits, or as many as it takes for the printed number to be one that `keeps` the sentence true.
function fmt(v, keeps = () => true) {
  if (Number.isNaN(v)) return "NaN";
  if (!Number.isFinite(v)) return v > 0 ? "∞" : "−∞";
  const power = v !== 0 && (Math.abs(v) >= 1e6 || Math.abs(v) < 1e-4);
  for (let digits = 4; ; digits++) {
    const text = power ? v.toExponential(digits - 2) : String(Number(v.toPrecision(digits)));
    if (digits > 17 || keeps(Number(text))) return text.replace(/-/g, "−");
  }
}
const percent = (s) => (s === 0 ? "never visited" : s < 0.001 ? "< 0.1 %" : `${Number((100 * s).toPrecision(3))} %`);
const clip = (s, most) => (s.length > most ? s.slice(0, most - 1) + "…" : s);

// ---- the tree's own arithmetic: the same comparisons on the same float64 numbers ----
// A sum: the constant if it is not zero, then one rounded product after the other, as everywhere in custard.
function sumOf(s, x) {
  let total = s.constant, empty = total === 0;
  for (const [atom, weight] of s.terms) {
    const product = weight * (typeof atom === "number" ? x[atom] : partOf(atom, x));
    total = empty ? product : total + product;
    empty = false;
  }
  return total;
}
function partOf(part, x) {
  const v = part.arguments.map((s) => sumOf(s, x));
  return part.operation === "product" ? v[0] * v[1] : part.operation === "abs" ? Math.abs(v[0]) : v[0] - 2 * Math.PI * Math.floor((v[0] + Math.PI) / (2 * Math.PI));
}
const full = (x) => (RAW === F.length ? x : [...x.slice(0, RAW), ...F.slice(RAW).map((f) => sumOf(f.sum, x))]);
// What a leaf does at x: a linear one computes its action.
function told(leaf, x) {
  if (!T.linear || !T.linear[leaf]) return T.label[leaf];
  return T.linear[leaf].map((a) => {
    let v = a.value;
    for (const [i, gain] of a.terms) v += gain * x[i];
    return `${a.name}=${fmt(a.terms.length ? (v < a.low ? a.low : v > a.high ? a.high : v) : v)}`;
  }).join(", ");
}
function pathOf(raw) {
  const x = full(raw);
  const path = [0];
  while (!isLeaf(path[path.length - 1])) {
    const n = path[path.length - 1];
    path.push(x[T.feature[n]] <= T.threshold[n] ? T.left[n] : T.right[n]);
  }
  return path;
}
const parent = new Array(N).fill(-1);
const depthOf = new Array(N).fill(0), below = new Array(N).fill(1);  // questions above each node, leaves under it
for (let n = 0; n < N; n++) if (!isLeaf(n)) for (const child of [T.left[n], T.right[n]]) { parent[child] = n; depthOf[child] = depthOf[n] + 1; }
for (let n = N - 1; n >= 0; n--) if (!isLeaf(n)) below[n] = below[T.left[n]] + below[T.right[n]];
function boxOf(node) {
  const steps = [];
  for (let n = node; parent[n] >= 0; n = parent[n]) steps.push([parent[n], T.left[parent[n]] === n]);
  const box = new Map();
  for (const [n, left] of steps.reverse()) {
    const c = T.feature[n], [lo, hi] = box.get(c) || [-Infinity, Infinity];
    box.set(c, left ? [lo, Math.min(hi, T.threshold[n])] : [Math.max(lo, T.threshold[n]), hi]);
  }
  return box;
}
function conditions(node) {
  return [...boxOf(node)].map(([c, [lo, hi]]) =>
    lo === -Infinity ? `${apart(F[c].name)} ≤ ${fmt(hi)}` : hi === Infinity ? `${apart(F[c].name)} > ${fmt(lo)}` : `${fmt(lo)} < ${apart(F[c].name)} ≤ ${fmt(hi)}`);
}
function nextUp(v) {
  const floats = new Float64Array([v]), bits = new BigInt64Array(floats.buffer);
  if (v === 0) return Number.MIN_VALUE;
  bits[0] += v > 0 ? 1n : -1n;
  return floats[0];
}
const leaves = [], boxes = new Map();
for (let n = 0; n < N; n++) if (isLeaf(n)) { leaves.push(n); boxes.set(n, boxOf(n)); }
function nearest(v, lo, hi, f) {
  if ((lo < v && v <= hi) || (Number.isNaN(v) && hi === Infinity) || (v === -Infinity && lo === -Infinity)) return v;
  const whole = f.kind !== "real";
  let first = whole && Number.isFinite(lo) ? Math.floor(lo) + 1 : lo === -Infinity ? lo : nextUp(lo);
  let last = whole && Number.isFinite(hi) ? Math.floor(hi) : hi;
  const low = f.low === null ? -Infinity : f.low, high = f.high === null ? Infinity : f.high;
  if (low <= v && v <= high) { first = Math.max(first, low); last = Math.min(last, high); }
  return first > last ? null : v < first ? first : last;
}
// The nearest point past sums: Hildreth's projections onto the leaf's half-spaces, in scaled features, moved inside by
// as little as it takes for the tree to reach the leaf. Leaves behind products and angles are left out.
function nearestPast(x, leaf) {
  if (x.slice(0, RAW).some((v) => !Number.isFinite(v))) return null;
  const rows = [], add = (s, sign, limit) => {
    if (!Number.isFinite(limit)) return true;
    const a = new Array(RAW).fill(0);
    let size = Math.abs(limit), b = limit - sign * s.constant;
    for (const [i, w] of s.terms) { if (typeof i !== "number") return false; a[i] = sign * w * F[i].scale; b -= sign * w * x[i]; size += Math.abs(w) * (Math.abs(x[i]) + F[i].scale); }
    const norm = Math.hypot(...a);
    rows.push([a.map((v) => v / norm), b / norm, size / norm]);
    return true;
  };
  for (const [c, [lo, hi]] of boxes.get(leaf)) {
    const s = c >= RAW ? F[c].sum : { constant: 0, terms: [[c, 1]] };
    if (!add(s, 1, hi) || !add(s, -1, -lo)) return null;
  }
  for (let c = 0; c < RAW; c++) {
    const low = F[c].low === null ? -Infinity : F[c].low, high = F[c].high === null ? Infinity : F[c].high;
    if (low <= x[c] && x[c] <= high) { add({ constant: 0, terms: [[c, 1]] }, 1, high); add({ constant: 0, terms: [[c, 1]] }, -1, -low); }
  }
  for (let margin = 0, tries = 0; tries < 14; margin = margin ? margin * 8 : 1e-15, tries++) {
    const z = new Array(RAW).fill(0), force = new Array(rows.length).fill(0);
    for (let sweep = 0, moved = 1; sweep < 3000 && moved > 1e-15; sweep++) {
      moved = 0;
      rows.forEach(([a, b, size], k) => {
        const next = Math.max(0, force[k] + a.reduce((t, v, i) => t + v * z[i], 0) - b + margin * size), by = next - force[k];
        if (by !== 0) { for (let i = 0; i < RAW; i++) z[i] -= by * a[i]; force[k] = next; moved = Math.max(moved, Math.abs(by)); }
      });
    }
    const to = x.slice(0, RAW).map((v, i) => (Math.abs(z[i]) < 1e-9 ? v : F[i].kind === "real" ? v + z[i] * F[i].scale : Math.round(v + z[i] * F[i].scale)));
    if (pathOf(to).pop() !== leaf) continue;
    const moves = to.map((v, c) => [c, v, null]).filter(([c, v]) => v !== x[c]);
    return { sum: moves.reduce((t, [c, v]) => t + ((v - x[c]) / F[c].scale) ** 2, 0), moves, leaf, to };
  }
  return null;
}
const same = (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b));
function counterfactuals(x) {
  const path = pathOf(x), now = T.action[path[path.length - 1]], best = new Map();
  for (const leaf of leaves) {
    if (T.action[leaf] === now) continue;
    if ([...boxes.get(leaf).keys()].some((c) => c >= RAW)) {
      const found = nearestPast(x, leaf);
      if (found && (!best.has(T.action[leaf]) || found.sum < best.get(T.action[leaf]).sum)) best.set(T.action[leaf], found);
      continue;
    }
    let sum = 0, moves = [], possible = true;
    for (const [c, [lo, hi]] of boxes.get(leaf)) {
      const to = nearest(x[c], lo, hi, F[c]);
      if (to === null) { possible = false; break; }
      if (!same(to, x[c])) { moves.push([c, to, lo]); sum += Number.isFinite(x[c]) ? ((to - x[c]) / F[c].scale) ** 2 : Infinity; }
    }
    if (possible && (!best.has(T.action[leaf]) || sum < best.get(T.action[leaf]).sum)) best.set(T.action[leaf], { sum, moves, leaf });
  }
  return [...best.values()].sort((a, b) => (a.sum === b.sum ? a.leaf - b.leaf : a.sum - b.sum));
}

// ---- state: one observation drives the tree, the verdict and the sliders ----
const R = D.replay;
let x = R ? R.x[0].slice() : F.slice(0, RAW).map((f) => (f.kind === "real" ? (f.shown[0] + f.shown[1]) / 2 : Math.round((f.shown[0] + f.shown[1]) / 2)));
let step = 0, whatIf = !R, playing = false;
const folded = new Set();
// A large tree gets the width of the page; what no state has visited, and in very large ones what lies deep, is folded.
if (leaves.length > 12) {
  $("grid").classList.add("large");
  if (T.share) for (let n = N - 1; n > 0; n--) if (!isLeaf(n) && T.share[n] === 0 && T.share[parent[n]] > 0) folded.add(n);
  if (leaves.length > 80) for (let n = 0; n < N; n++) if (!isLeaf(n) && depthOf[n] >= 5) folded.add(n);
}

// ---- drawing the tree ----
const tree = $("tree"), pen = document.createElement("canvas").getContext("2d");
let view = null, home = null, nodeAt = new Map(), dots = [], shape = "down", wideOf = null;
function textWidth(text, font) { pen.font = font; return pen.measureText(text).width; }
const FONT = '13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif', BOLD = FONT.replace("13px", "650 13px");
const question = (n) => `${apart(clip(F[T.feature[n]].name, T.feature[n] < RAW ? 26 : 64))} ≤ ${fmt(T.threshold[n])}`;
const leafLabel = (n) => clip(T.label[n], T.linear ? 64 : 26);
// Where nodes go: "down" from the root as trees are drawn, "right" where there are many leaves, and "rows", one a node
// and indented like a table of contents, where the others would be too small to read: it needs least width.
function places(kind, visible, ends, wide, leafWide) {
  const at = new Map(), row = new Map();
  if (kind === "rows") {
    visible.forEach(([n, d], i) => at.set(n, [d * 52 + (isLeaf(n) ? leafWide : wide) / 2, i * 62]));
    return at;
  }
  const down = kind === "down";
  const across = down ? Math.max(leafWide + 18, ends.every(isLeaf) ? wide * 0.66 : wide + 16) : 60, along = down ? 112 : wide + 52;
  ends.forEach((n, i) => row.set(n, i));
  for (const [n] of [...visible].reverse()) if (!row.has(n)) row.set(n, (row.get(T.left[n]) + row.get(T.right[n])) / 2);
  for (const [n, d] of visible) at.set(n, down ? [row.get(n) * across, d * along] : [d * along, row.get(n) * across]);
  return at;
}
function drawTree(folding = false) {
  const visible = [], stack = [[0, 0]];
  while (stack.length) {
    const [n, d] = stack.pop();
    visible.push([n, d]);
    if (!isLeaf(n) && !folded.has(n)) stack.push([T.right[n], d + 1], [T.left[n], d + 1]);
  }
  const ends = visible.filter(([n]) => isLeaf(n) || folded.has(n)).map(([n]) => n);
  const inner = visible.filter(([n]) => !isLeaf(n)).map(([n]) => n);
  const wide = Math.max(130, ...inner.map((n) => textWidth(question(n), FONT) + 34));
  const leafWide = Math.max(84, ...ends.filter(isLeaf).map((n) => textWidth(leafLabel(n), BOLD) + 28));
  const narrow = matchMedia("(max-width: 940px)").matches, most = 1.6, least = 0.5;
  const readable = narrow ? 0.7 : 0.88, tallest = narrow ? 900 : Math.max(720, tree.clientHeight);
  wideOf = (n) => (isLeaf(n) ? leafWide : wide);
  const place = (kind) => places(kind, visible, ends, wide, leafWide);
  const fits = (at) => {
    const span = (i, half) => Math.max(...visible.map(([n]) => at.get(n)[i] + half(n))) - Math.min(...visible.map(([n]) => at.get(n)[i] - half(n)));
    return Math.min(tree.clientWidth / (span(0, (n) => wideOf(n) / 2) + 48), tallest / (span(1, () => 26) + 60));
  };
  const inRows = shape === "rows", usual = ends.length <= 8 ? "down" : "right";
  const small = () => visible.length <= 25 && fits(place(usual)) < readable && fits(place("rows")) > fits(place(usual));
  shape = (folding ? inRows : small()) ? "rows" : usual;  // who folds a question does not want all others elsewhere
  nodeAt = place(shape);
  const down = shape === "down";
  tree.replaceChildren();
  dots = [];
  const edges = svg("g"), nodes = svg("g");
  tree.append(edges, nodes);
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const [n, depth] of visible) {
    const [px, py] = nodeAt.get(n), end = isLeaf(n), w = end ? leafWide : wide, h = end ? 40 : 52;
    x0 = Math.min(x0, px - w / 2); x1 = Math.max(x1, px + w / 2); y0 = Math.min(y0, py - h / 2); y1 = Math.max(y1, py + h / 2);
    const g = svg("g", { class: `node ${end ? "leaf" : "inner"}`, "data-node": n, transform: `translate(${px},${py})`, tabindex: "0", role: "treeitem", "aria-level": depth + 1 });
    const says = (end ? T.label[n] : question(n)) + (T.share ? `, ${percent(T.share[n])}` : "");
    g.setAttribute("aria-label", says);
    if (!end) g.setAttribute("aria-expanded", String(!folded.has(n)));
    const box = svg("rect", { class: "shape", x: -w / 2, y: -h / 2, width: w, height: h, rx: 12 });
    if (end) { box.style.fill = T.colour[n]; box.style.stroke = T.colour[n]; if (T.share && T.share[n] === 0) g.classList.add("never"); }
    g.append(box);
    if (end) {
      g.append(svg("text", { "text-anchor": "middle", y: T.share ? -1 : 5 }, leafLabel(n)));
      if (T.share) g.append(svg("text", { class: "small", "text-anchor": "middle", y: 13 }, percent(T.share[n])));
    } else {
      g.append(svg("text", { "text-anchor": "middle", y: -5 }, question(n)));
      const c = T.feature[n], [lo, hi] = F[c].shown, half = w / 2 - 16;
      const place = (v) => -half + 2 * half * Math.min(1, Math.max(0, (v - lo) / (hi - lo || 1)));
      const [from, to] = boxOf(n).get(c) || [-Infinity, Infinity];
      g.append(svg("line", { class: "bar", x1: -half, x2: half, y1: 13, y2: 13 }), svg("line", { class: "span", x1: place(from), x2: place(to), y1: 13, y2: 13 }),
        svg("line", { class: "cut", x1: place(T.threshold[n]), x2: place(T.threshold[n]), y1: 7, y2: 19 }));
      const dot = svg("circle", { class: "dot", r: 4, cy: 13, cx: 0 });
      g.append(dot);
      dots.push([dot, c, place]);
      if (folded.has(n)) {
        // Where nothing else is drawn: below it in a tree that grows down, else to its right, in its own row.
        const said = `▸ ${below[n]} leaves folded`;
        g.append(svg("text", { class: "small folded", ...(down ? { "text-anchor": "middle", y: h / 2 + 15 } : { x: w / 2 + 9, y: 4 }) }, said));
        if (!down) x1 = Math.max(x1, px + w / 2 + 9 + textWidth(said, FONT));
      }
    }
    nodes.append(g);
    if (end || folded.has(n)) continue;
    for (const [child, side, answer] of [[T.left[n], -1, "yes"], [T.right[n], 1, "no"]]) {
      const [cx, cy] = nodeAt.get(child), cw = isLeaf(child) ? leafWide : wide, width = T.share ? 1.6 + 11 * T.share[child] : 2;
      const other = T.share ? 1.6 + 11 * T.share[child === T.left[n] ? T.right[n] : T.left[n]] : 2, off = side * ((width + other) / 4 + 1);
      const into = cx - cw / 2, from = px - w / 2 + (side < 0 ? 33 : 14);  // in rows, yes and no go down beside each other
      const path = shape === "rows" ? `M${from},${py + 26}V${cy - 10}Q${from},${cy} ${from + 10},${cy}H${into}` : down
        ? `M${px + off},${py + 26}C${px + off},${(py + cy) / 2} ${cx},${(py + cy) / 2} ${cx},${cy - (isLeaf(child) ? 20 : 26)}`
        : `M${px + w / 2},${py + off}C${px + w / 2 + 26},${py + off} ${cx - cw / 2 - 26},${cy} ${cx - cw / 2},${cy}`;
      edges.append(svg("path", { class: "edge", d: path, style: `--wide: ${width}px`, "data-to": child }));
      const label = shape === "rows" ? { x: into - 4, y: cy - width / 2 - 4, "text-anchor": "end" } : down ? { x: cx + side * (width / 2 + 7), y: cy - 32, "text-anchor": side < 0 ? "end" : "start" }
        : { x: cx - cw / 2 - 6, y: cy + side * (width / 2 + 9) + (side < 0 ? 2 : 4), "text-anchor": "end" };
      edges.append(svg("text", { class: "answer", ...label }, answer));
    }
  }
  home = [x0 - 24, y0 - 24, x1 - x0 + 48, y1 - y0 + 60];  // the whole tree: what Fit shows
  // Never blow a small tree up beyond a comfortable size, and on a narrow screen keep the text readable.
  const fitting = tree.clientWidth / home[2] < least ? 420 : (tree.clientWidth * home[3]) / home[2];
  const tall = Math.min(narrow ? 900 : 720, home[3]);  // rows are never larger than life, but may make the page longer
  tree.style.flex = shape === "rows" ? "none" : "";
  tree.style.height = !narrow && shape === "rows" ? `${Math.max(480, tall)}px` : narrow ? `${Math.max(200, Math.min(shape === "rows" ? tall : 520, fitting))}px` : "";
  const room = tree.getBoundingClientRect();
  const scale = Math.min(room.width / home[2], room.height / home[3]);
  const limit = shape === "rows" ? 1 : most;
  if (scale > limit) { const w = room.width / limit, h = room.height / limit; home = [home[0] - (w - home[2]) / 2, shape === "rows" ? home[1] : home[1] - (h - home[3]) / 2, w, h]; }
  view = home.slice();
  // A tree too large to be read as a whole opens at its root.
  if (scale < least && N > 9) { const [rx, ry] = nodeAt.get(0), w = room.width / least, h = room.height / least; view = down ? [rx - w / 2, home[1], w, h] : [home[0], shape === "rows" ? home[1] : ry - h / 2, w, h]; }
  zoom();
  $("unfold").hidden = folded.size === 0;
  $("tree-hint").textContent = `${{ down: "Yes goes left, no goes right", right: "Yes goes up, no goes down", rows: "Yes comes first, no below it" }[shape]}. ${T.share ? "Edges are as wide as the share of visited states. " : ""}${matchMedia("(hover: none)").matches ? "Tap a node for its states, a question once more to fold it; drag to move." : "Click a question to fold it, drag to move, Ctrl and wheel to zoom."}`;
  light();
}
function zoom(factor, cx, cy) {
  if (factor) {
    cx = cx ?? view[0] + view[2] / 2; cy = cy ?? view[1] + view[3] / 2;
    view = [cx - (cx - view[0]) * factor, cy - (cy - view[1]) * factor, view[2] * factor, view[3] * factor];
  }
  tree.style.setProperty("--pixel", `${toView()[0]}px`);  // a pixel of the screen, so that no line gets too thin to see
  // Where a part of the tree lies outside, a finger moves the tree; else it scrolls the page.
  const [left, top, right, bottom] = seen();
  tree.style.touchAction = left > home[0] + 1 || top > home[1] + 1 || right < home[0] + home[2] - 1 || bottom < home[1] + home[3] - 1 ? "none" : "pan-y";
  tree.setAttribute("viewBox", view.join(" "));
}
// The part of the plane that can be seen: the view, and what the drawing's own shape adds to it.
function seen() {
  const [s, r] = toView(), cx = view[0] + view[2] / 2, cy = view[1] + view[3] / 2;
  return [cx - (r.width * s) / 2, cy - (r.height * s) / 2, cx + (r.width * s) / 2, cy + (r.height * s) / 2];
}
function reveal(n) {
  const [px, py] = nodeAt.get(n), [left, top, right, bottom] = seen(), w = wideOf(n) / 2 + 12, h = 50;
  view[0] += px - w < left ? px - w - left : Math.max(0, px + w - right);
  view[1] += py - h < top ? py - h - top : Math.max(0, py + h - bottom);
  zoom();
}
function light() {
  const path = new Set(pathOf(x));
  tree.querySelectorAll(".node").forEach((g) => g.classList.toggle("on", path.has(Number(g.dataset.node))));
  tree.querySelectorAll(".edge").forEach((e) => {
    const on = path.has(Number(e.dataset.to));
    e.classList.toggle("on", on);
    if (on) e.parentNode.insertBefore(e, e.parentNode.querySelector(".answer"));
  });
  const y = full(x);
  for (const [dot, c, place] of dots) {
    dot.style.display = Number.isNaN(y[c]) ? "none" : "";
    if (!Number.isNaN(y[c])) dot.setAttribute("cx", place(y[c]));
  }
}
function fold(n) {
  if (isLeaf(n)) return;
  folded.has(n) ? folded.delete(n) : folded.add(n);
  hideTip();
  // The question stays under the pointer, however the rest is laid out now; what was unfolded comes into view.
  const keep = view.slice(), [ax, ay] = nodeAt.get(n);
  drawTree(true);
  const [bx, by] = nodeAt.get(n);
  view = [keep[0] + bx - ax, keep[1] + by - ay, keep[2], keep[3]];
  for (const shown of folded.has(n) ? [n] : [T.right[n], T.left[n], n]) reveal(shown);
  tree.querySelector(`[data-node="${n}"]`).focus({ preventScroll: true });
}
const tip = $("tip");
function showTip(g) {
  const n = Number(g.dataset.node), rows = conditions(n);
  tip.replaceChildren();
  tip.append(el("b", {}, isLeaf(n) ? T.label[n] : question(n) + "?"));
  if (!isLeaf(n) && T.feature[n] >= RAW && F[T.feature[n]].about !== F[T.feature[n]].name) tip.append(el("div", {}, `${apart(F[T.feature[n]].name)} = ${F[T.feature[n]].about}`));
  for (const row of rows.length ? rows : ["every state comes here"]) tip.append(el("div", {}, row));
  if (T.share) tip.append(el("div", {}, n === 0 ? `${T.visits[0].toLocaleString("en")} states in ${D.episodes} episodes` : percent(T.share[n]) + (T.share[n] > 0 ? " of visited states" : "")));
  const r = g.getBoundingClientRect(), w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = `${Math.max(8, Math.min(innerWidth - w - 8, r.left + r.width / 2 - w / 2))}px`;
  tip.style.top = `${r.bottom + h + 12 < innerHeight ? r.bottom + 8 : Math.max(8, r.top - h - 8)}px`;
  tip.classList.add("show");
}
const hideTip = () => tip.classList.remove("show");
const nodeOf = (event) => event.target.closest && event.target.closest(".node");
tree.addEventListener("pointerover", (e) => { const g = nodeOf(e); if (g && e.pointerType === "mouse") showTip(g); });
tree.addEventListener("pointerout", (e) => { if (nodeOf(e) && e.pointerType === "mouse") hideTip(); });  // a finger goes out as it is lifted
tree.addEventListener("focusin", (e) => { const g = nodeOf(e); if (g && g.matches(":focus-visible")) showTip(g); });
tree.addEventListener("focusout", hideTip);
tree.addEventListener("keydown", (e) => {
  const g = nodeOf(e);
  if (!g) return;
  const n = Number(g.dataset.node);
  const go = (to) => { if (to === undefined || !nodeAt.has(to)) return; reveal(to); tree.querySelector(`[data-node="${to}"]`).focus({ preventScroll: true }); };
  const toParent = () => go(parent[n]), toChild = () => go(T.left[n]);
  const toYes = () => go(T.left[parent[n]]), toNo = () => go(parent[n] < 0 ? T.right[n] : T.right[parent[n]]);
  const [ArrowUp, ArrowDown, ArrowLeft, ArrowRight] = shape === "down" ? [toParent, toChild, toYes, toNo] : [toYes, toNo, toParent, toChild];
  const keys = { Enter: () => fold(n), " ": () => fold(n), ArrowUp, ArrowDown, ArrowLeft, ArrowRight, Escape: hideTip };
  if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
});
let grip = null, tapped = null, untap = 0;
const toView = () => { const r = tree.getBoundingClientRect(), s = Math.max(view[2] / r.width, view[3] / r.height); return [s, r]; };
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
  if (grip && !grip.moved && grip.node) {
    const n = Number(grip.node.dataset.node);
    // A finger cannot hover: its first tap tells, its second folds.
    if (e.pointerType === "mouse" || tapped === n) { fold(n); tapped = null; } else { showTip(grip.node); tapped = n; clearTimeout(untap); untap = setTimeout(() => { hideTip(); tapped = null; }, 3500); }
  }
  grip = null;
  tree.classList.remove("drag");
});
addEventListener("pointercancel", () => { grip = null; tree.classList.remove("drag"); });
tree.addEventListener("wheel", (e) => {
  if (!e.ctrlKey && !e.metaKey) return;
  e.preventDefault();
  const [s, r] = toView();
  zoom(Math.exp(e.deltaY * 0.002), view[0] + view[2] / 2 + (e.clientX - r.left - r.width / 2) * s, view[1] + view[3] / 2 + (e.clientY - r.top - r.height / 2) * s);
}, { passive: false });
$("zoom-in").onclick = () => zoom(0.8);
$("zoom-out").onclick = () => zoom(1.25);
$("fit").onclick = () => { view = home.slice(); zoom(); };
$("unfold").onclick = () => { folded.clear(); drawTree(); };
let lastWidth = innerWidth;
addEventListener("resize", () => { if (innerWidth !== lastWidth) { lastWidth = innerWidth; drawTree(); } });
