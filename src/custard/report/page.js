// After tree.js, in the same script: the verdict, the replay, the charts and the rest of the page.
// ---- verdict and sliders ----
// A real feature that rises goes just above a threshold: the threshold is what a person wants to read.
function change(c, to, above) {
  if (Number.isNaN(x[c])) return `became ${fmt(to)}`;
  return to < x[c] ? `fell to ${fmt(to, (shown) => above < shown && shown <= to)}` : F[c].kind === "real" ? `rose above ${fmt(above, (shown) => shown >= above)}` : `rose to ${fmt(to)}`;
}
// Features that change together, with enough digits that the tree goes where the sentence says.
function together(moves, point, leaf) {
  for (let digits = 4; ; digits++) {
    const shown = point.slice();
    for (const [c] of moves) shown[c] = Number(point[c].toPrecision(digits));
    if (digits > 16 || pathOf(shown).pop() === leaf) return moves.map(([c]) => `${apart(F[c].name)} ${shown[c] < x[c] ? "fell" : "rose"} to ${String(shown[c]).replace(/-/g, "−")}`).join(" and ");
  }
}
function decide() {
  const path = pathOf(x), leaf = path[path.length - 1];
  const verdict = $("verdict");
  verdict.textContent = told(leaf, x);
  verdict.style.background = T.colour[leaf];
  verdict.dataset.leaf = leaf;
  $("rule").textContent = conditions(leaf).join(" and ") || "always";
  const list = $("others");
  list.replaceChildren();
  const found = counterfactuals(x);
  for (const { moves, leaf: to, to: point } of found.slice(0, 4)) {
    const item = el("li");
    item.append(el("b", {}, apart(T.label[to])), " if ");
    item.append(point ? together(moves, point, to) : moves.map(([c, v, above]) => `${apart(F[c].name)} ${change(c, v, above)}`).join(" and "));
    list.append(item);
  }
  if (!found.length) list.append(el("li", {}, "No other action is possible from here."));
  light();
}
const inputs = F.slice(0, RAW).map((f, c) => {
  const row = el("div", { class: "slider" }), id = `feature-${c}`;
  const label = el("label", { for: id }, clip(f.name, 60));
  if (!f.used) label.append(el("span", {}, "not asked about"));
  const rail = el("div", { class: "rail" }), whole = f.kind !== "real", [lo, hi] = f.shown;
  const range = el("input", { type: "range", id, "data-feature": c, min: lo, max: hi, step: whole ? 1 : (hi - lo) / 1000 || 1 });
  const exact = el("input", { type: "number", "data-exact": c, step: whole ? 1 : "any", "aria-label": `${f.name}, exact value` });
  rail.append(range);
  // One mark a place: thousands of thresholds differ by less than a pixel.
  const places = new Set(T.threshold.filter((_, n) => T.feature[n] === c).map((t) => Math.round((500 * (t - lo)) / (hi - lo)) / 500));
  if (places.size > 40) rail.classList.add("dense");
  for (const s of places) {
    if (!(s >= 0 && s <= 1)) continue;
    const tick = el("i", { class: "tick" });
    tick.style.left = `calc(9px + ${s} * (100% - 18px))`;
    rail.append(tick);
  }
  const set = (v) => { if (v === "" || Number.isNaN(Number(v))) return; pause(); whatIf = true; x = x.slice(); x[c] = whole ? Math.round(v) : Number(v); show(); };
  range.oninput = () => set(range.value);
  exact.onchange = () => set(exact.value);
  row.append(label, rail, exact);
  return { row, range, exact, used: f.used };
});
for (const part of [...inputs.filter((i) => i.used), ...inputs.filter((i) => !i.used).slice(0, 12)]) $("sliders").append(part.row);
function show() {
  inputs.forEach(({ range, exact }, c) => {
    if (document.activeElement !== range) range.value = Math.max(range.min, Math.min(range.max, x[c]));
    // A number field cannot hold what is not finite: it stands there as its placeholder.
    if (document.activeElement !== exact) exact.value = Number.isFinite(x[c]) ? Number(x[c].toPrecision(5)) : "";
    exact.placeholder = fmt(x[c]);
  });
  decide();
  if (R) {
    $("resume").hidden = !whatIf;
    $("scrub").value = step;
    const last = R.x.length - 1, total = R.total[step];
    $("clock").textContent = `step ${step} of ${last} · return ${fmt(total)}${step === last ? ` · ${R.ending}` : ""}`;
    if (R.frames.length) $("frame").src = R.frames[R.index[step]];
  }
}

