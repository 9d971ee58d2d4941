// SPDX-License-Identifier: MIT
// The page: buttons, keys, the search, jumps.

const by = (id) => document.getElementById(id);
const TALLEST = 0.78; // of the window: then the rows scroll

class Page {
  constructor(trace) {
    this.trace = trace;
    this.view = new View(trace);
    this.painter = new Painter(by("timeline"), by("overview"), this.view);
    this.pointer = new Pointer(this, by("scroll"), by("timeline"), by("overview"), by("tip"));
    this.view.onChange = () => this.changed();
    this.finding = -1;
    this.found = []; // [time, lane, mark] of all marks that the search matches
    by("scroll").addEventListener("scroll", () => this.changed());
    addEventListener("resize", () => this.changed());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolor());
    this.buttons();
    this.search();
    by("timeline").addEventListener("keydown", (e) => this.key(e));
    document.addEventListener("keydown", (e) => {
      if (e.key === "Escape") this.clear();
      if (e.target === document.body) this.key(e);
    });
    this.paint();
  }

  changed() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      this.paint();
    });
  }

  paint() {
    const scroll = by("scroll");
    const height = Math.ceil(Math.min(this.trace.height, Math.max(innerHeight * TALLEST, 240)));
    scroll.style.height = `${height}px`;
    by("timeline").style.height = `${height}px`;
    by("spacer").style.height = `${this.trace.height - height}px`;
    this.painter.scrollTop = scroll.scrollTop;
    this.painter.paint(scroll.clientWidth, height);
    this.painter.paintOverview(scroll.clientWidth);
  }

  recolor() {
    this.painter.readColors();
    this.changed();
  }

  // ---- buttons and keys --------------------------------------------------------------------

  buttons() {
    const { view } = this;
    const click = (id, what) => by(id).addEventListener("click", what);
    click("in", () => view.zoom(0.5));
    click("out", () => view.zoom(2));
    click("all", () => view.showAll());
    click("next", () => this.toFinding(1));
    click("previous", () => this.toFinding(-1));
    click("theme", () => this.switchTheme());
    click("keys", () => this.help());
    by("next").disabled = by("previous").disabled = !this.trace.findings.length;
    for (const button of document.querySelectorAll("[data-finding]")) {
      const [process, index] = button.dataset.finding.split(",").map(Number);
      button.addEventListener("click", () => {
        this.finding = this.trace.findings.findIndex((f) => f.process === process && f.index === index);
        this.toFinding(0);
      });
    }
    for (const button of document.querySelectorAll("[data-gap]")) {
      const [process, kind] = button.dataset.gap.split(",");
      button.addEventListener("click", () => this.toLongest(Number(process), kind));
    }
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const { view } = this;
    const keys = {
      "+": () => view.zoom(0.6),
      "=": () => view.zoom(0.6),
      w: () => view.zoom(0.6),
      "-": () => view.zoom(1 / 0.6),
      s: () => view.zoom(1 / 0.6),
      0: () => view.showAll(),
      Home: () => view.jump(0, null, view.to - view.from),
      End: () => view.jump(this.trace.duration, null, view.to - view.from),
      ArrowLeft: () => view.move(-0.12),
      a: () => view.move(-0.12),
      ArrowRight: () => view.move(0.12),
      d: () => view.move(0.12),
      ArrowUp: () => this.selectLane(-1),
      ArrowDown: () => this.selectLane(1),
      ",": () => this.stepMark(-1),
      ".": () => this.stepMark(1),
      n: () => this.toFinding(1),
      p: () => this.toFinding(-1),
      t: () => this.switchTheme(),
      "/": () => by("query").focus(),
      "?": () => this.help(),
    };
    const what = keys[e.key];
    if (!what) return;
    e.preventDefault();
    what();
  }

  help() {
    const help = by("help");
    help.hidden = !help.hidden;
    by("keys").setAttribute("aria-expanded", String(!help.hidden));
  }

  clear() {
    this.view.cursor = this.view.anchor = this.view.lane = null;
    this.pointer.hideTip();
    this.changed();
  }

  switchTheme() {
    const root = document.documentElement;
    const isDark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = isDark ? "light" : "dark";
    this.recolor();
  }

  // ---- going to places ---------------------------------------------------------------------

  reveal(lane) {
    const scroll = by("scroll");
    const [top, bottom] = [lane.row.y - HEIGHT.axis - 4, lane.row.y + lane.row.height + 4];
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    else if (bottom > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = bottom - scroll.clientHeight;
  }

  selectLane(by_) {
    const { lanes } = this.trace;
    const at = this.view.lane ? this.view.lane.index + by_ : by_ > 0 ? 0 : lanes.length - 1;
    const lane = lanes[Math.min(Math.max(at, 0), lanes.length - 1)];
    this.view.lane = lane;
    this.reveal(lane);
    this.say(`${lane.row.name}, ${lane.label}${lane.marks ? `: ${lane.marks.size} marks` : ""}`);
    this.changed();
  }

  stepMark(by_) {
    const { view } = this;
    if (!view.lane?.marks) this.selectLaneWithMarks();
    const { lane } = view;
    if (!lane?.marks) return;
    const from = view.cursor ?? (by_ > 0 ? view.from : view.to);
    const { time } = lane.marks;
    // Marks of one moment are one step after the other.
    let at = by_ > 0 ? firstFrom(time, from) : firstFrom(time, from + 1e-6) - 1;
    if (this.stepped && this.stepped.lane === lane && time[this.stepped.at] === from) at = this.stepped.at + by_;
    if (at < 0 || at >= time.length) return this.say("no more marks");
    this.stepped = { lane, at };
    this.toMark(time[at], lane, at);
  }

  selectLaneWithMarks() {
    this.view.lane = this.trace.lanes.find((lane) => lane.marks) || null;
  }

  // Moves only as far as it must; shows the tooltip as if the pointer were there.
  toMark(time, lane, mark) {
    const { view } = this;
    view.cursor = time;
    view.lane = lane;
    this.reveal(lane);
    const width = view.to - view.from;
    if (time < view.from + width * 0.05 || time > view.to - width * 0.05) {
      view.show(time - width / 2, time + width / 2);
    }
    this.tipAt(time, lane, this.describe(lane, { marks: [mark], span: null, value: null }));
  }

  tipAt(time, lane, lines) {
    const { view } = this;
    const box = by("timeline").getBoundingClientRect();
    const y = lane.y + lane.height - by("scroll").scrollTop;
    view.pointer = null;
    this.pointer.placeTip(lines, box.left + view.x(time), box.top + y);
    this.say(lines.map(([text]) => text).join(", "));
    this.changed();
  }

  toFinding(by_) {
    const { findings } = this.trace;
    if (!findings.length) return;
    // Those for information are passed over, unless there are no others.
    const count = findings.length;
    const others = findings.some((each) => each.matters);
    if (by_ < 0 && this.finding < 0) this.finding = 0;
    do this.finding = (this.finding + by_ + count) % count;
    while (by_ && others && !findings[this.finding].matters);
    const { since, time, text, row } = findings[this.finding];
    this.pointer.hideTip();
    const lane = row.lanes.find((each) => each.label === "calls") || row.lanes[0];
    // From what led to it on.
    this.view.jump(time, lane, since < time ? (time - since) * 2.6 : null);
    this.reveal(lane);
    by("scroll").scrollIntoView({ block: "nearest" });
    this.say(`finding ${this.finding + 1} of ${findings.length}: ${text}`);
  }

  toLongest(process, kind) {
    let longest = null;
    for (const lane of this.trace.lanes) {
      if (lane.row.process !== process || !lane.isGap) continue;
      lane.spans.length.forEach((length, i) => {
        if (this.trace.spans[lane.spans.kind[i]].kind !== kind) return;
        if (!longest || length > longest.length) longest = { length, start: lane.spans.start[i], lane };
      });
    }
    if (!longest) return;
    const { start, length, lane } = longest;
    this.view.jump(start + length / 2, lane, Math.max(length * 2.4, 500));
    this.view.cursor = null;
    this.reveal(lane);
    by("scroll").scrollIntoView({ block: "nearest" });
    this.say(`the longest: ${formatDuration(length)}, ${lane.row.name}`);
  }

  // ---- words -------------------------------------------------------------------------------

  say(text) {
    by("said").textContent = text;
  }

  introduce(lane) {
    return [[lane.row.note ? `${lane.row.name}: ${lane.row.note}` : lane.row.name], [lane.label, "muted"]];
  }

  // The lines of a tooltip: [text, class].
  describe(lane, { marks, span, value }) {
    const { texts, duration } = this.trace;
    const lines = [];
    const near = Math.max((this.view.to - this.view.from) / 5000, 1);
    for (const mark of marks.slice(0, 6)) {
      const at = formatTime(lane.marks.time[mark], near);
      lines.push([texts[lane.marks.text[mark]]], [`at ${at}${this.since(lane.marks.time[mark])}`, "muted"]);
    }
    if (marks.length > 6) lines.push([`and ${(marks.length - 6).toLocaleString("en")} more: zoom in`, "muted"]);
    if (!marks.length && span !== null) {
      const [start, length] = [lane.spans.start[span], lane.spans.length[span]];
      const isOpen = lane.open.has(span);
      lines.push([texts[lane.spans.text[span]]]);
      lines.push([`${isOpen ? "over " : ""}${formatDuration(length)}, from ${formatTime(start, near)}`, "muted"]);
    }
    if (value !== null && (value || !lines.length)) {
      const [label] = this.trace.counts[lane.label];
      lines.push([`${label}: ${value.toLocaleString("en")}`, lines.length ? "muted" : ""]);
    }
    if (lines.length) lines.push([`${lane.row.name}, ${lane.label}`, "muted"]);
    return duration ? lines : [];
  }

  since(time) {
    const { anchor } = this.view;
    if (anchor === null || anchor === time) return "";
    return `, ${formatDuration(Math.abs(time - anchor))} ${time < anchor ? "before" : "after"} the measure's start`;
  }

  // ---- search ------------------------------------------------------------------------------

  search() {
    const query = by("query");
    query.addEventListener("input", () => this.find(query.value.trim().toLowerCase()));
    query.addEventListener("keydown", (e) => {
      if (e.key === "Escape") by("timeline").focus();
      if (e.key !== "Enter") return;
      e.preventDefault();
      this.toMatch(e.shiftKey ? -1 : 1);
    });
    by("search").addEventListener("submit", (e) => e.preventDefault());
  }

  find(words) {
    this.match = -1;
    this.found = [];
    this.painter.matches = null;
    if (words) {
      const matches = new Set();
      const bounded = new RegExp(`${words.replace(/[.*+?^$()|[\]\\{}]/g, "\\$&")}(?!\\d)`, "i");
      this.trace.texts.forEach((text, i) => bounded.test(text) && matches.add(i));
      for (const lane of this.trace.lanes) {
        lane.marks?.text.forEach((text, i) => matches.has(text) && this.found.push([lane.marks.time[i], lane, i]));
      }
      this.found.sort((a, b) => a[0] - b[0] || a[1].index - b[1].index);
      this.found = this.found.filter((found, i) => !isTwin(found, this.found[i + 1]));
      this.painter.matches = matches;
    }
    by("matches").textContent = words ? `${this.found.length.toLocaleString("en")} found` : "";
    this.changed();
  }

  toMatch(by_) {
    const { found } = this;
    if (!found.length) return;
    this.match = (this.match + by_ + found.length) % found.length;
    const [time, lane, mark] = found[this.match];
    this.toMark(time, lane, mark);
    by("matches").textContent = `${this.match + 1} of ${found.length.toLocaleString("en")}`;
  }
}

// A call is a mark of its thread and of its object: the latter is the one to go to.
function isTwin([time, lane, mark], next) {
  return next && next[0] === time && next[1].marks.text[next[2]] === lane.marks.text[mark];
}

inflate(by("data").textContent).then((raw) => {
  window.cqnotifyTrace = new Page(prepare(raw));
});
