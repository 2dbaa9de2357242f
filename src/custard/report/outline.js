// The same tree as rows, indented like a table of contents: it needs the least width, and long questions wrap.
const outline = $("outline");
let litLeaf = null;
function drawOutline() {
  outline.replaceChildren();
  for (const [n, depth] of visibleNodes()) outline.append(outlineRow(n, depth));
}
function outlineRow(n, depth) {
  const end = isLeaf(n), row = el("div", { class: `node row ${end ? "leaf" : "inner"}`, "data-node": n, role: "treeitem", tabindex: n === 0 ? "0" : "-1", "aria-level": depth + 1 });
  row.setAttribute("aria-label", (end ? T.label[n] : question(n)) + (T.share ? `, ${percent(T.share[n])}` : ""));
  row.style.setProperty("--level", Math.min(depth, 14));
  if (!end) row.setAttribute("aria-expanded", String(!folded.has(n)));
  row.append(el("span", { class: "twist", "aria-hidden": "true" }, end ? "" : folded.has(n) ? "▸" : "▾"));
  if (parent[n] >= 0) row.append(el("span", { class: "answer" }, T.left[parent[n]] === n ? "yes" : "no"));
  if (end) {
    const pill = el("span", { class: "pill" }, T.label[n]);
    pill.style.background = T.colour[n];
    pill.style.color = inkOn(T.colour[n]);
    if (T.share && T.share[n] === 0) row.classList.add("never");
    row.append(pill);
  } else {
    row.append(el("span", { class: "question" }, question(n)));
    if (folded.has(n)) {
      const mix = el("span", { class: "mix" });
      for (const [colour, share] of actionMix(n)) { const part = el("i"); part.style.background = colour; part.style.width = `${100 * share}%`; mix.append(part); }
      row.append(el("span", { class: "folded" }, `${below[n]} leaves`), mix);
    }
  }
  if (T.share) {
    const share = el("span", { class: "share" }, percent(T.share[n])), meter = el("i");
    meter.style.width = `${Math.max(T.share[n] > 0 ? 2 : 0, 100 * T.share[n])}%`;
    const track = el("span", { class: "meter" });
    track.append(meter);
    row.append(track, share);
  }
  return row;
}
function lightOutline(path, leaf) {
  const on = new Set(path);
  outline.querySelectorAll(".node").forEach((row) => {
    const n = Number(row.dataset.node), lit = on.has(n), says = row.querySelector(".folded");
    row.classList.toggle("on", lit);
    if (says) says.textContent = lit ? `${below[n]} leaves, now ${clip(T.label[leaf], 20)}` : `${below[n]} leaves`;
  });
  const isNew = litLeaf !== null && litLeaf !== leaf;  // an episode plays or a value is moved; first the root is on top
  litLeaf = leaf;
  if (isNew) revealInOutline([...path].reverse().find((n) => outline.querySelector(`[data-node="${n}"]`)));
}
function revealInOutline(n) {
  const row = outline.querySelector(`[data-node="${n}"]`);
  if (!row) return;
  const at = row.getBoundingClientRect(), frame = outline.getBoundingClientRect();  // moves the rows only, not the page
  if (at.top < frame.top) outline.scrollTop += at.top - frame.top - 8;
  else if (at.bottom > frame.bottom) outline.scrollTop += at.bottom - frame.bottom + 8;
}
outline.addEventListener("click", (e) => { const row = nodeOf(e); if (row) press(Number(row.dataset.node), "mouse", row); });
