"use strict";
/*
 * View trees: what the graph draws. Flat columns, rows in order of depth, each row from left to right:
 * node i's row is depth[i], it spans x[i] .. x[i] + value[i]. Nothing here recurses: stacks are 20,000 deep.
 */

/** Most pointer steps and nodes that a bottom-up tree may cost: its size is the sum of all stacks' depths. */
const BOTTOM_UP_STEPS = 2e7;
const BOTTOM_UP_NODES = 4e5;
/** Nodes below this share grow their callers last, from what is left of the budget. */
const BOTTOM_UP_THIN = 1e-4;

/**
 * options: byThread; byProcess (as byThread does, where there are several); bottomUp; rounds, foldStart and opened (see
 * contract); metric, a column of values; hidden, a Set of thread indices; collapsed, a Set of frame keys whose nodes
 * show no children.
 * @type {(model: Model, options: TreeOptions) => Tree}
 */
function buildTree(model, options) {
  const folded = contract(model, options);
  const raw = new RawTree(model, folded);
  const root = raw.add(-1, model.root, 0, 0, 0);
  const emit = options.inOrder ? emitInOrder : options.bottomUp ? emitBottomUp : emitTopDown;
  const byThread = options.byThread || options.inOrder;
  raw.ordered = options.inOrder;
  const shown = model.threads.filter((thread) => !options.hidden.has(thread.index));
  if (!byThread && !(options.byProcess && model.processes.length > 1)) {
    emit(model, shown.flatMap((thread) => model.leavesOf[thread.index]), root, raw, options);
  } else {
    for (const process of model.processes) {
      const members = process.threads.filter((thread) => !options.hidden.has(thread.index));
      if (!members.length) continue;
      const below = model.processes.length > 1 ? raw.add(root, process.frame, 0, 0, 0) : root;
      const leaves = members.flatMap((thread) => model.leavesOf[thread.index]);
      if (below !== root && options.collapsed.has(model.frames[process.frame].key)) {
        addTotals(model, leaves, below, raw, options);
        continue;
      }
      if (!byThread) {
        emit(model, leaves, below, raw, options);
        continue;
      }
      for (const thread of members) {
        const id = raw.add(below, thread.frame, 0, 0, 0);
        const own = model.leavesOf[thread.index];
        if (options.collapsed.has(model.frames[thread.frame].key)) addTotals(model, own, id, raw, options);
        else emit(model, own, id, raw, options);
      }
    }
  }
  const thin = options.bottomUp || options.inOrder ? -1 : besideStart(model, raw);
  return { ...layOut(model, raw), bottomUp: options.bottomUp && !options.inOrder, thin, inOrder: options.inOrder };
}

/**
 * Where the start is a row of its own, everything else begins below it, too. The number of that row, or -1.
 * @type {(model: Model, raw: RawTree) => number}
 */
function besideStart(model, raw) {
  const count = raw.parent.length;
  const starts = raw.frame.indexOf(model.startUp);
  if (starts < 0) return -1;
  const gaps = new Map();
  for (let id = 1; id < count; id++) {
    const below = raw.parent[id];
    if (!raw.groups.has(below) || raw.groups.has(id) || raw.frame[id] === model.startUp) continue;
    if (!gaps.has(below)) gaps.set(below, raw.add(below, model.gap, 0, 0, 0));
    const gap = gaps.get(below);
    raw.parent[id] = gap;
    raw.value[gap] += raw.value[id];
    raw.count[gap] += raw.count[id];
  }
  let row = 0;
  for (let at = starts; raw.parent[at] >= 0; at = raw.parent[at]) row++;
  return row;
}

/**
 * Nodes as they come. value: inclusive, in the metric; count: samples. src: a node of the model. rounds: of recursion that
 * is folded, else 0; cycle: its functions, where they are several. groups: whose children are the outermost frames.
 */
class RawTree {
  /** @param {Model} model @param {Folded} folded */
  constructor(model, folded) {
    this.frames = model.frames.length;
    this.folded = folded;
    /** @type {number[]} */
    this.parent = [];
    /** @type {number[]} */
    this.frame = [];
    /** @type {number[]} */
    this.src = [];
    /** @type {number[]} */
    this.value = [];
    /** @type {number[]} */
    this.count = [];
    /** @type {number[]} */
    this.trust = [];
    /** @type {number[]} */
    this.rounds = [];
    /** @type {Map<number, number[]>} */
    this.cycle = new Map();
    /** @type {Set<number>} */
    this.groups = new Set();
    /** @type {Set<number>} */
    this.more = new Set();
    this.steps = 0;
    /** Siblings stay in the order in which they came. */
    this.ordered = false;
    /** @type {Map<number, number>} */
    this.known = new Map();
  }

