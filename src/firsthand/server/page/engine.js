// The live engine: its panels, and what they have in common. Owns: which request is pointed at, in
// every panel at once; tables in place of pictures; in teaching mode, the pace.
// Read next: lanes.js, blocks.js, steps.js, queue.js.

import { BlockMap, blockRows, prefixList } from "./blocks.js";
import { button, field, made, panel, say, show, swatch, table, tell } from "./dom.js";
import { follow, house, link, model } from "./feed.js";
import { Tiles } from "./figures.js";
import { Timeline, laneRows } from "./lanes.js";
import { memoryBar } from "./model.js";
import { askJson } from "./net.js";
import { Shares, Waiting, queueRows } from "./queue.js";
import { StepCosts, stepRows } from "./steps.js";
import { text } from "./texts.js";

const WINDOWS = [5, 20, 60];

/** A table that stands for a picture; filled only while it is open. */
function twin(captionKey, heads, rows) {
  const found = table(captionKey, heads);
  const node = made("details.twin", {}, made("summary", { t: "as_table" }), found.node);
  const fill = () => {
    const now = model();
    if (node.open && now?.picture) found.fill(rows(now));
  };
  node.addEventListener("toggle", fill);
  return { node, fill };
}

export function engineView() {
  const tiles = new Tiles(["running", "waiting", "rate", "blocks", "memory"]);
  const mark = (id) => {
    timeline.mark(id);
    map.mark(id);
  };
  const timeline = new Timeline({ pick: mark });
  const map = new BlockMap(mark);
  const [costs, shares, waiting, pace] = [new StepCosts(), new Shares(), new Waiting(), paceControls()];
  const tree = made("div");
  const memory = made("div");
  const twins = [
    twin("timeline", ["request", "state", "waited", "cached", "tokens", "computing", "evictions"], laneRows),
    twin("queue", ["request", "class", "rises_to", "position", "age", "estimate", "why"], queueRows),
    twin("blocks", ["request", "known", "computed", "blocks_held", "blocks_shared"], (now) => blockRows(now.picture)),
    twin("step_costs", ["step", "batch", "tokens", "phase_plan", "phase_prepare", "phase_forward", "phase_sample", "phase_commit", "phase_between"], stepRows),
  ];
  const node = made("div.view.engine", {}, made("h1", { t: "engine" }), made("p.lead", { t: "engine_lead" }), pace.node, tiles.node,
    panel("timeline", windowChoice(timeline), legend(), timeline.node, twins[0].node),
    made("div.columns", {},
      panel("queue", waiting.node, shares.node, twins[1].node),
      panel("step_costs", costs.node, twins[3].node)),
    made("div.columns", {},
      panel("blocks", map.node, twins[2].node),
      panel("prefixes", tree),
    ),
    panel("memory", memory));
  let due_ms = 0;
  let later = 0;
  const update = () => {
    const now = model();
    if (!now || !node.isConnected) return;
    tiles.update(now);
    timeline.update(now);
    pace.update(now);
    map.update(now);
    costs.update(now);
    clearTimeout(later);
    const early_ms = due_ms - performance.now(); // what is read may not flicker
    if (early_ms > 0) {
      later = setTimeout(update, early_ms);
      return;
    }
    due_ms = performance.now() + 500;
    waiting.update(now);
    shares.update(now);
    timeline.describe();
    for (const one of twins) one.fill();
    const shared = now.picture?.running.length;
    tree.replaceChildren(shared ? prefixList(now.picture) : made("p.note", { t: "no_prefixes" }));
    memory.replaceChildren(memoryBar(now));
  };
  follow(update);
  return { node, shown: () => { due_ms = 0; update(); }, timeline };
}

export function legend() {
  const kinds = ["waits", "prompt", "decodes", "evicted"];
  return made("ul.legend", {}, kinds.map((kind) => made("li", {}, swatch(kind), made("span", { t: kind, hint: `${kind}_is` }))));
}

function windowChoice(timeline) {
  const group = made("div.choice", { role: "group", label: "window" });
  for (const seconds of WINDOWS) {
    const one = made("button", { type: "button", t: "seconds", values: { count: seconds }, aria: { pressed: String(seconds === timeline.window_s) } });
    one.addEventListener("click", () => {
      timeline.window_s = seconds;
      timeline.dirty = true;
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === one));
    });
    group.append(one);
  }
  return group;
}

/** One line on top: is the engine there, is this the state of now. */
export function status() {
  const dot = made("i.dot", { aria: { hidden: "true" } });
  const words = made("span");
  const node = made("p.status", { role: "status" }, dot, words);
  const update = () => {
    const now = model();
    const state = now?.state.status ?? "unknown";
    const good = link.isOpen && (state === "ready" || state === "degraded");
    dot.dataset.state = !link.isOpen ? "off" : good ? (now.pace.paused ? "held" : "on") : "wait";
    if (!link.isOpen) say(words, "link_closed");
    else if (now?.pace.paused) say(words, "engine_paused");
    else if (good) say(words, now.isBusy ? "engine_works" : "engine_idle", { open: now.load.num_open });
    else say(words, "engine_is", { state: text(`status_${state}`), reason: now?.state.reason ?? "" });
  };
  follow(update);
  update();
  return node;
}

/** Pause, one step, slow motion: only where the server was started for it. */
function paceControls() {
  const set = async (body) => {
    try {
      await askJson("firsthand/engine/pace", { body: { model: model().name, ...body } });
    } catch (fault) {
      tell("failed", { why: fault.message });
    }
  };
  const pause = button("pause", () => set({ paused: !model().pace.paused }));
  const step = button("one_step", () => set({ paused: true, num_steps: 1 }));
  const slow = made("input", { type: "range", min: 0, max: 1000, step: 50, value: 0 });
  const told = made("output");
  slow.addEventListener("input", () => show(told, `${slow.value} ms`));
  slow.addEventListener("change", () => set({ paused: false, delay_ms: Number(slow.value) }));
  const node = made("div.pace", { role: "group", label: "teaching", hidden: true },
    made("span.badge", { t: "teaching" }), pause, step, field("slow_motion", slow), told, made("p.note", { t: "teaching_about" }));
  const update = (now) => {
    node.hidden = !house.demo;
    say(pause, now.pace.paused ? "go_on" : "pause");
    step.disabled = !now.pace.paused;
  };
  return { node, update };
}

/** The small engine beside the chat. */
export function engineRail() {
  const tiles = new Tiles(["running", "waiting", "rate", "blocks"]);
  const timeline = new Timeline({ height: 150, window_s: 12, names: false });
  const costs = new StepCosts();
  const node = made("aside.rail", { label: "engine_now" }, made("h2", { t: "engine_now" }), status(), tiles.node,
    made("h3", { t: "timeline" }), legend(), timeline.node, made("h3", { t: "step_costs" }), costs.node,
    made("a.more", { href: "#/engine", t: "see_all" }));
  follow(() => {
    const now = model();
    if (!now || !node.isConnected) return;
    tiles.update(now);
    timeline.update(now);
    timeline.describe();
    costs.update(now);
  });
  return { node, timeline };
}
