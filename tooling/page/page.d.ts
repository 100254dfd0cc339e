/** The page's types, for its scripts' comments (exporters/assets/page.*.js). Columns have one entry a row. */

declare const d3: typeof import("d3-format") &
  typeof import("d3-interpolate") &
  typeof import("d3-selection") &
  typeof import("d3-transition") &
  typeof import("d3-zoom");
type CanvasZoom = import("d3-zoom").ZoomBehavior<HTMLCanvasElement, unknown>;
type CanvasSelection = import("d3-selection").Selection<HTMLCanvasElement, unknown, null, undefined>;
type ZoomEvent = import("d3-zoom").D3ZoomEvent<HTMLCanvasElement, unknown>;
type ZoomTransform = import("d3-zoom").ZoomTransform;

type Theme = "light" | "dark";
type ValueType = [type: string, unit: string];
type Column = Int32Array | Float64Array | Uint8Array | number[];

// What flamegraph.py writes (_data)

/** Texts are indices into strings; modules -1 where there is none. */
interface Data {
  title: string;
  /** Nanoseconds since 1970, as decimal digits: more than a number holds. */
  startNs: string;
  durationNs: number;
  periodNs: number;
  valueTypes: ValueType[];
  groupByThread: boolean;
  groupByProcess: boolean;
  /** Names of the bits in nodes.trust. */
  trusts: string[];
  modules: [path: number, buildId: number][];
  frames: { name: number[]; group: number[]; module: number[]; kind: number[]; application: number[] };
  /** parent: how many nodes before this one. */
  nodes: {
    parent: number[];
    frame: number[];
    how: number[];
    start: number[];
    trust: number[];
    place: number[];
    places: number[];
  };
  /** values: one column a value type. */
  timeline: Timeline;
  samples: { leaf: number[]; thread: number[]; values: number[][] };
  threads: [pid: number, tid: number, name: number, process: number][];
  labels: [name: string, value: string][];
  summary: Summary;
  words: Words;
  strings: string[];
  source?: SourceData;
  /** Of two recordings: see comparison_file.py. */
  changes?: Changes;
}

/** What is shown in part only: see WORDS in flamegraph.py. */
interface Words {
  notSampled: string;
  cutShort: string;
  notExpanded: string;
  noSource: string;
  sourceChanged: string;
  /** Has {rows} and {all}. */
  firstRows: string;
}

/** See flamegraph_tree.py. of: by row of samples. */
interface SourceData {
  files: [path: string, changed: number, parts: [first: number, lines: string[]][]][];
  file: number[];
  line: number[];
  frame: number[];
  parent: number[];
  place: number[];
  of: number[];
}

interface Source extends Omit<SourceData, "parent" | "place"> {
  parent: Int32Array;
  place: Int32Array;
  again: Uint8Array;
}

/** factors: what the values before and after are multiplied by. drift: by which part all functions changed together. */
interface Changes {
  titles: string[];
  words: string;
  factors: number[];
  drift: number;
  doubt: string;
  caution: string;
  own: Amounts;
  total: Amounts;
}

/** By frame. sure: 1 where the change is more than chance. unknown: 1 where a zero says nothing. */
interface Amounts {
  before: number[];
  after: number[];
  unknown: number[];
  sure: number[];
}

/** See flamegraph_samples.py. */
interface Timeline {
  count: number;
  tickNs: number;
  ticks: number;
  originNs: number;
  spanNs: number;
  gaps: TimeRange[];
  widths: number[];
  same: number[];
  units: number[];
}

interface Problem {
  text: string;
  hint: string;
}

interface ModuleSummary {
  path: string;
  build_id: string;
  frames: number;
  problems: Problem[];
}

