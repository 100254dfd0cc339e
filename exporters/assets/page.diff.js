"use strict";
/* Two recordings on one page: of each function what it was before and after (see comparison_file.py). What may be chance is grey. */

const GREW = "grew";
const SHRANK = "shrank";
const NOISE = "not significant";

/**
 * What a function cost, in itself ("own") or with what it calls.
 * @type {(changes: Changes, frame: number, column: "own" | "total") => { before: number; after: number; sure: boolean; unknown: boolean }}
 */
function amountOf(changes, frame, column) {
  const { before, after, sure, unknown } = changes[column];
  return { before: before[frame], after: after[frame], sure: sure[frame] === 1, unknown: unknown[frame] === 1 };
}

/**
 * By which part more; Infinity of what is new.
 * @type {(amount: { before: number; after: number }) => number}
 */
function relativeChange({ before, after }) {
  return before ? after / before - 1 : after ? Infinity : 0;
}

/** @type {(amount: { before: number; after: number; unknown: boolean }) => string} */
function changeText(amount) {
  if (amount.unknown) return "unknown";
  const part = relativeChange(amount);
  if (part === Infinity) return "new";
  if (part === -1) return "gone";
  return part >= 10 ? `× ${significant(part + 1)}` : `${part > 0 ? "+" : ""}${(100 * part).toFixed(1)} %`;
}

/**
 * Both costs; "?" for one that no sample shows.
 * @type {(amount: { before: number; after: number; unknown: boolean }, text: (value: number) => string) => string}
 */
function pairText({ before, after, unknown }, text) {
  return [before, after].map((value) => (unknown && !value ? "?" : text(value))).join(" → ");
}

/**
 * What of a function is more than chance: its total, else its own cost; null for nothing.
 * @type {(changes: Changes, frame: number) => { before: number; after: number; sure: boolean } | null}
 */
function sureChange(changes, frame) {
  const [total, own] = [amountOf(changes, frame, "total"), amountOf(changes, frame, "own")];
  return total.sure ? total : own.sure ? own : null;
}

/** Beside what all functions changed by together.
 * @type {(changes: Changes, amount: { before: number; after: number }) => boolean}
 */
function hasGrown(changes, { before, after }) {
  return after > before * (1 + changes.drift);
}

/** What the colour of a function stands for.
 * @type {(changes: Changes, frame: number) => string}
 */
function changeLabel(changes, frame) {
  const sure = frame < changes.own.sure.length ? sureChange(changes, frame) : null;
  return sure ? (hasGrown(changes, sure) ? GREW : SHRANK) : NOISE;
}

/**
 * The larger the change, the stronger: twice as much, or half, is the palette's own colour.
 * @type {(changes: Changes, frame: number, theme: Theme) => string}
 */
function changeColour(changes, frame, theme) {
  const sure = sureChange(changes, frame);
  if (!sure) return SPECIAL[theme].unknown;
  const size = Math.min(1, Math.abs(Math.log2((1 + relativeChange(sure)) / (1 + changes.drift))));
  const strong = PALETTE[theme][LABEL_SLOTS[hasGrown(changes, sure) ? GREW : SHRANK]];
  return d3.interpolateRgb(SPECIAL[theme].unknown, strong)(0.4 + 0.6 * size);
}

/**
 * The tooltip's lines of a function.
 * @type {(model: Model, frame: number) => [string, string][]}
 */
function changeFacts(model, frame) {
  const { changes } = model;
  if (!changes) return [];
  const type = model.valueTypes[model.valueTypes.length - 1];
  /** @type {(column: "own" | "total") => string} */
  const text = (column) => {
    const amount = amountOf(changes, frame, column);
    return `${pairText(amount, (value) => formatValue(value, type))} (${changeText(amount)}${amount.sure || changes.doubt ? "" : ", not significant"})`;
  };
  return [["Self", text("own")], ["Total", text("total")]];
}

/**
 * As showTable, of both recordings as a whole.
 * @type {(model: Model, changes: Changes, state: State, matches: Uint8Array | null, letter: number, on: { pick: (frame: number) => void; look: (frame: number) => void }) => void}
 */
function showChanges(model, changes, state, matches, letter, on) {
  const [column, descending] = state.sort;
  const sorted = column === "total" ? "total" : "own";
  /** @type {(frame: number) => number} */
  const size = (frame) => {
    const { before, after, sure } = amountOf(changes, frame, sorted);
    return Math.abs(after - before) + (sure ? 1e18 : 0);
  };
  /** @type {(frame: number) => string} */
  const name = (frame) => model.frames[frame].name;
  const rows = changes.own.sure.flatMap((_, frame) => (model.frames[frame].kind !== KIND.MARKER && (!matches || matches[frame]) ? [frame] : []));
  rows.sort((a, b) => (column === "name" ? (name(a) < name(b) ? -1 : 1) : size(b) - size(a)) || a - b);
  if (descending === (column === "name")) rows.reverse();
  const type = model.valueTypes[model.valueTypes.length - 1];
  /** @type {(value: number) => string} */
  const together = (value) => formatValue(value, type).replaceAll(" ", "\u00a0");
  /** @type {(amount: { before: number; after: number; sure: boolean; unknown: boolean }) => HTMLElement} */
  const cell = (amount) =>
    element(
      "td",
      { class: `number change ${amount.sure ? (hasGrown(changes, amount) ? "grew" : "shrank") : "noise"}` },
      changeText(amount),
      element("small", null, pairText(amount, together)),
    );
  const room = Math.max(8, Math.floor((byId("changed-head").clientWidth - TABLE_PADDING) / letter));
  byId("changed").replaceChildren(
    ...rows.slice(0, TABLE_ROWS).map((frame) =>
      element(
        "tr",
        null,
        cell(amountOf(changes, frame, "own")),
        cell(amountOf(changes, frame, "total")),
        element(
          "td",
          { title: name(frame) },
          element("button", { class: "name", onclick: () => on.pick(frame), title: name(frame) }, fitName(name(frame), room)),
          element("button", { class: "look", onclick: () => on.look(frame), title: "Callers and callees", "aria-label": `Callers and callees of ${name(frame)}` }, "⇅"),
          element("small", { class: "where" }, model.frames[frame].group),
        ),
        element("td", { title: model.frames[frame].group, class: "module" }, model.frames[frame].group),
      ),
    ),
  );
  const many = rows.length > TABLE_ROWS ? firstRows(model, TABLE_ROWS, rows.length) : `${formatCount(rows.length, "function")}.`;
  byId("rows-note").textContent = `${many} Of both recordings as a whole; grey: not significant.`;
  for (const head of queryAll("#changes th")) {
    const mine = head.querySelector("button")?.dataset.sort === column;
    if (mine) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

/**
 * What was compared, and what it showed.
 * @type {(changes: Changes) => string}
 */
function changesText(changes) {
  const sure = changes.own.sure.filter((_, frame) => sureChange(changes, frame)).length;
  const together = Math.abs(changes.drift) >= 0.005 ? `all together ${changes.drift > 0 ? "+" : ""}${(100 * changes.drift).toFixed(1)} %` : "";
  const verdict = changes.doubt || (sure ? `${formatCount(sure, "function")} changed significantly` : "no significant change");
  return [changes.titles.join(" → "), changes.words, verdict, changes.caution, together].filter(Boolean).join(" · ");
}