  /** @type {(parent: number, frame: number, src: number, value: number, count: number, trust?: number) => number} */
  add(parent, frame, src, value, count, trust = 0) {
    this.rounds.push(0);
    this.parent.push(parent);
    this.frame.push(frame);
    this.src.push(src);
    this.value.push(value);
    this.count.push(count);
    this.trust.push(trust);
    return this.parent.length - 1;
  }

  /**
   * A node of the model that stands for others, by its key.
   * @type {(parent: number, src: number, value: number, count: number, trust: number) => number}
   */
  addBlock(parent, src, value, count, trust) {
    const { key, cycles, rounds } = this.folded;
    const cycle = cycles[key[src] - this.frames];
    const id = this.add(parent, cycle ? cycle[0] : key[src], src, value, count, trust);
    if (cycle) this.cycle.set(id, cycle);
    this.rounds[id] = rounds[src];
    return id;
  }

  /**
   * As addBlock, but siblings that folding makes equal join each other.
   * @type {(parent: number, src: number, value: number, count: number, trust: number) => number}
   */
  addFolded(parent, src, value, count, trust) {
    const { key, rounds, merges } = this.folded;
    if (!merges) return this.addBlock(parent, src, value, count, trust);
    const place = parent * 4194304 + key[src];
    const known = this.known.get(place);
    if (known === undefined) {
      const id = this.addBlock(parent, src, value, count, trust);
      this.known.set(place, id);
      return id;
    }
    this.value[known] += value;
    this.count[known] += count;
    this.trust[known] |= trust;
    this.rounds[known] = Math.max(this.rounds[known], rounds[src]);
    return known;
  }

  /**
   * Adds to a group's node and what stands above it.
   * @type {(node: number, value: number, count: number) => void}
   */
  addUp(node, value, count) {
    for (let at = node; at >= 0; at = this.parent[at]) {
      this.value[at] += value;
      this.count[at] += count;
    }
  }
}

/** @type {(model: Model, leaves: number[], root: number, raw: RawTree, options: TreeOptions) => void} */
function addTotals(model, leaves, root, raw, { metric }) {
  const values = model.values[metric];
  const counts = model.values[model.countColumn];
  let value = 0;
  let count = 0;
  for (const leaf of leaves) {
    value += values[leaf];
    count += counts[leaf];
  }
  raw.addUp(root, value, count);
}

/** @type {(model: Model, leaves: number[], root: number, raw: RawTree, options: TreeOptions) => void} */
function emitTopDown(model, leaves, root, raw, options) {
  const { rep, parent, trust } = raw.folded;
  const values = model.values[options.metric];
  const counts = model.values[model.countColumn];
  const n = parent.length;
  model.scratch ||= { value: new Float64Array(n), count: new Float64Array(n), stamp: new Int32Array(n), map: new Int32Array(n), mark: 0 };
  const { value, count, stamp, map } = model.scratch;
  const mark = ++model.scratch.mark;
  const touched = [];
  for (const leaf of leaves) {
    const at = rep[model.leaf[leaf]];
    for (let node = at; node > 0 && stamp[node] !== mark; node = parent[node]) {
      stamp[node] = mark;
      value[node] = count[node] = 0;
      touched.push(node);
    }
    value[at] += values[leaf];
    count[at] += counts[leaf];
  }
  const order = Int32Array.from(touched).sort();
  for (let i = order.length - 1; i >= 0; i--) {
    const node = order[i];
    if (parent[node] > 0) {
      value[parent[node]] += value[node];
      count[parent[node]] += count[node];
    }
  }
  raw.groups.add(root);
  for (const node of order) {
    const below = parent[node] > 0 ? map[parent[node]] : root;
    map[node] = raw.addFolded(below, node, value[node], count[node], trust[node]);
  }
  addTotals(model, leaves, root, raw, options);
  value[0] = count[0] = 0;
}

/**
 * Leaves become roots, callers grow out of them. A node of this tree stands for a set of nodes of the model; sets
 * are split by the keys of their parents, level by level, until the budget is spent (raw.more has what is left).
 * @type {(model: Model, leaves: number[], root: number, raw: RawTree, options: TreeOptions) => void}
 */
function emitBottomUp(model, leaves, root, raw, options) {
  const { rep } = raw.folded;
  const values = model.values[options.metric];
  const counts = model.values[model.countColumn];
  addTotals(model, leaves, root, raw, options);
  growCallers(
    raw,
    root,
    leaves.filter((leaf) => model.leaf[leaf] > 0).map((leaf) => [rep[model.leaf[leaf]], values[leaf], counts[leaf]]),
  );
}

/**
 * Below a root that has its total, the nodes that are pointed at and their callers.
 * @type {(raw: RawTree, root: number, first: Pointer[]) => void}
 */
