"use strict";
/* Of each function of the table, how much there was when. */

const TREND_BINS = 48;
/** Numbers that are kept at most, for all nodes. */
const TREND_CELLS = 8e6;
const [TREND_WIDTH, TREND_HEIGHT] = [96, 16];

/**
 * frame -> its total in each part of the range. outermost: the tree's nodes that count for their function, see tallyFunctions.
 * @type {(model: Model, tree: Tree, frames: number[], outermost: number[], options: { metric: number; hidden: Set<number>; range: TimeRange | null }) => Map<number, Float64Array>}
 */
function trends(model, tree, frames, outermost, { metric, hidden, range }) {
  const { originNs, spanNs } = model.timeline;
  const nodes = model.parent.length;
  const bins = Math.min(TREND_BINS, Math.floor(TREND_CELLS / nodes));
  /** @type {Map<number, Float64Array>} */
  const found = new Map();
  if (!model.timeline.count || bins < 2) return found;
  const threads = model.samples.thread;
  const rows = activity(model.timeline, metric, range ?? [originNs, originNs + spanNs], bins, threads.length, (row) => (hidden.has(threads[row]) ? -1 : row));
  const sums = new Float32Array(nodes * bins);
  rows.forEach((row, at) => row.forEach((value, bin) => (sums[model.leaf[at] * bins + bin] += value)));
  for (let node = nodes - 1; node > 0; node--) {
    const [from, to] = [node * bins, model.parent[node] * bins];
    for (let bin = 0; bin < bins; bin++) sums[to + bin] += sums[from + bin];
  }
  for (const frame of frames) found.set(frame, new Float64Array(bins));
  for (const at of outermost) {
    const own = found.get(tree.frame[at]);
    if (own) for (let bin = 0; bin < bins; bin++) own[bin] += sums[tree.src[at] * bins + bin];
  }
  return found;
}

/**
 * Bars of a function's own scale: its shape over time.
 * @type {(values: Float64Array) => SVGElement}
 */
function sparkline(values) {
  const most = values.reduce((a, b) => Math.max(a, b), 0) || 1;
  const wide = TREND_WIDTH / values.length;
  const bars = Array.from(values, (value, bin) => {
    const high = value ? Math.max(0.8, (value / most) * TREND_HEIGHT) : 0;
    return high ? `M${(bin * wide).toFixed(1)} ${TREND_HEIGHT}v-${high.toFixed(1)}h${(wide * 0.85).toFixed(1)}v${high.toFixed(1)}z` : "";
  });
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("viewBox", `0 0 ${TREND_WIDTH} ${TREND_HEIGHT}`);
  picture.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", bars.join(""));
  picture.append(path);
  return picture;
}
