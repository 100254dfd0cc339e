"use strict";
/* The time line: one line for each value of a label, a range is dragged. */

const LINE_HEIGHT = 220;
const LINE_COLOURS = ["--accent", "--hit", "--good", "--warn", "--bad", "--soft"];

/** @type {(name: string) => string} */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** chosen: what was dragged; null: all of it. @type {(found: LineAnswer, place: Place, chosen: (span: Span | null) => void) => HTMLElement} */
function timeLine(found, place, chosen) {
  const holder = element("div", { id: "line", role: "img", ariaLabel: lineWords(found) });
  const per = found.unit === "nanoseconds" ? 1e9 : 1;
  const data = /** @type {uPlot.AlignedData} */ ([
    found.times,
    ...found.series.map(({ rates }) => rates.map((rate) => (rate === null ? null : rate / per))),
  ]);
  const series = found.series.map(({ value }, at) => ({
    label: value || "all",
    stroke: colour(LINE_COLOURS[at % LINE_COLOURS.length]),
    width: 1.5,
    spanGaps: false,
    points: { show: found.times.length < 400, size: 4 },
  }));
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  requestAnimationFrame(() => {
    if (!holder.isConnected) return;
    const plot = new uPlot(
      {
        width: holder.clientWidth - 8,
        height: LINE_HEIGHT,
        series: [{}, ...series],
        axes: [axis, { ...axis, size: 56 }],
        cursor: { drag: { setScale: false, x: true, y: false } },
        scales: { y: { range: (_plot, _least, most) => [0, most || 1] } },
        hooks: { setSelect: [(self) => dragged(self, chosen)] },
      },
      data,
      holder,
    );
    if (place.chosen) showChosen(plot, place.chosen);
    new ResizeObserver(() => plot.setSize({ width: holder.clientWidth - 8, height: LINE_HEIGHT })).observe(holder);
  });
  return holder;
}

/** @type {(plot: uPlot, chosen: (span: Span | null) => void) => void} */
function dragged(plot, chosen) {
  const { left, width } = plot.select;
  if (width < 3) return;
  chosen({ from: plot.posToVal(left, "x"), to: plot.posToVal(left + width, "x") });
}

/** @type {(plot: uPlot, span: Span) => void} */
function showChosen(plot, { from, to }) {
  const left = plot.valToPos(from, "x"), right = plot.valToPos(to, "x");
  plot.setSelect({ left, width: right - left, top: 0, height: plot.over.clientHeight }, false);
}

/** What a reader of the screen hears in place of the picture. @type {(found: LineAnswer) => string} */
function lineWords(found) {
  const parts = found.series.map(({ value, amounts }) => {
    const sum = amounts.reduce((all, amount) => (all || 0) + (amount || 0), 0) || 0;
    return `${value || "all"} ${formatValue(sum, ["", found.unit])}`;
  });
  return `Time line. ${parts.join(", ")}`;
}
