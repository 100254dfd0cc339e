"use strict";
/* The page's state and what changes it. */

const VIEWS = /** @type {const} */ (["graph", "table", "sandwich", "source"]);
const STRIPS = /** @type {const} */ (["threads", "cpus", "offsets", "off"]);
const COLOURS = /** @type {const} */ (["module", "kind", "wait", "change"]);
const SORT_COLUMNS = /** @type {const} */ (["self", "total", "count", "name", "group"]);

/** @type {State} */
const state = {
  view: "graph",
  flipped: false,
  bottomUp: false,
  inOrder: false,
  byThread: false,
  byProcess: false,
  fold: false,
  foldStart: true,
  opened: new Set(),
  metric: 0,
  hidden: new Set(),
  collapsed: new Set(),
  query: "",
  group: null,
  picked: -1,
  center: -1,
  file: -1,
  hit: -1,
  zoom: "",
  range: null,
  strip: "threads",
  colour: "module",
  sort: ["self", true],
  theme: "light",
};
/** From how many rows on the page points at what folds recursion. */
const DEEP = 200;
/** @type {Model} */
let model;
/** @type {Tree} */
let tree;
/**
 * The tree without any folding or grouping, that functions are counted on; null until it is needed.
 * @type {Tree | null}
 */
let plain = null;
/** @type {Graph} */
let graph;
/**
 * Made when it is asked for first.
 * @type {Sandwich | null}
 */
let halves = null;
/** @type {Strip} */
let strip;
/** @type {string[]} */
let colours;
/**
 * Module group -> place in the palette.
 * @type {Map<string, number>}
 */
let slots;
/** @type {(Search & { matches: Uint8Array }) | null} */
let found = null; // eslint-disable-line prefer-const -- page.search.js sets it

async function start() {
  model = await loadModel();
  state.metric = firstMetric();
  state.byThread = model.groupByThread;
  state.byProcess = model.groupByProcess;
  if (model.changes) state.colour = "change";
  for (const [part, on] of /** @type {const} */ ([["functions-table", !model.changes], ["changes", model.changes]])) byId(part).hidden = !on;
  byId("colour").querySelector("[value=change]")?.toggleAttribute("hidden", !model.changes);
  byId("title").textContent = model.title;
  graph = new Graph(byId("scroller"), byId("spacer"), byId("graph"), {
    hover: (node, x, y) => showTooltip(model, tree, node, state.metric, graph.zoomed, x, y),
    zoom: (node) => {
      state.zoom = zoomText(node);
      showZoom(node);
      remember();
    },
    focus: (node) => announce(tree, node),
    open: unfold,
  });
  strip = new Strip(byId("timeline"), chooseRange);
  for (const part of queryAll(".timed")) part.hidden = !model.timeline.count;
  byId("view-source").hidden = !model.source;
  showHeader();
  showSummary(model);
  setTheme(storedTheme(), false);
  wire();
  showFirst();
  document.documentElement.dataset.ready = "yes";
}

/**
 * The primary value, which stands last, or one before it if nothing was measured there (all threads slept).
 * @type {() => number}
 */
function firstMetric() {
  const measured = model.values.map((column) => column.some((value) => value > 0));
  return Math.max(measured.lastIndexOf(true), measured.includes(true) ? 0 : model.values.length - 1);
}

/**
 * How much of the time has whole stacks, and whose functions none of them has.
 * @param {Summary["shown"]} shown
 * @returns {string}
 */
function wholeText(shown) {
  const hidden = Object.entries(shown.not_shown || {});
  const whole = hidden.reduce((sum, [, value]) => sum + value, shown.ends.root || 0);
  const names = hidden.map(([name]) => `${name} functions are not shown`);
  return [`${formatShare(whole, shown.total)} in whole ${hidden.length ? "native " : ""}stacks`, ...names].join(" · ");
}

function showHeader() {
  const { summary } = model;
  const { shown } = summary;
  const parts = [
    formatCount(summary.samples, "sample"),
    formatCount(summary.threads, "thread"),
    lengthText(model),
    summary.rate_reached ? `${significant(summary.rate_reached)} Hz` : "",
    shown.total && hasEvidence(model) ? wholeText(shown) : "",
  ];
  byId("facts").textContent = model.changes ? changesText(model.changes) : parts.filter(Boolean).join(" · ");
  byId("facts").title = byId("facts").textContent;
  model.valueTypes.forEach(([type, unit], i) => {
    byId("metric").append(element("option", { value: String(i) }, model.changes ? `${type} (width)` : unit === "count" ? `by ${type}` : unit === "nanoseconds" ? `by ${type} time` : `by ${type} (${unit})`));
  });
  byId("metric").value = String(state.metric);
  byId("metric").hidden = model.valueTypes.length < 2;
}

