// The timeline: a lane for each request, drawn. Owns: where a lane and a moment stand, and what is
// said of what the pointer is on. Read next: feed.js, which makes the lanes.

import { made, show } from "./dom.js";
import { DECODES, EVICTED, PROMPT, WAITS, link, now_s } from "./feed.js";
import { ms, number, text } from "./texts.js";

const NAMES_PX = 118;
const AXIS_PX = 22;
const TICK_PX = 64;
const STEP_PX = 5;
const KINDS = ["waits", "prompt", "decodes", "evicted"];
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** The colours of now, from the style sheet: dark and light differ. */
export function colours(node) {
  const style = getComputedStyle(node);
  const one = (name) => style.getPropertyValue(`--${name}`).trim();
  return { kinds: KINDS.map(one), ink: one("ink"), faint: one("faint"), line: one("line"), mark: one("accent"), paper: one("paper") };
}

/** Call when light becomes dark, or the other way. */
export const themed = (call) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", call);

/** A canvas as sharp as the screen is. Its context, in CSS pixels. */
export function fitted(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export class Timeline {
  /** `pick` is told the id of the lane under the pointer, or null. */
  constructor({ height = 360, window_s = 20, names = true, pick = () => {} } = {}) {
    this.window_s = window_s;
    this.names_px = names ? NAMES_PX : 0;
    this.height = height;
    this.pick = pick;
    this.marked = null;
    this.frames = { count: 0, spent_ms: 0 };
    this.canvas = made("canvas", { role: "img", label: "timeline" });
    this.spacer = made("div.spacer");
    this.tip = made("div.tip", { hidden: true });
    this.scroll = made("div.lanes", { tabIndex: 0, label: "timeline", role: "group" }, this.canvas, this.spacer);
    this.node = made("div.timeline", {}, this.scroll, this.tip);
    this.scroll.style.height = `${height}px`;
    this.scroll.addEventListener("pointermove", (event) => this.point(event));
    this.scroll.addEventListener("pointerleave", () => this.leave());
    this.scroll.addEventListener("scroll", () => (this.dirty = true));
    this.dirty = true;
    this.model = null;
    themed(() => (this.look = null));
    requestAnimationFrame(() => this.frame());
  }

  /** Show this model from now on; called at each piece of news. */
  update(model) {
    this.model = model;
    this.dirty = true;
  }

  frame() {
    const isSeen = this.node.isConnected && this.scroll.clientWidth > 0 && !document.hidden;
    const moves = this.model?.isBusy && link.isOpen && !this.model.pace.paused && !calm.matches;
    if (isSeen && this.model && (this.dirty || moves)) {
      const began = performance.now();
      this.draw();
      this.frames.spent_ms += performance.now() - began;
      this.frames.count += 1;
      this.dirty = false;
    }
    requestAnimationFrame(() => this.frame());
  }

  /** Those that have something in the window, the oldest first. */
  rows(from_s) {
    const found = [...this.model.lanes.values()].filter((lane) => lane.ended_s === null || lane.ended_s > from_s);
    return found.sort((a, b) => a.arrived_s - b.arrived_s || a.order - b.order);
  }

  draw() {
    this.look ??= colours(this.node);
    const last = this.model.steps.at(-1)?.to_s ?? 0;
    const isStill = !this.model.isBusy || this.model.pace.paused || calm.matches;
    this.end_s = isStill ? Math.max(last, this.model.picture?.at_s ?? last) : now_s();
    const from_s = this.end_s - this.window_s;
    this.shown = this.rows(from_s);
    const count = this.shown.length;
    this.row_px = count <= 16 ? 20 : count <= 40 ? 12 : count <= 120 ? 7 : 4;
    const width = this.scroll.clientWidth;
    const view = this.height - AXIS_PX;
    const whole = Math.max(view, count * this.row_px);
    this.spacer.style.height = `${whole - view}px`;
    const context = fitted(this.canvas, width, this.height);
    this.canvas.style.height = `${this.height}px`;
    this.scale = (width - this.names_px - 8) / this.window_s;
    this.from_s = from_s;
    this.top = this.scroll.scrollTop;
    this.drawAxis(context, width);
    context.save();
    context.beginPath();
    context.rect(0, 0, width, view);
    context.clip();
    this.drawSteps(context, view);
    const first = Math.floor(this.top / this.row_px);
    const end = Math.min(count, Math.ceil((this.top + view) / this.row_px));
    this.drawMarked(context, first, end, width);
    this.drawPieces(context, first, end, width);
    if (this.names_px && this.row_px >= 12) this.drawNames(context, first, end);
    context.restore();
    if (!count) this.drawNothing(context, width, view);
  }

  x(at_s) {
    return this.names_px + (at_s - this.from_s) * this.scale;
  }

  drawAxis(context, width) {
    const y = this.height - AXIS_PX;
    context.fillStyle = this.look.faint;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const every = [1, 2, 5, 10, 20].find((one) => one * this.scale >= TICK_PX) ?? 20;
    for (let ago = 0; ago < this.window_s; ago += every) {
      const x = Math.round(this.x(this.end_s - ago));
      context.fillStyle = this.look.line;
      context.fillRect(x, 0, 1, y);
      context.fillStyle = this.look.faint;
      context.textAlign = ago ? "center" : "right";
      context.fillText(ago ? `−${ago} s` : text("now"), ago ? x : width - 4, y + AXIS_PX / 2);
    }
  }

  /** Where a step began, when there is room to see it. */
  drawSteps(context, height) {
    context.fillStyle = this.look.line;
    for (const step of this.model.steps) {
      if (step.to_s > this.from_s && (step.to_s - step.at_s) * this.scale >= STEP_PX) context.fillRect(Math.round(this.x(step.at_s)), 0, 1, height);
    }
  }

  drawPieces(context, first, end, width) {
    const { kinds } = this.look;
    const thick = Math.max(2, this.row_px - (this.row_px > 8 ? 5 : 1));
    // One path for each colour: five hundred lanes are a few calls.
    const paths = kinds.map(() => new Path2D());
    for (let at = first; at < end; at += 1) {
      const lane = this.shown[at];
      const y = at * this.row_px - this.top + (this.row_px - thick) / 2;
      for (const piece of lane.pieces) this.bar(paths[piece.kind], piece.from_s, piece.to_s, y, thick, width);
      const isOpen = lane.ended_s === null;
      if (isOpen && (lane.state === WAITS || lane.state === EVICTED)) {
        this.bar(paths[lane.state], lane.last_s, this.end_s, y, thick, width);
      }
    }
    kinds.forEach((colour, kind) => {
      context.fillStyle = colour;
      context.fill(paths[kind]);
    });
  }

  bar(path, from_s, to_s, y, thick, width) {
    const left = Math.max(this.names_px, this.x(from_s));
    const right = Math.min(width - 8, Math.max(this.x(to_s), left + 1));
    if (right > left) path.rect(left, y, right - left, thick);
  }

  drawMarked(context, first, end, width) {
    const at = this.shown.findIndex((lane) => lane.id === this.marked || lane.name === this.marked);
    if (this.marked === null || at < first || at >= end) return;
    context.fillStyle = this.look.mark;
    const [y, high] = [at * this.row_px - this.top, Math.max(3, this.row_px)];
    context.fillRect(0, y, 3, high);
    context.globalAlpha = 0.12;
    context.fillRect(0, y, width, high);
    context.globalAlpha = 1;
  }

  drawNames(context, first, end) {
    context.fillStyle = this.look.ink;
    context.font = `${this.row_px >= 18 ? 12 : 10}px ui-monospace, monospace`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (let at = first; at < end; at += 1) {
      const { title } = this.shown[at];
      const shown = title.length > 15 ? `${title.slice(0, 6)}…${title.slice(-8)}` : title;
      context.fillText(shown, 4, at * this.row_px - this.top + this.row_px / 2);
    }
  }

  drawNothing(context, width, height) {
    context.fillStyle = this.look.faint;
    context.font = "13px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(text("nothing_runs"), width / 2, height / 2, width - 24);
  }

  point(event) {
    if (!this.shown) return;
    const box = this.scroll.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const lane = this.shown[Math.floor((y + this.top) / this.row_px)];
    if (!lane || y > this.height - AXIS_PX) return this.leave();
    const at_s = this.from_s + (x - this.names_px) / this.scale;
    const step = this.model.steps.find((one) => one.at_s <= at_s && at_s < one.to_s);
    const piece = lane.pieces.findLast((one) => one.from_s <= at_s && at_s <= one.to_s);
    const kind = KINDS[piece?.kind ?? lane.state];
    const lines = [`${lane.title} · ${text(lane.ended_s !== null && !piece ? "ended" : kind)}`];
    if (step) lines.push(text("step_is", { n: step.n, batch: step.who.length, tokens: tokens(step), ms: ms((step.to_s - step.at_s) * 1e3) }));
    const own = step?.who.find(([id]) => id === lane.id);
    if (own) lines.push(text("own_tokens", { count: own[1] }));
    show(this.tip, lines.join("\n"));
    this.tip.hidden = false;
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, box.width - 330))}px`;
    this.tip.style.top = `${Math.min(y + 14, this.height - 60)}px`;
    this.mark(lane.id);
    this.pick(lane.id);
  }

  leave() {
    this.tip.hidden = true;
    this.mark(null);
    this.pick(null);
  }

  mark(id) {
    this.marked = id;
    this.dirty = true;
  }

  /** What the canvas shows, for those who do not see it. */
  describe() {
    const open = [...(this.model?.lanes.values() ?? [])].filter((lane) => lane.ended_s === null);
    const of = (...states) => open.filter((lane) => states.includes(lane.state)).length;
    const values = { waits: of(WAITS), runs: of(PROMPT, DECODES), evicted: of(EVICTED) };
    this.canvas.setAttribute("aria-label", text("timeline_says", values));
  }
}

export const tokens = (step) => step.who.reduce((sum, [, count]) => sum + count, 0);

/** The rows of the table that stands for the timeline. */
export function laneRows(model, count = 50) {
  const lanes = [...model.lanes.values()].sort((a, b) => b.arrived_s - a.arrived_s).slice(0, count);
  return lanes.map((lane) => {
    const busy_s = lane.pieces.filter((one) => one.kind === PROMPT || one.kind === DECODES).reduce((sum, one) => sum + one.to_s - one.from_s, 0);
    const state = lane.ended_s !== null ? "ended" : KINDS[lane.state];
    const waited = lane.waited_s === null ? "–" : ms(lane.waited_s * 1e3);
    return [lane.title, text(state), waited, number(lane.num_cached), number(lane.num_tokens), ms(busy_s * 1e3), number(lane.num_evicted)];
  });
}
