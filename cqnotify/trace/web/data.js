// SPDX-License-Identifier: MIT
// The data: inflated, its columns made absolute, its rows laid out from top to bottom.

const HEIGHT = { axis: 34, process: 30, pad: 9, state: 26, count: 26, gap: 17 };

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function absolute(differences) {
  const times = new Float64Array(differences.length);
  let now = 0;
  for (let i = 0; i < times.length; i++) times[i] = now += differences[i];
  return times;
}

// Of each lane: its columns as typed arrays, its place, and what it belongs to.
function prepare(raw) {
  const trace = {
    duration: raw.duration,
    texts: raw.texts,
    marks: raw.marks.map(([kind, label, color, shape, short]) => ({ kind, label, color, shape, short })),
    spans: raw.spans.map(([kind, label, color, shape]) => ({ kind, label, color, shape })),
    counts: raw.counts,
    lanes: [],
    rows: [],
    headings: [],
    findings: [],
  };
  let y = HEIGHT.axis;
  raw.processes.forEach((process, number) => {
    if (raw.processes.length > 1) {
      trace.headings.push({ y, name: process.name });
      y += HEIGHT.process;
    }
    const rows = process.rows.map((row) => {
      const made = { ...row, process: number, y, lanes: [] };
      y += HEIGHT.pad;
      for (const lane of row.lanes) {
        made.lanes.push(prepareLane(trace, made, lane, y));
        y += made.lanes.at(-1).height;
      }
      y += HEIGHT.pad;
      made.height = y - made.y;
      trace.rows.push(made);
      return made;
    });
    process.findings.forEach(([since, time, text, severity, row], index) => {
      const { color } = trace.marks.find(({ kind }) => kind === severity);
      const matters = severity !== "information";
      trace.findings.push({ since, time, text, color, matters, row: rows[row], process: number, index });
    });
  });
  trace.findings.sort((a, b) => a.time - b.time);
  trace.height = y + 8;
  return trace;
}

function prepareLane(trace, row, raw, y) {
  const lane = { label: raw.label, row, y, open: new Set(raw.open || []) };
  lane.spans = raw.spans && columns(raw.spans, ["start", "length", "kind", "text"]);
  lane.marks = raw.marks && columns(raw.marks, ["time", "kind", "text", "number"]);
  lane.steps = raw.steps && columns(raw.steps, ["time", "value"]);
  if (lane.steps) lane.most = lane.steps.value.reduce((a, b) => Math.max(a, b), 1);
  if (lane.spans) {
    // Spans of one lane do not overlap, or little: the latest end up to each is in order.
    let end = 0;
    lane.spans.end = lane.spans.start.map((start, i) => (end = Math.max(end, start + lane.spans.length[i])));
  }
  lane.isGap = Boolean(lane.spans) && trace.spans[lane.spans.kind[0]].shape === "gap";
  lane.height = lane.isGap ? HEIGHT.gap : lane.steps ? HEIGHT.count : HEIGHT.state;
  lane.index = trace.lanes.push(lane) - 1;
  return lane;
}

function columns(raw, names) {
  const made = { size: raw[0].length };
  names.forEach((name, i) => {
    made[name] = i === 0 ? absolute(raw[0]) : Float64Array.from(raw[i]);
  });
  return made;
}

// The first index whose value is not below `value`, in an ordered array.
function firstFrom(array, value) {
  let low = 0;
  let high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

function formatDuration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
    if (Math.abs(ns) >= size * 0.9995) {
      const value = ns / size;
      return `${Math.abs(value) >= 999.5 ? value.toFixed(0) : value.toPrecision(3)} ${unit}`;
    }
  }
  return `${Math.round(ns)} ns`;
}

// A moment, with as many digits as tell it from its neighbours at this distance.
function formatTime(ns, distance) {
  if (!ns) return "0";
  const [unit, size] = unitOf(Math.max(Math.abs(ns), distance));
  const digits = Math.min(9, Math.max(0, Math.ceil(Math.log10(size / distance) - 1e-9)));
  return `${(ns / size).toFixed(digits)} ${unit}`;
}

function unitOf(ns) {
  return ns >= 1e9 ? ["s", 1e9] : ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["us", 1e3] : ["ns", 1];
}