/** After a change of what is in the tree. */
function rebuild() {
  select(model, state.range);
  plain = null;
  strip.show(model, state);
  tree = buildTree(model, { ...state, rounds: state.fold ? 2 : DEEP_ROUNDS });
  graph.totalText = formatValue(tree.total, model.valueTypes[state.metric]);
  byId("empty").hidden = tree.total > 0;
  byId("tooltip").hidden = true;
  showTotal();
  if (!slots) slots = assignColours(groupWeights());
  recolour();
  graph.setTree(model, tree);
  const zoomed = zoomNode(state.zoom);
  if (zoomed) graph.zoomTo(zoomed, false);
  else {
    state.zoom = "";
    showZoom(0);
  }
  showThreads(model, state, threadTotals(), {
    toggle: (members, shown) => {
      for (const thread of members) {
        if (shown) state.hidden.delete(thread.index);
        else state.hidden.add(thread.index);
      }
      rebuild();
    },
    collapse: toggleCollapsed,
  });
  search();
  reflect();
}

/** The one total: of the graph, the table and every share. */
function showTotal() {
  const type = model.valueTypes[state.metric];
  const whole = model.whole[state.metric].reduce((sum, value) => sum + value, 0);
  const parts = [formatValue(tree.total, type)];
  if (tree.total !== whole) parts.push(`of ${formatValue(whole, type)} (${formatShare(tree.total, whole)})`);
  if (model.changes?.words.startsWith("per ")) parts.push(model.changes.words);
  byId("total").textContent = parts.join(" ");
  const [from, to] = state.range ?? [strip.begin, strip.begin + strip.span];
  byId("from").value = String(Math.round(from / 1e6) / 1e3);
  byId("to").value = String(Math.round(to / 1e6) / 1e3);
  byId("whole").toggleAttribute("disabled", !state.range);
}

/** @type {(range: TimeRange | null, done?: boolean) => void} */
function chooseRange(range, done = true) {
  dragging = !done;
  state.range = range && [Math.round(range[0]), Math.round(range[1])];
  rebuild();
}

/** @type {() => number[]} */
function threadTotals() {
  const values = model.values[state.metric];
  return model.threads.map((thread) => model.leavesOf[thread.index].reduce((sum, leaf) => sum + values[leaf], 0));
}

// Changes

/** @type {(theme: Theme, keep?: boolean) => void} */
function setTheme(theme, keep = true) {
  state.theme = theme;
  document.documentElement.dataset.theme = theme;
  try {
    if (keep) localStorage.setItem("pyprof-theme", theme);
  } catch {
    // A page without storage forgets it.
  }
  if (slots) {
    recolour();
    strip.draw();
    if (state.view === "table") showFunctions();
  }
}

/** @type {(view: State["view"]) => void} */
function setView(view) {
  state.view = view;
  byId("graph-view").hidden = view !== "graph";
  byId("table-view").hidden = view !== "table";
  byId("sandwich-view").hidden = view !== "sandwich";
  byId("source-view").hidden = view !== "source";
  if (view === "graph") graph.resize();
  byId("tooltip").hidden = true;
  if (view === "table") showFunctions();
  if (view === "sandwich") showSandwich();
  if (view === "source") {
    showLines();
    scrollToSource();
  }
  reflect();
}

/** @type {() => Tree} */
function plainTree() {
  plain ||= buildTree(model, { ...state, ...UNFOLDED, bottomUp: false, inOrder: false, byThread: false, byProcess: false });
  return plain;
}

function showFunctions() {
  const asked = found && state.picked < 0 ? found.matches : null;
  if (model.changes) showChanges(model, model.changes, state, asked, graph.charWidth, { pick, look: lookAt });
  else showTable(model, plainTree(), state, asked, colours, graph.charWidth, { pick, look: lookAt });
}

/**
 * The function that was chosen, or the one with the most of its own.
 * @type {(may: (frame: number) => boolean) => void}
 */
function chooseCenter(may) {
  if (state.center < 0) state.center = state.picked;
  if (state.center >= 0) return;
  const rows = tallyFunctions(model, plainTree()).rows.filter((row) => may(row.frame));
  state.center = rows.reduce((best, row) => (row.self > best.self ? row : best), rows[0] ?? { frame: -1, self: 0 }).frame;
}

function showLines() {
  const { source } = model;
  if (!source) return;
  const known = new Set(source.frame);
  if (state.file < 0) chooseCenter((frame) => known.has(frame));
  showSource(model, source, state, tree.total);
}

function showSandwich() {
  chooseCenter(() => true);
  const none = state.center < 0;
  for (const id of /** @type {const} */ (["callers", "callees", "center-pick"])) byId(id).hidden = none;
  byId("center-source").hidden = none || !model.source;
  if (none) {
    byId("center-name").textContent = "No function";
    byId("center-facts").textContent = "";
    return;
  }
  if (!halves) {
    halves = new Sandwich();
    halves.setColours(colours, state.theme);
  }
  halves.show(state.center, tree.total);
}

/**
 * From the root in, from the leaves out, or call after call.
 * @type {(bottomUp: boolean, inOrder?: boolean) => void}
 */
function setOrder(bottomUp, inOrder = false) {
  Object.assign(state, { bottomUp, inOrder });
  rebuild();
}

/** @type {(frame: number) => void} */
function lookAt(frame) {
  if (frame >= model.functions) return;
  state.center = frame;
  setView("sandwich");
}

