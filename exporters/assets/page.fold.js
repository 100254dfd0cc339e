"use strict";
/*
 * Folding: which nodes of the model are drawn as one. What starts programs and threads is one node; so is recursion,
 * of one function or of a cycle of several, from as many rounds on as options.rounds says.
 */

/** Longest cycle that is looked for, in functions. */
const LONGEST_CYCLE = 16;
/** Recursion of so many rounds is folded where the reader has not said anything. */
const DEEP_ROUNDS = 10;
const UNFOLDED = { rounds: Infinity, foldStart: false, opened: new Set() };

/**
 * What a block of recursion is called: that of all blocks of the same functions.
 * @type {(frames: Iterable<number>) => string}
 */
function cycleName(frames) {
  return [...frames].sort((a, b) => a - b).join(" ");
}

/**
 * What buildTree goes by, all by node: rep, the node that stands for it (itself, or one nearer to the root), and of
 * those that stand for themselves: parent, key, trust, rounds (0 where nothing recurs). A key is a frame, or
 * model.frames.length and beyond a place in cycles, which has the frames of one round.
 *
 * options: rounds; foldStart; opened, a Set of cycleName that stay as they are.
 * @type {(model: Model, options: FoldOptions) => Folded}
 */
function contract(model, options) {
  if (!options.foldStart && options.rounds === Infinity) return contracted(model, options);
  const asked = JSON.stringify([options.rounds, options.foldStart, ...options.opened]);
  if (model.contracted?.asked !== asked) model.contracted = { asked, folded: contracted(model, options) };
  return model.contracted.folded;
}

/** @type {(model: Model, options: FoldOptions) => Folded} */
function contracted(model, options) {
  const { parent, frame } = model;
  const count = parent.length;
  const rep = Int32Array.from({ length: count }, (_, node) => node);
  /** @type {Folded} */
  const folded = { rep, parent, key: frame, trust: model.trust, rounds: new Int32Array(count), cycles: [], merges: false };
  const taken = new Uint8Array(count);
  if (!options.foldStart && options.rounds === Infinity) return folded;
  folded.key = Int32Array.from(frame);
  if (options.foldStart) foldStart(model, folded, taken);
  if (options.rounds < Infinity) foldRecursion(model, options, folded, taken);
  folded.parent = new Int32Array(count).fill(-1);
  const trust = Int32Array.from(model.trust);
  folded.trust = trust;
  for (let node = 1; node < count; node++) {
    if (rep[node] === node) folded.parent[node] = rep[parent[node]];
    else trust[rep[node]] |= model.trust[node];
  }
  return folded;
}

/**
 * All nodes of the start become the first of them, which is one outermost.
 * @type {(model: Model, folded: Folded, taken: Uint8Array) => void}
 */
function foldStart(model, folded, taken) {
  let first = 0;
  for (let node = 1; node < taken.length; node++) {
    if (!model.start[node]) continue;
    first ||= node;
    folded.rep[node] = first;
    folded.key[node] = model.startUp;
    taken[node] = 1;
  }
  folded.merges ||= first > 0;
}

/**
 * Short cycles first: what is a recursion of one function is no cycle of two.
 * @type {(model: Model, options: FoldOptions, folded: Folded, taken: Uint8Array) => void}
 */
function foldRecursion(model, options, folded, taken) {
  const { parent, frame } = model;
  const count = parent.length;
  const above = Int32Array.from({ length: count }, (_, node) => node);
  const run = new Int32Array(count);
  const next = new Int32Array(count);
  for (let period = 1; period <= LONGEST_CYCLE; period++) {
    // run: how many nodes up to this one have the function of the node `period` above them. Children of a node differ,
    // so at most one goes on with it: next.
    const firsts = [];
    next.fill(0);
    for (let node = 1; node < count; node++) {
      const up = above[node] > 0 ? parent[above[node]] : 0;
      above[node] = up;
      const same = up > 0 && frame[up] === frame[node] && !taken[node] && !taken[up];
      run[node] = same ? run[parent[node]] + 1 : 0;
      if (run[node] === 1) firsts.push(node);
      else if (run[node] > 1) next[parent[node]] = node;
    }
    for (const first of firsts) {
      const members = [];
      for (let at = parent[first]; members.length < period; at = parent[at]) members.push(at);
      members.reverse();
      for (let at = first; at > 0; at = next[at]) members.push(at);
      const free = members.filter((node) => !taken[node]);
      if (free.length >= options.rounds * period) foldRun(model, options, folded, taken, free, period);
    }
  }
}

/** @type {(model: Model, options: FoldOptions, folded: Folded, taken: Uint8Array, members: number[], period: number) => void} */
function foldRun(model, options, folded, taken, members, period) {
  const frames = members.slice(0, period).map((node) => model.frame[node]);
  for (const node of members) taken[node] = 1;
  if (options.opened.has(cycleName(frames))) return;
  const [first] = members;
  for (const node of members) folded.rep[node] = first;
  folded.rounds[first] = Math.floor(members.length / period);
  if (period > 1) {
    const known = folded.cycles.findIndex((cycle) => cycle.length === period && cycle.every((frame, i) => frame === frames[i]));
    folded.key[first] = model.frames.length + (known < 0 ? folded.cycles.push(frames) - 1 : known);
  }
  folded.merges = true;
}
