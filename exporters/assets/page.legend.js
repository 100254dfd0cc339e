"use strict";
/* What has which colour, and how much of it there is. */

function recolour() {
  colours = frameColours(model, slots, state.theme, state.colour);
  graph.nodeColours = state.colour === "wait" ? waitColours(model, tree, state.theme) : null;
  graph.setColours(colours, state.theme);
  halves?.setColours(colours, state.theme);
  showModules();
}

/**
 * group -> weight of all its nodes; heavy modules choose their colours first.
 * @type {() => Map<string, number>}
 */
function groupWeights() {
  const weights = new Map();
  for (let i = 1; i < tree.n; i++) {
    const { group, kind } = model.frames[tree.frame[i]];
    if (kind >= KIND.ROOT) continue;
    weights.set(group, (weights.get(group) || 0) + tree.value[i]);
  }
  return weights;
}

function showModules() {
  /** @type {Map<string, number>} */
  const own = new Map();
  if (state.colour === "module") for (const group of slots.keys()) own.set(group, 0);
  /** @type {(frame: number) => string} */
  const label = (frame) => labelOf(model.frames[frame], state.colour);
  const values = model.values[state.metric];
  const cut = new Map();
  let whole = 0;
  model.leaf.forEach((leaf, i) => {
    if (!leaf || state.hidden.has(model.samples.thread[i])) return;
    const group = label(model.frame[leaf]);
    own.set(group, (own.get(group) || 0) + values[i]);
    if (model.cut[leaf] >= 0 && model.cut[leaf] !== model.frame[leaf]) cut.set(model.cut[leaf], (cut.get(model.cut[leaf]) || 0) + values[i]);
    whole += values[i];
  });
  if (state.colour !== "wait") for (const [frame, value] of cut) own.set(label(frame), value + (own.get(label(frame)) || 0));
  const sample = new Map();
  model.frames.forEach((_, i) => {
    if (!sample.has(label(i))) sample.set(label(i), i);
  });
  /** @type {(group: string) => number} */
  const isMarker = (group) => Number(model.frames[sample.get(group)].kind === KIND.MARKER);
  /** @type {(a: [string, number], b: [string, number]) => number} */
  const order = (a, b) => isMarker(a[0]) - isMarker(b[0]) || b[1] - a[1] || (a[0] < b[0] ? -1 : 1);
  const pale = state.colour === "module" ? paleGroups(model) : new Set();
  /** @type {[name: string, share: number, colour: string, striped: boolean][]} */
  const rows = [...own].sort(order).map(([group, value]) => {
    const slot = group === "[unknown]" ? undefined : slotOf(slots, group, state.colour);
    const full = slot === undefined ? SPECIAL[state.theme].unknown : PALETTE[state.theme][slot];
    const base = slot !== undefined && pale.has(group) ? paleColour(full, state.theme) : full;
    return [group, whole ? value / whole : 0, base, isMarker(group) > 0];
  });
  showLegend(rows, state.group, (group) => {
    seek({ group: state.group === group ? null : group });
  });
}