/** @type {(frame: number) => void} */
function readLines(frame) {
  if (frame >= model.functions || !model.source) return;
  Object.assign(state, { center: frame, file: -1 });
  setView("source");
}

/** @type {(flipped: boolean) => void} */
function setFlipped(flipped) {
  state.flipped = flipped;
  byId("graph-view").classList.toggle("flame", flipped);
  graph.setFlipped(flipped);
  reflect();
}

/** @type {<K extends keyof State>(key: K, value: State[K]) => void} */
function change(key, value) {
  if (state[key] === value) return;
  state[key] = value;
  rebuild();
}

/**
 * A click on what stands for other frames: start-up, recursion; on the caret of a thread or process.
 * @type {(node: number, onCaret: boolean) => boolean}
 */
function unfold(node, onCaret) {
  const frame = model.frames[tree.frame[node]];
  if (frame.kind === KIND.START) change("foldStart", false);
  else if (tree.rounds[node]) openRecursion(node);
  else if (onCaret && (frame.kind === KIND.PROCESS || frame.kind === KIND.THREAD)) toggleCollapsed(frame.key);
  else return false;
  return true;
}

/**
 * The block of recursion becomes the frames that it stands for, wherever there are some of the same functions.
 * @type {(node: number) => void}
 */
function openRecursion(node) {
  const src = tree.src[node];
  state.opened.add(cycleName(tree.cycle.get(node) || [tree.frame[node]]));
  rebuild();
  const first = tree.src.indexOf(src);
  if (first >= 0) graph.zoomTo(first, false);
}

/** @type {(fold: boolean) => void} */
function foldAll(fold) {
  state.opened.clear();
  state.fold = fold;
  rebuild();
}

/** @type {(key: string) => void} */
function toggleCollapsed(key) {
  if (!state.collapsed.delete(key)) state.collapsed.add(key);
  if (!state.byProcess || !key.startsWith("process ")) state.byThread = true;
  rebuild();
}

/** @type {(collapse: boolean) => void} */
function collapseAll(collapse) {
  state.collapsed = new Set(collapse ? model.threads.map((thread) => model.frames[thread.frame].key) : []);
  state.byThread = true;
  rebuild();
}

/** @type {(name: "threads" | "summary" | null) => void} */
function togglePanel(name) {
  for (const panel of /** @type {const} */ (["threads", "summary"])) {
    const box = byId(/** @type {const} */ (`${panel}-panel`));
    const open = panel === name && box.hidden;
    box.hidden = !open;
    byId(panel).setAttribute("aria-expanded", String(open));
  }
}

/** @type {(node: number) => void} */
function showZoom(node) {
  byId("zoom-bar").hidden = node <= 0;
  if (node <= 0) return;
  byId("zoom-name").textContent = nameOf(model, tree, node);
  byId("zoom-share").textContent = formatShare(tree.value[node], tree.total);
}

/** @type {(of: Tree, node: number) => void} */
function announce(of, node) {
  if (node < 0) return;
  const { pairs } = describe(model, of, node, state.metric, of === tree ? graph.zoomed : 0);
  byId("announce").textContent = [nameOf(model, of, node), ...pairs.map((pair) => pair.join(" "))].join(", ");
}

/** Buttons say what is on. */
function reflect() {
  /** @type {Partial<Record<ButtonId, boolean>>} */
  const pressed = {
    "view-graph": state.view === "graph",
    "view-table": state.view === "table",
    "view-sandwich": state.view === "sandwich",
    "view-source": state.view === "source",
    icicle: !state.flipped,
    flame: state.flipped,
    "top-down": !state.bottomUp && !state.inOrder,
    "bottom-up": state.bottomUp && !state.inOrder,
    "in-order": state.inOrder,
    fold: state.fold,
    start: state.foldStart,
  };
  for (const [id, on] of Object.entries(pressed)) byId(/** @type {ButtonId} */ (id)).setAttribute("aria-pressed", String(on));
  for (const part of queryAll(".graph-only")) part.hidden = state.view !== "graph";
  byId("levels").textContent = `${groupThousands(tree.rows)} levels`;
  byId("strip-mode").value = state.strip;
  byId("colour").value = state.colour;
  byId("strip").hidden = state.strip === "off" || !model.timeline.count;
  byId("levels").hidden = tree.rows < DEEP;
  byId("in-order").hidden = !model.timeline.count;
  byId("start").hidden = state.view !== "graph" || !model.startFrames.length;
  byId("by-thread").checked = state.byThread;
  byId("by-process").checked = state.byProcess || state.byThread;
  byId("by-process").disabled = state.byThread;
  byId("by-process-row").hidden = model.processes.length < 2;
  const shown = model.threads.length - state.hidden.size;
  byId("threads").textContent = shown < model.threads.length ? `Threads ${shown}/${model.threads.length}` : "Threads";
  remember();
}

function resetZoom() {
  graph.zoomTo(0);
  graph.setFocus(-1);
}

start().catch((error) => {
  byId("facts").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
