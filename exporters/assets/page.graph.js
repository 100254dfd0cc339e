"use strict";
/*
 * The graph on a canvas: only the rows on the screen are drawn, and in a row only what is as wide as a pixel, so a
 * frame costs the same whatever the size of the tree. d3-zoom does zooming and panning across, the scroll bar up
 * and down.
 */

const ROW = 20;
/** The row of what starts programs and threads. */
const THIN_ROW = 13;
const THIN_FONT = '10px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const FONT = '12px ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const PAD = 6;
/** Free room beyond the leaves, for what floats there. */
const BEYOND = 60;

class Graph {
  /** on: hover(node, x, y), zoom(node), focus(node); open(node, onCaret): did the click open or close something? */
  constructor(scroller, canvas, on) {
    this.scroller = scroller;
    this.spacer = canvas.parentElement;
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.on = on;
    this.tree = null;
    this.flipped = false;
    this.hover = this.focus = -1;
    this.zoomed = 0;
    this.search = null;
    this.transform = d3.zoomIdentity;
    this.frameRequest = 0;
    this.pen.font = FONT;
    this.charWidth = this.pen.measureText("0".repeat(100)).width / 100;
    this.fitted = new Map();
    this.zoom = d3
      .zoom()
      .filter((event) => (event.type === "wheel" ? event.ctrlKey || event.metaKey : !event.button))
      .interpolate(d3.interpolate)
      .on("zoom", (event) => this.zoomTick(event));
    this.selection = d3.select(canvas).call(this.zoom).on("dblclick.zoom", null);
    canvas.addEventListener("mousemove", (event) => this.pointAt(event));
    canvas.addEventListener("mouseleave", () => this.setHover(-1));
    canvas.addEventListener("click", (event) => this.click(event));
    canvas.addEventListener("wheel", (event) => this.panByWheel(event), { passive: false });
    scroller.addEventListener("scroll", () => {
      this.setHover(-1);
      this.request();
    });
    new ResizeObserver(() => this.resize()).observe(scroller);
  }

  // What is shown

  setTree(model, tree) {
    this.model = model;
    this.tree = tree;
    this.hover = this.focus = -1;
    this.zoomed = 0;
    const least = tree.value.reduce((least, value) => (value > 0 && value < least ? value : least), Infinity);
    this.zoom.scaleExtent([1, Math.max(1, Math.min(1e9, (2 * tree.total) / least || 1))]);
    this.transform = d3.zoomIdentity;
    this.resize();
    this.selection.interrupt().call(this.zoom.transform, d3.zoomIdentity);
    this.scroller.scrollTop = this.flipped ? this.scroller.scrollHeight : 0;
    this.request();
  }

  setColours(colours, theme) {
    this.colours = colours;
    this.theme = SPECIAL[theme];
    this.pattern = stripes(this.pen, theme);
    this.request();
  }

  /** nodes: 1 for each that matches, or null. */
  setSearch(nodes) {
    this.search = nodes;
    this.request();
  }

  setFlipped(flipped) {
    this.flipped = flipped;
    this.scroller.scrollTop = flipped ? this.scroller.scrollHeight : 0;
    this.request();
  }

  // Geometry: value -> pixel across, row -> pixel down

  get scale() {
    return (this.transform.k * this.width) / (this.tree.total || 1);
  }

  pixel(value) {
    return value * this.scale + this.transform.x;
  }

  valueAt(pixel) {
    return (pixel - this.transform.x) / this.scale;
  }

  rowHeight(row) {
    return row === this.tree.thin ? THIN_ROW : ROW;
  }

  /** Pixels from the root's edge to a row's. */
  rowStart(row) {
    return row * ROW - (this.tree.thin >= 0 && row > this.tree.thin ? ROW - THIN_ROW : 0);
  }

  /** Top of a row in the scrolled content. */
  rowTop(row) {
    return this.flipped ? this.contentHeight - PAD - this.rowStart(row) - this.rowHeight(row) : this.rowStart(row) + PAD;
  }

  rowAt(y) {
    const down = y + this.scroller.scrollTop;
    const away = this.flipped ? this.contentHeight - PAD - down : down - PAD;
    const { thin } = this.tree;
    if (thin < 0 || away < thin * ROW) return Math.floor(away / ROW);
    return Math.max(thin, Math.floor((away + ROW - THIN_ROW) / ROW));
  }

  resize() {
    if (!this.tree) return;
    if (!this.scroller.clientWidth || !this.scroller.clientHeight) return; // another view is shown: all keeps its place
    const old = this.width;
    this.width = this.scroller.clientWidth;
    this.height = this.scroller.clientHeight;
    this.contentHeight = Math.max(this.height, this.rowStart(this.tree.rows) + 2 * PAD + BEYOND);
    this.spacer.style.height = `${this.contentHeight}px`;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.zoom.extent([[0, 0], [this.width, this.height]]);
    this.zoom.translateExtent([[0, -Infinity], [this.width, Infinity]]);
    if (old && old !== this.width) {
      const { k, x } = this.transform;
      this.selection.call(this.zoom.transform, d3.zoomIdentity.translate((x * this.width) / old, 0).scale(k));
    }
    this.draw();
  }

