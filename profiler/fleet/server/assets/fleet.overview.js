"use strict";
/* The pages of all services, all functions, all builds. */

/** @type {(place: Place) => Promise<Node[]>} */
async function fleetPage(place) {
  const span = wholeSpan(place);
  say("All services", spanWords(span));
  const [found, filter] = await Promise.all([
    /** @type {Promise<ServicesAnswer>} */ (ask("services", { ...selectionWords(place, span), compare: WEEK_S })),
    fleetFilter(place, span),
  ]);
  const whole = found.services.reduce((sum, row) => sum + (row.rate || 0), 0);
  const rows = found.services.map((row) => [
    linkTo({ ...place, page: "service", service: row.service }, row.service),
    rateText(row.rate, found.unit),
    bar(row.rate || 0, whole, row.service),
    changeText(row.rate, row.rate_before),
    row.windows_without_host ? unnamedHosts(row) : groupThousands(row.hosts),
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
  if (!rows.length) return [filter, emptyElement()];
  return [filter, element("h2", {}, "Services"), table("Services", columns, rows), ...restElement(found.rest, "service", found.unit)];
}

/** Hosts are unknown where windows name none. @type {(row: ServicesAnswer["services"][number]) => HTMLElement} */
function unnamedHosts(row) {
  const title = "These windows have no label host. They count as one host, so a rate over several of them is too low.";
  return element("span", { title }, "unknown", element("small", {}, `${formatCount(row.windows_without_host, "window")} without a host`));
}

/** Which samples of the fleet: those of a host, and of the labels of the address. @type {(place: Place, span: Span) => Promise<HTMLElement>} */
async function fleetFilter(place, span) {
  let known = /** @type {Record<string, string[]>} */ ({});
  try {
    /** @type {LabelsAnswer} */
    const found = await ask("labels", { type: place.type, ...span });
    known = found.labels;
  } catch (error) {
    if (!(error instanceof Refusal) || error.reason !== "too_many_series") throw error;
  }
  const names = [...new Set(["host", ...Object.keys(place.labels)])];
  const shown = /** @type {Record<string, string[]>} */ ({});
  for (const name of names) {
    const own = place.labels[name], values = [...new Set([...(known[name] || []), ...(own ? [own] : [])])];
    if (values.length) shown[name] = values;
  }
  return element("div", { className: "row" }, ...labelChoices(place, shown));
}

/** @type {(place: Place) => Promise<Node[]>} */
async function functionsPage(place) {
  const span = chosenSpan(place);
  say("Functions of the fleet", spanWords(span));
  const filter = await fleetFilter(place, wholeSpan(place));
  const empty = { functions: [], total: 0, unsampled: 0, samples: null, unit: "nanoseconds", rest: null };
  /** @type {FunctionsAnswer} */
  const found = await ask("functions", { ...selectionWords(place, span), limit: 100 }).catch((error) => {
    if (error instanceof Refusal && error.reason === "nothing_there") return empty;
    throw error;
  });
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
  if (!rows.length) return [filter, emptyElement()];
  return [filter, element("h2", {}, "Functions"), table("Functions", columns, rows), ...restElement(found.rest, "function", found.unit)];
}

/** @type {(place: Place) => Promise<Node[]>} */
async function buildsPage(place) {
  const span = wholeSpan(place);
  say("Builds", spanWords(span));
  /** @type {BuildsAnswer} */
  const found = await ask("builds", { type: place.type, ...span });
  const all = Object.keys(place.labels).length ? ", whatever their labels," : "";
  say("Builds", `${formatCount(found.builds.length, "file")}${all} ${spanWords(span)}`);
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
