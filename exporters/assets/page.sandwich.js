"use strict";
/*
 * Callers and callees of one function, wherever it is called. A call of it inside another one (recursion) belongs to that
 * one: each sample counts once, so both trees have the total that the table says.
 */

/**
 * @type {(model: Model, center: number, options: { metric: number; hidden: Set<number>; whole: number }) => { callers: Tree; callees: Tree }}
 */
function sandwich(model, center, options) {
  const folded = contract(model, UNFOLDED);
  const rows = model.threads.filter((thread) => !options.hidden.has(thread.index)).flatMap((thread) => model.leavesOf[thread.index]);
  const value = inclusive(model, rows, model.values[options.metric]);
  const count = inclusive(model, rows, model.values[model.countColumn]);
  const callers = new RawTree(model, folded);
  const callees = new RawTree(model, { ...folded, merges: true });
  for (const raw of [callers, callees]) raw.add(-1, center, 0, 0, 0);
  /** @type {Pointer[]} */
  const above = [];
  const place = new Int32Array(model.parent.length).fill(-1);
  for (let node = 1; node < place.length; node++) {
    if (!value[node] && !count[node]) continue;
    const up = model.parent[node];
    if (place[up] >= 0) place[node] = callees.addFolded(place[up], node, value[node], count[node], model.trust[node]);
    else if (model.frame[node] === center) {
      place[node] = 0;
      if (up > 0) above.push([up, value[node], count[node]]);
      for (const raw of [callers, callees]) {
        raw.src[0] ||= node;
        raw.trust[0] |= model.trust[node];
        raw.addUp(0, value[node], count[node]);
      }
    }
  }
  growCallers(callers, 0, above);
  return {
    callers: { ...layOut(model, callers), bottomUp: true, inOrder: false, thin: -1, whole: options.whole },
    callees: { ...layOut(model, callees), bottomUp: false, inOrder: false, thin: -1, whole: options.whole },
  };
}

/**
 * Of each node of the model what lies at or below it.
 * @type {(model: Model, rows: number[], values: Float64Array) => Float64Array}
 */
function inclusive(model, rows, values) {
  const sums = new Float64Array(model.parent.length);
  for (const row of rows) sums[model.leaf[row]] += values[row];
  for (let node = sums.length - 1; node > 0; node--) sums[model.parent[node]] += sums[node];
  return sums;
}

/** Both halves on the page, each a graph of its own. */
class Sandwich {
  constructor() {
    /** @type {(half: "callers" | "callees") => Graph} */
    const half = (name) => new Graph(byId(name), byId(/** @type {const} */ (`${name}-spacer`)), byId(/** @type {const} */ (`${name}-graph`)), {
      zoom: () => {},
      hover: (node, x, y) => showTooltip(model, this.trees[name], node, state.metric, 0, x, y),
      open: (node) => {
        lookAt(this.trees[name].frame[node]);
        return true;
      },
      focus: (node) => announce(this.trees[name], node),
    });
    /** @type {{ callers: Tree; callees: Tree }} */
    this.trees = { callers: tree, callees: tree };
    this.halves = { callers: half("callers"), callees: half("callees") };
    this.halves.callers.flipped = true;
  }

  /** @type {(colours: string[], theme: Theme) => void} */
  setColours(colours, theme) {
    for (const half of Object.values(this.halves)) half.setColours(colours, theme);
    this.colourNodes();
  }

  colourNodes() {
    for (const half of /** @type {const} */ (["callers", "callees"])) {
      this.halves[half].nodeColours = state.colour === "wait" ? waitColours(model, this.trees[half], state.theme) : null;
    }
  }

  /** @type {(center: number, whole: number) => void} */
  show(center, whole) {
    this.trees = sandwich(model, center, { ...state, whole });
    this.colourNodes();
    this.halves.callers.setTree(model, this.trees.callers);
    this.halves.callees.setTree(model, this.trees.callees);
    const type = model.valueTypes[state.metric];
    const { total, self } = this.trees.callees;
    byId("center-name").textContent = model.frames[center].name;
    byId("center-facts").textContent = [
      `total ${formatValue(total, type)} (${formatShare(total, whole)})`,
      `self ${formatValue(self[0], type)} (${formatShare(self[0], whole)})`,
    ].join(" · ");
  }
}
