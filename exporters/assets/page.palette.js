"use strict";
/*
 * Colours. A module's colour is a stable hash of its name; where two modules of one profile fall on the same one,
 * the lighter module takes the next that is free. The hues are those of Okabe and Ito, chosen to be told apart with
 * any colour vision, in two strengths. Text on each has a contrast of at least 4.5 (a test computes it).
 * Modules of libraries are pale beside the application's, so that its functions are found first.
 */

const PALETTE = {
  light: [
    "#f2b84b", "#86c8f4", "#5fc7a4", "#e8d94f", "#8fb0f0", "#f39a76", "#dd9fcb",
    "#dfc08a", "#8fd0d4", "#a5dba0", "#c0ca58", "#b9b1f2", "#f5b5a6", "#d8aebf",
  ],
  dark: [
    "#8f5b00", "#1f6f9e", "#0e6f54", "#6c6410", "#3b5db4", "#a0441b", "#8d4a7a",
    "#735a2b", "#1d6b70", "#39692f", "#566013", "#5d53ab", "#94493a", "#7a4560",
  ],
};

const SPECIAL = {
  light: { root: "#e4e8ee", thread: "#cfd8e3", unknown: "#d5d8dc", marker: "#fdf0c4", stripe: "#d9a400",
    text: "#12171d", hit: "#b3126f", hitText: "#ffffff", page: "#ffffff", outline: "#12171d" },
  dark: { root: "#2a313b", thread: "#344050", unknown: "#4a4f57", marker: "#4a3d10", stripe: "#8a6d0b",
    text: "#f5f7fa", hit: "#f27cc0", hitText: "#12171d", page: "#14181e", outline: "#ffffff" },
};

/**
 * group name -> place in the palette. weights: group name -> value, heaviest asks first.
 * @type {(weights: Map<string, number>) => Map<string, number>}
 */
function assignColours(weights) {
  const size = PALETTE.light.length;
  const taken = new Set();
  const slots = new Map();
  const groups = [...weights].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  for (const [group] of groups) {
    let slot = hashText(group) % size;
    if (taken.size < size) while (taken.has(slot)) slot = (slot + 1) % size;
    taken.add(slot);
    slots.set(group, slot);
  }
  return slots;
}

/**
 * Three shades of each colour, so that neighbours of one module are told apart.
 * @type {(theme: Theme) => string[][]}
 */
function makeShades(theme) {
  const towards = theme === "light" ? "#ffffff" : "#000000";
  return PALETTE[theme].map((colour) => [0, 0.1, 0.2].map((part) => d3.interpolateRgb(colour, towards)(part)));
}

/** How far a library's colour is from the application's towards that of the page, which only raises the contrast of text. */
const PALE = 0.55;

/** @type {(colour: string, theme: Theme) => string} */
function paleColour(colour, theme) {
  return d3.interpolateRgb(colour, SPECIAL[theme].page)(PALE);
}

/**
 * The groups that are pale: those without a function of the application, if some have one.
 * @type {(model: Model) => Set<string>}
 */
function paleGroups(model) {
  const functions = model.frames.slice(0, model.functions);
  const own = new Set(functions.filter((frame) => frame.application).map((frame) => frame.group));
  return new Set(own.size ? functions.map((frame) => frame.group).filter((group) => !own.has(group)) : []);
}

/** By kind of frame: KIND.NATIVE and so on. */
const KIND_LABELS = ["native code", "inlined functions", "interpreted functions", "kernel", "cut short"];
const RUNNING = "on a processor";
/** What the innermost frame of a wait is called: profiler/symbolize/kernel_symbols.py. */
const WAIT = /^\[(sleeping|uninterruptible sleep|stopped|stopped by a debugger|idle|woken|waiting for a processor|blocked)[\]:]/;
/** Places in the palette of what is not a module. */
/** @type {Record<string, number>} */
const LABEL_SLOTS = {
  "native code": 1, "inlined functions": 8, "interpreted functions": 2, kernel: 5, [RUNNING]: 0, sleeping: 1,
  "uninterruptible sleep": 4, "waiting for a processor": 5, stopped: 6, "stopped by a debugger": 6, idle: 8, woken: 2, blocked: 12,
  grew: 5, shrank: 4,
};

