"use strict";
// The data, numbers and text, and the tree's own arithmetic. Nothing here draws.
// Everything that comes from outside enters the page as text nodes or attribute values, never as markup.
const D = JSON.parse(document.getElementById("data").textContent, read);
function read(key, value) {
  if (typeof value === "string") return key === "text" ? value : visible(value);  // an export stays as it is
  // JSON has no NaN and no infinity: html_page.py writes them as {"float": "NaN"}.
  return value && value.float !== undefined ? Number(value.float) : value;
}
// Characters that turn the direction of the text after them are shown, not obeyed.
function visible(text) { return text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd"); }
// A name that runs from right to left would take the numbers beside it along: the marks around it keep it to itself.
function apart(name) {
  const rightToLeft = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
  return rightToLeft.test(name) ? `\u2068${name}\u2069` : name;
}

// ---- elements ----
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const el = (tag, attrs = {}, text) => make(document.createElement(tag), attrs, text);
const svg = (tag, attrs = {}, text) => make(document.createElementNS(SVG, tag), attrs, text);
function make(node, attrs, text) {
  for (const key in attrs) node.setAttribute(key, attrs[key]);
  if (text !== undefined) node.textContent = text;
  return node;
}

// ---- numbers and text ----
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
const five = (v) => String(Number(v.toPrecision(5))).replace("-", "−");  // 499.99 is not 500
const whole = (v) => v.toLocaleString("en");
const count = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;
const percent = (s) => (s === 0 ? "never visited" : s < 0.001 ? "< 0.1 %" : `${Number((100 * s).toPrecision(3))} %`);
const clip = (s, most) => (s.length > most ? s.slice(0, most - 1) + "…" : s);
const pen = document.createElement("canvas").getContext("2d");
const FAMILY = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const FONT = `13px ${FAMILY}`, BOLD = `650 13px ${FAMILY}`, SMALL = `11.5px ${FAMILY}`;
function textWidth(text, font) { pen.font = font; return pen.measureText(text).width; }
// Lines at most `wide` pixels wide, broken at spaces, else inside a word; the last of `most` lines ends in "…" if cut.
function wrap(text, wide, font, most) {
  const lines = [];
  let line = "";
  for (let word of text.split(" ")) {
    if (line && textWidth(`${line} ${word}`, font) > wide) { lines.push(line); line = ""; }
    line = line ? `${line} ${word}` : word;
    while (textWidth(line, font) > wide && line.length > 4) {
      let cut = Math.max(4, Math.floor((line.length * wide) / textWidth(line, font)));
      while (cut > 4 && textWidth(line.slice(0, cut), font) > wide) cut--;
      lines.push(line.slice(0, cut));
      line = line.slice(cut);
    }
  }
  if (line || !lines.length) lines.push(line);
  if (lines.length > most) { lines.length = most; lines[most - 1] = `${lines[most - 1].slice(0, -1)}…`; }
  return lines;
}
// Black or white, whichever can be read on a colour.
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16) / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 1.05 / (0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05) >= 3 ? "#ffffff" : "#231806";
}

