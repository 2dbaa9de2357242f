// Explain this leaf: what it does, for which states, how often, what is typical, and what would change the decision.
let explained = -1;
function explainLeaf(n) {
  explained = n;
  const box = $("leaf"), visits = T.at_leaf[String(n)], state = visits ? visits.typical : pointIn(n);
  box.hidden = false;
  box.dataset.leaf = n;
  const pill = $("leaf-action");
  pill.textContent = T.label[n];
  pill.style.background = T.colour[n];
  pill.style.color = inkOn(T.colour[n]);
  $("leaf-title").textContent = `Leaf ${n}`;
  $("leaf-says").textContent = leafSentence(n, visits);
  const rows = $("leaf-ranges");
  rows.replaceChildren();
  for (const [c, ends] of boxOf(n)) rows.append(rangeRow(c, ends, state));
  rows.hidden = !rows.childNodes.length;
  const list = $("leaf-changes");
  list.replaceChildren();
  const found = state ? counterfactuals(state).slice(0, 3) : [];
  for (const change of found) list.append(changeItem(change, state));
  $("leaf-near").hidden = !found.length;
  $("leaf-near").textContent = visits ? "From its typical state, the nearest other actions:" : "From a state in its middle, the nearest other actions:";
  $("leaf-try").hidden = !state;
  $("leaf-try").textContent = visits ? "Try its typical state" : "Try a state that comes here";
  $("leaf-try").onclick = () => { pause(); whatIf = true; x = state.slice(); show(); };
  markExplained();
}
function leafSentence(n, visits) {
  const rule = conditions(n), when = rule.length ? `When ${rule.join(" and ")}, the action is ${T.label[n]}.` : `The action is always ${T.label[n]}.`;
  if (!T.share) return when;
  if (!visits) return `${when} None of the ${whole(T.visits[0])} visited states came here: what it does is untested.`;
  return `${when} ${percent(T.share[n])} of the visited states come here, in ${visits.episodes} of ${D.episodes} episodes.`;
}
// The part of a feature's range that leads to the leaf, with the state's own value.
function rangeRow(c, [lo, hi], state) {
  const row = el("div", { class: "range" }), [from, to] = F[c].shown, place = (v) => 100 * Math.min(1, Math.max(0, (v - from) / (to - from || 1)));
  const track = el("div", { class: "track" }), part = el("i", { class: "part" });
  part.style.left = `${place(lo)}%`;
  part.style.width = `${Math.max(1, place(hi) - place(lo))}%`;
  track.append(part);
  if (state && Number.isFinite(valueOf(c, state))) { const dot = el("i", { class: "at" }); dot.style.left = `${place(valueOf(c, state))}%`; track.append(dot); }
  const ends = el("div", { class: "ends" });
  ends.append(el("span", {}, fmt(Number(from.toPrecision(3)))), el("span", {}, `${fmt(Number(to.toPrecision(3)))}${unitOf(c)}`));
  row.append(el("span", { class: "what" }, condition(c, [lo, hi])), track, ends);
  return row;
}
// A real feature that rises goes just above a threshold: the threshold is what a person wants to read.
function changeText([c, to, above], from) {
  const u = unitOf(c);
  if (Number.isNaN(from[c])) return `${nameOf(c)} became ${fmt(to)}${u}`;
  if (to < from[c]) return `${nameOf(c)} fell to ${fmt(to, (shown) => above < shown && shown <= to)}${u}`;
  return F[c].kind === "real" ? `${nameOf(c)} rose above ${fmt(above, (shown) => shown >= above)}${u}` : `${nameOf(c)} rose to ${fmt(to)}${u}`;
}
// Features that change together, with enough digits that the tree goes where the sentence says.
function together({ moves, leaf, to }, from) {
  for (let digits = 4; ; digits++) {
    const shown = to.slice();
    for (const [c] of moves) shown[c] = Number(to[c].toPrecision(digits));
    if (digits <= 16 && leafOf(shown) !== leaf) continue;
    return moves.map(([c]) => `${nameOf(c)} ${shown[c] < from[c] ? "fell" : "rose"} to ${String(shown[c]).replace(/-/g, "−")}${unitOf(c)}`).join(" and ");
  }
}
function changeItem(change, from) {
  const item = el("li");
  item.append(el("b", {}, apart(T.label[change.leaf])), " if ", change.to ? together(change, from) : change.moves.map((move) => changeText(move, from)).join(" and "));
  return item;
}
// A state that reaches a leaf no episode visited: the middle of its box, if the leaf can be reached by changing features alone.
function pointIn(n) {
  const state = F.slice(0, RAW).map(middle);
  for (const [c, [lo, hi]] of boxOf(n)) {
    if (c >= RAW) continue;
    const a = Math.max(lo, F[c].shown[0]), b = Math.min(hi, F[c].shown[1]);
    const to = nearest(a <= b ? (F[c].kind === "real" ? (a + b) / 2 : Math.floor((a + b) / 2)) : state[c], lo, hi, { ...F[c], low: null, high: null });
    if (to === null) return null;
    state[c] = to;
  }
  return leafOf(state) === n ? state : null;
}
function markExplained() {
  for (const part of [...holder().querySelectorAll(".node"), ...overview.childNodes]) part.classList.toggle("explained", Number(part.dataset.node) === explained);
}
$("leaf-close").onclick = () => { $("leaf").hidden = true; explained = -1; markExplained(); };
$("leaf-now").onclick = () => { const n = leafOf(x); goToNode(n); explainLeaf(n); };