/**
 * What a frame's colour stands for.
 * @type {(frame: Frame, colour: State["colour"]) => string}
 */
function labelOf(frame, colour) {
  if (colour === "change") return frame.change;
  if (colour === "kind") return KIND_LABELS[frame.kind] ?? "";
  if (colour === "wait") return (frame.kind === KIND.KERNEL && WAIT.exec(frame.name)?.[1]) || RUNNING;
  return frame.group;
}

/**
 * Of each node the colour of what most of its time was: running, or one of the waits. Whose callers alone are known (a tree
 * of callers of one function) is grey.
 * @type {(model: Model, tree: Tree, theme: Theme) => string[]}
 */
function waitColours(model, tree, theme) {
  const labels = model.frames.map((frame) => labelOf(frame, "wait"));
  const kinds = [...new Set(labels)];
  const of = Uint8Array.from(labels, (label) => kinds.indexOf(label));
  const sums = new Float64Array(tree.n * kinds.length);
  const colours = kinds.map((label) => PALETTE[theme][LABEL_SLOTS[label]]);
  /** @type {string[]} */
  const found = new Array(tree.n).fill(SPECIAL[theme].unknown);
  for (let node = tree.n - 1; node >= 0; node--) {
    const [own, up] = [node * kinds.length, Math.max(0, tree.parent[node]) * kinds.length];
    sums[own + of[tree.frame[node]]] += tree.self[node];
    let best = 0;
    for (let kind = 0; kind < kinds.length; kind++) {
      if (node) sums[up + kind] += sums[own + kind];
      if (sums[own + kind] > sums[own + best]) best = kind;
    }
    if (!tree.bottomUp) found[node] = colours[best];
  }
  if (!tree.bottomUp || tree.total !== tree.whole) return found;
  for (let node = 1; node < tree.n; node++) {
    const leaf = model.frames[tree.frame[tree.parent[node]]].kind >= KIND.ROOT;
    found[node] = leaf ? colours[of[tree.frame[node]]] : found[tree.parent[node]];
  }
  return found;
}

/**
 * frame index -> CSS colour; markers are drawn as stripes over theirs.
 * @type {(model: Model, slots: Map<string, number>, theme: Theme, colour: State["colour"]) => string[]}
 */
function frameColours(model, slots, theme, colour) {
  const shades = makeShades(theme);
  const special = SPECIAL[theme];
  const { changes } = model;
  const pale = colour === "module" && model.frames.some((frame) => frame.application);
  const ofLibraries = pale ? shades.map((row) => row.map((shade) => paleColour(shade, theme))) : shades;
  return model.frames.map((frame, at) => {
    if (frame.kind === KIND.ROOT) return special.root;
    if (frame.kind === KIND.START) return special.unknown;
    if (frame.kind >= KIND.PROCESS) return special.thread;
    if (frame.kind === KIND.MARKER) return special.marker;
    if (colour === "change" && changes) return changeColour(changes, at, theme);
    const slot = slotOf(slots, labelOf(frame, colour), colour);
    if (slot === undefined || frame.group === "[unknown]") return special.unknown;
    return (frame.application ? shades : ofLibraries)[slot][hashText(frame.name) % 3];
  });
}

/** @type {(slots: Map<string, number>, label: string, colour: State["colour"]) => number | undefined} */
function slotOf(slots, label, colour) {
  return colour === "module" ? slots.get(label) : LABEL_SLOTS[label];
}

/** @type {(canvas: HTMLCanvasElement) => CanvasRenderingContext2D} */
function penOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** @type {(context: CanvasRenderingContext2D, theme: Theme) => CanvasPattern} */
function stripes(context, theme) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = penOf(tile);
  pen.fillStyle = SPECIAL[theme].marker;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = SPECIAL[theme].stripe;
  pen.lineWidth = 2;
  pen.beginPath();
  for (const shift of [-8, 0, 8]) {
    pen.moveTo(shift - 1, 9);
    pen.lineTo(shift + 9, -1);
  }
  pen.stroke();
  return /** @type {CanvasPattern} */ (context.createPattern(tile, "repeat"));
}
