// What a step costs: its phases, one bar for each of the last steps. Owns: the phases and their
// shares. Read next: feed.js, from which the steps come.

import { made, say, show, swatch } from "./dom.js";
import { fitted, themed, tokens } from "./lanes.js";
import { ms, percent, text } from "./texts.js";

export const PHASES = ["plan", "prepare", "forward", "sample", "commit", "between"];
const SHOWN = 80;
const HEIGHT = 110;
const HIGHEST = 4; // times the median: a taller bar is cut, and says so
const APART_S = 0.05; // a longer pause between two steps was for want of work

/** Each step with what passed until the next one, while there was work. */
export function withPauses(steps) {
  return steps.map((step, at) => {
    const next = steps[at + 1];
    const pause_s = next && next.n === step.n + 1 ? next.at_s - step.to_s : 0;
    return { step, phases: [...step.ms, pause_s > 0 && pause_s < APART_S ? pause_s * 1e3 : 0] };
  });
}

export function shares(steps) {
  const sums = PHASES.map(() => 0);
  for (const { phases } of withPauses(steps)) phases.forEach((one, at) => (sums[at] += one));
  const all = sums.reduce((sum, one) => sum + one, 0);
  return sums.map((one) => ({ mean_ms: steps.length ? one / steps.length : 0, share: all ? one / all : 0 }));
}

export class StepCosts {
  constructor() {
    this.canvas = made("canvas", { role: "img", label: "step_costs" });
    this.tip = made("div.tip", { hidden: true });
    this.legend = made("ul.legend");
    this.parts = PHASES.map((name) => {
      const value = made("b");
      this.legend.append(made("li", {}, swatch(`phase-${name}`), made("span", { t: `phase_${name}`, hint: `phase_${name}_is` }), value));
      return value;
    });
    this.mean = made("p.note");
    this.node = made("div.steps", {}, this.canvas, this.tip, this.legend, this.mean);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    themed(() => (this.look = null));
  }

  update(model) {
    const width = this.node.clientWidth;
    if (!model || !width) return;
    const style = getComputedStyle(this.node);
    this.look ??= PHASES.map((name) => style.getPropertyValue(`--phase-${name}`).trim());
    this.shown = withPauses(model.steps).slice(-SHOWN);
    const context = fitted(this.canvas, width, HEIGHT);
    this.canvas.style.height = `${HEIGHT}px`;
    const sums = this.shown.map(({ phases }) => sum(phases)).sort((a, b) => a - b);
    const most = sums.at(-1) ?? 0;
    const top = Math.max(1e-6, Math.min(most, HIGHEST * (sums[sums.length >> 1] ?? 0)));
    this.bar_px = Math.max(3, width / SHOWN);
    const left = width - this.shown.length * this.bar_px;
    this.shown.forEach(({ phases }, at) => {
      let y = HEIGHT;
      phases.forEach((one, phase) => {
        const high = (one / top) * (HEIGHT - 8);
        context.fillStyle = this.look[phase];
        context.fillRect(left + at * this.bar_px, Math.max(0, y - high), this.bar_px - 1, high);
        y -= high;
      });
      if (y < 0) context.clearRect(left + at * this.bar_px, 4, this.bar_px, 2);
    });
    this.tell(model, most);
  }

  tell(model, most) {
    const recent = model.steps.slice(-200);
    const found = shares(recent);
    found.forEach((one, at) => show(this.parts[at], recent.length ? percent(one.share) : "–"));
    const mean = sum(found.map((one) => one.mean_ms));
    if (recent.length) say(this.mean, "steps_mean", { ms: ms(mean), most: ms(most), count: recent.length });
    else say(this.mean, "steps_none");
    const told = found.map((one, at) => `${text(`phase_${PHASES[at]}`)} ${percent(one.share)}`);
    this.canvas.setAttribute("aria-label", `${text("step_costs")}: ${told.join(", ")}`);
  }

  point(event) {
    const left = this.node.clientWidth - this.shown.length * this.bar_px;
    const found = this.shown[Math.floor((event.offsetX - left) / this.bar_px)];
    this.tip.hidden = !found;
    if (!found) return;
    const { step, phases } = found;
    const head = text("step_is", { n: step.n, batch: step.who.length, tokens: tokens(step), ms: ms(sum(phases)) });
    show(this.tip, [head, ...phases.map((one, at) => `${text(`phase_${PHASES[at]}`)}: ${ms(one)}`)].join("\n"));
    this.tip.style.left = `${Math.max(0, Math.min(event.offsetX + 10, this.node.clientWidth - 210))}px`;
    this.tip.style.top = "4px";
  }
}

const sum = (values) => values.reduce((all, one) => all + one, 0);

export function stepRows(model, count = 30) {
  return withPauses(model.steps).slice(-count).reverse().map(({ step, phases }) => [
    String(step.n), String(step.who.length), String(tokens(step)), ...phases.map((one) => ms(one)),
  ]);
}
