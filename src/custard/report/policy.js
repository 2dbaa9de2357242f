// The policy card: which parts are folded, tree or outline, the overview, search, tips and keys.
let folded = new Set(), touched = false, viewName = "tree";
const MAX_OUTLINE_ROWS = 40;
const isOutline = () => viewName === "outline";
const holder = () => (isOutline() ? outline : tree);

// ---- folding ----
// Unfold the questions that most states meet, as long as all that is shown can be read without moving.
function foldByVisits() {
  const fits = () => (isOutline() ? visibleNodes().length <= MAX_OUTLINE_ROWS : bestLayout().scale >= 1);
  const weight = (n) => (T.share ? T.share[n] : 0) + below[n] / (1e6 * N);
  folded = new Set();
  compact = false;
  if (fits()) return;
  compact = true;
  if (fits()) return;
  for (let n = 0; n < N; n++) if (!isLeaf(n)) folded.add(n);
  const frontier = [0];
  while (frontier.length) {
    let k = 0;
    frontier.forEach((n, i) => { if (weight(n) > weight(frontier[k])) k = i; });
    const [n] = frontier.splice(k, 1);
    folded.delete(n);
    if (n !== 0 && !fits()) { folded.add(n); continue; }
    for (const child of [T.left[n], T.right[n]]) if (!isLeaf(child)) frontier.push(child);
  }
  // Only what is at the edge of the drawing is folded; what lies under it opens at once when it is unfolded.
  for (const n of [...folded]) if (ancestors(n).some((above) => folded.has(above))) folded.delete(n);
}
function fold(n) {
  if (isLeaf(n)) return;
  touched = true;
  if (!folded.delete(n)) folded.add(n);
  // One question at a time in a large tree: all that lies under it would be too much.
  else if (below[n] > 12) for (const child of [T.left[n], T.right[n]]) if (!isLeaf(child)) folded.add(child);
  hideTip();
  if (isOutline()) drawOutline(); else foldInTree(n);
  refresh();
  focusNode(n);
}
function goToNode(n) {
  const hidden = ancestors(n).filter((above) => folded.has(above));
  if (hidden.length) {
    touched = true;
    const path = new Set(ancestors(n));
    for (const above of hidden) folded.delete(above);
    // Beside the way there, nothing else opens.
    for (const above of path) for (const child of [T.left[above], T.right[above]]) if (!isLeaf(child) && !path.has(child) && child !== n && hidden.includes(above)) folded.add(child);
    redraw();
  }
  reveal(n);
}
const reveal = (n) => (isOutline() ? revealInOutline(n) : revealInTree(n));
function focusNode(n) {
  const node = holder().querySelector(`[data-node="${n}"]`);
  if (node) node.focus({ preventScroll: true });
}

// ---- drawing ----
function redraw() {
  for (const [name, part] of [["tree", tree], ["outline", outline]]) {
    part.toggleAttribute("hidden", viewName !== name);
    if (viewName !== name) part.replaceChildren();
  }
  for (const id of ["zoom-in", "zoom-out", "fit"]) $(id).hidden = isOutline();
  for (const name of ["tree", "outline"]) $(`view-${name}`).setAttribute("aria-pressed", String(viewName === name));
  if (isOutline()) drawOutline(); else drawTree();
  refresh();
}
function refresh() {
  $("unfold").hidden = folded.size === 0;
  $("refold").hidden = !touched || leaves.length <= 4;
  $("tree-hint").textContent = hint();
  drawOverview();
  markHits();
  light();
}
function hint() {
  const order = isOutline() ? "Yes comes first, no below it." : shape === "down" ? "Yes goes left, no goes right." : "Yes goes up, no goes down.";
  const widths = T.share && !isOutline() ? " Edges are as wide as the share of visited states." : "";
  const hidden = folded.size ? " Folded parts are those that the fewest states meet." : "";
  const touch = matchMedia("(hover: none)").matches;
  const how = isOutline() ? " A question folds, a leaf explains itself." : touch ? " Tap a node for its states, once more to fold or explain it; drag to move." : " Click a question to fold it, a leaf to explain it; drag to move, Ctrl and wheel to zoom.";
  return `${order}${widths}${touched ? "" : hidden}${how}`;
}
function light() {
  const path = pathOf(x), leaf = path[path.length - 1];
  if (isOutline()) lightOutline(path, leaf); else lightTree(path, leaf);
  lightOverview(path);
  const now = $("now-action");
  now.textContent = told(leaf, x);
  now.style.background = T.colour[leaf];
  now.style.color = inkOn(T.colour[leaf]);
}
function chooseView(name) {
  viewName = name;
  if (!touched) foldToFit(); else redraw();
}
function foldToFit() {
  touched = false;
  redraw();  // so that the panel has its size
  foldByVisits();
  redraw();
}

