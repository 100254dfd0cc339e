"use strict";
/* Tooltip, legend and threads. Text from the profile becomes text nodes, nothing else. */

/** @type {<K extends keyof Elements>(id: K) => Elements[K]} */
const byId = (id) => /** @type {any} */ (document.getElementById(id));
/** @type {(selector: string) => NodeListOf<HTMLElement>} */
const queryAll = (selector) => document.querySelectorAll(selector);

/**
 * An element with attributes (or properties beginning with "on") and children; strings become text.
 * @type {<K extends keyof HTMLElementTagNameMap>(tag: K, attributes?: Record<string, Attribute> | null, ...children: Child[]) => HTMLElementTagNameMap[K]}
 */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") made.addEventListener(key.slice(2), value);
    else if (key === "colour") made.style.background = String(value);
    else if (key === "share") made.style.setProperty("--share", `${Math.max(0, Math.min(100, 100 * Number(value)))}%`);
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) made.append(child);
  return made;
}

/** @type {(pairs: [term: string, value: string | number | null][]) => HTMLElement} */
function facts(pairs) {
  const list = element("dl", { class: "facts" });
  for (const [term, value] of pairs) {
    if (value !== null && value !== undefined && value !== "") {
      list.append(element("dt", null, term), element("dd", null, String(value)));
    }
  }
  return list;
}

// Tooltip

/**
 * The tooltip's pairs of term and text; also what screen readers are told.
 * @type {(model: Model, tree: Tree, node: number, metric: number, zoomed: number) => { frame: Frame; pairs: [string, string][] }}
 */
function describe(model, tree, node, metric, zoomed) {
  const frame = model.frames[tree.frame[node]];
  const type = model.valueTypes[metric];
  const [value, count] = [tree.value[node], tree.count[node]];
  const samples = formatCount(count, "sample");
  const measured = type[1] === "count" ? samples : model.changes ? formatValue(value, type) : `${formatValue(value, type)} · ${samples}`;
  /** @type {[string, string][]} */
  const pairs = [["Total", `${formatShare(value, tree.whole)} · ${measured}`]];
  if (zoomed > 0 && zoomed !== node) pairs.push(["Of the zoomed frame", formatShare(value, tree.value[zoomed])]);
  if (!tree.bottomUp && tree.self[node] > 0 && frame.kind < KIND.ROOT) {
    pairs.push(["Self", `${formatShare(tree.self[node], tree.whole)} · ${formatValue(tree.self[node], type)}`]);
  }
  if (frame.kind === KIND.START) pairs.push(["Folded", startNames(model).join(", ")]);
  if (tree.rounds[node]) pairs.push(["Recursion", `${formatCount(tree.rounds[node], "round")} at most, folded: click to open`]);
  if (frame.kind >= KIND.ROOT || frame.kind === KIND.MARKER) return { frame, pairs };
  const module = model.modules[frame.module];
  pairs.push(["Module", module ? module.path : frame.group]);
  pairs.push(...changeFacts(model, tree.frame[node]));
  const src = tree.src[node];
  const place = model.place(src);
  const others = model.places[src] - 1;
  if (place) pairs.push(["Source", others > 0 ? `${place} (and ${others} more)` : place]);
  if (!model.changes && model.how[src] & INLINED) pairs.push(["Kind", model.how[src] & CALLED ? "partly inlined into its caller" : "inlined into its caller"]);
  const found = hasEvidence(model) ? trustNames(model, tree.trust[node]) : [];
  if (found.length && !model.changes && frame.kind !== KIND.INTERPRETER) pairs.push(["Found by", found.join(", ")]);
  return { frame, pairs };
}

/**
 * What a node is called in full.
 * @type {(model: Model, tree: Tree, node: number) => string}
 */
function nameOf(model, tree, node) {
  const times = tree.rounds[node] ? ` × ${groupThousands(tree.rounds[node])}` : "";
  return `${blockNames(model, tree, node).join(" → ")}${times}`;
}

const MOST_START_NAMES = 12;

