"use strict";
/* What buttons, fields and keys do. */

function wire() {
  /** @type {(id: ButtonId, action: () => void) => void} */
  const click = (id, action) => byId(id).addEventListener("click", action);
  click("view-graph", () => setView("graph"));
  click("view-table", () => setView("table"));
  click("view-sandwich", () => setView("sandwich"));
  click("view-source", () => setView("source"));
  click("center-pick", () => pick(state.center));
  click("center-source", () => readLines(state.center));
  click("source-look", () => lookAt(state.center));
  byId("source-file").addEventListener("change", () => {
    state.file = Number(byId("source-file").value);
    setView("source");
  });
  click("icicle", () => setFlipped(false));
  click("flame", () => setFlipped(true));
  click("top-down", () => setOrder(false));
  click("bottom-up", () => setOrder(true));
  click("in-order", () => setOrder(false, true));
  click("fold", () => foldAll(!state.fold));
  click("start", () => change("foldStart", !state.foldStart));
  click("threads", () => togglePanel("threads"));
  click("summary", () => togglePanel("summary"));
  click("controls", () => {
    const shown = document.body.classList.toggle("controls");
    byId("controls").setAttribute("aria-expanded", String(shown));
  });
  click("theme", () => setTheme(state.theme === "light" ? "dark" : "light"));
  click("help", () => byId("help-dialog").showModal());
  click("reset", resetZoom);
  click("undo", undo);
  click("whole", () => chooseRange(null));
  click("next", () => step(1));
  click("previous", () => step(-1));
  click("all-threads", () => change("hidden", new Set()));
  click("no-threads", () => change("hidden", new Set(model.threads.map((thread) => thread.index))));
  click("collapse-threads", () => collapseAll(true));
  click("expand-threads", () => collapseAll(false));
  byId("by-thread").addEventListener("change", () => change("byThread", byId("by-thread").checked));
  byId("by-process").addEventListener("change", () => change("byProcess", byId("by-process").checked));
  byId("metric").addEventListener("change", () => change("metric", Number(byId("metric").value)));
  byId("strip-mode").addEventListener("change", () => {
    state.strip = STRIPS.find((mode) => mode === byId("strip-mode").value) ?? "threads";
    rebuild();
  });
  byId("colour").addEventListener("change", () => {
    Object.assign(state, { colour: COLOURS.find((colour) => colour === byId("colour").value) ?? "module", group: null });
    rebuild();
  });
  byId("save").addEventListener("change", () => {
    save(byId("save").value);
    byId("save").value = "";
  });
  for (const id of /** @type {const} */ (["from", "to"])) byId(id).addEventListener("change", typedRange);
  for (const button of queryAll("aside .close")) button.addEventListener("click", () => togglePanel(null));
  for (const button of queryAll("dialog .close")) button.addEventListener("click", () => byId("help-dialog").close());
  for (const button of queryAll("[data-sort]")) {
    button.addEventListener("click", () => {
      const column = /** @type {SortColumn} */ (button.dataset.sort);
      const text = column === "name" || column === "group";
      state.sort = [column, state.sort[0] === column ? !state.sort[1] : !text];
      showFunctions();
      remember();
    });
  }
  byId("search").addEventListener("input", () => seek({ query: byId("search").value }));
  let width = innerWidth;
  addEventListener("resize", () => {
    if (state.view === "table" && width !== innerWidth) showFunctions();
    width = innerWidth;
  });
  document.addEventListener("keydown", onKey);
}

/** The fields' range of time, if it is one. */
function typedRange() {
  const [from, to] = [byId("from"), byId("to")].map((field) => field.valueAsNumber * 1e9);
  if (from < to) chooseRange([from, to]);
}

/** @type {Record<string, () => unknown>} */
const KEYS = {
  i: () => setFlipped(!state.flipped),
  b: () => setOrder(!state.bottomUp),
  o: () => setOrder(false, !state.inOrder),
  r: () => foldAll(!state.fold),
  u: () => change("foldStart", !state.foldStart),
  t: () => change("byThread", !state.byThread),
  p: () => change("byProcess", !state.byProcess),
  f: () => setView(state.view === "graph" ? "table" : "graph"),
  c: () => {
    const node = graph.hover < 0 ? graph.focus : graph.hover;
    if (state.view === "graph" && node > 0) lookAt(tree.frame[node]);
    else setView("sandwich");
  },
  l: () => {
    const node = graph.hover < 0 ? graph.focus : graph.hover;
    if (state.view === "graph" && node > 0) readLines(tree.frame[node]);
    else if (model.source) setView("source");
  },
  s: () => togglePanel("summary"),
  z: undo,
  "?": () => byId("help-dialog").showModal(),
  "+": () => graph.selection.call(graph.zoom.scaleBy, 1.5),
  "=": () => graph.selection.call(graph.zoom.scaleBy, 1.5),
  "-": () => graph.selection.call(graph.zoom.scaleBy, 1 / 1.5),
};

/** @type {(event: KeyboardEvent) => void} */
function onKey(event) {
  const searching = event.target === byId("search");
  const finding = event.key.toLowerCase() === "f" && (event.ctrlKey || event.metaKey) && !event.shiftKey;
  if (byId("help-dialog").open) return;
  if (finding || (event.key === "/" && !searching && !event.ctrlKey)) {
    event.preventDefault();
    byId("search").focus();
    byId("search").select();
  } else if (event.key === "z" && (event.ctrlKey || event.metaKey) && !isField(event.target)) {
    event.preventDefault();
    undo();
  } else if (event.key === "Escape") {
    event.preventDefault();
    if (graph.zoomed > 0 || graph.transform.k > 1) resetZoom();
    else seek({});
    if (searching) byId("graph").focus();
  } else if (searching) {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
  } else if (!event.ctrlKey && !event.metaKey && !event.altKey) {
    if (event.target === byId("timeline") && strip.key(event.key, event.shiftKey)) event.preventDefault();
    else if (graphKey(event)) event.preventDefault();
    else if (!isField(event.target) && KEYS[event.key]) KEYS[event.key]();
  }
}

/**
 * Do letters typed here belong to it?
 * @type {(target: EventTarget | null) => boolean}
 */
function isField(target) {
  return target instanceof HTMLElement && /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);
}

/** @type {(event: KeyboardEvent) => boolean} */
function graphKey(event) {
  const on = [graph, ...Object.values(halves?.halves ?? {})].find((each) => each.canvas === event.target);
  if (!on) return false;
  /** @type {Record<string, Direction>} */
  const moves = { ArrowLeft: "left", ArrowRight: "right", [on.flipped ? "ArrowUp" : "ArrowDown"]: "in", [on.flipped ? "ArrowDown" : "ArrowUp"]: "out" };
  if (moves[event.key]) on.moveFocus(moves[event.key]);
  else if ((event.key === "Enter" || event.key === " ") && on.focus >= 0) {
    if (!on.on.open(on.focus, false)) on.zoomTo(on.focus);
  } else return false;
  return true;
}
