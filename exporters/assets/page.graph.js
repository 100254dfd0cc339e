"use strict";
/*
 * The graph on a canvas: only the rows on the screen are drawn, and in a row only what is as wide as a pixel, so a
 * frame costs the same whatever the size of the tree. d3-zoom does zooming and panning across, the scroll bar up
 * and down.
 */

const THIN_FONT = '10px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const FONT = '12px ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

class Graph extends Viewport {
  // Set by setTree, resize, setColours and the page before anything is drawn.
  /** @type {Model} */
  model;
  /** @type {string[]} */
  colours;
  /** @type {(typeof SPECIAL)[Theme]} */
  theme;
  /** @type {CanvasPattern} */
  pattern;
  totalText = "";
  /**
   * By node, where frames do not decide.
   * @type {string[] | null}
   */
  nodeColours = null;

  /** @param {HTMLElement} scroller @param {HTMLElement} spacer @param {HTMLCanvasElement} canvas @param {GraphEvents} on */
  constructor(scroller, spacer, canvas, on) {
    super(scroller);
    this.spacer = spacer;
    this.canvas = canvas;
    this.pen = penOf(canvas);
    this.on = on;
    this.hover = this.focus = -1;
    this.zoomed = 0;
    /** @type {Uint8Array | null} */
    this.search = null;
    this.frameRequest = 0;
    this.pen.font = FONT;
    this.charWidth = this.pen.measureText("0".repeat(100)).width / 100;
    /** @type {Map<number, string>} */
    this.fitted = new Map();
    /** @type {CanvasZoom} */
    this.zoom = d3.zoom();
    this.zoom
      .filter((event) => (event.type === "wheel" ? event.ctrlKey || event.metaKey : !event.button))
      .interpolate(d3.interpolate)
      .on("zoom", (event) => this.zoomTick(event));
    /** @type {CanvasSelection} */
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

  /** @type {(model: Model, tree: Tree) => void} */
  setTree(model, tree) {
    this.model = model;
    this.tree = tree;
    this.hover = this.focus = -1;
    this.zoomed = 0;
    const least = tree.value.reduce((best, value) => (value > 0 && value < best ? value : best), Infinity);
    this.zoom.scaleExtent([1, Math.max(1, Math.min(1e9, (2 * tree.total) / least || 1))]);
    this.transform = d3.zoomIdentity;
    this.resize();
    this.selection.interrupt().call(this.zoom.transform, d3.zoomIdentity);
    this.scroller.scrollTop = this.flipped ? this.scroller.scrollHeight : 0;
    this.request();
  }

  /** @type {(colours: string[], theme: Theme) => void} */
  setColours(colours, theme) {
    this.colours = colours;
    this.theme = SPECIAL[theme];
    this.pattern = stripes(this.pen, theme);
    this.request();
  }

  /**
   * nodes: 1 for each that matches, or null.
   * @type {(nodes: Uint8Array | null) => void}
   */
  setSearch(nodes) {
    this.search = nodes;
    this.request();
  }

  /** @type {(flipped: boolean) => void} */
  setFlipped(flipped) {
    this.flipped = flipped;
    this.scroller.scrollTop = flipped ? this.scroller.scrollHeight : 0;
    this.request();
  }

  resize() {
    if (!this.tree) return;
    if (!this.scroller.clientWidth || !this.scroller.clientHeight) return; // another view is shown: all keeps its place
    const old = this.width;
    this.measure();
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

  /** @type {(event: ZoomEvent) => void} */
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

  /**
   * A wheel or touchpad that moves sideways pans; up and down is left to the scroll bar.
   * @type {(event: WheelEvent) => void}
   */
  panByWheel(event) {
    const across = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey || (!event.shiftKey && Math.abs(across) <= Math.abs(event.deltaY))) return;
    event.preventDefault();
    this.zoom.translateBy(this.selection, -across / this.transform.k, 0);
  }

  /**
   * Makes a node fill the width; node 0 is everything.
   * @type {(node: number, animate?: boolean) => void}
   */
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

  /**
   * Scrolls until a node's row is on the screen, with a few of its callers.
   * @type {(node: number) => void}
   */
  reveal(node) {
    const top = this.rowTop(this.tree.depth[node]);
    const view = this.scroller.scrollTop;
    if (top < view + ROW || top > view + this.height - 2 * ROW) {
      this.scroller.scrollTop = top - (this.flipped ? this.height - 4 * ROW : 3 * ROW);
    }
  }

  /** @type {(event: MouseEvent) => number} */
  nodeUnder(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = this.rowAt(event.clientY - box.top);
    const node = nodeAt(this.tree, row, this.valueAt(event.clientX - box.left));
    return this.isGap(node) ? -1 : node;
  }

  /** @type {(node: number) => boolean} */
  isGap(node) {
    return node >= 0 && this.tree.frame[node] === this.model.gap;
  }

  /** @type {(event: MouseEvent) => void} */
  pointAt(event) {
    if (event.buttons) return;
    this.setHover(this.nodeUnder(event), event.clientX, event.clientY);
  }

  /** @type {(node: number, x?: number, y?: number) => void} */
  setHover(node, x = 0, y = 0) {
    if (node < 0 && this.hover < 0) return;
    const changed = node !== this.hover;
    this.hover = node;
    this.on.hover(node, x, y);
    this.canvas.style.cursor = node >= 0 ? "pointer" : "default";
    if (changed) this.request();
  }

  /** @type {(event: MouseEvent) => void} */
  click(event) {
    const node = this.nodeUnder(event);
    if (node < 0) return;
    this.setFocus(node);
    const left = Math.max(0, this.pixel(this.tree.x[node]));
    const onCaret = event.clientX - this.canvas.getBoundingClientRect().left < left + 20;
    if (!this.on.open(node, onCaret)) this.zoomTo(node === this.zoomed ? 0 : node);
  }

  /** @type {(node: number) => void} */
  setFocus(node) {
    this.focus = node;
    this.on.focus(node);
    this.request();
  }

  /**
   * where: "in" (first child), "out" (parent), "left", "right" (siblings on the row).
   * @type {(where: Direction) => void}
   */
  moveFocus(where) {
    const { tree } = this;
    let at = this.focus;
    /** @type {(from: number) => number} */
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

  /** @type {(row: number, y: number) => void} */
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

  /** @type {(node: number) => string | CanvasPattern} */
  fill(node) {
    const frame = this.tree.frame[node];
    if (this.search?.[node]) return this.theme.hit;
    return this.model.frames[frame].kind === KIND.MARKER ? this.pattern : this.nodeColours && this.model.frames[frame].kind < KIND.ROOT ? this.nodeColours[node] : this.colours[frame];
  }

  /** @type {(node: number, left: number, y: number, width: number, height: number, faded: boolean) => void} */
  drawNode(node, left, y, width, height, faded) {
    const { pen, model, tree } = this;
    const frame = tree.frame[node];
    const x = Math.max(-4, left);
    const shown = Math.min(left + width, this.width + 4) - x;
    const gap = shown > 3 ? 1 : 0;
    const hit = this.search?.[node];
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

  /** @type {(frame: number, kind: number, room: number, node: number) => string} */
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

  /** @type {(node: number) => void} */
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
