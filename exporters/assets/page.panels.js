"use strict";
/* Tooltip, legend, threads and summary. Text from the profile becomes text nodes, nothing else. */

const byId = (id) => document.getElementById(id);

/** An element with attributes (or properties beginning with "on") and children; strings become text. */
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "colour") made.style.background = value;
    else if (key === "share") made.style.setProperty("--share", `${Math.max(0, Math.min(100, 100 * value))}%`);
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

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

/** The tooltip's pairs of term and text; also what screen readers are told. */
function describe(model, tree, node, metric, zoomed) {
  const frame = model.frames[tree.frame[node]];
  const type = model.valueTypes[metric];
  const [value, count] = [tree.value[node], tree.count[node]];
  const samples = formatCount(count, "sample");
  const measured = type[1] === "count" ? samples : `${formatValue(value, type)} · ${samples}`;
  const pairs = [["Total", `${formatShare(value, tree.total)} · ${measured}`]];
  if (zoomed > 0 && zoomed !== node) pairs.push(["Of zoomed", formatShare(value, tree.value[zoomed])]);
  if (!tree.bottomUp && tree.self[node] > 0 && frame.kind < KIND.ROOT) {
    pairs.push(["Self", `${formatShare(tree.self[node], tree.total)} · ${formatValue(tree.self[node], type)}`]);
  }
  if (frame.kind >= KIND.ROOT || frame.kind === KIND.MARKER) return { frame, pairs };
  const module = model.modules[frame.module];
  pairs.push(["Module", module ? module.path : frame.group]);
  const src = tree.src[node];
  const place = model.place(src);
  const others = model.places[src] - 1;
  if (place) pairs.push(["Source", others > 0 ? `${place} (and ${others} more)` : place]);
  if (frame.kind === KIND.INLINE) pairs.push(["Kind", "inlined into its caller"]);
  const found = trustNames(model, tree.trust[node]);
  if (found.length && frame.kind !== KIND.INTERPRETER) pairs.push(["Found by", found.join(", ")]);
  return { frame, pairs };
}

