"use strict";
/*
 * What is shown, as one value: a text, and the link's part behind "#". It names only what differs from how the page opens.
 * The values before it are a stack: undo. It is kept beside the link, so that a page that is loaded again has it.
 */

/** @type {(on: boolean) => string} */
const flagText = (on) => (on ? "1" : "");
/** @type {(items: Iterable<string | number>) => string} */
const listText = (items) => [...items].join(",");
/** @type {(text: string) => string[]} */
const listOf = (text) => (text ? text.split(",") : []);
/** @type {(text: string, count: number) => number} */
const placeOf = (text, count) => (/^\d+$/.test(text) && Number(text) < count ? Number(text) : -1);
/**
 * What stands for a function or a thread: its place is another one on the page of another recording.
 * @type {(...names: (string | number)[]) => string}
 */
const tagOf = (...names) => hashText(names.join("\n")).toString(36);
/** @type {(at: number) => string} */
const functionTag = (at) => (at < 0 ? "" : tagOf(model.frames[at].name, model.frames[at].group));
/** @type {(text: string) => number} */
const functionAt = (text) => (text ? model.frames.findIndex((_, at) => at < model.functions && functionTag(at) === text) : -1);
/** @type {(thread: Thread) => string} */
const threadTag = (thread) => tagOf(thread.pid, thread.tid, thread.title);

/**
 * By its name in the link, each part of the state that the value holds: as text, and back. What is not understood is left out.
 * @type {Record<string, { text: () => string; read: (text: string) => void }>}
 */
const FIELDS = {
  view: { text: () => state.view, read: (text) => (state.view = VIEWS.find((view) => view === text && (view !== "source" || model.source)) ?? "graph") },
  flame: { text: () => flagText(state.flipped), read: (text) => (state.flipped = text === "1") },
  up: { text: () => flagText(state.bottomUp), read: (text) => (state.bottomUp = text === "1") },
  order: { text: () => flagText(state.inOrder), read: (text) => (state.inOrder = text === "1" && model.timeline.count > 0) },
  threads: { text: () => flagText(state.byThread), read: (text) => (state.byThread = text === "1") },
  processes: { text: () => flagText(state.byProcess), read: (text) => (state.byProcess = text === "1") },
  fold: { text: () => flagText(state.fold), read: (text) => (state.fold = text === "1") },
  start: { text: () => flagText(state.foldStart), read: (text) => (state.foldStart = text === "1") },
  opened: { text: () => listText(state.opened), read: (text) => (state.opened = new Set(listOf(text))) },
  metric: {
    text: () => String(state.metric),
    read: (text) => (state.metric = Math.max(0, placeOf(text, model.values.length))),
  },
  hidden: {
    text: () => listText([...state.hidden].map((at) => threadTag(model.threads[at])).sort()),
    read: (text) => {
      const tags = new Set(listOf(text));
      state.hidden = new Set(tags.size ? [...model.threads.keys()].filter((at) => tags.has(threadTag(model.threads[at]))) : []);
    },
  },
  collapsed: { text: () => listText(state.collapsed), read: (text) => (state.collapsed = new Set(listOf(text))) },
  find: { text: () => (state.picked < 0 ? state.query : ""), read: (text) => (state.query = text) },
  picked: {
    text: () => functionTag(state.picked),
    read: (text) => {
      state.picked = functionAt(text);
      if (state.picked >= 0) state.query = model.frames[state.picked].name;
    },
  },
  center: {
    text: () => functionTag(state.center),
    read: (text) => (state.center = functionAt(text)),
  },
  file: {
    text: () => (state.file < 0 || !model.source ? "" : tagOf(model.source.files[state.file][0])),
    read: (text) => (state.file = text && model.source ? model.source.files.findIndex(([path]) => tagOf(path) === text) : -1),
  },
  module: { text: () => state.group ?? "", read: (text) => (state.group = text || null) },
  sort: {
    text: () => `${state.sort[0]}${state.sort[1] ? "-" : ""}`,
    read: (text) => {
      const column = SORT_COLUMNS.find((name) => name === text.replace(/-$/, ""));
      state.sort = column ? [column, text.endsWith("-")] : ["self", true];
    },
  },
  range: {
    text: () => listText(state.range ?? []),
    read: (text) => {
      const [from, to] = listOf(text).map(Number);
      const { originNs, spanNs } = model.timeline;
      state.range = from < to && to > originNs && from < originNs + spanNs ? [from, to] : null;
    },
  },
  colour: { text: () => state.colour, read: (text) => (state.colour = COLOURS.find((colour) => colour === text) ?? "module") },
  strip: { text: () => state.strip, read: (text) => (state.strip = STRIPS.find((strip) => strip === text) ?? "threads") },
  zoom: { text: () => state.zoom, read: (text) => (state.zoom = text) },
};

