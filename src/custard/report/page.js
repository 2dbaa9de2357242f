// The rest of the page: the verdict and the sliders, the replay, the audit, exports and the theme.

// ---- verdict and sliders ----
function decide() {
  const leaf = leafOf(x), verdict = $("verdict"), list = $("others"), found = counterfactuals(x);
  verdict.textContent = told(leaf, x);
  verdict.style.background = T.colour[leaf];
  verdict.style.color = inkOn(T.colour[leaf]);
  verdict.dataset.leaf = leaf;
  $("rule").textContent = conditions(leaf).join(" and ") || "always";
  list.replaceChildren(...found.slice(0, 4).map((change) => changeItem(change, x)));
  const isLinear = T.linear && T.linear[leaf];
  if (!found.length) list.append(el("li", {}, isLinear ? "No other formula is possible from here; the action moves with the features." : "No other action is possible from here."));
  // The sentences have more lines for some states than for others: what stands below them does not jump.
  const said = verdict.parentNode;
  said.style.minHeight = `${Math.max(parseFloat(said.style.minHeight) || 0, said.offsetHeight)}px`;
  light();
  drawPlane();
}
function tryValues(values) {
  pause();
  whatIf = true;
  x = x.slice();
  for (const [c, v] of values) x[c] = v;
  show();
}
const inputs = F.slice(0, RAW).map((f, c) => {
  const row = el("div", { class: "slider" }), id = `feature-${c}`, label = el("label", { for: id }, clip(f.name, 60));
  label.append(el("span", {}, [f.unit, f.used ? "" : "not asked about"].filter(Boolean).join(", ")));
  const rail = el("div", { class: "rail" }), integral = f.kind !== "real", [lo, hi] = f.shown;
  const range = el("input", { type: "range", id, "data-feature": c, min: lo, max: hi, step: integral ? 1 : (hi - lo) / 1000 || 1 });
  const exact = el("input", { type: "number", "data-exact": c, step: integral ? 1 : "any", "aria-label": `${f.name}, exact value` });
  rail.append(range);
  // One mark per place: thousands of thresholds differ by less than a pixel.
  const places = new Set(T.threshold.filter((_, n) => T.feature[n] === c).map((t) => Math.round((500 * (t - lo)) / (hi - lo)) / 500));
  if (places.size > 40) rail.classList.add("dense");
  for (const s of places) {
    if (!(s >= 0 && s <= 1)) continue;
    const tick = el("i", { class: "tick" });
    tick.style.left = `calc(9px + ${s} * (100% - 18px))`;
    rail.append(tick);
  }
  const set = (v) => { if (v !== "" && !Number.isNaN(Number(v))) tryValues([[c, integral ? Math.round(v) : Number(v)]]); };
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
  if (R) {
    const last = R.x.length - 1;
    $("resume").hidden = !whatIf;
    $("scrub").value = step;
    $("clock").textContent = `step ${step} of ${last} · return ${fmt(R.total[step])}${step === last ? ` · ${R.ending}` : ""}`;
    if (R.frames.length) $("frame").src = R.frames[R.index[step]];
  }
  decide();
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
function openReplay() {
  $("replay").hidden = !R;
  if (!R) return;
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
}

// ---- header, settings, audit ----
function drawHeader() {
  document.title = D.title;
  $("title").textContent = D.title.replaceAll("/", "/\u200b");  // where a phone may break it
  $("sub").textContent = D.subtitle;
  for (const [name, value, unit] of D.facts) {
    const box = el("div"), dd = el("dd", {}, value);
    if (unit) dd.append(el("small", {}, ` ${unit}`));
    box.append(el("dt", {}, name), dd);
    $("facts").append(box);
  }
  for (const [key, value] of D.settings) { const row = el("tr"); row.append(el("td", {}, key), el("td", {}, value)); $("settings").append(row); }
  $("footer").textContent = D.footer;
}
function drawAudit() {
  for (const { title, items } of D.audit) {
    const part = el("section", { class: "audit-part" }), list = el("dl");
    part.append(el("h3", {}, title), list);
    for (const [term, text] of items) {
      const dd = el("dd");  // what stands between backticks is a command
      text.split("`").forEach((piece, k) => dd.append(k % 2 ? el("code", {}, piece) : piece));
      list.append(el("dt", {}, term), dd);
    }
    $("audit-body").append(part);
  }
}
// On paper the whole tree is listed, in light colours; the screen comes back as it was.
let beforePrint = null;
addEventListener("beforeprint", () => {
  beforePrint = { viewName, folded: new Set(folded) };
  if (leaves.length <= 8 && viewName === "tree") return;
  viewName = "outline";
  folded = new Set();
  redraw();
});
addEventListener("afterprint", () => {
  if (!beforePrint) return;
  ({ viewName, folded } = beforePrint);
  beforePrint = null;
  redraw();
});
$("print").onclick = () => window.print();

// ---- exports ----
let chosen = null;
function drawExports() {
  D.exports.forEach((item, k) => {
    const tab = el("button", { role: "tab", "aria-selected": "false", "data-format": item.format, title: item.about }, item.label);
    tab.onclick = () => {
      chosen = item;
      document.querySelectorAll("#formats button").forEach((b) => b.setAttribute("aria-selected", String(b === tab)));
      $("code").textContent = item.text !== undefined ? visible(item.text) : `${item.about}: ${item.name}, ${whole(Math.round((item.base64.length * 3) / 4))} bytes.`;
      $("copy").disabled = item.text === undefined;
    };
    $("formats").append(tab);
    if (k === 0) tab.click();
  });
}
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

// ---- light or dark: as the system has it, until someone chooses ----
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (dark) => { document.documentElement.dataset.theme = dark ? "dark" : "light"; };
let themeChosen = false;
setTheme(systemDark.matches);
systemDark.addEventListener("change", (e) => { if (!themeChosen) setTheme(e.matches); });
$("theme").onclick = () => { themeChosen = true; setTheme(document.documentElement.dataset.theme !== "dark"); };

drawHeader();
openReplay();
drawComparisons();
drawEvaluation();
drawCurves();
drawProof();
drawAudit();
drawExports();
openRegions();
show();
openPolicy();
show();
// The replay's picture has its size only when it is decoded; the panel beside it, and what fits into it, follow.
const pictureReady = R && R.frames.length ? $("frame").decode().catch(() => {}) : Promise.resolve();
pictureReady.then(() => {
  if (!touched) foldToFit();
  document.documentElement.dataset.ready = "yes";
});
let chartsWidth = innerWidth;
addEventListener("resize", () => { if (innerWidth !== chartsWidth) { chartsWidth = innerWidth; $("verdict").parentNode.style.minHeight = ""; drawCurves(); drawEvaluation(); setUpPlane(); } });
