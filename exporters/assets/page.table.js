"use strict";
/* The functions as a table: the same data for those who do not see the graph, or want a list. */

const TABLE_ROWS = 500;
const TABLE_PADDING = 52;

/**
 * matches: the frames that are looked for, or null. colours: per frame. letter: a letter's width. on: a function was chosen.
 * @type {(model: Model, tree: Tree, state: State, matches: Uint8Array | null, colours: string[], letter: number, on: { pick: (frame: number) => void; look: (frame: number) => void }) => void}
 */
function showTable(model, tree, state, matches, colours, letter, on) {
  const tally = tallyFunctions(model, tree);
  const rows = matches ? tally.rows.filter((row) => matches[row.frame]) : tally.rows;
  const [column, descending] = state.sort;
  const type = model.valueTypes[state.metric];
  /** @type {(row: FunctionRow) => string} */
  const name = (row) => model.frames[row.frame].name;
  /** @type {Record<SortColumn, (row: FunctionRow) => string | number>} */
  const keys = { self: (row) => row.self, total: (row) => row.total, count: (row) => row.count, name, group: (row) => model.frames[row.frame].group };
  const key = keys[column];
  /** @type {(a: FunctionRow, b: FunctionRow) => number} */
  const ascending = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0);
  rows.sort((a, b) => (descending ? ascending(b, a) : ascending(a, b)) || b.total - a.total || a.frame - b.frame);

  /** @type {(value: number) => HTMLElement} */
  const cell = (value) =>
    element(
      "td",
      { class: "number", share: tree.total ? value / tree.total : 0 },
      value ? formatValue(value, type) : "–",
      element("small", null, value ? formatShare(value, tree.total) : ""),
    );
  const wide = byId("function-head").clientWidth;
  const room = Math.max(8, Math.floor((wide - TABLE_PADDING) / letter));
  const shown = rows.slice(0, TABLE_ROWS);
  const when = trends(model, tree, shown.map((row) => row.frame), tally.outermost, state);
  for (const part of queryAll("#table-view .trend")) part.hidden = !when.size;
  byId("rows").replaceChildren(
    ...shown.map((row) => {
      const trend = when.get(row.frame);
      const frame = model.frames[row.frame];
      return element(
        "tr",
        null,
        cell(row.self),
        cell(row.total),
        element("td", { class: "count" }, groupThousands(row.count)),
        trend && element("td", { class: "trend" }, sparkline(trend)),
        element(
          "td",
          { title: frame.name },
          element("button", { class: "name", onclick: () => on.pick(row.frame), title: frame.name }, fitName(frame.name, room)),
          element("button", { class: "look", onclick: () => on.look(row.frame), title: "Callers and callees", "aria-label": `Callers and callees of ${frame.name}` }, "⇅"),
          element("small", { class: "where" }, frame.group),
        ),
        element("td", { title: frame.group, class: "module" }, element("span", { class: "swatch", colour: colours[row.frame] }), frame.group),
      );
    }),
  );
  byId("rows-note").textContent =
    rows.length > TABLE_ROWS
      ? firstRows(model, TABLE_ROWS, rows.length)
      : `${formatCount(rows.length, "function")}.`;
  for (const head of queryAll("#table-view th")) {
    const mine = head.querySelector("button")?.dataset.sort === column;
    if (mine) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}
