"use strict";
/* The pages of all services, all functions, all builds. */

/** @type {(place: Place) => Promise<Node[]>} */
async function fleetPage(place) {
  const span = wholeSpan(place);
  say("All services", spanWords(span));
  /** @type {ServicesAnswer} */
  const found = await ask("services", { type: place.type, ...span, compare: WEEK_S });
  const whole = found.services.reduce((sum, row) => sum + (row.rate || 0), 0);
  const rows = found.services.map((row) => [
    linkTo({ ...place, page: "service", service: row.service }, row.service),
    rateText(row.rate, found.unit),
    bar(row.rate || 0, whole, row.service),
    changeText(row.rate, row.rate_before),
    groupThousands(row.hosts),
    groupThousands(row.windows),
  ]);
  say("All services", `${formatCount(found.services.length, "service")} ${spanWords(span)}`);
  const columns = [
    { title: "Service", kind: "name" },
    { title: found.unit === "nanoseconds" ? "Processors" : "Samples a second", kind: "number" },
    { title: "Share", kind: "wide" },
    { title: "Since a week ago", kind: "number change" },
    { title: "Hosts", kind: "number wide" },
    { title: "Windows", kind: "number wide" },
  ];
  if (!rows.length) return [emptyElement()];
  return [element("h2", {}, "Services"), table("Services", columns, rows), ...restElement(found.rest, "service", found.unit)];
}

/** @type {(place: Place) => Promise<Node[]>} */
async function functionsPage(place) {
  const span = chosenSpan(place);
  say("Functions of the fleet", spanWords(span));
  /** @type {FunctionsAnswer} */
  const found = await ask("functions", { ...selectionWords(place, span), limit: 100 });
  const basis = found.samples === null ? "" : ` by ${formatCount(found.samples, "sample")}`;
  const isUnsampled = found.unsampled > 0.01 * found.total;
  const unsampled = isUnsampled ? `, ${formatValue(found.unsampled, ["", found.unit])} of it not sampled,` : "";
  say("Functions of the fleet", `${formatValue(found.total, ["", found.unit])}${basis}${unsampled} ${spanWords(span)}`);
  const rows = found.functions.map((row) => [
    element("span", {}, row.function, element("small", {}, row.module)),
    shareElement(row.own, found.total, row.own_range),
    shareElement(row.total, found.total, row.total_range),
    element("span", {}, ...row.services.flatMap((service, at) => [
      at ? ", " : "",
      linkTo({ ...place, page: "service", service }, service),
    ]), row.more_services ? ` and ${row.more_services} more` : ""),
  ]);
  const columns = [
    { title: "Function", kind: "name" },
    { title: "Self", kind: "number" },
    { title: "Total", kind: "number" },
    { title: "Services", kind: "wide" },
  ];
  return [element("h2", {}, "Functions"), table("Functions", columns, rows), ...restElement(found.rest, "function", found.unit)];
}

/** @type {(place: Place) => Promise<Node[]>} */
async function buildsPage(place) {
  const span = wholeSpan(place);
  say("Builds", spanWords(span));
  /** @type {BuildsAnswer} */
  const found = await ask("builds", { type: place.type, ...span });
  say("Builds", `${formatCount(found.builds.length, "file")} ${spanWords(span)}`);
  const rows = found.builds.map((row) => [
    element("span", {}, row.path, element("small", {}, row.build_id || "no build id")),
    formatValue(row.amount, ["", found.unit]),
    formatShare(row.unnamed, row.amount),
    formatShare(row.cut, row.amount),
    element("span", { className: "command" }, row.hint),
  ]);
  const columns = [
    { title: "File", kind: "name" },
    { title: "Time", kind: "number wide" },
    { title: "Without names", kind: "number" },
    { title: "Truncated", kind: "number" },
    { title: "Hint", kind: "wide" },
  ];
  if (!rows.length) return [emptyElement()];
  return [element("h2", {}, "Names and unwinding, by build"), table("Builds", columns, rows), ...restElement(found.rest, "file", found.unit)];
}

/** @type {(span: Span) => string} */
function spanWords({ from, to }) {
  /** @type {(s: number) => string} */
  const text = (s) => new Date(1000 * s).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  return `from ${text(from)} to ${text(to)}`;
}
