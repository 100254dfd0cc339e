"use strict";
/* What is looked for: a text, one function, a group of modules; and the way from one place of it to the next. */

/** @type {() => void} */
function search() {
  const output = byId("matched");
  let matches = null;
  output.classList.remove("wrong");
  try {
    if (state.picked >= 0) matches = matching(model, (frame) => frame === model.frames[state.picked]);
    else matches = state.group === null ? matchFrames(model, state.query) : matchGroup(state.group);
  } catch {
    output.textContent = "not a regex";
    output.classList.add("wrong");
  }
  state.hit = -1;
  found = matches && { ...searchTree(tree, matches), matches };
  if (found?.functions) {
    output.textContent = `${formatShare(found.value, tree.total)} · ${formatCount(found.functions, "function")}`;
  } else if (found) {
    output.textContent = "no match";
    output.classList.add("wrong");
  } else if (!output.classList.contains("wrong")) output.textContent = "";
  output.title = found ? `${formatValue(found.value, model.valueTypes[state.metric])} in ${formatCount(found.functions, "function")}` : "";
  byId("next").hidden = byId("previous").hidden = !found?.hits.length;
  graph.setSearch(found?.functions ? found.nodes : null);
  if (state.view === "table") showFunctions();
  if (state.view === "sandwich") showSandwich();
  if (state.view === "source") showLines();
}

/** @type {(group: string) => Uint8Array} */
function matchGroup(group) {
  return matching(model, (frame) => frame.kind < KIND.ROOT && labelOf(frame, state.colour) === group && group !== RUNNING);
}

/**
 * What is looked for from now on: a text, or one function (by its frame), or the functions of a group.
 * @type {(wanted: { query?: string; picked?: number; group?: string | null }) => void}
 */
function seek({ query = "", picked = -1, group = null }) {
  Object.assign(state, { query, picked, group });
  if (byId("search").value !== query) byId("search").value = query;
  search();
  showModules();
  remember();
}

/** @type {(by: number) => void} */
function step(by) {
  if (!found?.hits.length) return;
  const count = found.hits.length;
  state.hit = state.hit < 0 ? (by > 0 ? 0 : count - 1) : (state.hit + by + count) % count;
  if (state.view !== "graph") setView("graph");
  graph.setFocus(found.hits[state.hit]);
  graph.zoomTo(found.hits[state.hit]);
}

/**
 * Shows where one function is: all its places marked, the widest in full. Some stand for others: those open.
 * @type {(frame: number) => void}
 */
function pick(frame) {
  setView("graph");
  if (model.startFrames.includes(frame) && state.foldStart) change("foldStart", false);
  seek({ query: model.frames[frame].name, picked: frame });
  if (!found?.hits.length) {
    state.collapsed.clear();
    state.bottomUp = state.inOrder = false;
    rebuild();
  }
  const hits = found?.hits ?? [];
  const widest = hits.reduce((best, hit, i) => (tree.value[hit] > tree.value[hits[best]] ? i : best), 0);
  state.hit = widest - 1;
  step(1);
}
