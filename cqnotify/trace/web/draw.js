// SPDX-License-Identifier: MIT
// Drawing: what is wide enough is drawn as it is, the rest as what part of a pixel it fills.

const CELL = 8; // pixels: marks that are nearer to each other are drawn as one bar
const NARROW = 3; // pixels: spans that are narrower are drawn by what part of each pixel they fill
const FONT = 'system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif';

class Painter {
  constructor(canvas, overview, view) {
    this.canvas = canvas;
    this.overview = overview;
    this.view = view;
    this.trace = view.trace;
    this.scrollTop = 0;
    this.matches = null; // a set of texts that a search has found
    this.readColors();
  }

  readColors() {
    const style = getComputedStyle(document.documentElement);
    const names = ["page", "panel", "ink", "muted", "line", "grid", "band", "select", "focus", "bad"];
    this.colors = {};
    for (const name of names) this.colors[name] = style.getPropertyValue(`--${name}`).trim();
    const kinds = [...this.trace.marks, ...this.trace.spans];
    for (const { color } of kinds) this.colors[color] = style.getPropertyValue(`--${color}`).trim();
    for (const [, color] of Object.values(this.trace.counts)) {
      this.colors[color] = style.getPropertyValue(`--${color}`).trim();
    }
  }

  static fit(canvas, width, height) {
    const ratio = devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    return g;
  }

  paint(width, height) {
    const { view, trace, colors } = this;
    view.width = width;
    const g = (this.g = Painter.fit(this.canvas, width, height));
    this.height = height;
    g.fillStyle = colors.panel;
    g.fillRect(0, 0, width, height);
    g.textBaseline = "middle";
    this.grid();
    g.save();
    g.beginPath();
    g.rect(0, HEIGHT.axis, width, height - HEIGHT.axis);
    g.clip();
    g.translate(0, -this.scrollTop);
    for (const row of trace.rows) {
      if (row.y + row.height < this.scrollTop || row.y > this.scrollTop + height) continue;
      this.row(row);
    }
    this.lines();
    for (const heading of trace.headings) this.heading(heading);
    g.restore();
    this.axis();
  }

  // ---- the scale ---------------------------------------------------------------------------

  ticks() {
    const { view } = this;
    const rough = ((view.to - view.from) / view.plot) * 110;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const ticks = [];
    for (let n = Math.ceil(view.from / step); n * step <= view.to; n++) ticks.push(n * step);
    return [ticks, step];
  }

  grid() {
    const { g, view, colors } = this;
    g.fillStyle = colors.grid;
    for (const time of this.ticks()[0]) g.fillRect(Math.round(view.x(time)), HEIGHT.axis, 1, this.height);
  }

  // Far in, the labels are differences to the moment that the column of names shows.
  axis() {
    const { g, view, colors } = this;
    const [ticks, step] = this.ticks();
    g.fillStyle = colors.band;
    g.fillRect(0, 0, view.width, HEIGHT.axis);
    g.fillStyle = colors.line;
    g.fillRect(0, HEIGHT.axis - 1, view.width, 1);
    g.fillRect(NAMES - 1, 0, 1, this.height);
    const middle = Math.max(view.from, 0);
    const isFar = middle > step * 2000;
    const base = isFar ? Math.floor(middle / (step * 10)) * step * 10 : 0;
    g.font = `11.5px ${FONT}`;
    g.textAlign = "left";
    g.fillStyle = colors.muted;
    const whole = formatDuration(view.to - view.from);
    g.fillText(isFar ? `${formatTime(base, step * 10)} +` : `${whole} shown`, 14, HEIGHT.axis / 2);
    for (const time of ticks) {
      const x = view.x(time);
      if (x < NAMES - 1) continue;
      g.fillStyle = colors.muted;
      g.fillRect(Math.round(x), HEIGHT.axis - 7, 1, 6);
      g.fillText(isFar ? `+${formatTime(time - base, step)}` : formatTime(time, step), x + 4, HEIGHT.axis / 2 - 2);
    }
  }