function growCallers(raw, root, first) {
  const { parent, key, trust } = raw.folded;
  /** @type {[below: number, pointers: Pointer[]][]} */
  let level = [[root, first]];
  /** @type {[below: number, pointers: Pointer[]][]} */
  let thin = [];
  const least = raw.value[root] * BOTTOM_UP_THIN;
  while (level.length || thin.length) {
    const second = !level.length;
    if (second) [level, thin] = [thin, []];
    const next = new Map();
    for (const [below, pointers] of level) {
      if (!second && raw.value[below] < least) {
        thin.push([below, pointers]);
        continue;
      }
      if (raw.steps > BOTTOM_UP_STEPS || raw.parent.length > BOTTOM_UP_NODES) {
        raw.more.add(below);
        continue;
      }
      raw.steps += pointers.length;
      const byKey = new Map();
      for (const pointer of pointers) {
        const group = byKey.get(key[pointer[0]]);
        if (group) group.push(pointer);
        else byKey.set(key[pointer[0]], [pointer]);
      }
      for (const group of byKey.values()) {
        let value = 0;
        let count = 0;
        let bits = 0;
        let deepest = 0;
        const above = new Map();
        for (const [node, own, samples] of group) {
          value += own;
          count += samples;
          bits |= trust[node];
          deepest = Math.max(deepest, raw.folded.rounds[node]);
          const up = parent[node];
          if (up <= 0) continue;
          const known = above.get(up);
          if (known) {
            known[1] += own;
            known[2] += samples;
          } else above.set(up, [up, own, samples]);
        }
        const id = raw.addBlock(below, group[0][0], value, count, bits);
        raw.rounds[id] = deepest;
        if (above.size) next.set(id, [...above.values()]);
      }
    }
    if (second) thin = [...next];
    level = second ? [] : [...next];
  }
}

/**
 * Siblings by weight, heaviest first, then by name.
 * @type {(model: Model, raw: RawTree) => Omit<Tree, "bottomUp" | "thin" | "inOrder">}
 */
function layOut(model, raw) {
  const n = raw.parent.length;
  const offsets = new Int32Array(n + 2);
  for (let i = 1; i < n; i++) offsets[raw.parent[i] + 2]++;
  for (let i = 2; i < n + 2; i++) offsets[i] += offsets[i - 1];
  const children = new Int32Array(n);
  for (let i = 1; i < n; i++) children[offsets[raw.parent[i] + 1]++] = i;

  const tree = {
    n,
    parent: new Int32Array(n).fill(-1),
    frame: new Int32Array(n),
    src: new Int32Array(n),
    trust: new Int32Array(n),
    value: new Float64Array(n),
    count: new Float64Array(n),
    self: new Float64Array(n),
    x: new Float64Array(n),
    depth: new Int32Array(n),
    rounds: new Int32Array(n),
    cycle: new Map(),
    firstChild: new Int32Array(n),
    endChild: new Int32Array(n),
    more: new Set(),
    rowStart: [0],
    total: raw.value[0],
    totalCount: raw.count[0],
    whole: raw.value[0],
    rows: 0,
  };
  const order = new Int32Array(n);
  let placed = 1;
  for (let at = 0; at < n; at++) {
    const id = order[at];
    tree.frame[at] = raw.frame[id];
    tree.src[at] = raw.src[id];
    tree.trust[at] = raw.trust[id];
    tree.value[at] = tree.self[at] = raw.value[id];
    tree.count[at] = raw.count[id];
    tree.rounds[at] = raw.rounds[id];
    if (raw.cycle.has(id)) tree.cycle.set(at, raw.cycle.get(id));
    if (raw.more.has(id)) tree.more.add(at);
    if (tree.depth[at] === tree.rowStart.length) tree.rowStart.push(at);
    const own = children.subarray(offsets[id], offsets[id + 1]);
    if (own.length > 1 && !raw.ordered) {
      own.sort((a, b) => raw.value[b] - raw.value[a] || compareNames(model, raw.frame[a], raw.frame[b]));
    }
    tree.firstChild[at] = placed;
    let x = tree.x[at];
    for (const child of own) {
      order[placed] = child;
      tree.parent[placed] = at;
      tree.depth[placed] = tree.depth[at] + 1;
      tree.x[placed] = x;
      x += raw.value[child];
      tree.self[at] -= raw.value[child];
      placed++;
    }
    tree.endChild[at] = placed;
  }
  tree.rows = tree.rowStart.length;
  tree.rowStart.push(n);
  return tree;
}

/** @type {(model: Model, a: number, b: number) => number} */
function compareNames(model, a, b) {
  const [one, two] = [model.frames[a].name, model.frames[b].name];
  return one < two ? -1 : one > two ? 1 : a - b;
}
