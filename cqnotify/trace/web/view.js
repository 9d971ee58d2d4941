// SPDX-License-Identifier: MIT
// The view: which times are shown, which lane and which moment are selected.

const NAMES = 232; // the width of the column of names
const NARROWEST = 20; // ns
const MARGIN = 0.035; // before the start and behind the end, as parts of the whole

class View {
  constructor(trace) {
    this.trace = trace;
    this.width = 0;
    this.lane = null;
    this.cursor = null; // a moment that a jump or a key selected
    this.anchor = null; // where measuring began
    this.pointer = null; // {x, y} in the canvas
    this.range = null; // [from, to] while a range is dragged
    this.onChange = () => {};
    this.showAll(false);
  }

  get limits() {
    const pad = Math.max(this.trace.duration * MARGIN, 10);
    return [-pad, this.trace.duration + pad];
  }

  get scale() {
    return this.plot / (this.to - this.from); // pixels for each ns
  }

  get plot() {
    return Math.max(this.width - NAMES, 10);
  }

  x(time) {
    return NAMES + (time - this.from) * this.scale;
  }

  time(x) {
    return this.from + (x - NAMES) / this.scale;
  }

  // Shows [from, to], as far as there is anything.
  show(from, to, smooth = false) {
    const [first, last] = this.limits;
    const span = Math.min(Math.max(to - from, NARROWEST), last - first);
    const start = Math.min(Math.max(from, first), last - span);
    if (smooth && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.glide(start, start + span);
      return;
    }
    cancelAnimationFrame(this.gliding);
    this.from = start;
    this.to = start + span;
    this.onChange();
  }

  // In equal factors of the width, so that a long way in looks even.
  glide(from, to) {
    cancelAnimationFrame(this.gliding);
    const [from0, width0] = [this.from, this.to - this.from];
    const [middle0, middle1, width1] = [from0 + width0 / 2, (from + to) / 2, to - from];
    const begun = performance.now();
    const step = (now) => {
      const part = Math.min(Math.max((now - begun) / 260, 0), 1);
      const eased = 1 - (1 - part) ** 3;
      const width = width0 * (width1 / width0) ** eased;
      const moved = width1 === width0 ? eased : (width0 - width) / (width0 - width1);
      const middle = middle0 + (middle1 - middle0) * moved;
      this.from = middle - width / 2;
      this.to = middle + width / 2;
      if (part < 1) this.gliding = requestAnimationFrame(step);
      else [this.from, this.to] = [from, to];
      this.onChange();
    };
    this.gliding = requestAnimationFrame(step);
  }

  showAll(smooth = true) {
    this.show(...this.limits, smooth);
  }

  zoom(factor, at = this.from + (this.to - this.from) / 2) {
    const span = (this.to - this.from) * factor;
    const part = (at - this.from) / (this.to - this.from);
    this.show(at - span * part, at + span * (1 - part));
  }

  move(part) {
    const by = (this.to - this.from) * part;
    this.show(this.from + by, this.to + by);
  }

  // Brings a moment into the view: at its middle, and near enough to tell it from its neighbours.
  jump(time, lane, span = null) {
    this.cursor = time;
    if (lane) this.lane = lane;
    const width = span ?? Math.min(this.to - this.from, this.neighbourhood(time));
    this.show(time - width / 2, time + width / 2, true);
  }

  // A width that holds some eight marks around a moment, or more.
  neighbourhood(time) {
    const near = [];
    for (const lane of this.trace.lanes) {
      if (!lane.marks) continue;
      const at = firstFrom(lane.marks.time, time);
      for (let i = Math.max(at - 10, 0); i < Math.min(at + 10, lane.marks.size); i++) {
        near.push(Math.abs(lane.marks.time[i] - time));
      }
    }
    near.sort((a, b) => a - b);
    return Math.max((near[Math.min(8, near.length - 1)] || 0) * 2.6, 1000);
  }

  laneAt(y) {
    return this.trace.lanes.find((lane) => y >= lane.y && y < lane.y + lane.height) || null;
  }

  // What lies at a place: the marks within a few pixels, else the span, and the count.
  hit(lane, x) {
    const found = { marks: [], span: null, value: null };
    const time = this.time(x);
    if (lane.marks) {
      const reach = 6 / this.scale;
      const { time: times } = lane.marks;
      const first = firstFrom(times, time - reach);
      for (let i = first; i < times.length && times[i] <= time + reach; i++) found.marks.push(i);
      found.marks.sort((a, b) => Math.abs(times[a] - time) - Math.abs(times[b] - time));
    }
    if (lane.spans) {
      const { spans } = lane;
      const reach = 2 / this.scale;
      for (let i = firstFrom(spans.end, time - reach); i < spans.size; i++) {
        if (spans.start[i] > time + reach) break;
        if (spans.start[i] + spans.length[i] >= time - reach) found.span = i;
      }
    }
    if (lane.steps && time >= 0) {
      const at = firstFrom(lane.steps.time, time + 1e-6) - 1;
      found.value = at < 0 ? 0 : lane.steps.value[at];
    }
    return found;
  }
}