// ---- the overview: the whole tree at a glance, each leaf as wide as every other ----
const overview = $("overview"), MAX_OVERVIEW_NODES = 3000;
let overviewWidth = 0;
function drawOverview() {
  const show = leaves.length > 8 && N <= MAX_OVERVIEW_NODES;
  $("overview-box").hidden = !show;
  if (!show) return;
  const W = overview.clientWidth || 600, deepest = Math.max(...depthOf), row = Math.max(2, Math.min(9, 84 / (deepest + 1))), H = row * (deepest + 1);
  if (W !== overviewWidth || !overview.childNodes.length) {
    overviewWidth = W;
    overview.setAttribute("viewBox", `0 0 ${W} ${H}`);
    overview.style.height = `${H}px`;
    const each = W / leaves.length, first = new Map(), stack = [0], parts = [];
    let index = 0;
    while (stack.length) { const n = stack.pop(); first.set(n, index); if (isLeaf(n)) index++; else stack.push(T.right[n], T.left[n]); }
    for (let n = 0; n < N; n++) {
      const y = row * depthOf[n], gap = each > 4 ? 1 : 0.3;
      const part = svg("rect", { class: `part ${isLeaf(n) ? "leaf" : "inner"}`, "data-node": n, x: first.get(n) * each, y, width: Math.max(0.4, below[n] * each - gap), height: (isLeaf(n) ? H - y : row) - 0.8 });
      if (isLeaf(n)) part.style.fill = T.colour[n];
      parts.push(part);
    }
    overview.replaceChildren(...parts);
  }
  markSight();
}
const drawnNow = () => new Set(visibleNodes().map(([n]) => n));
function markSight() {
  if ($("overview-box").hidden) return;
  const drawn = drawnNow();
  for (const part of overview.childNodes) {
    const n = Number(part.dataset.node), shown = drawn.has(n) && (isOutline() || inSight(n));
    part.classList.toggle("away", !shown);
  }
}
lightened = markSight;
function lightOverview(path) {
  if ($("overview-box").hidden) return;
  const on = new Set(path);
  for (const part of overview.childNodes) part.classList.toggle("on", on.has(Number(part.dataset.node)));
}
overview.addEventListener("click", (e) => {
  if (e.target.dataset.node === undefined) return;
  const n = Number(e.target.dataset.node);
  goToNode(n);
  if (isLeaf(n)) explainLeaf(n); else focusNode(n);
});

// ---- search ----
let hits = [], hit = -1;
const searchText = Array.from({ length: N }, (_, n) => (isLeaf(n) ? `${T.label[n]} leaf ${n}` : `${question(n)} node ${n}`).toLowerCase());
function search() {
  const words = $("search").value.toLowerCase().replace(/-(?=[\d.])/g, "−").split(/\s+/).filter(Boolean);
  hits = words.length ? searchText.map((text, n) => (words.every((word) => text.includes(word)) ? n : -1)).filter((n) => n >= 0) : [];
  if (T.share) hits.sort((a, b) => T.share[b] - T.share[a]);
  hit = -1;
  $("found").textContent = !words.length ? "" : hits.length ? count(hits.length, "match", "matches") : "no match";
  markHits();
}
function markHits() {
  const found = new Set(hits);
  for (const part of [...holder().querySelectorAll(".node"), ...overview.childNodes]) part.classList.toggle("hit", found.has(Number(part.dataset.node)));
}
function nextHit(by) {
  if (!hits.length) return;
  hit = (hit + by + hits.length) % hits.length;
  $("found").textContent = `${hit + 1} of ${whole(hits.length)}`;
  goToNode(hits[hit]);
  markHits();
  const node = holder().querySelector(`[data-node="${hits[hit]}"]`);
  holder().querySelectorAll(".current").forEach((other) => other.classList.remove("current"));
  if (node) node.classList.add("current");
  if (isLeaf(hits[hit])) explainLeaf(hits[hit]);
}
$("search").addEventListener("input", search);
$("search").addEventListener("keydown", (e) => {
  if (e.key === "Enter") { e.preventDefault(); nextHit(e.shiftKey ? -1 : 1); }
  if (e.key === "Escape") { $("search").value = ""; search(); }
});

