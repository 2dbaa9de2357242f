// What the tree decides over the plane of two features, all others as in the state shown.
let axisA = 0, axisB = 0, plane = null, drawnSlice = "", drag = false;
const regions = $("regions");
const byInfluence = Array.from({ length: RAW }, (_, c) => c).sort((a, b) => F[b].decides - F[a].decides || Number(F[b].used) - Number(F[a].used) || a - b);
// A question over the plane: [a, b, t] for a·A + b·B ≤ t; true or false where neither matters; null where it is not linear.
function questionOnPlane(n) {
  const c = T.feature[n], t = T.threshold[n], sum = F[c].sum;
  if (!sum) return c === axisA ? [1, 0, t] : c === axisB ? [0, 1, t] : x[c] <= t;
  const reads = (s, i) => s.terms.some(([atom]) => (typeof atom === "number" ? atom === i : atom.arguments.some((inner) => reads(inner, i))));
  if (!reads(sum, axisA) && !reads(sum, axisB)) return sumValue(sum, x) <= t;
  let [a, b, rest] = [0, 0, sum.constant];
  for (const [atom, weight] of sum.terms) {
    if (typeof atom !== "number") { if (reads({ terms: [[atom, 1]] }, axisA) || reads({ terms: [[atom, 1]] }, axisB)) return null; rest += weight * partValue(atom, x); }
    else if (atom === axisA) a += weight;
    else if (atom === axisB) b += weight;
    else rest += weight * x[atom];
  }
  return [a, b, t - rest];
}
// The part of a convex polygon where a·A + b·B ≤ t (or, not `inside`, where it is more).
function cutPolygon(points, [a, b, t], inside) {
  const side = ([p, q]) => (inside ? t - a * p - b * q : a * p + b * q - t), out = [];
  points.forEach((now, k) => {
    const next = points[(k + 1) % points.length], s = side(now), e = side(next);
    if (s >= 0) out.push(now);
    if ((s > 0 && e < 0) || (s < 0 && e > 0)) { const u = s / (s - e); out.push([now[0] + u * (next[0] - now[0]), now[1] + u * (next[1] - now[1])]); }
  });
  return out.length > 2 ? out : [];
}
function partition(n, polygon, found) {
  if (!polygon.length) return found;
  if (isLeaf(n)) { found.push([n, polygon]); return found; }
  const q = questionOnPlane(n);
  if (q === null) return null;
  if (typeof q === "boolean") return partition(q ? T.left[n] : T.right[n], polygon, found);
  return partition(T.left[n], cutPolygon(polygon, q, true), found) && partition(T.right[n], cutPolygon(polygon, q, false), found);
}
// Where a question bends, small cells stand in for the polygons.
function cells([a0, a1], [b0, b1], across = 90, up = 64) {
  const found = [], state = x.slice();
  for (let j = 0; j < up; j++) for (let i = 0, from = 0, before = -1; i <= across; i++) {
    state[axisA] = a0 + ((i + 0.5) * (a1 - a0)) / across;
    if (axisB !== axisA) state[axisB] = b0 + ((j + 0.5) * (b1 - b0)) / up;
    const leaf = i < across ? leafOf(state) : -2;
    if (leaf === before) continue;
    const at = (k) => a0 + (k * (a1 - a0)) / across, q0 = b0 + (j * (b1 - b0)) / up, q1 = b0 + ((j + 1) * (b1 - b0)) / up;
    if (before >= 0) found.push([before, [[at(from), q0], [at(i), q0], [at(i), q1], [at(from), q1]]]);
    before = leaf; from = i;
  }
  return found;
}
function setUpPlane() {
  const W = Math.max(280, Math.min(760, regions.parentNode.clientWidth)), flat = axisA === axisB, H = flat ? 150 : Math.round(Math.min(460, 0.68 * W)), L = flat ? 12 : 62, B = 46;
  const A = F[axisA].shown, Bs = flat ? [0, 1] : F[axisB].shown;
  const X = (v) => L + ((W - L - 12) * (v - A[0])) / (A[1] - A[0]), Y = (v) => 10 + (H - B - 10) * (1 - (v - Bs[0]) / (Bs[1] - Bs[0]));
  plane = { W, H, L, B, A, Bs, X, Y, flat };
  regions.setAttribute("viewBox", `0 0 ${W} ${H}`);
  regions.style.height = "auto";
  const within = svg("clipPath", { id: "plane-clip" });
  within.append(svg("rect", { x: L, y: 10, width: W - L - 12, height: H - B - 10 }));
  const layers = ["areas", "states", "trail", "axes", "here"].map((name) => svg("g", { class: name, ...(name === "axes" ? {} : { "clip-path": "url(#plane-clip)" }) }));
  regions.replaceChildren(within, ...layers);
  [plane.areas, plane.states, plane.trail, plane.axes, plane.here] = layers;
  for (const state of flat ? [] : D.states) plane.states.append(svg("circle", { cx: X(state[axisA]), cy: Y(state[axisB]), r: 2.2, fill: T.colour[leafOf(state)] }));
  const label = (c) => `${clip(nameOf(c), 40)}${F[c].unit ? ` in ${F[c].unit}` : ""}`;
  plane.axes.append(svg("rect", { class: "frame", x: L, y: 10, width: W - L - 12, height: H - B - 10 }));
  for (const v of nice(A[0], A[1], W < 420 ? 3 : 5, F[axisA].kind !== "real")) plane.axes.append(svg("text", { x: X(v), y: H - B + 17, "text-anchor": "middle" }, short(v)));
  plane.axes.append(svg("text", { class: "name", x: (L + W - 12) / 2, y: H - 8, "text-anchor": "middle" }, label(axisA)));
  if (!flat) {
    for (const v of nice(Bs[0], Bs[1], 4, F[axisB].kind !== "real")) plane.axes.append(svg("text", { x: L - 7, y: Y(v) + 4, "text-anchor": "end" }, short(v)));
    plane.axes.append(svg("text", { class: "name", "text-anchor": "middle", transform: `translate(13,${(10 + H - B) / 2}) rotate(-90)` }, label(axisB)));
  }
  drawnSlice = "";
  drawPlane();
}
function drawPlane() {
  if (!plane) return;
  const { A, Bs, X, Y, flat } = plane;
  const slice = x.map((v, c) => (c === axisA || c === axisB || !F[c].used ? "" : v)).join();
  if (slice !== drawnSlice || !plane.areas.childNodes.length) {
    drawnSlice = slice;
    const found = partition(0, [[A[0], Bs[0]], [A[1], Bs[0]], [A[1], Bs[1]], [A[0], Bs[1]]], []) || cells(A, Bs);
    plane.areas.replaceChildren(...found.map(([n, points]) => {
      const area = svg("polygon", { "data-node": n, points: points.map(([a, b]) => `${X(a).toFixed(2)},${Y(b).toFixed(2)}`).join(" ") });
      area.style.fill = area.style.stroke = T.colour[n];
      return area;
    }));
    regionLegend(found.map(([n]) => n));
  }
  const live = R && !whatIf ? R.x.slice(Math.max(0, step - 400), step + 1) : [];
  plane.trail.replaceChildren();
  if (live.length > 1 && !flat) plane.trail.append(svg("polyline", { points: live.filter((s) => Number.isFinite(s[axisA]) && Number.isFinite(s[axisB])).map((s) => `${X(s[axisA]).toFixed(1)},${Y(s[axisB]).toFixed(1)}`).join(" ") }));
  const at = [x[axisA], flat ? 0.5 : x[axisB]];
  plane.here.replaceChildren();
  if (at.every(Number.isFinite)) {
    const cx = Math.min(Math.max(X(at[0]), plane.L + 6), plane.W - 18), cy = Math.min(Math.max(Y(at[1]), 16), plane.H - plane.B - 6);
    plane.here.append(svg("circle", { class: "halo", cx, cy, r: 8 }), svg("circle", { class: "core", cx, cy, r: 5 }));
  }
}
function regionLegend(shown) {
  const box = $("regions-legend"), names = new Map();
  for (const n of shown) names.set(T.label[n], T.colour[n]);
  box.replaceChildren();
  for (const [name, colour] of [...names].slice(0, 12)) { const item = el("span"), mark = el("i"); mark.style.background = colour; item.append(mark, clip(name, 48)); box.append(item); }
  const fixed = F.slice(0, RAW).filter((f, c) => f.used && c !== axisA && c !== axisB);
  $("regions-hint").textContent = `${fixed.length ? `The other features (${fixed.slice(0, 4).map((f) => f.name).join(", ")}${fixed.length > 4 ? ", …" : ""}) are as in the state shown, so the areas move with it. ` : ""}${D.states.length ? "Small dots are visited states, in the colour of their action. " : ""}Click or drag to try a state.`;
}
function pointAt(e) {
  const r = regions.getBoundingClientRect(), k = plane.W / r.width, { A, Bs, L, W, H, B } = plane;
  const u = Math.min(1, Math.max(0, ((e.clientX - r.left) * k - L) / (W - L - 12))), v = Math.min(1, Math.max(0, 1 - ((e.clientY - r.top) * k - 10) / (H - B - 10)));
  const put = (c, value) => (F[c].kind === "real" ? value : Math.round(value));
  const values = [[axisA, put(axisA, A[0] + u * (A[1] - A[0]))]];
  if (!plane.flat) values.push([axisB, put(axisB, Bs[0] + v * (Bs[1] - Bs[0]))]);
  tryValues(values);
}
regions.addEventListener("pointerdown", (e) => { if (e.button) return; drag = true; pointAt(e); });
addEventListener("pointermove", (e) => { if (drag) pointAt(e); });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { drag = false; });
function openRegions() {
  [axisA, axisB] = [byInfluence[0], byInfluence[Math.min(1, RAW - 1)]];
  for (const [id, chosen, set] of [["axis-a", axisA, (c) => { axisA = c; }], ["axis-b", axisB, (c) => { axisB = c; }]]) {
    const select = $(id);
    for (const c of byInfluence.slice(0, 60)) {
      const share = F[c].decides, says = !F[c].used ? "not asked about" : D.states.length ? `decides ${Number((100 * share).toPrecision(2))} %` : "";
      select.append(el("option", { value: c }, `${clip(F[c].name, 40)}${says ? ` (${says})` : ""}`));
    }
    select.value = chosen;
    select.onchange = () => { set(Number(select.value)); setUpPlane(); };
  }
  $("axis-b").hidden = RAW < 2;
  $("axis-by").hidden = RAW < 2;
  setUpPlane();
}