/** How the page opens: the text of each field. */
/** @type {Record<string, string>} */
const defaults = {};
let shownValue = "";
/** @type {string[]} */
const past = [];
const MOST_PAST = 200;
/** The last change was another letter of what is looked for: the next one belongs to it. */
let typing = false;
let dragging = false; // eslint-disable-line prefer-const -- page.app.js sets it
/**
 * Of each frame, by its name.
 * @type {Int32Array | null}
 */
let nameHashes = null;

/** @type {() => string} */
function currentValue() {
  const parts = new URLSearchParams();
  for (const [name, field] of Object.entries(FIELDS)) {
    const text = field.text();
    if (text !== defaults[name]) parts.set(name, text);
  }
  return parts.toString();
}

/** After anything that changes what is shown. All changes of one event are one step, and so is a drag. */
function remember() {
  if (dragging) return;
  queueMicrotask(() => {
    const value = currentValue();
    if (value === shownValue) return;
    const [one, two] = [value, shownValue].map((text) => new URLSearchParams(text));
    const letters = Object.keys(FIELDS).every((name) => name === "find" || one.get(name) === two.get(name));
    if (!letters || !typing) past.push(shownValue);
    typing = letters;
    setValue(value);
  });
}

/** @type {(value: string) => void} */
function setValue(value) {
  shownValue = value;
  byId("undo").toggleAttribute("disabled", !past.length);
  try {
    history.replaceState({ past: past.slice(-MOST_PAST) }, "", `#${value}`);
  } catch {
    // A page inside another one has no link of its own.
  }
}

/** @type {() => void} */
function undo() {
  const value = past.pop();
  if (value !== undefined) show(value);
}

/** @type {(value: string) => void} */
function show(value) {
  const parts = new URLSearchParams(value);
  for (const [name, field] of Object.entries(FIELDS)) field.read(parts.get(name) ?? defaults[name]);
  byId("search").value = state.query;
  byId("metric").value = String(state.metric);
  rebuild();
  setFlipped(state.flipped);
  setView(state.view);
  typing = false;
  setValue(currentValue());
}

/** The page's first value: how it opens, or what its link says. */
function showFirst() {
  for (const [name, field] of Object.entries(FIELDS)) defaults[name] = field.text();
  addEventListener("hashchange", () => {
    if (location.hash.slice(1) === shownValue) return;
    past.push(shownValue);
    show(location.hash.slice(1));
  });
  past.push(...(history.state?.past ?? []));
  show(location.hash.slice(1));
}

/**
 * Of each node a number that its names, from the root on, make: the same place in another tree has it, too.
 * @type {(tree: Tree) => Int32Array}
 */
function placesOf(tree) {
  const names = (nameHashes ??= Int32Array.from(model.frames, (frame) => hashText(frame.name)));
  const places = new Int32Array(tree.n);
  for (let i = 1; i < tree.n; i++) places[i] = Math.imul(places[tree.parent[i]] ^ names[tree.frame[i]], 0x01000193) + (tree.inOrder ? i : tree.depth[i]);
  return places;
}

/** @type {(node: number) => string} */
function zoomText(node) {
  return node > 0 ? (placesOf(tree)[node] >>> 0).toString(36) : "";
}

/**
 * The node of the tree that is drawn now at which a reader looked before, or 0.
 * @type {(text: string) => number}
 */
function zoomNode(text) {
  return text ? Math.max(0, placesOf(tree).indexOf(parseInt(text, 36) | 0)) : 0;
}
