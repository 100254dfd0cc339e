"use strict";
/* Questions to a view tree: what is at a point, what matches, how much each function took. */

/**
 * The node that covers value v in a row, or -1.
 * @type {(tree: Tree, row: number, v: number) => number}
 */
function nodeAt(tree, row, v) {
  if (row < 0 || row >= tree.rows) return -1;
  const at = firstEndingAfter(tree, row, v);
  return at < tree.rowStart[row + 1] && tree.x[at] <= v ? at : -1;
}

/** @type {(tree: Tree, row: number, v: number) => number} */
function firstEndingAfter(tree, row, v) {
  let low = tree.rowStart[row];
  let high = tree.rowStart[row + 1];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (tree.x[middle] + tree.value[middle] > v) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * Which frames match a text: all its letters in name or module, letter case aside; or /an expression/.
 * @type {(model: Model, query: string) => Uint8Array | null}
 */
function matchFrames(model, query) {
  const text = query.trim();
  if (!text) return null;
  const expression = /^\/(.+)\/$/.exec(text);
  /** @type {(frame: Frame) => boolean} */
  let test;
  if (expression) {
    const pattern = new RegExp(expression[1], "i");
    test = (frame) => pattern.test(frame.name) || pattern.test(frame.group);
  } else {
    const wanted = text.toLowerCase();
    test = (frame) => frame.name.toLowerCase().includes(wanted) || frame.group.toLowerCase().includes(wanted);
  }
  return matching(model, test);
}

/**
 * The start, where it is one, matches by what is in it only if nothing else does.
 * @type {(model: Model, test: (frame: Frame) => boolean) => Uint8Array}
 */
function matching(model, test) {
  /** @type {(frame: Frame) => boolean} */
  const made = (frame) => frame.kind === KIND.ROOT || frame.kind === KIND.START || frame.kind === KIND.GAP;
  const matches = Uint8Array.from(model.frames, (frame) => (!made(frame) && test(frame) ? 1 : 0));
  const own = new Set(model.startFrames);
  const others = matches.some((match, frame) => match && !own.has(frame));
  if (!others && model.startFrames.some((frame) => matches[frame])) matches[model.startUp] = 1;
  return matches;
}

/**
 * hits: outermost matching nodes, left to right in their rows. value: their sum; each sample counts once. nodes: 1 for
 * each that matches; a folded cycle by any of its functions. functions: how many match.
 * @type {(tree: Tree, matches: Uint8Array) => Search}
 */
function searchTree(tree, matches) {
  const covered = new Uint8Array(tree.n);
  const nodes = new Uint8Array(tree.n);
  const frames = new Set();
  const hits = [];
  let value = 0;
  for (let i = 0; i < tree.n; i++) {
    const above = tree.parent[i] >= 0 && covered[tree.parent[i]];
    const cycle = tree.cycle.get(i) || [tree.frame[i]];
    const match = cycle.some((frame) => matches[frame]);
    for (const frame of cycle) if (matches[frame]) frames.add(frame);
    nodes[i] = match ? 1 : 0;
    if (match && !above && tree.value[i] > 0) {
      hits.push(i);
      value += tree.value[i];
    }
    covered[i] = above || match ? 1 : 0;
  }
  return { hits, value, nodes, functions: frames.size };
}

/**
 * Self, total and samples of each function; recursion counts once. outermost: the nodes that count for the total. The tree
 * must be top-down.
 * @type {(model: Model, tree: Tree) => { rows: FunctionRow[]; outermost: number[] }}
 */
function tallyFunctions(model, tree) {
  const self = new Float64Array(model.frames.length);
  const total = new Float64Array(model.frames.length);
  const count = new Float64Array(model.frames.length);
  const outermost = [];
  const open = new Int32Array(model.frames.length);
  const next = Int32Array.from(tree.firstChild);
  const stack = [0];
  while (stack.length) {
    const at = stack[stack.length - 1];
    const frame = tree.frame[at];
    if (next[at] === tree.firstChild[at]) {
      if (!open[frame]) {
        total[frame] += tree.value[at];
        count[frame] += tree.count[at];
        outermost.push(at);
      }
      self[frame] += tree.self[at];
    }
    if (next[at] < tree.endChild[at]) {
      if (next[at] === tree.firstChild[at]) open[frame]++;
      stack.push(next[at]++);
    } else {
      if (tree.endChild[at] > tree.firstChild[at]) open[frame]--;
      stack.pop();
    }
  }
  const rows = [];
  for (let i = 0; i < model.frames.length; i++) {
    if (model.frames[i].kind < KIND.ROOT && total[i] > 0) rows.push({ frame: i, self: self[i], total: total[i], count: count[i] });
  }
  return { rows, outermost };
}