// ---- the tree's own arithmetic: the same comparisons on the same float64 numbers ----
const T = D.tree, F = D.features, N = T.feature.length, RAW = F.filter((f) => !f.sum).length;
const isLeaf = (n) => T.feature[n] < 0;
const formula = (text) => text.replace(/\*/g, "·").replace(/-/g, "−");
if (T.linear) T.label = T.label.map((label, n) => (T.linear[n] ? formula(label) : label));
// A derived feature: the constant if it is not zero, then one rounded product after the other, as everywhere in custard.
function sumValue(sum, x) {
  let total = sum.constant, empty = sum.constant === 0;
  for (const [atom, weight] of sum.terms) {
    const product = weight * (typeof atom === "number" ? x[atom] : partValue(atom, x));
    total = empty ? product : total + product;
    empty = false;
  }
  return total;
}
function partValue(part, x) {
  const values = part.arguments.map((sum) => sumValue(sum, x));
  if (part.operation === "product") return values[0] * values[1];
  if (part.operation === "abs") return Math.abs(values[0]);
  return values[0] - 2 * Math.PI * Math.floor((values[0] + Math.PI) / (2 * Math.PI));  // wrap: an angle within half a turn
}
const valueOf = (c, x) => (F[c].sum ? sumValue(F[c].sum, x) : x[c]);
const goesLeft = (n, x) => valueOf(T.feature[n], x) <= T.threshold[n];
function pathOf(x) {
  const path = [0];
  for (let n = 0; !isLeaf(n); path.push(n)) n = goesLeft(n, x) ? T.left[n] : T.right[n];
  return path;
}
const leafOf = (x) => { let n = 0; while (!isLeaf(n)) n = goesLeft(n, x) ? T.left[n] : T.right[n]; return n; };
const parent = new Array(N).fill(-1);
const depthOf = new Array(N).fill(0), below = new Array(N).fill(1);  // questions above each node, leaves under it
for (let n = 0; n < N; n++) if (!isLeaf(n)) for (const child of [T.left[n], T.right[n]]) { parent[child] = n; depthOf[child] = depthOf[n] + 1; }
for (let n = N - 1; n >= 0; n--) if (!isLeaf(n)) below[n] = below[T.left[n]] + below[T.right[n]];
function ancestors(node) {
  const path = [];
  for (let n = parent[node]; n >= 0; n = parent[n]) path.push(n);
  return path;
}
// What must hold for a state to come to a node: feature -> (above, at most].
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
const leaves = [], boxes = new Map();
for (let n = 0; n < N; n++) if (isLeaf(n)) { leaves.push(n); boxes.set(n, boxOf(n)); }

// ---- in words ----
const nameOf = (c) => apart(F[c].sum ? formula(F[c].name) : F[c].name);
const unitOf = (c) => (F[c].unit ? ` ${F[c].unit}` : "");
const question = (n) => `${nameOf(T.feature[n])} ≤ ${fmt(T.threshold[n])}${unitOf(T.feature[n])}`;
function condition(c, [lo, hi]) {
  if (lo === -Infinity) return `${nameOf(c)} ≤ ${fmt(hi)}${unitOf(c)}`;
  return hi === Infinity ? `${nameOf(c)} > ${fmt(lo)}${unitOf(c)}` : `${fmt(lo)} < ${nameOf(c)} ≤ ${fmt(hi)}${unitOf(c)}`;
}
const conditions = (node) => [...boxOf(node)].map(([c, ends]) => condition(c, ends));
// What a leaf does at x: a linear one computes its action, clipped to its bounds. T.linear has, for each node that is such
// a leaf, [{name, value, terms: [[feature, gain]], low, high}] with one entry per action component.
function told(leaf, x) {
  if (!T.linear || !T.linear[leaf]) return T.label[leaf];
  return T.linear[leaf].map((a) => {
    let v = a.value;
    for (const [i, gain] of a.terms) v += gain * x[i];
    return `${a.name}=${fmt(a.terms.length ? (v < a.low ? a.low : v > a.high ? a.high : v) : v)}`;
  }).join(", ");
}

