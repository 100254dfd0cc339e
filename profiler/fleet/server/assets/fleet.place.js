"use strict";
/* What is shown is the page's address: a link restores it, Back undoes it. */

const SPANS = /** @type {[string, number][]} */ ([
  ["15 minutes", 900],
  ["1 hour", 3600],
  ["6 hours", 6 * 3600],
  ["1 day", 86400],
  ["7 days", 7 * 86400],
  ["30 days", 30 * 86400],
]);
const WEEK_S = 7 * 86400;
/** Words of an address that are not labels. */
const OWN = new Set(["page", "service", "type", "by", "span", "from", "to", "a", "b"]);

/** @type {() => Place} */
function placeOfAddress() {
  const query = new URLSearchParams(location.search);
  const labels = /** @type {Record<string, string>} */ ({});
  for (const [name, value] of query) if (!OWN.has(name)) labels[name] = value;
  const service = query.get("service") || "";
  const from = Number(query.get("from")), to = Number(query.get("to"));
  return {
    page: query.get("page") || (service ? "service" : "fleet"),
    service,
    type: query.get("type") || "cpu",
    by: query.get("by") || "",
    span: Number(query.get("span")) || 3600,
    chosen: from && to > from ? { from, to } : null,
    a: query.get("a") || "",
    b: query.get("b") || "",
    labels,
  };
}

/** @type {(place: Place) => string} */
function addressOf(place) {
  const words = /** @type {Record<string, string | number>} */ ({ ...place.labels });
  if (place.page !== "fleet" && place.page !== "service") words.page = place.page;
  if (place.service) words.service = place.service;
  if (place.type !== "cpu") words.type = place.type;
  if (place.by) words.by = place.by;
  if (place.span !== 3600) words.span = place.span;
  if (place.chosen) Object.assign(words, { from: Math.floor(place.chosen.from), to: Math.ceil(place.chosen.to) });
  if (place.a) words.a = place.a;
  if (place.b) words.b = place.b;
  const query = new URLSearchParams(Object.entries(words).map(([name, value]) => [name, String(value)]));
  return `/?${query}`;
}

/** The whole span that is looked at, until now. @type {(place: Place) => Span} */
function wholeSpan(place) {
  const to = Math.ceil(Date.now() / 1000);
  return { from: to - place.span, to };
}

/** What of it was chosen, or all. @type {(place: Place) => Span} */
function chosenSpan(place) {
  return place.chosen || wholeSpan(place);
}

/** Which samples, as words of a question. @type {(place: Place, span: Span) => Record<string, string | number>} */
function selectionWords(place, span) {
  const labels = Object.fromEntries(Object.entries(place.labels).map(([name, value]) => [`label.${name}`, value]));
  return { service: place.service, type: place.type, from: span.from, to: span.to, ...labels };
}
