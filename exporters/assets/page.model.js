"use strict";
/* The page's data (see _data in flamegraph.py): inflated, with columns as typed arrays. */

/** How a node's function came to stand there; bits. */
const [CALLED, INLINED] = [1, 2];
/** START: what starts programs and threads, as one; GAP: room beside it, where there is nothing. */
const KIND = { NATIVE: 0, INLINE: 1, INTERPRETER: 2, KERNEL: 3, MARKER: 4, ROOT: 100, PROCESS: 101, THREAD: 102, START: 103, GAP: 104 };

/** @type {() => Promise<Model>} */
async function loadModel() {
  const [text, bytes] = await Promise.all([inflated("profile").text(), inflated("samples").arrayBuffer()]);
  return makeModel(JSON.parse(text), new Uint8Array(bytes));
}

/** @type {(id: "profile" | "samples") => Response} */
function inflated(id) {
  const text = atob((byId(id).textContent ?? "").trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/**
 * Frames first, then made-up frames for the root, the processes and the threads: a view's nodes all have a frame.
 * rowsOf: thread index -> indices into samples. bytes: the samples one by one.
 * @type {(data: Data, bytes: Uint8Array) => Model}
 */
function makeModel(data, bytes) {
  const { strings, nodes, samples } = data;
  const count = nodes.parent.length;
  const parent = new Int32Array(count);
  for (let i = 0; i < count; i++) parent[i] = i - nodes.parent[i];

  /** @type {Frame[]} */
  const frames = data.frames.name.map((name, i) => ({
    name: strings[name],
    group: strings[data.frames.group[i]],
    module: data.frames.module[i],
    kind: data.frames.kind[i],
    application: data.frames.application[i] === 1,
    key: "",
    change: data.changes ? changeLabel(data.changes, i) : "",
  }));
  /** @type {(name: string, kind: number, key: string) => number} */
  const made = (name, kind, key) => frames.push({ name, group: "", module: -1, kind, application: false, key, change: "" }) - 1;
  const functions = frames.length;
  const root = made("all", KIND.ROOT, "all");
  const startUp = made("start-up", KIND.START, "start-up");
  const gap = made("", KIND.GAP, "gap");
  const threads = data.threads.map(([pid, tid, name, process], index) => {
    const title = tid ? `${strings[name] || "thread"} (tid ${tid})` : strings[name] || "all threads";
    return { index, pid, tid, title, process: strings[process], frame: made(title, KIND.THREAD, `thread ${index}`) };
  });
  const processes = d3group(threads, (thread) => thread.pid).map(([pid, members]) => {
    const title = `${members[0].process || "process"} (pid ${pid})`;
    return { pid, title, threads: members, frame: made(title, KIND.PROCESS, `process ${pid}`) };
  });

  // The marker that a node's stack hangs below, as a frame index; -1 for whole stacks.
  const frame = Int32Array.from(nodes.frame);
  const cut = new Int32Array(count).fill(-1);
  for (let i = 1; i < count; i++) cut[i] = frames[frame[i]].kind === KIND.MARKER ? frame[i] : cut[parent[i]];

  /** @type {number[][]} */
  const rowsOf = threads.map(() => []);
  samples.thread.forEach((thread, i) => {
    rowsOf[thread].push(i);
  });
  const factors = data.changes?.factors;
  const whole = samples.values.map((column, at) => Float64Array.from(column, (value) => value * (factors?.[at] ?? 1)));
  const valueTypes = data.valueTypes;
  const countColumn = Math.max(0, valueTypes.findIndex(([type, unit]) => type === "samples" && unit === "count"));
  return {
    ...data,
    frames,
    functions,
    root,
    startUp,
    gap,
    threads,
    processes,
    parent,
    frame,
    cut,
    how: nodes.how,
    start: nodes.start,
    startFrames: [...new Set(nodes.start.flatMap((start, i) => (start ? [frame[i]] : [])))],
    trust: nodes.trust,
    place: (node) => strings[nodes.place[node]],
    places: nodes.places,
    leaf: Int32Array.from(samples.leaf),
    whole,
    rowsOf,
    values: whole,
    leavesOf: rowsOf,
    timeline: unpackSamples(data.timeline, bytes, data),
    source: data.source && readSource(data.source),
    valueTypes,
    countColumn,
    modules: data.modules.map(([path, buildId]) => ({ path: strings[path], buildId: strings[buildId] })),
  };
}

/**
 * [[key, members]] in the order of the keys' first members.
 * @type {<T, K>(items: T[], keyOf: (item: T) => K) => [K, T[]][]}
 */
function d3group(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const members = groups.get(key);
    if (members) members.push(item);
    else groups.set(key, [item]);
  }
  return [...groups];
}

/**
 * How the frames of a node were found, for the reader.
 * @type {(model: Model, bits: number) => string[]}
 */
function trustNames(model, bits) {
  return model.trusts.filter((_, i) => (bits >>> i) & 1).map(trustTitle);
}

/** @type {Record<string, string>} */
const TRUST_TITLES = {
  context: "registers (innermost frame)",
  sframe: "SFrame",
  eh_frame: ".eh_frame",
  pdata: ".pdata",
  debug_frame: ".debug_frame",
  exidx: ".ARM.exidx",
  go: "Go's function table",
  breakpad: "Breakpad file",
  libunwind_dynamic: "code registered with libunwind",
  gdb_jit: "JIT code registered for GDB",
  hotspot: "Java code (HotSpot)",
  v8: "JavaScript code (V8)",
  jitdump: "jitdump file",
  code: "the function's code",
  fp: "frame pointer",
  lr: "link register",
  sigreturn: "signal frame",
  scan: "a guess: a word on the stack",
  interpreter: "the interpreter's own chain",
  kernel: "the kernel",
  completed: "a later whole stack of the same thread",
  epilogue: "instructions up to the return",
};

/** @type {(label: string) => string} */
function trustTitle(label) {
  return TRUST_TITLES[label] || label;
}