  // Findings, the cursor, the pointer and the range: through all rows.
  lines() {
    const { g, view, trace, colors } = this;
    const top = this.scrollTop + HEIGHT.axis;
    const vertical = (time, color, dash = []) => {
      const x = Math.round(view.x(time)) + 0.5;
      if (x < NAMES || x > view.width) return;
      g.strokeStyle = color;
      g.setLineDash(dash);
      g.beginPath();
      g.moveTo(x, top);
      g.lineTo(x, top + this.height);
      g.stroke();
      g.setLineDash([]);
    };
    g.lineWidth = 1;
    let last = -9;
    for (const finding of trace.findings.filter((each) => each.matters)) {
      const x = Math.round(view.x(finding.time));
      if (x !== last) vertical(finding.time, colors[finding.color], [5, 4]);
      last = x;
    }
    vertical(0, colors.line);
    vertical(trace.duration, colors.line);
    if (view.cursor !== null) vertical(view.cursor, colors.focus);
    if (view.pointer && view.pointer.x > NAMES) vertical(view.time(view.pointer.x), colors.muted, [2, 3]);
    if (view.anchor !== null && view.pointer) this.measured(view.anchor, view.time(view.pointer.x));
    if (view.range) this.band(...view.range);
  }

  band(from, to) {
    const { g, view, colors } = this;
    const [left, right] = [view.x(Math.min(from, to)), view.x(Math.max(from, to))].map((x) => Math.max(x, NAMES));
    g.globalAlpha = 0.16;
    g.fillStyle = colors.focus;
    g.fillRect(left, this.scrollTop, right - left, this.height);
    g.globalAlpha = 1;
    return [left, right];
  }

  measured(from, to) {
    const { g, colors } = this;
    const [left, right] = this.band(from, to);
    const text = formatDuration(Math.abs(to - from));
    g.font = `600 12px ${FONT}`;
    const width = g.measureText(text).width + 14;
    const x = Math.max((left + right) / 2 - width / 2, NAMES + 4);
    g.fillStyle = colors.focus;
    g.beginPath();
    const y = this.scrollTop + HEIGHT.axis;
    g.roundRect(x, y + 4, width, 20, 6);
    g.fill();
    g.fillStyle = colors.panel;
    g.textAlign = "left";
    g.fillText(text, x + 7, y + 14.5);
  }

  // ---- rows --------------------------------------------------------------------------------

  heading({ y, name }) {
    const { g, view, colors } = this;
    g.fillStyle = colors.band;
    g.fillRect(0, y, view.width, HEIGHT.process);
    g.fillStyle = colors.ink;
    g.font = `600 13px ${FONT}`;
    g.textAlign = "left";
    g.fillText(name, 14, y + HEIGHT.process / 2);
  }

  row(row) {
    const { g, view, colors } = this;
    if (view.lane && view.lane.row === row) {
      g.globalAlpha = 0.55;
      g.fillStyle = colors.select;
      g.fillRect(0, row.y, view.width, row.height);
      g.globalAlpha = 1;
      g.fillStyle = colors.select;
      g.fillRect(0, view.lane.y, view.width, view.lane.height);
      g.fillStyle = colors.focus;
      g.fillRect(0, view.lane.y, 3, view.lane.height);
    }
    g.fillStyle = colors.line;
    g.fillRect(0, row.y + row.height - 1, view.width, 1);
    this.names(row);
    g.save();
    g.beginPath();
    g.rect(NAMES, row.y, view.plot, row.height);
    g.clip();
    for (const lane of row.lanes) this.lane(lane);
    g.restore();
  }

  names(row) {
    const { g, colors } = this;
    const first = row.lanes[0];
    g.textAlign = "left";
    g.fillStyle = colors.ink;
    g.font = `600 13px ${FONT}`;
    const y = first ? first.y + first.height / 2 : row.y + row.height / 2;
    g.fillText(this.cut(row.name, 128), 14, y);
    if (row.note) {
      g.fillStyle = colors.muted;
      g.font = `11.5px ${FONT}`;
      if (row.lanes.length > 1) g.fillText(this.cut(row.note, 138), 14, y + 21);
    }
    g.textAlign = "right";
    g.fillStyle = colors.muted;
    g.font = `11px ${FONT}`;
    for (const lane of row.lanes) {
      const label = lane.steps ? `${lane.label} 0-${lane.most.toLocaleString("en")}` : lane.label;
      g.fillText(lane.isGap ? this.cut(label, 118) : label, NAMES - 10, lane.y + lane.height / 2);
    }
  }

  cut(text, width) {
    if (this.g.measureText(text).width <= width) return text;
    let kept = text;
    while (kept && this.g.measureText(`${kept}...`).width > width) kept = kept.slice(0, -1);
    return `${kept}...`;
  }