/** @type {(model: Model) => string[]} */
function startNames(model) {
  const names = [...new Set(model.startFrames.map((frame) => model.frames[frame].name))];
  const more = names.length - MOST_START_NAMES;
  return more > 0 ? [...names.slice(0, MOST_START_NAMES), `${more} more`] : names;
}

/** @type {(model: Model, tree: Tree, node: number, metric: number, zoomed: number, x: number, y: number) => void} */
function showTooltip(model, tree, node, metric, zoomed, x, y) {
  const box = byId("tooltip");
  box.hidden = node < 0;
  if (node < 0) return;
  const { frame, pairs } = describe(model, tree, node, metric, zoomed);
  const list = element("dl");
  for (const [term, text] of pairs) list.append(element("dt", null, term), element("dd", null, text));
  const warnings = [];
  if (frame.group === "[not sampled]") warnings.push(model.words.notSampled);
  else if (frame.kind === KIND.MARKER) warnings.push(model.words.cutShort);
  if (tree.more.has(node)) warnings.push(model.words.notExpanded);
  box.replaceChildren(
    element("div", { class: "name" }, nameOf(model, tree, node)),
    element("div", { class: "meter", share: tree.value[node] / (tree.total || 1) }),
    list,
    ...warnings.map((text) => element("div", { class: "warning" }, text)),
  );
  const { width, height } = box.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? Math.max(6, x - width - 12) : x + 16;
  const top = y + 20 + height > innerHeight ? Math.max(6, y - height - 12) : y + 20;
  box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

// Legend

/**
 * groups: [name, own share 0..1, colour, striped].
 * @type {(groups: [name: string, share: number, colour: string, striped: boolean][], chosen: string | null, choose: (name: string) => void) => void}
 */
function showLegend(groups, chosen, choose) {
  byId("legend").replaceChildren(
    ...groups.map(([name, share, colour, striped]) =>
      element(
        "button",
        { "aria-pressed": String(name === chosen), title: `Highlight ${name} (${formatShare(share, 1)} of the samples ${striped ? `are ${name.slice(1, -1)}` : "end in it"})`, onclick: () => choose(name) },
        element("span", { class: striped ? "swatch striped" : "swatch", colour: striped ? "" : colour }),
        name,
        element("small", null, formatShare(share, 1)),
      ),
    ),
  );
}

// Threads

/**
 * on: toggle(threads, shown), collapse(key).
 * @type {(model: Model, state: State, totals: number[], on: { toggle: (threads: Thread[], shown: boolean) => void; collapse: (key: string) => void }) => void}
 */
function showThreads(model, state, totals, on) {
  const list = byId("thread-list");
  const whole = totals.reduce((sum, value) => sum + value, 0);
  /** @type {(title: string, members: Thread[], frame: number, extra: string) => HTMLElement} */
  const row = (title, members, frame, extra) => {
    const value = members.reduce((sum, thread) => sum + totals[thread.index], 0);
    const shown = members.filter((thread) => !state.hidden.has(thread.index)).length;
    const key = model.frames[frame].key;
    const folded = state.collapsed.has(key);
    /** @type {HTMLInputElement} */
    const box = element("input", { type: "checkbox", onchange: () => on.toggle(members, box.checked) });
    box.checked = shown > 0;
    box.indeterminate = shown > 0 && shown < members.length;
    /** @type {(event: Event) => void} */
    const fold = (event) => {
      event.preventDefault();
      on.collapse(key);
    };
    return element(
      "label",
      { class: `thread ${extra}`, title },
      box,
      element("span", null, title),
      element("small", null, formatShare(value, whole)),
      element("button", { title: folded ? "Expand" : "Collapse", "aria-expanded": String(!folded), onclick: fold }, folded ? "▸" : "▾"),
      element("i", { share: whole ? value / whole : 0 }),
    );
  };
  const rows = [];
  for (const process of model.processes) {
    if (model.processes.length > 1) rows.push(row(process.title, process.threads, process.frame, "process"));
    const heaviest = [...process.threads].sort((a, b) => totals[b.index] - totals[a.index] || a.index - b.index);
    for (const thread of heaviest) rows.push(row(thread.title, [thread], thread.frame, ""));
  }
  list.replaceChildren(...rows);
}
