"use strict";
/* Calls in the order in which they ran: a tree whose siblings follow one another, and join only where one went on. */

/** Most nodes, and most steps along stacks; what is beyond is not drawn. */
const ORDER_NODES = 3e5;
const ORDER_STEPS = 2e7;

/**
 * Of each thread, in whose node it begins. A sample belongs to the call before it where the stack outside is the same.
 * @type {(model: Model, leaves: number[], root: number, raw: RawTree, options: TreeOptions) => void}
 */
function emitInOrder(model, leaves, root, raw, options) {
  const { rep, parent, trust, key } = raw.folded;
  const { originNs, spanNs, values, units } = model.timeline;
  const counts = values[model.countColumn];
  const mine = new Uint8Array(model.leaf.length);
  for (const row of leaves) mine[row] = 1;
  raw.groups.add(root);
  addTotals(model, leaves, root, raw, options);
  /** @type {[node: number, id: number][]} */
  let open = [];
  inRange(model.timeline, options.metric, options.range ?? [originNs, originNs + spanNs], (row, value, sample) => {
    if (!mine[row]) return;
    if (raw.steps > ORDER_STEPS || raw.parent.length > ORDER_NODES) {
      raw.more.add(root);
      return;
    }
    const path = [];
    for (let node = rep[model.leaf[row]]; node > 0; node = parent[node]) path.push(node);
    raw.steps += path.length;
    /** @type {[node: number, id: number][]} */
    const now = [];
    for (const node of path.reverse()) {
      const before = now.length < open.length && now.every(([, id], at) => id === open[at][1]) ? open[now.length] : null;
      const count = counts[sample] * units[model.countColumn];
      const below = now.length ? now[now.length - 1][1] : root;
      if (before && key[before[0]] === key[node]) {
        raw.value[before[1]] += value;
        raw.count[before[1]] += count;
        raw.trust[before[1]] |= trust[node];
        now.push(before);
      } else now.push([node, raw.addBlock(below, node, value, count, trust[node])]);
    }
    open = now;
  });
}
