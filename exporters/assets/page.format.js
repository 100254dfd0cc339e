"use strict";
/* Numbers and times as text. */

const groupThousands = d3.format(",");
/** @type {[least: number, unit: string][]} */
const UNITS_NS = [[3600e9, "h"], [60e9, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

/** @type {(model: Model, rows: number, all: number) => string} */
function firstRows(model, rows, all) {
  return model.words.firstRows.replace("{rows}", groupThousands(rows)).replace("{all}", groupThousands(all));
}

/** @type {(ns: number) => string} */
function formatNanoseconds(ns) {
  if (!ns) return "0 s";
  const [size, unit] = UNITS_NS.find(([least]) => Math.abs(ns) >= least) || UNITS_NS[UNITS_NS.length - 1];
  return `${significant(ns / size)} ${unit}`;
}

/**
 * Three or four digits that matter, never an exponent.
 * @type {(number: number) => string}
 */
function significant(number) {
  const size = Math.abs(number);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  const text = number.toFixed(digits);
  return digits ? text.replace(/\.?0+$/, "") : groupThousands(Math.round(number));
}

/**
 * A value of one of the profile's value types.
 * @type {(value: number, valueType: ValueType) => string}
 */
function formatValue(value, [type, unit]) {
  if (unit === "nanoseconds") return formatNanoseconds(value);
  if (unit === "count") return formatCount(value, type.replace(/s$/, ""));
  if (unit === "share") return formatShare(value, 1);
  return `${Number.isInteger(value) ? groupThousands(value) : significant(value)} ${unit}`;
}

/** @type {(count: number, noun: string) => string} */
function formatCount(count, noun) {
  return `${groupThousands(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** @type {(part: number, whole: number) => string} */
function formatShare(part, whole) {
  if (!whole) return "0 %";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 0.01) return "< 0.01 %";
  if (percent < 100 && percent > 99.99) return "> 99.99 %";
  return `${percent === 0 || percent === 100 ? percent : percent.toFixed(2)} %`;
}

/**
 * 32-bit FNV-1a: the same text has the same hash on every page.
 * @type {(text: string) => number}
 */
function hashText(text) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash >>> 0;
}