/** Summary.to_json: what of it the page shows. */
interface Summary {
  samples: number;
  threads: number;
  rate_wanted: number;
  rate_reached: number;
  skipped: number;
  trust: Record<string, number>;
  stops: { count: number; p50_us: number; p99_us: number; max_us: number; share: number };
  not_stopped: { unchanged: number; blocked: number };
  modules: ModuleSummary[];
  profiler: { cpu_s: number; max_rss_kb: number };
  notes: { reason: string; arguments: Record<string, string | number>; text: string }[];
  shown: { type: string; unit: string; total: number; ends: Record<string, number>; not_shown?: Record<string, number> };
  warnings: Problem[];
  counters: { name: string; count: number; title: string; stage: string; meaning: string; hint: string }[];
  reasons: Record<string, { title: string; stage: string; meaning: string; hint: string }>;
}

// What page.model.js makes of it

/** A function, or what stands for one. key: of roots, processes and threads; else "". */
interface Frame {
  name: string;
  group: string;
  module: number;
  kind: number;
  /** Whether it belongs to neither a library nor a runtime. */
  application: boolean;
  key: string;
  /** How it changed, on a page of two recordings. */
  change: string;
}

interface Thread {
  index: number;
  pid: number;
  tid: number;
  title: string;
  process: string;
  frame: number;
}

interface Process {
  pid: number;
  title: string;
  threads: Thread[];
  frame: number;
}

/** The samples one by one, in order of time. time: in ticks. cpu: plus 1. longest: of a column's waits. */
interface Samples extends Timeline {
  time: Int32Array;
  row: Int32Array;
  cpu: Int32Array;
  values: Int32Array[];
  longest: number[];
  hasCpu: boolean;
  periodNs: number;
}

/** Nanoseconds since the recording began; the second is outside. */
type TimeRange = [from: number, to: number];

interface Lane {
  title: string;
  bins: Float64Array;
}

interface Model extends Omit<Data, "frames" | "threads" | "modules" | "timeline" | "source"> {
  timeline: Samples;
  source?: Source;
  frames: Frame[];
  /** How many of the frames are functions: the first ones. */
  functions: number;
  /** Frames that stand for something else: indices. */
  root: number;
  startUp: number;
  gap: number;
  threads: Thread[];
  processes: Process[];
  /** By node. */
  parent: Int32Array;
  frame: Int32Array;
  cut: Int32Array;
  how: number[];
  start: number[];
  trust: number[];
  places: number[];
  place(node: number): string;
  startFrames: number[];
  /** By sample. */
  leaf: Int32Array;
  whole: Float64Array[];
  /** Thread index -> samples. */
  rowsOf: number[][];
  /** The same, of the range of time that is shown. */
  values: Float64Array[];
  leavesOf: number[][];
  countColumn: number;
  modules: { path: string; buildId: string }[];
  /** Kept between views. */
  contracted?: { asked: string; folded: Folded };
  scratch?: { value: Float64Array; count: Float64Array; stamp: Int32Array; map: Int32Array; mark: number };
}

interface FoldOptions {
  rounds: number;
  foldStart: boolean;
  opened: Set<string>;
}

interface Folded {
  rep: Int32Array;
  parent: Int32Array;
  key: Int32Array;
  trust: Int32Array | number[];
  rounds: Int32Array;
  cycles: number[][];
  merges: boolean;
}

interface TreeOptions extends FoldOptions {
  byThread: boolean;
  byProcess: boolean;
  bottomUp: boolean;
  inOrder: boolean;
  range: TimeRange | null;
  metric: number;
  hidden: Set<number>;
  collapsed: Set<string>;
}

/** See page.tree.js; columns by node. */
interface Tree {
  n: number;
  parent: Int32Array;
  frame: Int32Array;
  src: Int32Array;
  trust: Int32Array;
  value: Float64Array;
  count: Float64Array;
  self: Float64Array;
  x: Float64Array;
  depth: Int32Array;
  rounds: Int32Array;
  cycle: Map<number, number[]>;
  firstChild: Int32Array;
  endChild: Int32Array;
  more: Set<number>;
  rowStart: number[];
  rows: number;
  total: number;
  totalCount: number;
  /** What shares are of: the page's total. */
  whole: number;
  bottomUp: boolean;
  inOrder: boolean;
  thin: number;
}