// ---- replay ----
function goTo(k) { step = Math.max(0, Math.min(R.x.length - 1, k)); x = R.x[step].slice(); whatIf = false; show(); }
function pause() { playing = false; $("play").textContent = "▶ Play"; }
function play() {
  if (playing) return pause();
  if (step >= R.x.length - 1) step = 0;
  playing = true;
  $("play").textContent = "❚❚ Pause";
  let before = performance.now(), due = 0;
  goTo(step);
  requestAnimationFrame(function tick(now) {
    if (!playing) return;
    due += (Math.min(now - before, 200) / 1000) * R.fps * Number($("speed").value);
    before = now;
    if (due >= 1) { const by = Math.floor(due); due -= by; goTo(step + by); }
    if (step >= R.x.length - 1) return pause();
    requestAnimationFrame(tick);
  });
}
if (R) {
  $("scrub").max = R.x.length - 1;
  $("play").onclick = play;
  $("back").onclick = () => { pause(); goTo(step - 1); };
  $("forward").onclick = () => { pause(); goTo(step + 1); };
  $("scrub").oninput = () => { pause(); goTo(Number($("scrub").value)); };
  $("resume").onclick = () => goTo(step);
  if (!R.frames.length) { $("frame").hidden = true; $("no-frames").hidden = false; }
  $("speed").value = R.fps >= 20 ? "0.5" : "1";
  addEventListener("keydown", (e) => {
    if (e.target !== document.body) return;
    if (e.key === " ") { e.preventDefault(); play(); }
    if (e.key === "ArrowRight") { pause(); goTo(step + 1); }
    if (e.key === "ArrowLeft") { pause(); goTo(step - 1); }
  });
} else $("replay").hidden = true;