// ---- tips, pointer and keys ----
const tip = $("tip");
function showTip(g) {
  const n = Number(g.dataset.node), rows = conditions(n);
  tip.replaceChildren(el("b", {}, isLeaf(n) ? `${T.label[n]} (leaf ${n})` : `${question(n)}?`));
  const f = F[T.feature[n]];
  if (f && f.about && f.about !== f.name) tip.append(el("div", {}, `${nameOf(T.feature[n])} = ${f.about}`));  // a named sum
  for (const row of rows.length ? rows : ["every state comes here"]) tip.append(el("div", {}, row));
  if (T.share) tip.append(el("div", {}, n === 0 ? `${whole(T.visits[0])} states in ${D.episodes} episodes` : percent(T.share[n]) + (T.share[n] > 0 ? " of visited states" : "")));
  const r = g.getBoundingClientRect(), w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = `${Math.max(8, Math.min(innerWidth - w - 8, r.left + r.width / 2 - w / 2))}px`;
  tip.style.top = `${r.bottom + h + 12 < innerHeight ? r.bottom + 8 : Math.max(8, r.top - h - 8)}px`;
  tip.classList.add("show");
}
const hideTip = () => tip.classList.remove("show");
const nodeOf = (event) => event.target.closest && event.target.closest("[data-node]");
let tapped = null, untap = 0;
// A finger cannot hover: its first tap tells, its second folds a question or explains a leaf.
function press(n, pointer, node) {
  if (pointer !== "mouse" && tapped !== n) {
    showTip(node);
    tapped = n;
    clearTimeout(untap);
    untap = setTimeout(() => { hideTip(); tapped = null; }, 3500);
    return;
  }
  tapped = null;
  if (isLeaf(n)) { hideTip(); focusNode(n); explainLeaf(n); } else fold(n);
}
for (const part of [tree, overview, outline]) {
  part.addEventListener("pointerover", (e) => { const g = nodeOf(e); if (g && e.pointerType === "mouse" && part !== outline) showTip(g); });
  part.addEventListener("pointerout", (e) => { if (nodeOf(e) && e.pointerType === "mouse") hideTip(); });  // a finger goes out as it is lifted
  part.addEventListener("focusin", (e) => { const g = nodeOf(e); if (g && g.matches(":focus-visible")) showTip(g); });
  part.addEventListener("focusout", hideTip);
}
function walk(e) {
  const g = nodeOf(e);
  if (!g) return;
  const n = Number(g.dataset.node), order = visibleNodes().map(([m]) => m), at = order.indexOf(n);
  const go = (to) => { if (to === undefined || to < 0 || !order.includes(to)) return; reveal(to); focusNode(to); };
  const toParent = () => go(parent[n]), toChild = () => go(T.left[n]), enter = () => (isLeaf(n) ? explainLeaf(n) : fold(n));
  const toYes = () => go(T.left[parent[n]]), toNo = () => go(parent[n] < 0 ? T.right[n] : T.right[parent[n]]);
  const keys = { Enter: enter, " ": enter, Escape: hideTip, Home: () => go(0) };
  if (isOutline()) {
    const closed = !isLeaf(n) && folded.has(n);
    Object.assign(keys, { ArrowUp: () => go(order[at - 1]), ArrowDown: () => go(order[at + 1]), ArrowLeft: () => (isLeaf(n) || closed ? toParent() : fold(n)), ArrowRight: () => (closed ? fold(n) : toChild()) });
  } else if (shape === "down") Object.assign(keys, { ArrowUp: toParent, ArrowDown: toChild, ArrowLeft: toYes, ArrowRight: toNo });
  else Object.assign(keys, { ArrowUp: toYes, ArrowDown: toNo, ArrowLeft: toParent, ArrowRight: toChild });
  if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
}
tree.addEventListener("keydown", walk);
outline.addEventListener("keydown", walk);
$("unfold").onclick = () => { touched = true; folded.clear(); redraw(); };
$("refold").onclick = foldToFit;
for (const name of ["tree", "outline"]) $(`view-${name}`).onclick = () => chooseView(name);
$("expand").onclick = () => {
  const wide = $("grid").classList.toggle("expanded");
  $("expand").setAttribute("aria-pressed", String(wide));
  if (touched) redraw(); else foldToFit();
};
let lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === lastWidth) return;
  lastWidth = innerWidth;
  if (touched) redraw(); else foldToFit();
});
// A tree that fits is drawn; on a narrow screen one that does not is listed.
function openPolicy() {
  $("grid").classList.toggle("large", leaves.length > 12);
  redraw();
  compact = innerWidth < 640;
  folded = new Set();
  if (compact && bestLayout().scale < 1) viewName = "outline";
  foldToFit();
}