  lane(lane) {
    if (lane.steps) this.area(lane);
    if (lane.spans) this.spans(lane);
    if (lane.marks) this.marks(lane);
  }

  // ---- counts ------------------------------------------------------------------------------

  // In each pixel the highest value, light, and the mean over its time, darker.
  area(lane) {
    const { g, view, colors, trace } = this;
    const { time, value } = lane.steps;
    const end = Math.min(view.x(trace.duration), view.width);
    const bottom = lane.y + lane.height - 3;
    const room = lane.height - 6;
    const highest = [];
    const means = [];
    let at = firstFrom(time, view.time(NAMES) + 1e-6) - 1;
    let now = at < 0 ? 0 : value[at];
    for (let x = NAMES; x < end; x++) {
      const until = view.time(x + 1);
      let [most, sum, from] = [now, 0, view.time(x)];
      while (at + 1 < time.length && time[at + 1] < until) {
        at++;
        sum += now * (time[at] - from);
        [from, now] = [time[at], value[at]];
        most = Math.max(most, now);
      }
      highest.push(most);
      means.push((sum + now * (until - from)) * view.scale);
    }
    const tall = (n) => (n ? Math.max((n / lane.most) * room, 1.5) : 0);
    g.fillStyle = colors[trace.counts[lane.label][1]];
    for (const [values, alpha] of [[highest, 0.28], [means, 0.5]]) {
      g.globalAlpha = alpha;
      g.beginPath();
      g.moveTo(NAMES, bottom);
      values.forEach((n, i) => {
        g.lineTo(NAMES + i, bottom - tall(n));
        g.lineTo(NAMES + i + 1, bottom - tall(n));
      });
      g.lineTo(NAMES + values.length, bottom);
      g.fill();
    }
    g.globalAlpha = 1;
  }

  // ---- spans -------------------------------------------------------------------------------

  spans(lane) {
    const { view, trace } = this;
    const { spans } = lane;
    const kinds = trace.spans.length;
    const parts = new Float64Array((Math.ceil(view.plot) + 1) * kinds); // of each pixel, by kind
    let isUsed = false;
    for (let i = firstFrom(spans.end, view.from); i < spans.size && spans.start[i] <= view.to; i++) {
      const [left, right] = [view.x(spans.start[i]), view.x(spans.start[i] + spans.length[i])];
      if (right - left >= NARROW || lane.open.has(i)) {
        this.span(lane, i, left, right);
        continue;
      }
      isUsed = true;
      const end = Math.max(right, left + 0.04);
      for (let x = Math.floor(left); x < end; x++) {
        const part = Math.min(x + 1, end) - Math.max(x, left);
        if (x >= NAMES && x < view.width) parts[(x - NAMES) * kinds + spans.kind[i]] += part;
      }
    }
    for (let x = 0; isUsed && x < view.plot; x++) this.pixel(lane, x, parts.subarray(x * kinds, (x + 1) * kinds));
  }

  // One above the other, as tall as the part of the pixel's time that each kind takes.
  pixel(lane, x, parts) {
    const { g, colors, trace } = this;
    const [top, height] = this.bar(lane);
    const sum = Math.max(parts.reduce((a, b) => a + b, 0), 1);
    let y = top + height;
    parts.forEach((part, kind) => {
      if (!part) return;
      const tall = Math.min(Math.max((part / sum) * height, 2), y - top);
      g.fillStyle = colors[trace.spans[kind].color];
      g.globalAlpha = ["armed", "came"].includes(trace.spans[kind].kind) ? 0.5 : 0.95;
      g.fillRect(NAMES + x, y - tall, 1, tall);
      y -= tall;
    });
    g.globalAlpha = 1;
  }

  bar(lane) {
    return lane.isGap ? [lane.y + 3, lane.height - 6] : [lane.y + 4, lane.height - 8];
  }

  span(lane, i, left, right) {
    const { g, view, colors, trace } = this;
    const style = trace.spans[lane.spans.kind[i]];
    const [top, height] = this.bar(lane);
    const isOpen = lane.open.has(i);
    const x = Math.max(left, NAMES - 4);
    const end = Math.min(isOpen ? view.x(view.limits[1]) : right, view.width + 4);
    const width = Math.max(end - x, isOpen ? 8 : 1);
    const color = colors[style.color];
    g.fillStyle = isOpen ? this.fading(color, view.x(trace.duration), end) : color;
    g.globalAlpha = { armed: width > 5 ? 0.24 : 0.5, came: width > 5 ? 0.24 : 0.5, solicited: 0.24, running: 0.85 }[style.kind] ?? 0.9;
    g.beginPath();
    g.roundRect(x, top, width, height, Math.min(3, width / 2));
    g.fill();
    g.globalAlpha = 1;
    if (["armed", "came", "solicited"].includes(style.kind) && width > 5) {
      g.strokeStyle = color;
      g.lineWidth = 1;
      g.stroke();
    }
    this.spanText(lane, i, style, x, Math.min(right, view.width), isOpen);
  }

