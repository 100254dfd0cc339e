"use strict";
/*
 * The samples one by one, in order of time (see flamegraph_samples.py): what of them a range of time holds, and how much there was when.
 *
 * A sample counts at the moment at which it was taken. A wait that is one sample counts from there on, for as long as it took:
 * in a range of time by the part that lies in it.
 */

/** A time in nanoseconds stands for a wait from so many sampling periods on. */
const LONG_PERIODS = 2;
const WAITING = new Set(["offcpu", "wall"]);

/** @type {(header: Timeline, bytes: Uint8Array, data: Data) => Samples} */
function unpackSamples(header, bytes, data) {
  const { count, widths, same } = header;
  let at = 0;
  const columns = widths.map((width, column) => {
    const numbers = new Int32Array(count).fill(same[column]);
    for (let byte = 0; byte < width; byte++) {
      for (let i = 0; i < count; i++) numbers[i] |= bytes[at + i] << (8 * byte);
      at += count;
    }
    return numbers;
  });
  const rows = data.samples.leaf.length;
  for (let i = 1; i < count; i++) {
    columns[0][i] = (columns[0][i] + columns[0][i - 1]) % header.ticks;
    columns[1][i] = (columns[1][i] + columns[1][i - 1]) % rows;
  }
  const order = byTime(columns[0], header.ticks);
  const [time, row, cpu, ...values] = columns.map((column) => Int32Array.from(order, (from) => column[from]));
  const spread = data.valueTypes.map(([type, unit]) => unit === "nanoseconds" && WAITING.has(type));
  const longest = spread.map((may, column) => (may ? values[column].reduce((most, value) => Math.max(most, value), 0) * header.units[column] : 0));
  return { ...header, time, row, cpu, values, longest, hasCpu: widths[2] > 0 || same[2] > 0, periodNs: data.periodNs };
}

/** @type {(time: Int32Array, ticks: number) => Int32Array} */
function byTime(time, ticks) {
  const next = new Int32Array(ticks + 1);
  for (const tick of time) next[tick + 1]++;
  for (let tick = 1; tick <= ticks; tick++) next[tick] += next[tick - 1];
  const order = new Int32Array(time.length);
  time.forEach((tick, i) => (order[next[tick]++] = i));
  return order;
}

/**
 * Calls back with each sample's row and what of its value lies in [from, to), nanoseconds since the recording began.
 * @type {(samples: Samples, column: number, range: TimeRange, take: (row: number, value: number, sample: number) => void) => void}
 */
function inRange(samples, column, [from, to], take) {
  const { time, row, tickNs, originNs, longest, periodNs } = samples;
  const values = samples.values[column];
  const unit = samples.units[column];
  const long = longest[column] > LONG_PERIODS * periodNs ? LONG_PERIODS * periodNs : Infinity;
  const first = long < Infinity ? firstSample(samples, from - longest[column]) : firstSample(samples, from);
  const last = firstSample(samples, to);
  for (let i = first; i < last; i++) {
    const value = values[i] * unit;
    const begin = originNs + time[i] * tickNs;
    if (value > long) {
      const part = Math.min(to, begin + value) - Math.max(from, begin);
      if (part > 0) take(row[i], part, i);
    } else if (begin >= from) take(row[i], value, i);
  }
}

/**
 * The first sample at or after a time.
 * @type {(samples: Samples, ns: number) => number}
 */
function firstSample({ time, tickNs, originNs, count }, ns) {
  const tick = Math.ceil((ns - originNs) / tickNs);
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (time[middle] >= tick) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * What views are made of from now on: the samples in a range of time, or all.
 * @type {(model: Model, range: TimeRange | null) => void}
 */
function select(model, range) {
  model.values = model.whole;
  model.leavesOf = model.rowsOf;
  if (!range) return;
  model.values = model.whole.map((whole, column) => {
    const sums = new Float64Array(whole.length);
    inRange(model.timeline, column, range, (row, value) => (sums[row] += value));
    return sums;
  });
  const any = model.rowsOf.map((rows) => rows.filter((row) => model.values.some((column) => column[row] > 0)));
  model.leavesOf = any;
}

/**
 * How much there was in each of `bins` equal parts of a range; by lane, of those that laneOf gives (-1: none).
 * @type {(samples: Samples, column: number, range: TimeRange, bins: number, lanes: number, laneOf: (row: number, sample: number) => number) => Float64Array[]}
 */
function activity(samples, column, range, bins, lanes, laneOf) {
  const found = Array.from({ length: lanes }, () => new Float64Array(bins));
  const [from, to] = range;
  const size = (to - from) / bins;
  const long = LONG_PERIODS * samples.periodNs;
  const { time, tickNs, originNs } = samples;
  inRange(samples, column, range, (row, value, sample) => {
    const lane = laneOf(row, sample);
    if (lane < 0) return;
    const begin = Math.max(0, (originNs + time[sample] * tickNs - from) / size);
    if (!(samples.longest[column] > long && value > long)) {
      found[lane][Math.min(bins - 1, Math.floor(begin))] += value;
      return;
    }
    const end = Math.min(bins, begin + value / size);
    for (let bin = Math.floor(begin); bin < end; bin++) found[lane][bin] += (Math.min(end, bin + 1) - Math.max(begin, bin)) * size;
  });
  return found;
}
