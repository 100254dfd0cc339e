"use strict";
/* The functions as a table: the same data for those who do not see the graph, or want a list. */

const TABLE_ROWS = 500;
const TABLE_PADDING = 28;

/**
 * sort: [column, descending]. colours: per frame. letter: a letter's width. pick(frame): a function was chosen.
 * @type {(model: Model, tree: Tree, type: ValueType, matches: Uint8Array | null, sort: Sort, colours: string[], letter: number, pick: (frame: number) => void) => void}
 */
function showTable(model, tree, type, matches, sort, colours, letter, pick) {
  let rows = tallyFunctions(model, tree);
  if (matches) rows = rows.filter((row) => matches[row.frame]);
  const [column, descending] = sort;
  /** @type {(row: FunctionRow) => string} */
  const name = (row) => model.frames[row.frame].name;
  /** @type {Record<SortColumn, (row: FunctionRow) => string | number>} */
  const keys = { self: (row) => row.self, total: (row) => row.total, name, group: (row) => model.frames[row.frame].group };
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
  byId("rows").replaceChildren(
    ...rows.slice(0, TABLE_ROWS).map((row) => {
      const frame = model.frames[row.frame];
      return element(
        "tr",
        null,
        cell(row.self),
        cell(row.total),
        element(
          "td",
          { title: frame.name },
          element("button", { onclick: () => pick(row.frame), "aria-label": frame.name }, fitName(frame.name, room)),
          element("small", { class: "where" }, frame.group),
        ),
        element("td", { title: frame.group, class: "module" }, element("span", { class: "swatch", colour: colours[row.frame] }), frame.group),
      );
    }),
  );
  byId("rows-note").textContent =
    rows.length > TABLE_ROWS
      ? `The first ${TABLE_ROWS} of ${groupThousands(rows.length)} functions; search to see others.`
      : `${formatCount(rows.length, "function")}.`;
  for (const head of queryAll("#table-view th")) {
    const mine = head.querySelector("button")?.dataset.sort === column;
    if (mine) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}
