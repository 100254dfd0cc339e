"use strict";
/* Source files with what each line cost of all that is shown: what flamegraph_tree.py put into the page. */

/** Letters of a line that is cut on a narrow screen: pointing at it shows all. */
const LONG_LINE = 80;

/**
 * Columns of places and chains, and of each row of samples its chain, twice, and 1 more where its last place is the
 * innermost function. again: chains whose last place stands in them before.
 * @type {(data: SourceData) => Source}
 */
function readSource(data) {
  const parent = Int32Array.from(data.parent, (back, at) => at - back);
  parent[0] = -1;
  return { ...data, parent, place: Int32Array.from(data.place), again: recurring(parent, data.place, data.line.length) };
}

/** @type {(parent: Int32Array, place: number[], places: number) => Uint8Array} */
function recurring(parent, place, places) {
  const count = parent.length;
  const next = new Int32Array(count).fill(-1);
  const child = new Int32Array(count).fill(-1);
  for (let at = count - 1; at > 0; at--) {
    next[at] = child[parent[at]];
    child[parent[at]] = at;
  }
  const again = new Uint8Array(count);
  const open = new Int32Array(places);
  for (let at = child[0]; at > 0; ) {
    again[at] = open[place[at]]++ ? 1 : 0;
    if (child[at] > 0) {
      at = child[at];
      continue;
    }
    for (open[place[at]]--; at > 0 && next[at] < 0; ) {
      at = parent[at];
      if (at > 0) open[place[at]]--;
    }
    if (at > 0) at = next[at];
  }
  return again;
}

/**
 * By place, of the samples that are shown: in itself, and with what it calls, each sample once.
 * @type {(model: Model, source: Source, options: { metric: number; hidden: Set<number> }) => { own: Float64Array; total: Float64Array }}
 */
function lineSums(model, source, { metric, hidden }) {
  const { place, parent, again, of } = source;
  const values = model.values[metric];
  const sums = new Float64Array(parent.length);
  const own = new Float64Array(source.line.length);
  const total = new Float64Array(source.line.length);
  for (const thread of model.threads) {
    if (hidden.has(thread.index)) continue;
    for (const row of model.leavesOf[thread.index]) {
      sums[of[row] >> 1] += values[row];
      if (of[row] & 1) own[place[of[row] >> 1]] += values[row];
    }
  }
  for (let at = sums.length - 1; at > 0; at--) {
    if (!again[at]) total[place[at]] += sums[at];
    sums[parent[at]] += sums[at];
  }
  return { own, total };
}

/**
 * The file with the most of a function, or -1.
 * @type {(source: Source, center: number, sums: { own: Float64Array; total: Float64Array }) => number}
 */
function fileOf(source, center, { own, total }) {
  let best = -1;
  source.frame.forEach((frame, at) => {
    if (frame === center && (best < 0 || total[at] > total[best] || (total[at] === total[best] && own[at] > own[best]))) best = at;
  });
  return best < 0 ? -1 : source.file[best];
}

/**
 * file: the one that is shown. center: the function whose lines are marked. The function is shown where it has no file.
 * @type {(model: Model, source: Source, state: State, whole: number) => void}
 */
function showSource(model, source, state, whole) {
  const sums = lineSums(model, source, state);
  const type = model.valueTypes[state.metric];
  const file = state.file >= 0 ? state.file : fileOf(source, state.center, sums);
  showFiles(source, file, sums, whole);
  const name = state.center < 0 ? "" : model.frames[state.center].name;
  byId("source-name").textContent = name;
  byId("source-look").hidden = state.center < 0;
  byId("source-note").textContent = file < 0 ? model.words.noSource : source.files[file][1] ? model.words.sourceChanged : "";
  const own = new Map();
  const total = new Map();
  const mine = new Set();
  source.file.forEach((of, at) => {
    if (of !== file) return;
    const line = source.line[at];
    own.set(line, (own.get(line) ?? 0) + sums.own[at]);
    total.set(line, (total.get(line) ?? 0) + sums.total[at]);
    if (source.frame[at] === state.center) mine.add(line);
  });
  /** @type {(value: number) => HTMLElement} */
  const cell = (value) =>
    element("td", { class: "number", share: whole ? value / whole : 0 }, value ? formatValue(value, type) : "", element("small", null, value ? formatShare(value, whole) : ""));
  const rows = [];
  for (const [first, lines] of file < 0 ? [] : source.files[file][2]) {
    if (rows.length) rows.push(element("tr", { class: "left-out" }, element("td", { colspan: 4 }, "⋮")));
    lines.forEach((text, at) => {
      const line = first + at;
      rows.push(element("tr", mine.has(line) ? { class: "mine" } : null, cell(own.get(line) ?? 0), cell(total.get(line) ?? 0), element("td", { class: "line" }, String(line)), element("td", { class: "text", title: text.length > LONG_LINE ? text : null }, text)));
    });
  }
  byId("source-lines").replaceChildren(...rows);
}

/** @type {(source: Source, chosen: number, sums: { own: Float64Array }, whole: number) => void} */
function showFiles(source, chosen, { own }, whole) {
  const sums = new Float64Array(source.files.length);
  source.file.forEach((file, at) => (sums[file] += own[at]));
  const order = [...sums.keys()].sort((a, b) => sums[b] - sums[a] || a - b);
  const none = element("option", { value: "-1" }, "Choose a file…");
  byId("source-file").replaceChildren(
    ...(chosen < 0 ? [none] : []),
    ...order.map((file) => element("option", { value: String(file) }, `${source.files[file][0]} (${formatShare(sums[file], whole)})`)),
  );
  byId("source-file").value = String(chosen);
}

/** Where the lines of the chosen function begin, or the dearest line. */
function scrollToSource() {
  const lines = [...byId("source-lines").querySelectorAll("tr.mine")];
  const costs = lines.filter((line) => line.textContent?.includes("%"));
  const first = costs[0] ?? lines[0];
  if (first) first.scrollIntoView({ block: "center" });
  else byId("source-view").scrollTop = 0;
}