function showTooltip(model, tree, node, metric, zoomed, x, y) {
  const box = byId("tooltip");
  box.hidden = node < 0;
  if (node < 0) return;
  const { frame, pairs } = describe(model, tree, node, metric, zoomed);
  const list = element("dl");
  for (const [term, text] of pairs) list.append(element("dt", null, term), element("dd", null, text));
  const warnings = [];
  if (frame.kind === KIND.MARKER) warnings.push("These stacks were cut off here: their outer callers are not known.");
  if (tree.more.has(node)) warnings.push("Callers beyond this frame are not expanded: there are too many stacks.");
  box.replaceChildren(
    element("div", { class: "name" }, frame.name),
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

/** groups: [name, own share 0..1, colour, striped]. */
function showLegend(groups, chosen, choose) {
  byId("legend").replaceChildren(
    ...groups.map(([name, share, colour, striped]) =>
      element(
        "button",
        { "aria-pressed": String(name === chosen), title: `Highlight ${name} (${formatShare(share, 1)} of the samples ${striped ? "are cut off" : "end in it"})`, onclick: () => choose(name) },
        element("span", { class: striped ? "swatch striped" : "swatch", colour: striped ? "" : colour }),
        name,
        element("small", null, formatShare(share, 1)),
      ),
    ),
  );
}

// Threads

/** on: toggle(threads, shown), collapse(key). */
function showThreads(model, state, totals, on) {
  const list = byId("thread-list");
  const whole = totals.reduce((sum, value) => sum + value, 0);
  const row = (title, members, frame, extra) => {
    const value = members.reduce((sum, thread) => sum + totals[thread.index], 0);
    const shown = members.filter((thread) => !state.hidden.has(thread.index)).length;
    const key = model.frames[frame].key;
    const folded = state.collapsed.has(key);
    const box = element("input", { type: "checkbox", onchange: () => on.toggle(members, box.checked) });
    box.checked = shown > 0;
    box.indeterminate = shown > 0 && shown < members.length;
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

// Summary

const SHARE_COLOURS = ["#2f9e6e", "#4a90d9", "#e0a21b", "#d9603b", "#a65fa0", "#7a8794", "#8c7ae6", "#b89b5e"];

/** A bar and its legend from name -> count; the first name is the good one. */
function shares(counts, titleOf, good) {
  const whole = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const rows = Object.entries(counts)
    .filter(([, count]) => count > 0)
    .sort((a, b) => (b[0] === good) - (a[0] === good) || b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const colour = (i) => SHARE_COLOURS[(good && rows[0][0] !== good ? i + 2 : i) % SHARE_COLOURS.length];
  const bar = element("div", { class: "bar", "aria-hidden": "true" });
  const list = element("ul", { class: "shares" });
  rows.forEach(([name, count], i) => {
    const part = element("i", { colour: colour(i) });
    part.style.width = `${(100 * count) / whole}%`;
    bar.append(part);
    list.append(
      element(
        "li",
        null,
        element("span", { class: "swatch", colour: colour(i) }),
        element("span", null, titleOf(name)),
        element("data", null, groupThousands(count)),
        element("small", null, formatShare(count, whole)),
      ),
    );
  });
  return rows.length ? [bar, list] : [element("p", { class: "fine" }, "none")];
}

function microseconds(us) {
  return formatNanoseconds(us * 1000);
}

function showSummary(model) {
  const { summary } = model;
  const started = new Date(Number(BigInt(model.startNs) / 1000000n));
  const { stops, not_stopped: others } = summary;
  const rate = (hz) => (hz ? `${significant(hz)} Hz` : "");
  const parts = [
    element("h3", null, "Recorded"),
    facts([
      ["Started", `${started.toISOString().replace("T", " ").slice(0, 19)} UTC`],
      ["Duration", formatNanoseconds(model.durationNs)],
      ["Samples", groupThousands(summary.samples)],
      ["Threads", groupThousands(summary.threads)],
      ["Rate wanted", rate(summary.rate_wanted)],
      ["Rate reached", rate(summary.rate_reached)],
      ["Skipped (late)", summary.skipped ? groupThousands(summary.skipped) : ""],
      ...model.labels,
    ]),
    ...summary.notes.map((note) => element("p", { class: "note" }, note)),
    element("h3", null, "How the stacks ended"),
    ...shares(summary.ends, (name) => END_TITLES[name] || name, "root"),
    element("h3", null, "How the frames were found"),
    ...shares(summary.trust, trustTitle, null),
    element("h3", null, "Effect on the target"),
    facts([
      ["Stops", groupThousands(stops.count)],
      ["Pause, median", microseconds(stops.p50_us)],
      ["Pause, 99th percentile", microseconds(stops.p99_us)],
      ["Pause, longest", microseconds(stops.max_us)],
      ["Time stopped", formatShare(stops.share, 1)],
      ["Not stopped: had not run", groupThousands(others.unchanged)],
      ["Not stopped: read from outside", groupThousands(others.blocked)],
      ["Profiler's CPU time", summary.profiler.cpu_s ? formatNanoseconds(summary.profiler.cpu_s * 1e9) : ""],
      ["Profiler's memory", summary.profiler.max_rss_kb ? `${significant(summary.profiler.max_rss_kb / 1024)} MiB` : ""],
    ]),
  ];
  const errors = Object.entries(summary.errors).filter(([, count]) => count);
  if (errors.length) {
    parts.push(element("h3", null, "Errors"), facts(errors.map(([text, count]) => [text, groupThousands(count)])));
  }
  const lacking = summary.modules.filter((module) => module.problems.length);
  parts.push(element("h3", null, "Modules with missing information"));
  if (!lacking.length) parts.push(element("p", { class: "fine" }, "none"));
  for (const module of [...lacking].sort((a, b) => b.frames - a.frames)) parts.push(problemCard(module));
  byId("summary-body").replaceChildren(...parts);
  byId("problems").textContent = String(lacking.length);
  byId("problems").hidden = !lacking.length;
}

function problemCard(module) {
  const id = module.build_id ? `build-id ${module.build_id.slice(0, 16)}` : "no build-id";
  const card = element(
    "div",
    { class: "card" },
    element("b", null, module.path),
    element("span", { class: "fine" }, `${formatCount(module.frames, "frame")} · ${id}`),
  );
  for (const { text, remedy } of module.problems) {
    card.append(element("p", null, text));
    if (!remedy) continue;
    const code = element("code", null, remedy);
    const copy = element("button", { title: "Copy this command", onclick: () => copyText(code, copy) }, "Copy");
    card.append(element("div", { class: "command" }, code, copy));
  }
  return card;
}

async function copyText(source, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source); // no clipboard on file: pages in some browsers
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = label), 1500);
}
