"use strict";
/*
 * The strip above the views: activity over time, by thread or processor, or by second and offset within it. A range of time is
 * dragged on it, or moved by keys; everything else on the page shows that range.
 */

const HEAD = 36;
const LANE = 15;
const AXIS = 16;
/** Offsets within a second. */
const SLOTS = 50;
const SLOT_HEIGHT = 3;
const WIDEST_SECOND = 60;
/** Sampling periods that a bar of the activity stands for, at least. */
const BAR_PERIODS = 8;
const PEAK_PERIODS = 50;
const LANE_FONT = '10.5px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

class Strip {
  /** @type {Model} */
  model;
  /** @type {State} */
  state;
  /** @type {Lane[]} */
  lanes = [];
  /** What is drawn, as text; lanes are counted anew when it changes. */
  counted = "";
  /** Where a drag began: nanoseconds, or null. */
  anchor = /** @type {number | null} */ (null);
  hover = -1;
  /** @type {number[]} */
  peaks = [];
  width = 0;
  colours = { text: "", accent: "", line: "", page: "" };

  /** @param {HTMLCanvasElement} canvas @param {(range: TimeRange | null, done: boolean) => void} choose */
  constructor(canvas, choose) {
    this.canvas = canvas;
    this.pen = penOf(canvas);
    this.choose = choose;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => this.leave());
    canvas.addEventListener("pointerleave", () => this.point(-1));
    new ResizeObserver(() => this.draw()).observe(/** @type {HTMLElement} */ (canvas.parentElement));
  }

  /** @type {(model: Model, state: State) => void} */
  show(model, state) {
    this.model = model;
    this.state = state;
    this.draw();
  }

  // Places

  get offsets() {
    return this.state.strip === "offsets";
  }

  get begin() {
    return this.model.timeline.originNs;
  }

  get span() {
    return this.model.timeline.spanNs;
  }

  /** Seconds that a column of the map of offsets has. */
  get perColumn() {
    return Math.max(1, Math.ceil(this.span / 1e9 / this.width));
  }

  get columns() {
    return Math.max(Math.ceil(this.span / 1e9 / this.perColumn), Math.floor(this.width / WIDEST_SECOND));
  }

  get height() {
    return AXIS + (this.offsets ? SLOTS * SLOT_HEIGHT : HEAD + LANE * (this.lanes.length - 1));
  }

  /** @type {(ns: number) => number} */
  pixel(ns) {
    return ((ns - this.begin) / this.whole) * this.width;
  }

  /** What the width stands for. */
  get whole() {
    return this.offsets ? this.columns * this.perColumn * 1e9 : this.span;
  }

  /** @type {(event: PointerEvent) => number} */
  timeAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.max(0, Math.min(1, (event.clientX - box.left) / this.width));
    if (!this.offsets) return this.begin + x * this.span;
    const second = Math.min(this.columns - 1, Math.floor(x * this.columns)) * this.perColumn;
    const slot = Math.max(0, Math.min(SLOTS - 1, Math.floor((event.clientY - box.top) / SLOT_HEIGHT)));
    return this.begin + (second + slot / SLOTS) * 1e9;
  }

  // Choosing

  /** @type {(event: PointerEvent) => void} */
  press(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.anchor = this.timeAt(event);
  }

  /** @type {(event: PointerEvent) => void} */
  move(event) {
    const time = this.timeAt(event);
    this.point(time);
    if (this.anchor !== null && time !== this.anchor) this.choose(this.between(this.anchor, time), false);
  }

  /** @type {(event: PointerEvent) => void} */
  release(event) {
    if (this.anchor === null) return;
    const range = this.between(this.anchor, this.timeAt(event));
    this.anchor = null;
    this.choose(range && !this.offsets && this.pixel(range[1]) - this.pixel(range[0]) < 3 ? null : range, true);
  }

  /** The drag became something else, such as scrolling: what it has chosen stays. */
  leave() {
    if (this.anchor === null) return;
    this.anchor = null;
    this.choose(this.state.range, true);
  }

  /**
   * Null where nothing is between them: beyond the end.
   * @type {(one: number, two: number) => TimeRange | null}
   */
  between(one, two) {
    const slot = this.offsets ? 1e9 / SLOTS : 0;
    const [from, to] = [Math.min(one, two), Math.min(this.begin + this.span, Math.max(one, two) + slot)];
    return from < to ? [from, to] : null;
  }

  /** @type {(time: number) => void} */
  point(time) {
    this.hover = time;
    this.draw();
  }

  /**
   * Left and right move the range, with Shift its end.
   * @type {(key: string, shift: boolean) => boolean}
   */
  key(key, shift) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (!by) return false;
    const step = (by * this.span) / 100;
    const [from, to] = this.state.range ?? [this.begin, this.begin + this.span / 10 - step];
    const end = this.begin + this.span;
    if (shift) this.choose([from, Math.max(from + Math.abs(step), Math.min(end, to + step))], true);
    else {
      const start = Math.max(this.begin, Math.min(end - (to - from), from + step));
      this.choose([start, start + to - from], true);
    }
    return true;
  }

  // Drawing

  /** Counts what the lanes hold, if that changed. */
  count() {
    const { model, state } = this;
    const rows = innerHeight > 700 && innerWidth > 700 ? 6 : 2;
    const asked = [state.strip, state.metric, this.width, rows, ...state.hidden].join(" ");
    if (asked === this.counted) return;
    this.counted = asked;
    const bars = Math.floor(Math.min(this.width / 2, this.span / (BAR_PERIODS * (model.periodNs || 1e7))));
    const count = this.offsets ? this.columns * this.perColumn * SLOTS : Math.max(1, bars);
    const { titles, laneOf } = lanesOf(model, state, this.offsets ? 0 : rows);
    const range = /** @type {TimeRange} */ ([this.begin, this.begin + this.whole]);
    const parts = activity(model.timeline, state.metric, range, count, titles.length, laneOf);
    const all = parts.reduce((sums, part) => sums.map((sum, bin) => sum + part[bin]), new Float64Array(count));
    const shown = parts.length > 1 ? [all, ...parts] : [all];
    this.lanes = shown.map((bins, lane) => ({ title: lane ? titles[lane - 1] : "", bins }));
  }

  draw() {
    const { canvas, pen, model, state } = this;
    const box = canvas.parentElement;
    if (!model || !box?.clientWidth || !model.timeline.count) return;
    this.width = box.clientWidth;
    this.count();
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${this.height}px`;
    const style = getComputedStyle(canvas);
    this.colours = { text: style.color, accent: style.getPropertyValue("--accent"), line: style.getPropertyValue("--line"), page: style.getPropertyValue("--page") };
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = LANE_FONT;
    pen.textBaseline = "middle";
    if (this.offsets) this.drawOffsets();
    else {
      this.drawLanes();
      if (state.range) this.shade(state.range);
      this.drawLabels();
    }
    this.drawAxis();
  }

  drawLanes() {
    const { pen, lanes, colours, model, state } = this;
    const [, unit] = model.valueTypes[state.metric];
    const size = this.span / lanes[0].bins.length;
    const perBin = unit === "nanoseconds" ? size : size / 1e9;
    const most = (this.peaks = lanes.map(({ bins }) => bins.reduce((a, b) => Math.max(a, b), 0) / perBin));
    const single = unit === "nanoseconds" ? 1 : 0;
    const scale = Math.max(single, ...most.slice(1));
    this.drawGaps();
    lanes.forEach(({ bins }, lane) => {
      const top = lane ? HEAD + (lane - 1) * LANE : 0;
      const height = (lane ? LANE : HEAD) - 2;
      const full = (lane ? scale : most[0]) || 1;
      const wide = this.width / bins.length;
      pen.fillStyle = colours.accent;
      pen.globalAlpha = lane ? 0.6 : 0.85;
      bins.forEach((value, bin) => {
        const high = Math.min(1, value / perBin / full) * height;
        if (high > 0) pen.fillRect(bin * wide, top + height - high, Math.max(0.6, wide - (wide > 4 ? 0.5 : 0)), high);
      });
      pen.globalAlpha = 1;
      pen.fillStyle = colours.line;
      pen.fillRect(0, top + height, this.width, 1);
    });
  }

  /** Where nothing was recorded. */
  drawGaps() {
    const { pen, colours } = this;
    pen.strokeStyle = colours.text;
    for (const [from, to] of this.model.timeline.gaps) {
      const [left, right, height] = [this.pixel(from), this.pixel(to), this.height - AXIS];
      pen.save();
      pen.globalAlpha = 0.25;
      pen.beginPath();
      pen.rect(left, 0, right - left, height);
      pen.clip();
      pen.beginPath();
      for (let x = left - height; x < right; x += 6) {
        pen.moveTo(x, height);
        pen.lineTo(x + height, 0);
      }
      pen.stroke();
      pen.restore();
    }
  }

  /** @type {(ns: number) => boolean} */
  inGap(ns) {
    return this.model.timeline.gaps.some(([from, to]) => from <= ns && ns < to);
  }

  drawLabels() {
    const [type, unit] = this.model.valueTypes[this.state.metric];
    this.lanes.forEach(({ title }, lane) => this.label(title || this.peak(type, unit), 4, lane ? HEAD + (lane - 0.5) * LANE : 7));
  }

  /**
   * The most in a time of so many sampling periods: in one bar, which has a few samples, chance makes it more.
   * @type {(unit: string) => number}
   */
  most(unit) {
    const { bins } = this.lanes[0];
    const size = this.span / bins.length;
    const wide = Math.min(bins.length, Math.max(1, Math.ceil((PEAK_PERIODS * (this.model.periodNs || 1e7)) / size)));
    let [sum, most] = [0, 0];
    bins.forEach((value, bin) => {
      sum += value - (bins[bin - wide] ?? 0);
      most = Math.max(most, sum);
    });
    return most / wide / (unit === "nanoseconds" ? size : size / 1e9);
  }

  /** @type {(type: string, unit: string) => string} */
  peak(type, unit) {
    if (this.model.periodNs === 1) return type; // of many windows: how exact its times are nobody knows here
    const most = Number(this.most(unit).toPrecision(2)); // so exact it is
    if (unit === "count") return `up to ${most} ${type} a second`;
    return unit === "nanoseconds" ? `up to ${most} ${type === "cpu" ? "processors" : "threads"} at a time (${type})` : type;
  }

  drawOffsets() {
    const { pen, lanes, colours, state } = this;
    const { bins } = lanes[0];
    const wide = this.width / this.columns;
    const cells = new Float64Array(this.columns * SLOTS);
    bins.forEach((value, bin) => (cells[Math.floor(bin / SLOTS / this.perColumn) * SLOTS + (bin % SLOTS)] += value));
    const most = cells.reduce((a, b) => Math.max(a, b), 0) || 1;
    cells.forEach((value, cell) => {
      const [column, slot] = [Math.floor(cell / SLOTS), cell % SLOTS];
      const from = this.begin + (column * this.perColumn + slot / SLOTS) * 1e9;
      const inside = !state.range || (from >= state.range[0] - 1e6 && from < state.range[1] - 1e6);
      if (from >= this.begin + this.span || this.inGap(from)) return;
      const [x, y] = [column * wide, slot * SLOT_HEIGHT];
      pen.fillStyle = colours.line;
      pen.globalAlpha = inside ? 0.45 : 0.15;
      pen.fillRect(x, y, wide - 0.5, SLOT_HEIGHT - 0.5);
      pen.fillStyle = colours.accent;
      pen.globalAlpha = (value / most) * (inside ? 1 : 0.3);
      pen.fillRect(x, y, wide - 0.5, SLOT_HEIGHT - 0.5);
    });
    pen.globalAlpha = 1;
  }

  /** @type {(range: TimeRange) => void} */
  shade([from, to]) {
    const { pen, colours } = this;
    const [left, right] = [this.pixel(from), this.pixel(to)];
    const height = this.height - AXIS;
    pen.fillStyle = colours.page;
    pen.globalAlpha = 0.72;
    pen.fillRect(0, 0, left, height);
    pen.fillRect(right, 0, this.width - right, height);
    pen.globalAlpha = 1;
    pen.fillStyle = colours.accent;
    pen.fillRect(left - 1, 0, 2, height);
    pen.fillRect(right - 1, 0, 2, height);
  }

  drawAxis() {
    const { pen, colours } = this;
    const least = (this.whole * 76) / this.width;
    const ten = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((part) => part * ten).find((size) => size >= least) || 10 * ten;
    const y = this.height - AXIS / 2;
    pen.fillStyle = colours.text;
    for (let at = Math.ceil(this.begin / step) * step; at <= this.begin + this.span; at += step) {
      pen.fillRect(this.pixel(at), this.height - AXIS, 1, 3);
      pen.fillText(this.clock(at), this.pixel(at) + 3, y + 1);
    }
    if (this.hover < this.begin) return;
    const x = this.pixel(this.hover);
    if (!this.offsets) pen.fillRect(x, 0, 1, this.height - AXIS);
    this.label(this.clock(this.hover) + (this.inGap(this.hover) ? ": not recorded" : ""), Math.min(x + 3, this.width - 60), y + 1);
  }

  /**
   * Seconds, as in the fields.
   * @type {(ns: number) => string}
   */
  clock(ns) {
    return this.whole < 1e9 ? formatNanoseconds(ns) : `${Number((ns / 1e9).toFixed(3))} s`;
  }

  /** @type {(text: string, x: number, y: number) => void} */
  label(text, x, y) {
    const { pen, colours } = this;
    pen.globalAlpha = 0.75;
    pen.fillStyle = colours.page;
    pen.fillRect(x - 2, y - 6, pen.measureText(text).width + 4, 12);
    pen.globalAlpha = 1;
    pen.fillStyle = colours.text;
    pen.fillText(text, x, y);
  }
}

/**
 * The lanes' names, and in which one a sample counts (-1: its thread is hidden). most: so many, the last one all others.
 * @type {(model: Model, state: State, most: number) => { titles: string[]; laneOf: (row: number, sample: number) => number }}
 */
function lanesOf(model, state, most) {
  const threads = model.samples.thread;
  /** @type {(row: number) => boolean} */
  const hidden = (row) => state.hidden.has(threads[row]);
  const values = model.whole[state.metric];
  const { cpu } = model.timeline;
  /** @type {Map<number, number>} */
  const weights = new Map();
  if (state.strip === "cpus") for (const each of cpu) weights.set(each, 0);
  else for (const { index } of model.threads) if (!state.hidden.has(index)) weights.set(index, model.rowsOf[index].reduce((sum, row) => sum + values[row], 0));
  const keys = [...weights.keys()].sort((a, b) => (weights.get(b) || 0) - (weights.get(a) || 0) || a - b);
  const own = keys.length > most ? keys.slice(0, Math.max(0, most - 1)) : keys;
  const lanes = new Map(keys.map((key, at) => [key, Math.min(at, own.length)]));
  /** @type {(key: number) => string} */
  const title = (key) => (state.strip === "cpus" ? (key ? `processor ${key - 1}` : "processor unknown") : model.threads[key].title);
  const titles = own.map(title);
  if (keys.length > own.length) titles.push(`${groupThousands(keys.length - own.length)} others`);
  const laneOfThread = model.threads.map((thread) => lanes.get(thread.index) ?? -1);
  if (state.strip === "cpus") return { titles, laneOf: (row, sample) => (hidden(row) ? -1 : (lanes.get(cpu[sample]) ?? -1)) };
  return { titles, laneOf: (row) => laneOfThread[threads[row]] };
}
