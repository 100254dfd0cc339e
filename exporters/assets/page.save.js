"use strict";
/* The visible part as a file: pictures as they are drawn, stacks as collapsed text. */

/** What a graph's pen draws, as SVG. Only what Graph uses of a canvas's context. */
class SvgPen {
  /** @param {string} pattern what stands for stripes */
  constructor(pattern) {
    this.pattern = pattern;
    /** @type {string[]} */
    this.parts = [];
    this.path = "";
    this.globalAlpha = 1;
    /** @type {string | CanvasPattern} */
    this.fillStyle = "";
    this.strokeStyle = "";
    this.lineWidth = 1;
    this.font = "";
    this.textBaseline = "";
  }

  setTransform() {}

  beginPath() {
    this.path = "";
  }

  /** @type {(x: number, y: number, width: number, height: number, radius?: number) => void} */
  rect(x, y, width, height, radius = 0) {
    const [left, top, wide, high] = [x, y, width, height].map((part) => Number(part.toFixed(2)));
    this.path = `<rect x="${left}" y="${top}" width="${wide}" height="${high}"${radius ? ` rx="${radius}"` : ""}`;
  }

  /** @type {(x: number, y: number, width: number, height: number, radius: number) => void} */
  roundRect(x, y, width, height, radius) {
    this.rect(x, y, width, height, radius);
  }

  get paint() {
    return `fill="${typeof this.fillStyle === "string" ? this.fillStyle : this.pattern}"${this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : ""}`;
  }

  fill() {
    this.parts.push(`${this.path} ${this.paint}/>`);
  }

  stroke() {
    this.parts.push(`${this.path} fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"/>`);
  }

  /** @type {(x: number, y: number, width: number, height: number) => void} */
  fillRect(x, y, width, height) {
    this.rect(x, y, width, height);
    this.fill();
  }

  /** @type {(text: string, x: number, y: number) => void} */
  fillText(text, x, y) {
    const size = parseFloat(this.font);
    this.parts.push(`<text x="${x.toFixed(2)}" y="${(y + size * 0.35).toFixed(2)}" font-size="${size}" ${this.paint}>${xmlText(text)}</text>`);
  }
}

/** @type {(text: string) => string} */
function xmlText(text) {
  /** @type {Record<string, string>} */
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return text.replace(/[&<>"]/g, (char) => names[char]).replace(/[^\t\n\r -\ud7ff\ue000-\ufffd]/gu, "\ufffd");
}

/** @type {(graphs: Graph[]) => string} */
function svgText(graphs) {
  const parts = [];
  let height = 0;
  for (const each of graphs) {
    const pen = new SvgPen(SPECIAL[state.theme].stripe);
    const { pen: own } = each;
    each.pen = /** @type {any} */ (pen);
    each.draw();
    each.pen = own;
    parts.push(`<svg y="${height}" width="${each.width}" height="${each.height}" font-family="ui-monospace, monospace">`, ...pen.parts, "</svg>");
    height += each.height;
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${graphs[0].width}" height="${height}">${parts.join("\n")}</svg>\n`;
}

/** @type {(graphs: Graph[]) => Promise<Blob>} */
function pngBlob(graphs) {
  const picture = element("canvas");
  picture.width = Math.max(...graphs.map((each) => each.canvas.width));
  picture.height = graphs.reduce((sum, each) => sum + each.canvas.height, 0);
  let top = 0;
  for (const each of graphs) {
    each.draw();
    penOf(picture).drawImage(each.canvas, 0, top);
    top += each.canvas.height;
  }
  return new Promise((done) => picture.toBlob((blob) => done(blob ?? new Blob()), "image/png"));
}

/** As in exporters/collapsed.py: separators, controls, changes of writing direction. */
// eslint-disable-next-line no-control-regex
const BREAKS = /[;\u0000-\u001f\u007f-\u009f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** @type {(name: string) => string} */
function escapeName(name) {
  /** @type {Record<string, string>} */
  const short = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
  return name.replace(BREAKS, (char) => {
    const code = char.charCodeAt(0).toString(16);
    return short[char] ?? (code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`);
  });
}

/**
 * Collapsed stacks of what is zoomed to, in the weight that is shown; frames as they are drawn, the root left out.
 * @type {(of: Tree, zoomed: number) => string}
 */
function collapsedText(of, zoomed) {
  const names = Array.from({ length: of.n }, (_, node) => escapeName(nameOf(model, of, node)));
  const inside = new Uint8Array(of.n);
  inside[zoomed] = 1;
  const lines = [];
  for (let node = 0; node < of.n; node++) {
    if (node > zoomed && of.parent[node] >= 0) inside[node] ||= inside[of.parent[node]];
    const own = Math.round(of.self[node] * (model.valueTypes[state.metric][1] === "share" ? 1e6 : 1));
    if (!inside[node] || own <= 0 || node === 0) continue;
    const stack = [];
    for (let at = node; at > 0; at = of.parent[at]) if (of.frame[at] !== model.gap) stack.push(names[at]);
    lines.push(`${(of.bottomUp ? stack : stack.reverse()).join(";")} ${own}\n`);
  }
  return lines.sort().join("");
}

/** @type {(kind: string) => Promise<void>} */
async function save(kind) {
  const graphs = state.view === "sandwich" && halves ? Object.values(halves.halves) : [graph];
  const name = model.title.replace(/[^\w.-]+/g, "-").replace(/^-|-$/g, "") || "profile";
  if (kind === "svg") download(`${name}.svg`, new Blob([svgText(graphs)], { type: "image/svg+xml" }));
  else if (kind === "png") download(`${name}.png`, await pngBlob(graphs));
  else download(`${name}.collapsed`, new Blob([collapsedText(tree, graph.zoomed)], { type: "text/plain" }));
}

/** @type {(name: string, blob: Blob) => void} */
function download(name, blob) {
  const url = URL.createObjectURL(blob);
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