  // An open span fades where the timeline ends.
  fading(color, from, to) {
    const shade = this.g.createLinearGradient(from - 1, 0, Math.max(to, from), 0);
    shade.addColorStop(0, color);
    shade.addColorStop(1, `${color}00`);
    return shade;
  }

  spanText(lane, i, style, left, right, isOpen) {
    const { g, colors } = this;
    if (right - left < 40) return;
    const time = `${isOpen ? "over " : ""}${formatDuration(lane.spans.length[i])}`;
    const long = lane.isGap ? time : `${style.kind} ${time}`;
    g.font = `${lane.isGap ? 10.5 : 11}px ${FONT}`;
    const text = [long, style.kind].find((each) => g.measureText(each).width < right - left - 14);
    if (!text) return;
    g.textAlign = "center";
    const solid = lane.isGap || style.kind === "running" || style.kind === "task";
    g.fillStyle = solid ? colors.panel : colors.ink;
    g.fillText(text, (left + right) / 2, lane.y + lane.height / 2 + 0.5);
  }

  // ---- marks -------------------------------------------------------------------------------

  // The cells are parts of time, not of the screen, so that moving changes none of them.
  marks(lane) {
    const { view } = this;
    const { time } = lane.marks;
    const cell = CELL / view.scale;
    const last = firstFrom(time, view.to + cell * 2);
    let i = firstFrom(time, view.from - cell * 3);
    const groups = [];
    while (i < last) {
      const end = (Math.floor(time[i] / cell) + 1) * cell;
      let next = i + 1;
      while (next < last && time[next] < end) next++;
      groups.push([i, next]);
      i = next;
    }
    const most = groups.reduce((n, [a, b]) => Math.max(n, b - a), 1);
    groups.forEach(([from, to], at) => {
      const x = view.x(time[from]);
      const free = at + 1 < groups.length ? view.x(time[groups[at + 1][0]]) - x : 999;
      if (to - from === 1) this.mark(lane, from, x, free);
      else this.group(lane, from, to, most, free);
    });
  }

  mark(lane, i, x, free) {
    const { g, colors, trace } = this;
    const style = trace.marks[lane.marks.kind[i]];
    const y = lane.y + lane.height / 2;
    if (this.matches?.has(lane.marks.text[i])) this.ring(x, y);
    g.fillStyle = g.strokeStyle = colors[style.color];
    shape(g, style.shape, x, y, colors.panel);
    const number = lane.marks.number[i];
    let text = number > 1 ? `${style.short} ${number.toLocaleString("en")}` : style.short;
    if (style.shape === "flag") text = trace.texts[lane.marks.text[i]].split(":")[0];
    g.font = `11px ${FONT}`;
    if (!text || g.measureText(text).width + 22 > free) return;
    g.textAlign = "left";
    g.fillStyle = colors.ink;
    g.fillText(text, x + 8, y + 0.5);
  }

  ring(x, y) {
    const { g, colors } = this;
    g.strokeStyle = colors.focus;
    g.lineWidth = 2;
    g.beginPath();
    g.arc(x, y, 9, 0, 7);
    g.stroke();
  }