// ---- charts ----
function nice(lo, hi, count) {
  const raw = (hi - lo || 1) / count, power = 10 ** Math.floor(Math.log10(raw)), unit = [1, 2, 5, 10].find((m) => m * power >= raw) * power, out = [];
  for (let v = Math.ceil(lo / unit - 1e-9) * unit; v <= hi + 1e-9 * unit; v += unit) out.push(Number(v.toPrecision(12)));
  return out;
}
const short = (v) => (Math.abs(v) >= 1e6 ? `${fmt(v / 1e6)}M` : Math.abs(v) >= 1e4 ? `${fmt(v / 1e3)}k` : fmt(v));
// As wide as its place, so that text keeps its size on a phone.
const chartWidth = (box) => Math.max(280, Math.min(560, box.clientWidth || 560));
function chart(height, xs, series, xlabel) {
  const W = chartWidth($("curve-charts")), L = 46, B = 36, root = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${height}`, role: "img" });
  const all = series.flatMap((s) => s.values.filter((v) => v !== null));
  let lo = Math.min(...all), hi = Math.max(...all);
  if (lo === hi) { lo -= 1; hi += 1; }
  const pad = 0.06 * (hi - lo), x0 = Math.min(...xs), x1 = Math.max(...xs);
  lo = lo >= 0 && lo < pad * 4 ? 0 : lo - pad; hi += pad;
  const X = (v) => L + ((W - L - 8) * (v - x0)) / (x1 - x0 || 1), Y = (v) => 8 + (height - B - 8) * (1 - (v - lo) / (hi - lo));
  for (const v of nice(lo, hi, 4)) root.append(svg("line", { class: "axis", x1: L, x2: W - 8, y1: Y(v), y2: Y(v) }), svg("text", { x: L - 7, y: Y(v) + 4, "text-anchor": "end" }, short(v)));
  for (const v of nice(x0, x1, W < 420 ? 3 : 5)) root.append(svg("text", { x: X(v), y: height - B + 16, "text-anchor": "middle" }, short(v)));
  root.append(svg("text", { x: W - 8, y: height - 3, "text-anchor": "end" }, xlabel));
  series.forEach((s, k) => {
    const points = xs.map((v, i) => (s.values[i] === null ? null : [X(v), Y(s.values[i])])).filter(Boolean);
    if (!points.length) return;
    const line = points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");
    if (k === 0) root.append(svg("path", { class: "fillA", d: `M${line}L${points[points.length - 1][0]},${Y(lo)}L${points[0][0]},${Y(lo)}Z` }));
    root.append(svg("path", { class: k === 0 ? "lineA" : "lineB", d: `M${line}` }));
    if (points.length === 1) root.append(svg("circle", { cx: points[0][0], cy: points[0][1], r: 3.5, class: "barA" }));
  });
  root.setAttribute("aria-label", `${series.map((s) => s.name).join(" and ")} by ${xlabel}`);
  return root;
}
function legend(names) {
  const box = el("p", { class: "legend" });
  names.forEach((name, k) => { const item = el("span"); const mark = el("i"); mark.style.background = k === 0 ? "var(--accent)" : "#3b7dd8"; item.append(mark, name); box.append(item); });
  return box;
}
if (D.curves.length) for (const c of D.curves) $("curve-charts").append(chart(c.small ? 130 : 210, c.x, c.series, c.xlabel), legend(c.series.map((s) => s.name)));
else $("curves").hidden = true;
const five = (v) => String(Number(v.toPrecision(5))).replace("-", "−");  // 499.99 is not 500
if (D.evaluation) {
  const E = D.evaluation, body = $("eval-body"), big = el("div", { class: "big" }, five(E.mean));
  big.append(el("small", {}, E.ci95 ? `  mean return, 95 % interval ${five(E.ci95[0])} to ${five(E.ci95[1])}` : "  return of one episode"));
  body.append(big, el("p", { class: "hint" }, `${E.episodes.toLocaleString("en")} episode${E.episodes === 1 ? "" : "s"} (seed ${E.seed})${E.ci95 ? `, standard deviation ${fmt(E.std)}` : ""}, worst ${fmt(E.min)}, best ${fmt(E.max)}, ${five(E.mean_length)} steps each${E.time_limited ? `, ${E.time_limited.toLocaleString("en")} reached the time limit` : ""}.`));
  const W = chartWidth(body), H = 150, root = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Returns of the episodes" });
  if (E.min === E.max) root.setAttribute("hidden", "");
  const top = Math.max(...E.histogram.counts), n = E.histogram.counts.length, each = (W - 16) / n;
  E.histogram.counts.forEach((count, k) => { if (count) { const h = Math.max(2, (count / top) * (H - 34)); root.append(svg("rect", { class: "barA", x: 8 + k * each + 1, y: H - 24 - h, width: Math.max(1, each - 2), height: h, rx: 2 })); } });
  root.append(svg("line", { class: "axis", x1: 8, x2: W - 8, y1: H - 24, y2: H - 24 }), svg("text", { x: 8, y: H - 8 }, fmt(E.histogram.low)), svg("text", { x: W - 8, y: H - 8, "text-anchor": "end" }, fmt(E.histogram.high)), svg("text", { x: W / 2, y: H - 8, "text-anchor": "middle" }, "return of an episode"));
  body.append(root);
} else $("evaluation").hidden = true;

// ---- header, settings, exports ----
$("title").textContent = document.title = D.title;
$("sub").textContent = D.subtitle;
for (const [name, value, unit] of D.facts) { const box = el("div"); box.append(el("dt", {}, name)); const dd = el("dd", {}, value); if (unit) dd.append(el("small", {}, ` ${unit}`)); box.append(dd); $("facts").append(box); }
for (const [key, value] of D.settings) { const row = el("tr"); row.append(el("td", {}, key), el("td", {}, value)); $("settings").append(row); }
$("footer").textContent = D.footer;
let chosen = null;
D.exports.forEach((item, k) => {
  const tab = el("button", { role: "tab", "aria-selected": "false", "data-format": item.format, title: item.about }, item.label);
  tab.onclick = () => {
    chosen = item;
    document.querySelectorAll("#formats button").forEach((b) => b.setAttribute("aria-selected", String(b === tab)));
    $("code").textContent = item.text !== undefined ? visible(item.text) : `${item.about}: ${item.name}, ${Math.round((item.base64.length * 3) / 4).toLocaleString("en")} bytes.`;
    $("copy").disabled = item.text === undefined;
  };
  $("formats").append(tab);
  if (k === 0) tab.click();
});
$("download").onclick = () => {
  const data = chosen.text ?? Uint8Array.from(atob(chosen.base64), (c) => c.charCodeAt(0));
  const link = el("a", { href: URL.createObjectURL(new Blob([data])), download: chosen.name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
$("copy").onclick = async () => {
  try { await navigator.clipboard.writeText(chosen.text); } catch {
    const range = document.createRange(); range.selectNodeContents($("code")); getSelection().removeAllRanges(); getSelection().addRange(range); document.execCommand("copy");
  }
  $("copy").textContent = "Copied"; setTimeout(() => ($("copy").textContent = "Copy"), 1200);
};
$("theme").onclick = () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
};
drawTree();
show();
document.documentElement.dataset.ready = "yes";
