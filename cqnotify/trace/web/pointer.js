// SPDX-License-Identifier: MIT
// The pointer: wheel, drags, clicks, and the tooltip.

class Pointer {
  constructor(page, scroll, canvas, overview, tip) {
    Object.assign(this, { page, scroll, canvas, overview, tip, view: page.view });
    this.drag = null;
    canvas.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
    canvas.addEventListener("pointerdown", (e) => this.down(e));
    canvas.addEventListener("pointermove", (e) => this.moved(e));
    canvas.addEventListener("pointerup", (e) => this.up(e));
    canvas.addEventListener("pointercancel", () => this.end());
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", (e) => this.view.zoom(0.25, this.view.time(e.offsetX)));
    overview.addEventListener("pointerdown", (e) => {
      overview.setPointerCapture(e.pointerId);
      this.centre(e);
    });
    overview.addEventListener("pointermove", (e) => e.buttons && this.centre(e));
    overview.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
  }

  wheel(e) {
    const onNames = e.currentTarget === this.canvas && e.offsetX < NAMES;
    if (onNames && !e.ctrlKey) return; // the rows scroll
    e.preventDefault();
    const unit = e.deltaMode ? 16 : 1;
    const sideways = e.shiftKey ? e.deltaY || e.deltaX : e.deltaX;
    if (Math.abs(sideways) > Math.abs(e.deltaY) || e.shiftKey) {
      this.view.move((sideways * unit) / this.view.plot);
    } else {
      const at = e.currentTarget === this.canvas ? this.view.time(e.offsetX) : undefined;
      this.view.zoom(Math.exp(Math.max(Math.min(e.deltaY * unit, 240), -240) * 0.0022), at);
    }
  }

  centre(e) {
    const [first, last] = this.view.limits;
    const time = first + ((e.offsetX - NAMES) / this.view.plot) * (last - first);
    const half = (this.view.to - this.view.from) / 2;
    this.view.show(time - half, time + half);
  }

  down(e) {
    if (e.button) return;
    this.canvas.setPointerCapture(e.pointerId);
    const onScale = e.offsetY < HEIGHT.axis;
    const isRange = e.offsetX > NAMES && (onScale || e.shiftKey);
    const { from, to } = this.view;
    this.drag = { x: e.offsetX, y: e.offsetY, from, to, top: this.scroll.scrollTop, isRange, moved: false };
  }

  moved(e) {
    this.view.pointer = { x: e.offsetX, y: e.offsetY };
    const { drag } = this;
    if (drag && Math.hypot(e.offsetX - drag.x, e.offsetY - drag.y) > 3) drag.moved = true;
    if (drag?.moved && drag.isRange) {
      this.view.range = [this.view.time(drag.x), this.view.time(e.offsetX)];
      this.page.changed();
    } else if (drag?.moved) {
      this.canvas.style.cursor = "grabbing";
      this.scroll.scrollTop = drag.top - (e.offsetY - drag.y);
      const by = (drag.x - e.offsetX) / this.view.scale;
      this.view.show(drag.from + by, drag.to + by);
    } else {
      this.page.changed();
    }
    this.showTip(e.clientX, e.clientY);
  }

  up(e) {
    const { drag, view } = this;
    if (drag?.moved && drag.isRange) {
      const range = view.range.toSorted((a, b) => a - b);
      view.show(...range, true);
    } else if (drag && !drag.moved) {
      const lane = view.laneAt(e.offsetY + this.scroll.scrollTop);
      if (lane) view.lane = lane;
      if (e.offsetX > NAMES) {
        view.anchor = view.anchor === null ? this.nearest(lane, e.offsetX) : null;
        view.cursor = null;
      }
    }
    this.end();
  }

  // The mark under the pointer, or the moment.
  nearest(lane, x) {
    const mark = lane && lane.marks ? this.view.hit(lane, x).marks[0] : undefined;
    return mark === undefined ? this.view.time(x) : lane.marks.time[mark];
  }

  end() {
    this.drag = null;
    this.view.range = null;
    this.canvas.style.cursor = "";
    this.page.changed();
  }

  leave() {
    if (this.drag) return;
    this.view.pointer = null;
    this.hideTip();
    this.page.changed();
  }

  hideTip() {
    this.tip.hidden = true;
  }

  showTip(clientX, clientY) {
    const { view } = this;
    const { x, y } = view.pointer;
    const lane = y > HEIGHT.axis ? view.laneAt(y + this.scroll.scrollTop) : null;
    const lines = lane && (x > NAMES ? this.page.describe(lane, view.hit(lane, x)) : this.page.introduce(lane));
    if (!lines || !lines.length || this.drag?.moved) return this.hideTip();
    this.placeTip(lines, clientX, clientY);
  }

  placeTip(lines, clientX, clientY) {
    const { tip } = this;
    tip.replaceChildren(
      ...lines.map(([text, className]) => {
        const line = document.createElement("p");
        line.textContent = text;
        if (className) line.className = className;
        return line;
      }),
    );
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(Math.min(clientX + 16, innerWidth - width - 8), 8)}px`;
    const below = clientY + 20 + height < innerHeight;
    tip.style.top = `${below ? clientY + 18 : Math.max(clientY - height - 14, 4)}px`;
  }
}