  // A bar: the more marks the taller, by the logarithm; each kind has its part of it.
  group(lane, from, to, most, free) {
    const { g, view, colors, trace } = this;
    const { time, kind, text } = lane.marks;
    const parts = new Map();
    let isMatch = false;
    for (let i = from; i < to; i++) {
      parts.set(kind[i], (parts.get(kind[i]) || 0) + 1);
      isMatch ||= this.matches?.has(text[i]);
    }
    const room = lane.height - 6;
    const tall = room * (0.3 + (0.7 * Math.log(to - from)) / Math.log(Math.max(most, 8)));
    const isDense = free < CELL * 1.5;
    const cell = Math.floor((time[from] * view.scale) / CELL);
    const start = view.x((cell * CELL) / view.scale);
    const x = isDense ? start + CELL / 2 : (view.x(time[from]) + view.x(time[to - 1])) / 2;
    const wide = isDense ? CELL - 1 : 5;
    let y = lane.y + lane.height - 3;
    const isBad = (k) => trace.marks[k].color === "bad";
    for (const k of [...parts.keys()].sort((a, b) => isBad(a) - isBad(b) || a - b)) {
      const part = Math.max((tall * parts.get(k)) / (to - from), isBad(k) ? 4 : 1.5);
      g.fillStyle = colors[trace.marks[k].color];
      g.fillRect(x - wide / 2, y - part, wide, part);
      y -= part;
    }
    if (isMatch) this.ring(x, lane.y + lane.height / 2);
    const label = `${to - from}`;
    g.font = `10.5px ${FONT}`;
    if (g.measureText(label).width + 16 > free) return;
    g.fillStyle = colors.muted;
    g.textAlign = "left";
    g.fillText(label, x + 6, lane.y + lane.height / 2);
  }

  // ---- the overview ------------------------------------------------------------------------

  paintOverview(width) {
    const { view, trace, colors } = this;
    const height = 44;
    const g = Painter.fit(this.overview, width, height);
    const [first, last] = view.limits;
    const plot = width - NAMES;
    const x = (time) => NAMES + ((time - first) / (last - first)) * plot;
    g.fillStyle = colors.panel;
    g.fillRect(0, 0, width, height);
    if (this.countsWidth !== plot) [this.density, this.countsWidth] = [this.countAll(plot, first, last), plot];
    const most = this.density.reduce((a, b) => Math.max(a, b), 1);
    g.fillStyle = colors.poll;
    g.globalAlpha = 0.7;
    this.density.forEach((n, i) => {
      const tall = n && 3 + (28 * Math.log1p(n)) / Math.log1p(Math.max(most, 6));
      g.fillRect(NAMES + i * 2, height - 5 - tall, 1.6, tall);
    });
    g.globalAlpha = 1;
    for (const { time, color, matters } of trace.findings) {
      if (!matters) continue;
      g.fillStyle = colors[color];
      g.fillRect(x(time) - 1, 3, 2, height - 6);
    }
    const [left, right] = [x(view.from), x(view.to)];
    g.fillStyle = colors.focus;
    g.globalAlpha = 0.13;
    g.fillRect(left, 0, Math.max(right - left, 2), height);
    g.globalAlpha = 1;
    g.strokeStyle = colors.focus;
    g.lineWidth = 1.5;
    g.strokeRect(left + 0.75, 0.75, Math.max(right - left - 1.5, 2), height - 1.5);
    g.fillStyle = colors.muted;
    g.font = `11.5px ${FONT}`;
    g.textBaseline = "middle";
    g.fillText("overview", 14, height / 2);
  }

  countAll(plot, first, last) {
    const counts = new Float64Array(Math.ceil(plot / 2));
    for (const { marks } of this.trace.lanes) {
      if (!marks) continue;
      for (const time of marks.time) {
        counts[Math.floor(((time - first) / (last - first)) * counts.length)] += 1;
      }
    }
    return counts;
  }
}

// As in the legend.
function shape(g, name, x, y, background) {
  const path = (...points) => {
    g.beginPath();
    points.forEach(([dx, dy], i) => g[i ? "lineTo" : "moveTo"](x + dx, y + dy));
    g.closePath();
  };
  g.lineWidth = 2;
  if (name === "up") path([0, -5.5], [5, 5], [-5, 5]);
  else if (name === "down") path([0, 5.5], [5, -5], [-5, -5]);
  else if (name === "diamond") path([0, -6], [6, 0], [0, 6], [-6, 0]);
  else if (name === "flag") path([-1, -10], [9, -6.5], [1, -3], [1, 10], [-1, 10]);
  else if (name === "cross") {
    for (const side of [-4.5, 4.5]) {
      path([-4.5, side], [4.5, -side]);
      g.stroke();
    }
    return;
  } else if (name === "tick") {
    g.fillRect(x - 1, y - 7, 2, 14);
    return;
  } else {
    g.beginPath();
    g.arc(x, y, name === "ring" ? 4.2 : 5, 0, 7);
    if (name === "ring") {
      const color = g.strokeStyle;
      g.fillStyle = background;
      g.fill();
      g.strokeStyle = color;
      g.stroke();
      return;
    }
  }
  g.fill();
}