/** A node of the model, and what of its samples is counted there. */
type Pointer = [node: number, value: number, count: number];

interface Search {
  hits: number[];
  value: number;
  nodes: Uint8Array;
  functions: number;
}

interface FunctionRow {
  frame: number;
  self: number;
  total: number;
  count: number;
}

// What page.app.js holds

type SortColumn = (typeof SORT_COLUMNS)[number];
type Sort = [column: SortColumn, descending: boolean];

interface State {
  view: (typeof VIEWS)[number];
  flipped: boolean;
  bottomUp: boolean;
  inOrder: boolean;
  byThread: boolean;
  byProcess: boolean;
  fold: boolean;
  foldStart: boolean;
  opened: Set<string>;
  metric: number;
  hidden: Set<number>;
  collapsed: Set<string>;
  query: string;
  group: string | null;
  picked: number;
  /** The function whose callers and callees are shown. */
  center: number;
  /** The source file that was chosen; -1: the one of that function. */
  file: number;
  hit: number;
  /** Where the graph is zoomed to: see placesOf. */
  zoom: string;
  range: TimeRange | null;
  strip: (typeof STRIPS)[number];
  colour: (typeof COLOURS)[number];
  sort: Sort;
  theme: Theme;
}

type Direction = "in" | "out" | "left" | "right";

interface GraphEvents {
  hover(node: number, x: number, y: number): void;
  zoom(node: number): void;
  focus(node: number): void;
  /** Did the click open or close something? */
  open(node: number, onCaret: boolean): boolean;
}

/** A part of a name's path; type and trait of a part like <type as trait>. */
interface NamePart {
  name: string;
  generic: string;
  type?: string;
  trait?: string;
}

type Attribute = string | number | boolean | null | ((event: Event) => void);
type Child = Node | string | null | undefined;

/** The elements of page.html that scripts ask for, by id. */
interface Elements extends Record<ButtonId | OtherId, HTMLElement> {
  graph: HTMLCanvasElement;
  metric: HTMLSelectElement;
  search: HTMLInputElement;
  from: HTMLInputElement;
  to: HTMLInputElement;
  "strip-mode": HTMLSelectElement;
  colour: HTMLSelectElement;
  save: HTMLSelectElement;
  timeline: HTMLCanvasElement;
  "callers-graph": HTMLCanvasElement;
  "callees-graph": HTMLCanvasElement;
  "source-file": HTMLSelectElement;
  "by-thread": HTMLInputElement;
  "by-process": HTMLInputElement;
  "help-dialog": HTMLDialogElement;
}
type ButtonId =
  | "summary" | "theme" | "help" | "view-graph" | "view-table" | "icicle" | "flame" | "top-down" | "bottom-up" | "in-order" | "fold"
  | "start" | "threads" | "previous" | "next" | "reset" | "all-threads" | "no-threads" | "collapse-threads" | "expand-threads"
  | "undo" | "whole" | "view-sandwich" | "center-pick" | "view-source" | "center-source"
  | "source-look" | "controls";
type OtherId =
  | "title" | "warnings" | "facts" | "problems" | "levels" | "matched" | "graph-view" | "scroller" | "spacer" | "zoom-bar"
  | "zoom-name" | "zoom-share" | "empty" | "table-view" | "function-head" | "by-process-row" | "rows" | "rows-note" | "threads-panel" | "thread-list"
  | "summary-panel" | "summary-body" | "legend" | "tooltip" | "announce" | "profile" | "shown" | "total" | "samples" | "strip"
  | "sandwich-view" | "center" | "center-name" | "center-facts" | "callers" | "callers-spacer" | "callees" | "callees-spacer"
  | "source-view" | "source-head" | "source-name" | "source-note" | "source-lines" | "functions-table" | "changes" | "changed" | "changed-head";
