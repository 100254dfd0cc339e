"use strict";
/* Where things are: value -> pixel across, row -> pixel down. */

const ROW = 20;
/** The row of what starts programs and threads. */
const THIN_ROW = 13;
const PAD = 6;
/** Free room beyond the leaves, for what floats there. */
const BEYOND = 60;

class Viewport {
  /**
   * Set by the graph before anything is asked.
   * @type {Tree}
   */
  tree;
  flipped = false;
  /** Of the canvas, in CSS pixels. */
  width = 0;
  height = 0;
  /** Of all rows, in CSS pixels. */
  contentHeight = 0;
  transform = d3.zoomIdentity;

  /** @param {HTMLElement} scroller */
  constructor(scroller) {
    this.scroller = scroller;
  }

  /** Takes the sizes that follow from the scroller and the tree. */
  measure() {
    this.width = this.scroller.clientWidth;
    this.height = this.scroller.clientHeight;
    this.contentHeight = Math.max(this.height, this.rowStart(this.tree.rows) + 2 * PAD + BEYOND);
  }

  get scale() {
    return (this.transform.k * this.width) / (this.tree.total || 1);
  }

  /** @type {(value: number) => number} */
  pixel(value) {
    return value * this.scale + this.transform.x;
  }

  /** @type {(pixel: number) => number} */
  valueAt(pixel) {
    return (pixel - this.transform.x) / this.scale;
  }

  /** @type {(row: number) => number} */
  rowHeight(row) {
    return row === this.tree.thin ? THIN_ROW : ROW;
  }

  /**
   * Pixels from the root's edge to a row's.
   * @type {(row: number) => number}
   */
  rowStart(row) {
    return row * ROW - (this.tree.thin >= 0 && row > this.tree.thin ? ROW - THIN_ROW : 0);
  }

  /**
   * Top of a row in the scrolled content.
   * @type {(row: number) => number}
   */
  rowTop(row) {
    return this.flipped ? this.contentHeight - PAD - this.rowStart(row) - this.rowHeight(row) : this.rowStart(row) + PAD;
  }

  /** @type {(y: number) => number} */
  rowAt(y) {
    const down = y + this.scroller.scrollTop;
    const away = this.flipped ? this.contentHeight - PAD - down : down - PAD;
    const { thin } = this.tree;
    if (thin < 0 || away < thin * ROW) return Math.floor(away / ROW);
    return Math.max(thin, Math.floor((away + ROW - THIN_ROW) / ROW));
  }

  /**
   * Where a node stands in the canvas, in CSS pixels; it may lie outside.
   * @type {(node: number) => { x: number; y: number; width: number; height: number }}
   */
  rectangle(node) {
    const { tree } = this;
    const y = this.rowTop(tree.depth[node]) - this.scroller.scrollTop;
    return { x: this.pixel(tree.x[node]), y, width: tree.value[node] * this.scale, height: this.rowHeight(tree.depth[node]) - 1 };
  }
}