// ---- what would change the decision ----
function nextUp(v) {
  const floats = new Float64Array([v]), bits = new BigInt64Array(floats.buffer);
  if (v === 0) return Number.MIN_VALUE;
  bits[0] += v > 0 ? 1n : -1n;
  return floats[0];
}
function nearest(v, lo, hi, f) {
  if ((lo < v && v <= hi) || (Number.isNaN(v) && hi === Infinity) || (v === -Infinity && lo === -Infinity)) return v;
  const integral = f.kind !== "real";
  let first = integral && Number.isFinite(lo) ? Math.floor(lo) + 1 : lo === -Infinity ? lo : nextUp(lo);
  let last = integral && Number.isFinite(hi) ? Math.floor(hi) : hi;
  const low = f.low === null ? -Infinity : f.low, high = f.high === null ? Infinity : f.high;
  if (low <= v && v <= high) { first = Math.max(first, low); last = Math.min(last, high); }
  return first > last ? null : v < first ? first : last;
}
const same = (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b));
// For each other action the nearest state that has it: {leaf, sum of squares, moves: [[feature, to, above]]}, and `to`, the
// whole state, where questions on the way are over sums.
function counterfactuals(x) {
  const now = T.action[leafOf(x)], best = new Map();
  for (const leaf of leaves) {
    if (T.action[leaf] === now) continue;
    const pastSums = [...boxes.get(leaf).keys()].some((c) => c >= RAW);
    const found = pastSums ? nearestPast(x, leaf) : nearestInBox(x, leaf), before = best.get(T.action[leaf]);
    if (found && (!before || found.sum < before.sum)) best.set(T.action[leaf], found);
  }
  return [...best.values()].sort((a, b) => (a.sum === b.sum ? a.leaf - b.leaf : a.sum - b.sum));
}
function nearestInBox(x, leaf) {
  const moves = [];
  let sum = 0;
  for (const [c, [lo, hi]] of boxes.get(leaf)) {
    const to = nearest(x[c], lo, hi, F[c]);
    if (to === null) return null;
    if (same(to, x[c])) continue;
    moves.push([c, to, lo]);
    sum += Number.isFinite(x[c]) ? ((to - x[c]) / F[c].scale) ** 2 : Infinity;
  }
  return { sum, moves, leaf };
}
// Past sums: Hildreth's projections onto the leaf's half-spaces, in scaled features, moved inside by as little as it takes
// for the tree to reach the leaf. Leaves behind products and angles are left out.
function nearestPast(x, leaf) {
  if (x.some((v) => !Number.isFinite(v))) return null;
  const rows = halfSpaces(x, leaf);
  for (let margin = 0, tries = 0; rows && tries < 14; margin = margin ? margin * 8 : 1e-15, tries++) {
    const z = project(rows, margin);
    const to = x.map((v, i) => (Math.abs(z[i]) < 1e-9 ? v : F[i].kind === "real" ? v + z[i] * F[i].scale : Math.round(v + z[i] * F[i].scale)));
    if (leafOf(to) !== leaf) continue;
    const moves = to.map((v, c) => [c, v, null]).filter(([c, v]) => v !== x[c]);
    return { sum: moves.reduce((t, [c, v]) => t + ((v - x[c]) / F[c].scale) ** 2, 0), moves, leaf, to };
  }
  return null;
}
// The half-spaces a·z ≤ b, z the scaled change from x, that make up a leaf within the features' bounds; each with the size
// of its numbers, for rounding. null if one of them is not linear.
function halfSpaces(x, leaf) {
  const rows = [];
  const add = (s, sign, limit) => {
    if (!Number.isFinite(limit)) return true;
    const a = new Array(RAW).fill(0);
    let size = Math.abs(limit), b = limit - sign * s.constant;
    for (const [i, w] of s.terms) {
      if (typeof i !== "number") return false;
      a[i] = sign * w * F[i].scale;
      b -= sign * w * x[i];
      size += Math.abs(w) * (Math.abs(x[i]) + F[i].scale);
    }
    const norm = Math.hypot(...a);
    rows.push([a.map((v) => v / norm), b / norm, size / norm]);
    return true;
  };
  const itself = (c) => ({ constant: 0, terms: [[c, 1]] });
  for (const [c, [lo, hi]] of boxes.get(leaf)) {
    const s = c >= RAW ? F[c].sum : itself(c);
    if (!add(s, 1, hi) || !add(s, -1, -lo)) return null;
  }
  for (let c = 0; c < RAW; c++) {
    const low = F[c].low === null ? -Infinity : F[c].low, high = F[c].high === null ? Infinity : F[c].high;
    if (low <= x[c] && x[c] <= high) { add(itself(c), 1, high); add(itself(c), -1, -low); }
  }
  return rows;
}
function project(rows, margin) {
  const z = new Array(RAW).fill(0), force = new Array(rows.length).fill(0);
  for (let sweep = 0, moved = 1; sweep < 3000 && moved > 1e-15; sweep++) {
    moved = 0;
    rows.forEach(([a, b, size], k) => {
      const next = Math.max(0, force[k] + a.reduce((t, v, i) => t + v * z[i], 0) - b + margin * size), by = next - force[k];
      if (by === 0) return;
      for (let i = 0; i < RAW; i++) z[i] -= by * a[i];
      force[k] = next;
      moved = Math.max(moved, Math.abs(by));
    });
  }
  return z;
}

// ---- state: one observation drives the tree, the verdict, the sliders and the plane ----
const R = D.replay;
const middle = (f) => (f.kind === "real" ? (f.shown[0] + f.shown[1]) / 2 : Math.round((f.shown[0] + f.shown[1]) / 2));
let x = R ? R.x[0].slice() : F.slice(0, RAW).map(middle);
let step = 0, whatIf = !R, playing = false;
