"use strict";
/* One service: its time line, and its flame graph of the range that was dragged; or two builds, hosts or ranges. */

const DOWNLOADS = [["pprof", "pprof"], ["recording", ".pyprof"], ["speedscope", "speedscope"], ["firefox", "Firefox Profiler"], ["collapsed", "collapsed"]];
const BEFORE = "the range before it";

/** @type {(place: Place) => Promise<Node[]>} */
async function servicePage(place) {
  const span = wholeSpan(place), part = chosenSpan(place);
  const [labels, line] = await Promise.all([
    /** @type {Promise<LabelsAnswer>} */ (ask("labels", { service: place.service, type: place.type, ...span })),
    /** @type {Promise<LineAnswer>} */ (ask("timeline", { ...selectionWords(place, span), by: place.by, points: 240 })),
  ]);
  say(place.service, spanWords(part));
  return [
    filters(place, labels),
    timeLine(line, place, (range) => goTo({ ...place, chosen: range })),
    ...restElement(line.rest, "value", line.unit),
    ranges(place),
    comparing(place, labels),
    pictureOf(place, part),
  ];
}

/** @type {(place: Place, labels: LabelsAnswer) => HTMLElement} */
function filters(place, { labels }) {
  const names = Object.keys(labels).sort();
  const by = choice("Lines by", [["", "all"], ...names.map((name) => /** @type {[string, string]} */ ([name, name]))], place.by, (value) =>
    goTo({ ...place, by: value }),
  );
  return element("div", { className: "row" }, by, ...labelChoices(place, labels));
}

/** A choice of a value for each label. @type {(place: Place, labels: Record<string, string[]>) => HTMLElement[]} */
function labelChoices(place, labels) {
  return Object.keys(labels).sort().map((name) => {
    const values = labels[name].map((value) => /** @type {[string, string]} */ ([value, value]));
    return choice(name, [["", "any"], ...values], place.labels[name] || "", (value) => {
      const others = Object.fromEntries(Object.entries(place.labels).filter(([other]) => other !== name));
      goTo({ ...place, labels: value ? { ...others, [name]: value } : others });
    });
  });
}

/** @type {(place: Place) => HTMLElement} */
function ranges(place) {
  const row = element("div", { className: "row" });
  if (place.chosen) {
    const all = element("button", {}, "All of it");
    all.addEventListener("click", () => goTo({ ...place, chosen: null, a: "", b: "" }));
    row.append(all);
  } else row.append(element("span", { className: "hint" }, "Drag over the time line to choose a range."));
  const words = selectionWords(place, chosenSpan(place));
  for (const [format, name] of DOWNLOADS) {
    row.append(element("a", { href: apiAddress("profile", { ...words, format }), download: "" }, name));
  }
  return row;
}

/** Which two are compared: values of a label, or the chosen range and the one before. @type {(place: Place, labels: LabelsAnswer) => HTMLElement} */
function comparing(place, { labels }) {
  const values = /** @type {[string, string][]} */ ([["", "nothing"]]);
  if (place.chosen) values.push(["before", BEFORE]);
  for (const name of Object.keys(labels).sort()) {
    for (const value of labels[name]) values.push([`${name}=${value}`, `${name} ${value}`]);
  }
  const row = element("div", { className: "row" }, choice("Compare", values, place.a, (a) => goTo({ ...place, a, b: a === "before" ? "" : place.b })));
  if (place.a && place.a !== "before") row.append(choice("with", values.filter(([value]) => value !== "before"), place.b, (b) => goTo({ ...place, b })));
  return row;
}

/** A side of a comparison as words of a question. @type {(place: Place, span: Span, side: string) => Record<string, string | number>} */
function sideWords(place, span, side) {
  if (side === "before") return selectionWords(place, { from: span.from - (span.to - span.from), to: span.from });
  const at = side.indexOf("=");
  const words = selectionWords(place, span);
  if (at > 0) words[`label.${side.slice(0, at)}`] = side.slice(at + 1);
  return words;
}

/** @type {(place: Place, span: Span) => HTMLElement} */
function pictureOf(place, span) {
  const isDiff = place.a === "before" || (place.a && place.b);
  const words = isDiff
    ? { ...sided("a", sideWords(place, span, place.a)), ...sided("b", sideWords(place, span, place.b)) }
    : selectionWords(place, span);
  const title = isDiff ? `What changed in ${place.service}` : `Flame graph of ${place.service}`;
  return element("iframe", { id: "picture", title, src: apiAddress(isDiff ? "diff" : "profile", { ...words, format: "html" }) });
}

/** @type {(side: string, words: Record<string, string | number>) => Record<string, string | number>} */
function sided(side, words) {
  return Object.fromEntries(Object.entries(words).map(([name, value]) => [`${side}.${name}`, value]));
}
