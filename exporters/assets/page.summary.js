"use strict";
/* The summary panel: what was recorded, how well, at what cost, and what is missing. */

const SHARE_COLOURS = ["#2f9e6e", "#4a90d9", "#e0a21b", "#d9603b", "#a65fa0", "#7a8794", "#8c7ae6", "#b89b5e"];

/**
 * A bar and its legend from name -> count; the good one comes first.
 * @type {(counts: Record<string, number>, titleOf: (name: string) => string, good: string | null, textOf?: (count: number) => string) => HTMLElement[]}
 */
function shares(counts, titleOf, good, textOf = groupThousands) {
  const whole = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const rows = Object.entries(counts)
    .filter(([, count]) => count > 0)
    .sort((a, b) => Number(b[0] === good) - Number(a[0] === good) || b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  /** @type {(i: number) => string} */
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
        element("data", null, textOf(count)),
        element("small", null, formatShare(count, whole)),
      ),
    );
  });
  return rows.length ? [bar, list] : [element("p", { class: "fine" }, "none")];
}

/** @type {(us: number) => string} */
function microseconds(us) {
  return formatNanoseconds(us * 1000);
}

/**
 * How long it was recorded; "" where that is not known.
 * @type {(model: Model) => string}
 */
function lengthText({ durationNs, timeline }) {
  const left = timeline.gaps.reduce((sum, [from, to]) => sum - (to - from), durationNs);
  if (!durationNs) return "";
  return left < durationNs ? `${formatNanoseconds(left)} of ${formatNanoseconds(durationNs)}` : formatNanoseconds(durationNs);
}

/**
 * Does the file say how stacks ended, and how frames were found?
 * @type {(model: Model) => boolean}
 */
function hasEvidence({ summary }) {
  return Object.keys(summary.trust).length + Object.keys(summary.shown.ends).length > 0;
}

/**
 * How well it was recorded, and what that did to the target.
 * @type {(model: Model) => HTMLElement[]}
 */
function evidence({ summary }) {
  const { stops, not_stopped: others, shown } = summary;
  return [
    element("h3", null, "How the stacks ended"),
    ...shares(shown.ends, (name) => summary.reasons[name]?.title || name, "root", (value) => formatValue(value, [shown.type, shown.unit])),
    element("h3", null, "How the frames were found"),
    ...shares(summary.trust, trustTitle, null),
    element("h3", null, "Effect on the target"),
    facts([
      ["Stops", groupThousands(stops.count)],
      ["Pause, median", microseconds(stops.p50_us)],
      ["Pause, 99th percentile", microseconds(stops.p99_us)],
      ["Pause, longest", microseconds(stops.max_us)],
      ["Time stopped", formatShare(stops.share, 1)],
      ["Not stopped: did not run since the last sample", groupThousands(others.unchanged)],
      ["Not stopped: read from outside", groupThousands(others.blocked)],
      ["Profiler's CPU time", summary.profiler.cpu_s ? formatNanoseconds(summary.profiler.cpu_s * 1e9) : ""],
      ["Profiler's memory", summary.profiler.max_rss_kb ? `${significant(summary.profiler.max_rss_kb / 1024)} MiB` : ""],
    ]),
  ];
}

/** @type {(model: Model) => void} */
function showSummary(model) {
  const { summary } = model;
  const started = new Date(Number(BigInt(model.startNs) / 1000000n));
  /** @type {(hz: number) => string} */
  const rate = (hz) => (hz ? `${significant(hz)} Hz` : "");
  const parts = [
    element("h3", null, "Recorded"),
    facts([
      ["Started", Number(started) ? `${started.toISOString().replace("T", " ").slice(0, 19)} UTC` : ""],
      ["Duration", lengthText(model)],
      ["Samples", groupThousands(summary.samples)],
      ["Threads", groupThousands(summary.threads)],
      ["Requested rate", rate(summary.rate_wanted)],
      ["Actual rate", rate(summary.rate_reached)],
      ["Skipped samples", summary.skipped ? groupThousands(summary.skipped) : ""],
    ]),
    ...(model.labels.length ? [element("h3", null, "Labels"), facts(model.labels)] : []),
    ...summary.notes.map(({ text }) => element("p", { class: "note" }, text)),
    ...(hasEvidence(model) ? evidence(model) : []),
  ];
  if (summary.counters.length) parts.push(element("h3", null, "Counted"));
  for (const { title, count, meaning, hint } of summary.counters) {
    parts.push(facts([[title, groupThousands(count)]]), element("p", { class: "fine" }, hint ? `${meaning} Hint: ${hint}.` : meaning));
  }
  const lacking = summary.modules.filter((module) => module.problems.length);
  parts.push(element("h3", null, "Modules with missing information"));
  if (!lacking.length) parts.push(element("p", { class: "fine" }, hasEvidence(model) ? "none" : "not known: the file does not say"));
  for (const module of [...lacking].sort((a, b) => b.frames - a.frames)) parts.push(problemCard(module));
  parts.unshift(...summary.warnings.map(({ text }) => element("p", { class: "note" }, text)));
  byId("warnings").textContent = summary.warnings.map(({ text }) => text).join(" · ");
  byId("warnings").hidden = !summary.warnings.length;
  byId("summary-body").replaceChildren(...parts);
  byId("problems").textContent = String(lacking.length);
  byId("problems").hidden = !lacking.length;
}

/** @type {(module: ModuleSummary) => HTMLElement} */
function problemCard(module) {
  const id = module.build_id ? `build-id ${module.build_id.slice(0, 16)}` : "no build-id";
  const card = element(
    "div",
    { class: "card" },
    element("b", null, module.path),
    element("span", { class: "fine" }, `${formatCount(module.frames, "frame")} · ${id}`),
  );
  for (const { text, hint } of module.problems) {
    card.append(element("p", null, text));
    if (!hint) continue;
    const code = element("code", null, hint);
    const copy = element("button", { title: "Copy this command", onclick: () => copyText(code, copy) }, "Copy");
    card.append(element("div", { class: "command" }, code, copy));
  }
  return card;
}

/** @type {(source: HTMLElement, button: HTMLElement) => Promise<void>} */
async function copyText(source, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection()?.selectAllChildren(source); // no clipboard on file: pages in some browsers
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = label), 1500);
}
