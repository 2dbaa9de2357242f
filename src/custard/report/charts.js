// Charts of the learning curve, the returns of episodes, and the return beside others.
function nice(lo, hi, wanted, integral = false) {
  const raw = (hi - lo || 1) / wanted, power = 10 ** Math.floor(Math.log10(raw)), out = [];
  let unit = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  if (integral) unit = Math.max(1, Math.round(unit));
  for (let v = Math.ceil(lo / unit - 1e-9) * unit; v <= hi + 1e-9 * unit; v += unit) out.push(Number(v.toPrecision(12)));
  return out;
}
const short = (v) => (Math.abs(v) >= 1e6 ? `${fmt(v / 1e6)}M` : Math.abs(v) >= 1e4 ? `${fmt(v / 1e3)}k` : fmt(v));
// As wide as its place, so that text keeps its size on a phone.
const chartWidth = (box) => Math.max(260, Math.min(620, box.clientWidth || 560));
function lineChart({ x: xs, series, xlabel, small, integral, held, band, zero }) {
  const height = small ? 136 : 210;
  const W = chartWidth($("curve-charts")), L = 50, B = 38, Right = 16, root = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${height}`, role: "img" });
  const all = series.flatMap((s) => s.values.filter((v) => v !== null));
  let lo = Math.min(...all), hi = Math.max(...all);
  if (lo === hi) { lo -= 1; hi += 1; }
  const pad = 0.06 * (hi - lo), x0 = held ? 0 : Math.min(...xs), x1 = Math.max(...xs);
  lo = zero || (lo >= 0 && lo < pad * 4) ? Math.min(0, lo) : lo - pad; hi += pad;
  const X = (v) => L + ((W - L - Right) * (v - x0)) / (x1 - x0 || 1), Y = (v) => 8 + (height - B - 8) * (1 - (v - lo) / (hi - lo));
  for (const v of nice(lo, hi, 4, integral)) root.append(svg("line", { class: "axis", x1: L, x2: W - Right, y1: Y(v), y2: Y(v) }), svg("text", { x: L - 7, y: Y(v) + 4, "text-anchor": "end" }, short(v)));
  for (const v of nice(x0, x1, W < 420 ? 3 : 5)) root.append(svg("text", { x: X(v), y: height - B + 16, "text-anchor": "middle" }, short(v)));
  root.append(svg("text", { x: W - Right, y: height - 3, "text-anchor": "end" }, xlabel));
  const path = (points) => points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");
  // Where values hold until the next one, the line goes on level and then up or down.
  const pointsOf = (values) => {
    const points = xs.map((v, i) => (values[i] === null ? null : [X(v), Y(values[i])])).filter(Boolean);
    return held ? points.flatMap((p, i) => (i ? [[p[0], points[i - 1][1]], p] : [p])) : points;
  };
  series.forEach((s, k) => {
    const points = pointsOf(s.values);
    if (!points.length) return;
    const line = path(points), filled = band && series.length > 1 ? pointsOf(series[1].values).reverse() : [[points[points.length - 1][0], Y(lo)], [points[0][0], Y(lo)]];
    if (k === 0) root.append(svg("path", { class: "fillA", d: `M${line}L${path(filled)}Z` }));
    root.append(svg("path", { class: k === 0 ? "lineA" : "lineB", d: `M${line}` }));
    if (points.length === 1) root.append(svg("circle", { cx: points[0][0], cy: points[0][1], r: 3.5, class: "barA" }));
  });
  root.setAttribute("aria-label", `${series.map((s) => s.name).join(" and ")} by ${xlabel}`);
  return root;
}
function legend(names) {
  const box = el("p", { class: "legend" });
  names.forEach((name, k) => { const item = el("span"), mark = el("i"); mark.style.background = k === 0 ? "var(--accent)" : "#3b7dd8"; item.append(mark, name); box.append(item); });
  return box;
}
function drawCurves() {
  const box = $("curve-charts");
  box.replaceChildren();
  for (const c of D.curves) box.append(lineChart(c), legend(c.series.map((s) => s.name)));
  if (D.size_note) box.append(el("p", { class: "hint" }, D.size_note));
  $("h-curves").textContent = D.curves.some((c) => c.band) ? "Value, bound and gap over time" : "Learning";
  $("curves").hidden = !D.curves.length;
}
function drawProof() {
  $("proof").hidden = !D.proof.length;
  for (const [term, text] of D.proof) { const row = el("tr"); row.append(el("td", {}, term), el("td", {}, text)); $("proof-items").append(row); }
}
function drawEvaluation() {
  const E = D.evaluation, body = $("eval-body");
  $("evaluation").hidden = !E;
  if (!E) return;
  const alike = E.min === E.max, big = el("div", { class: "big" }, five(E.mean));
  big.append(el("small", {}, !E.ci95 ? "  return of one episode" : alike ? "  return of every episode" : `  mean return, 95 % interval ${five(E.ci95[0])} to ${five(E.ci95[1])}`));
  const spread = E.ci95 && !alike ? `, standard deviation ${fmt(E.std)}, worst ${fmt(E.min)}, best ${fmt(E.max)}` : "";
  const limited = E.time_limited ? `, ${whole(E.time_limited)} reached the time limit` : "";
  body.replaceChildren(big, el("p", { class: "hint" }, `${count(E.episodes, "episode")} (seed ${E.seed})${spread}, ${five(E.mean_length)} steps on average${limited}.`));
  if (!alike) body.append(histogram(E.histogram, chartWidth(body)));
}
function histogram({ low, high, counts }, W) {
  const H = 150, root = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Returns of the episodes" });
  const top = Math.max(...counts), each = (W - 16) / counts.length;
  counts.forEach((many, k) => { if (many) { const h = Math.max(2, (many / top) * (H - 34)); root.append(svg("rect", { class: "barA", x: 8 + k * each + 1, y: H - 24 - h, width: Math.max(1, each - 2), height: h, rx: 2 })); } });
  root.append(svg("line", { class: "axis", x1: 8, x2: W - 8, y1: H - 24, y2: H - 24 }), svg("text", { x: 8, y: H - 8 }, fmt(low)), svg("text", { x: W - 8, y: H - 8, "text-anchor": "end" }, fmt(high)), svg("text", { x: W / 2, y: H - 8, "text-anchor": "middle" }, "return of an episode"));
  return root;
}
// Is this good? One row per policy or mark, on one scale: a point with its 95 % interval.
function drawComparisons() {
  const rows = D.comparisons, box = $("good-rows");
  $("good").hidden = !rows.length;
  if (!rows.length) return;
  const ends = rows.flatMap((r) => (r.ci95 ? [r.mean, ...r.ci95] : [r.mean])), lo = Math.min(...ends), hi = Math.max(...ends), span = hi - lo || 1;
  const place = (v) => `${2 + (96 * (v - lo)) / span}%`;
  box.replaceChildren();
  for (const r of [...rows].reverse()) {
    const row = el("div", { class: `rival ${r.kind}` }), rail = el("div", { class: "rail-line" }), point = el("i", { class: "point" });
    if (r.ci95) { const bar = el("i", { class: "interval" }); bar.style.left = place(r.ci95[0]); bar.style.width = `${(96 * (r.ci95[1] - r.ci95[0])) / span}%`; rail.append(bar); }
    point.style.left = place(r.mean);
    rail.append(point);
    const value = el("span", { class: "value" }, five(r.mean));
    row.title = r.ci95 ? `95 % interval ${five(r.ci95[0])} to ${five(r.ci95[1])}, ${count(r.episodes, "episode")}` : "";
    row.append(el("span", { class: "who" }, r.name), rail, value);
    box.append(row);
  }
  $("good-says").textContent = D.judgement.join(" ");
}
