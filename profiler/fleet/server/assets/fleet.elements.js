"use strict";
/* Elements of the page. What comes from targets becomes text nodes only. */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Partial<HTMLElementTagNameMap[K]>} properties
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** @type {(id: string) => HTMLElement} */
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

/** A link to a place, which is shown without loading the page anew. @type {(place: Place, text: string) => HTMLElement} */
function linkTo(place, text) {
  const link = element("a", { href: addressOf(place) }, text);
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    goTo(place);
  });
  return link;
}

/** columns: what their cells hold. @type {(caption: string, columns: TableColumn[], rows: (Node | string)[][]) => HTMLElement} */
function table(caption, columns, rows) {
  const head = columns.map(({ title, kind }) => element("th", { scope: "col", className: kind }, title));
  const body = rows.map((cells) => {
    const made = cells.map((cell, at) => {
      const { kind } = columns[at];
      const sign = kind.includes("change") ? signOf(cell) : "";
      return element("td", { className: `${kind} ${sign}` }, cell);
    });
    return element("tr", {}, ...made);
  });
  return element(
    "table",
    {},
    element("caption", { className: "unseen" }, caption),
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
}

/** @type {(cell: Node | string) => string} */
function signOf(cell) {
  const text = typeof cell === "string" ? cell : cell.textContent || "";
  return text.startsWith("+") ? "more" : text.startsWith("−") ? "less" : "";
}

/** @type {(part: number, whole: number, label: string) => HTMLElement} */
function bar(part, whole, label) {
  return element("progress", { className: "bar", max: whole || 1, value: part, ariaLabel: label });
}

/** A share, and the range in which it lies. @type {(part: number, whole: number, range: [number, number] | null) => Node | string} */
function shareElement(part, whole, range) {
  const text = formatShare(part, whole);
  if (!range) return text;
  const [low, high] = range.map((share) => significant(100 * share));
  const title = "The true share is in this range with 95 % probability.";
  return element("span", { title }, text, element("small", {}, `${low} to ${high} %`));
}

/** Of a share: +12 %, −3 %, or a word. @type {(now: number | null, before: number | null) => string} */
function changeText(now, before) {
  if (now === null || before === null) return "no data";
  if (!before) return now ? "new" : "0 %";
  const percent = (100 * (now - before)) / before;
  if (Math.abs(percent) < 0.5) return "0 %";
  return `${percent > 0 ? "+" : "−"}${significant(Math.abs(percent))} %`;
}

/** An amount per second of recorded time: processors for time. @type {(rate: number | null, unit: string) => string} */
function rateText(rate, unit) {
  if (rate === null) return "no data";
  const shown = unit === "nanoseconds" ? rate / 1e9 : rate;
  return shown >= 1 ? significant(shown) : String(Number(shown.toPrecision(2)));
}

/** @type {(label: string, values: [value: string, text: string][], chosen: string, then: (value: string) => void) => HTMLElement} */
function choice(label, values, chosen, then) {
  const options = values.map(([value, text]) => element("option", { value, selected: value === chosen }, text));
  const select = element("select", {}, ...options);
  select.addEventListener("change", () => then(select.value));
  return element("label", {}, label, select);
}

/** @type {(error: unknown) => HTMLElement} */
function errorElement(error) {
  if (error instanceof Refusal && error.reason === "nothing_there") return emptyElement();
  const text = error instanceof Error ? error.message : String(error);
  return element("p", { className: "error", role: "alert" }, text);
}

/** What helps where a span has no windows. */
function emptyElement() {
  return element("p", { className: "hint" }, "No window has come in this span. Choose a longer span, or check that an agent has a [[push]] of type pyprof to this server: pyprof agent status shows whether it sends.");
}

/** @type {(rest: Rest | null, noun: string, unit: string) => HTMLElement[]} */
function restElement(rest, noun, unit) {
  if (!rest || !rest.count) return [];
  const amount = formatValue(rest.amount, ["", unit]);
  return [element("p", { className: "rest" }, `And ${formatCount(rest.count, noun)} more, ${amount} in all.`)];
}
