/** The types of the fleet's page (profiler/fleet/server/assets/fleet.*.js): what the server answers, and what is shown. */


// What page.format.js and page.theme.js need of the recording's page
declare const d3: typeof import("d3-format");
type Theme = "light" | "dark";
type ValueType = [type: string, unit: string];
interface Model {
  words: { firstRows: string };
}

/** Seconds since 1970. */
interface Span {
  from: number;
  to: number;
}

/** What the page's address says. chosen: the range that was dragged; a, b: what is compared. */
interface Place {
  page: string;
  service: string;
  type: string;
  by: string;
  span: number;
  chosen: Span | null;
  a: string;
  b: string;
  labels: Record<string, string>;
}

/** Rows that were left out of an answer. */
interface Rest {
  count: number;
  amount: number;
}

/** rate: amount per second of recorded time; recorded: seconds. */
interface ServicesAnswer {
  unit: string;
  services: {
    service: string;
    amount: number;
    before: number | null;
    rate: number | null;
    rate_before: number | null;
    recorded: number | null;
    hosts: number;
    windows: number;
    windows_without_host: number;
  }[];
  rest: Rest | null;
}

/** samples, ranges: null where values are measured and not sampled. A range holds the true share with 95 % probability. */
interface FunctionsAnswer {
  unit: string;
  total: number;
  unsampled: number;
  samples: number | null;
  functions: {
    function: string;
    module: string;
    own: number;
    total: number;
    own_range: [number, number] | null;
    total_range: [number, number] | null;
    services: string[];
    more_services: number;
  }[];
  rest: Rest | null;
}

/** unnamed, cut: of the amount, in functions without names, and in stacks that were cut there. hint: a command. */
interface BuildsAnswer {
  unit: string;
  builds: { build_id: string; path: string; amount: number; unnamed: number; cut: number; hint: string }[];
  rest: Rest | null;
}

interface LabelsAnswer {
  labels: Record<string, string[]>;
}

/** amounts, and rates per recorded second: null where no window is. */
interface LineAnswer {
  unit: string;
  step: number;
  times: number[];
  series: { value: string; amounts: (number | null)[]; rates: (number | null)[] }[];
  rest: Rest | null;
}

interface TableColumn {
  title: string;
  kind: string;
}