  // Zooming and pointing

  zoomTick(event) {
    const { k, y } = this.transform;
    this.transform = event.transform;
    if (event.sourceEvent) {
      // A drag, with mouse or finger, also scrolls: d3's own y has no other meaning here.
      if (event.transform.k === k) this.scroller.scrollTop -= event.transform.y - y;
      this.setHover(-1);
    }
    this.request();
  }

  /** A wheel or touchpad that moves sideways pans; up and down is left to the scroll bar. */
  panByWheel(event) {
    const across = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey || (!event.shiftKey && Math.abs(across) <= Math.abs(event.deltaY))) return;
    event.preventDefault();
    this.zoom.translateBy(this.selection, -across / this.transform.k, 0);
  }

  /** Makes a node fill the width; node 0 is everything. */
  zoomTo(node, animate = true) {
    if (!this.tree.value[node]) return;
    this.zoomed = node;
    this.setHover(-1);
    const k = this.tree.total / this.tree.value[node];
    const x = (-this.tree.x[node] / this.tree.total) * this.width * k;
    const still = !animate || matchMedia("(prefers-reduced-motion: reduce)").matches;
    const target = still ? this.selection : this.selection.transition().duration(220);
    target.call(this.zoom.transform, d3.zoomIdentity.translate(x, 0).scale(k));
    this.reveal(node);
    this.on.zoom(node);
  }

  /** Scrolls until a node's row is on the screen, with a few of its callers. */
  reveal(node) {
    const top = this.rowTop(this.tree.depth[node]);
    const view = this.scroller.scrollTop;
    if (top < view + ROW || top > view + this.height - 2 * ROW) {
      this.scroller.scrollTop = top - (this.flipped ? this.height - 4 * ROW : 3 * ROW);
    }
  }

  nodeUnder(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = this.rowAt(event.clientY - box.top);
    const node = nodeAt(this.tree, row, this.valueAt(event.clientX - box.left));
    return this.isGap(node) ? -1 : node;
  }

  isGap(node) {
    return node >= 0 && this.tree.frame[node] === this.model.gap;
  }

  pointAt(event) {
    if (event.buttons) return;
    this.setHover(this.nodeUnder(event), event.clientX, event.clientY);
  }

  setHover(node, x, y) {
    if (node < 0 && this.hover < 0) return;
    const changed = node !== this.hover;
    this.hover = node;
    this.on.hover(node, x, y);
    this.canvas.style.cursor = node >= 0 ? "pointer" : "default";
    if (changed) this.request();
  }

  click(event) {
    const node = this.nodeUnder(event);
    if (node < 0) return;
    this.setFocus(node);
    const left = Math.max(0, this.pixel(this.tree.x[node]));
    const onCaret = event.clientX - this.canvas.getBoundingClientRect().left < left + 20;
    if (!this.on.open(node, onCaret)) this.zoomTo(node === this.zoomed ? 0 : node);
  }

  setFocus(node) {
    this.focus = node;
    this.on.focus(node);
    this.request();
  }

  /** where: "in" (first child), "out" (parent), "left", "right" (siblings on the row). */
  moveFocus(where) {
    const { tree } = this;
    let at = this.focus;
    const step = (from) => {
      if (where === "out") return Math.max(0, tree.parent[from]);
      if (where === "in") return tree.endChild[from] > tree.firstChild[from] ? tree.firstChild[from] : from;
      const next = from + (where === "left" ? -1 : 1);
      return next >= 0 && next < tree.n && tree.depth[next] === tree.depth[from] ? next : from;
    };
    if (at < 0) at = this.zoomed;
    else {
      const from = at;
      at = step(at);
      if (this.isGap(at)) at = step(at);
      if (this.isGap(at)) at = from;
    }
    this.setFocus(at);
    this.reveal(at);
    const [left, right] = [this.pixel(tree.x[at]), this.pixel(tree.x[at] + tree.value[at])];
    if (right < 1 || left > this.width - 1) this.zoomTo(Math.max(0, tree.parent[at]), false);
  }

  // Drawing

  request() {
    this.frameRequest ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frameRequest);
    this.frameRequest = 0;
    if (!this.tree || !this.theme || !this.width) return;
    const { pen } = this;
    const ratio = this.canvas.width / this.width;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.theme.page;
    pen.fillRect(0, 0, this.width, this.height);
    pen.font = FONT;
    pen.textBaseline = "middle";
    const one = this.rowAt(0);
    const two = this.rowAt(this.height);
    const first = Math.max(0, Math.min(one, two));
    const last = Math.min(this.tree.rows - 1, Math.max(one, two));
    for (let row = first; row <= last; row++) this.drawRow(row, this.rowTop(row) - this.scroller.scrollTop);
    for (const node of [this.hover, this.focus]) if (node >= 0) this.outline(node);
  }

  drawRow(row, y) {
    const { tree, scale } = this;
    const end = tree.rowStart[row + 1];
    const limit = this.valueAt(this.width);
    const faded = row < tree.depth[this.zoomed];
    const height = this.rowHeight(row) - 1;
    let at = firstEndingAfter(tree, row, this.valueAt(0));
    while (at < end && tree.x[at] < limit) {
      const left = this.pixel(tree.x[at]);
      const width = tree.value[at] * scale;
      if (this.isGap(at)) {
        at++;
        continue;
      }
      if (width >= 1) {
        this.drawNode(at, left, y, width, height, faded);
        at++;
        continue;
      }
      // Too thin to be seen alone: everything that ends within this pixel is drawn as one, as its heaviest part.
      let heaviest = at;
      let reached = left + width;
      at++;
      while (at < end) {
        const next = tree.value[at] * scale;
        const start = this.pixel(tree.x[at]);
        if (next >= 1 || start + next > left + 1 || start > reached + 1 || this.isGap(at)) break;
        if (tree.value[at] > tree.value[heaviest]) heaviest = at;
        reached = start + next;
        at++;
      }
      this.pen.globalAlpha = Math.max(0.25, Math.min(1, reached - left)) * (faded ? 0.5 : 1);
      this.pen.fillStyle = this.fill(heaviest);
      this.pen.fillRect(left, y, Math.max(0.6, reached - left), height);
      this.pen.globalAlpha = 1;
    }
  }

  fill(node) {
    const frame = this.tree.frame[node];
    if (this.search && this.search[node]) return this.theme.hit;
    return this.model.frames[frame].kind === KIND.MARKER ? this.pattern : this.colours[frame];
  }

  drawNode(node, left, y, width, height, faded) {
    const { pen, model, tree } = this;
    const frame = tree.frame[node];
    const x = Math.max(-4, left);
    const shown = Math.min(left + width, this.width + 4) - x;
    const gap = shown > 3 ? 1 : 0;
    const hit = this.search && this.search[node];
    const same = this.hover >= 0 && tree.frame[this.hover] === frame && frame !== model.root && frame !== model.startUp;
    pen.globalAlpha = this.search && !hit ? 0.3 : faded ? 0.5 : 1;
    pen.fillStyle = this.fill(node);
    pen.beginPath();
    if (shown > 8) pen.roundRect(x, y, shown - gap, height, 3);
    else pen.rect(x, y, Math.max(0.6, shown - gap), height);
    pen.fill();
    if (same) {
      pen.globalAlpha = 0.16;
      pen.fillStyle = this.theme.outline;
      pen.fill();
    }
    if (shown > 24) {
      const { kind } = model.frames[frame];
      const start = Math.max(0, x) + 5;
      const room = Math.floor((Math.min(x + shown, this.width) - gap - start - 3) / this.charWidth);
      pen.font = kind === KIND.START ? THIN_FONT : FONT;
      const text = this.label(frame, kind, room, node);
      pen.globalAlpha = this.search && !hit ? 0.55 : faded ? 0.75 : 1;
      if (text && kind === KIND.MARKER && !hit) {
        pen.fillStyle = this.theme.marker;
        pen.fillRect(start - 2, y + 2, Math.min(shown - 6, text.length * this.charWidth + 4), ROW - 5);
      }
      pen.fillStyle = hit ? this.theme.hitText : this.theme.text;
      if (text) pen.fillText(text, start, y + (height + 1) / 2, Math.max(1, (room + 1) * this.charWidth));
    }
    pen.globalAlpha = 1;
  }

  label(frame, kind, room, node) {
    const { name } = this.model.frames[frame];
    if (kind === KIND.ROOT) return fitName(`${name} · ${this.totalText}`, room) || fitName(name, room);
    if (kind === KIND.START) return room > 10 ? "▸ start-up" : "";
    if (kind >= KIND.PROCESS) {
      const open = this.tree.endChild[node] > this.tree.firstChild[node];
      return room > 2 ? `${open ? "▾" : "▸"} ${fitName(name, room - 2)}` : "";
    }
    if (this.tree.rounds[node]) return blockText(blockNames(this.model, this.tree, node), this.tree.rounds[node], room);
    const key = frame * 512 + Math.min(room, 511);
    let text = this.fitted.get(key);
    if (text === undefined) {
      if (this.fitted.size > 50000) this.fitted.clear();
      text = fitName(name, room);
      this.fitted.set(key, text);
    }
    return text;
  }

  /** Where a node stands in the canvas, in CSS pixels; it may lie outside. */
  rectangle(node) {
    const { tree } = this;
    const y = this.rowTop(tree.depth[node]) - this.scroller.scrollTop;
    return { x: this.pixel(tree.x[node]), y, width: tree.value[node] * this.scale, height: this.rowHeight(tree.depth[node]) - 1 };
  }

  outline(node) {
    const { x, y, width, height } = this.rectangle(node);
    const left = Math.max(-2, x);
    const right = Math.min(this.width + 2, x + width);
    if (right <= left) return;
    this.pen.strokeStyle = this.theme.outline;
    this.pen.lineWidth = node === this.focus ? 2 : 1.25;
    this.pen.beginPath();
    this.pen.roundRect(left + 0.5, y + 0.5, Math.max(1, right - left - 2), height - 1, 3);
    this.pen.stroke();
  }
}
