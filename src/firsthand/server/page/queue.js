// Who waits, and why. Owns: the sentence that answers "why did this wait?", the order of the table,
// what each class got against what it is guaranteed. Read next: feed.js.

import { made, say, show } from "./dom.js";
import { number, percent, text } from "./texts.js";

export const CLASSES = ["urgent", "normal", "background"];
const RECENT_S = 10;
const SHOWN = 60;

/** Why a request waits now: a key of a text, and its values. */
export function reason(model, row, position) {
  const { picture, load } = model;
  const free = load.num_blocks - load.num_used_blocks;
  const needs = Math.ceil(row.num_known / Math.max(1, model.model.block_size));
  if (model.pace.paused) return ["why_paused", {}];
  if (row.num_preemptions) return ["why_evicted", { free, needs }];
  if (picture.running.length >= model.model.max_sequences) return ["why_full", { places: model.model.max_sequences, position }];
  if (needs > free) return ["why_blocks", { needs, free }];
  if (row.level < 0) return ["why_overdue", {}];
  return ["why_next", { position }];
}

/** Seconds until a place in the queue is taken up, by the pace of now; null: not known. */
export const estimate_s = (model, position) => (model.load.ended_per_s > 0 ? position / model.load.ended_per_s : null);

export function queueRows(model) {
  const { picture } = model;
  return picture.waiting.slice(0, SHOWN).map((row, at) => {
    const after_s = estimate_s(model, at + 1);
    return [
      row.name ?? row.request_id, text(CLASSES[row.class_index]),
      row.level < 0 ? text("overdue") : text(CLASSES[row.level]),
      String(at + 1), `${number(picture.at_s - row.arrival_s)} s`,
      after_s === null ? "–" : `≈ ${number(after_s)} s`, text(...reason(model, row, at + 1)),
    ];
  });
}

/** What each class got of the tokens of the last seconds, and what it is guaranteed. */
export function classShares(model) {
  const last = model.steps.at(-1)?.at_s ?? 0;
  const sums = CLASSES.map(() => 0);
  for (const step of model.steps) {
    if (step.at_s > last - RECENT_S) step.served_by_class.forEach((one, at) => (sums[at] += one));
  }
  const all = sums.reduce((sum, one) => sum + one, 0);
  const guaranteed = model.picture?.shares ?? [];
  const whole = guaranteed.reduce((sum, one) => sum + one, 0);
  return CLASSES.map((name, at) => ({
    name, got: all ? sums[at] / all : 0, owed: whole ? guaranteed[at] / whole : 0,
    waits: model.load.waiting_by_class?.[at] ?? 0, runs: model.load.running_by_class?.[at] ?? 0,
  }));
}

export class Shares {
  constructor() {
    this.rows = CLASSES.map((name) => {
      const bar = made("div.bar", { aria: { hidden: "true" } }, made("i"), made("u"));
      const told = made("span.told");
      return { node: made("li", {}, made("span.name", { t: name }), bar, told), bar, told };
    });
    this.node = made("ul.shares", {}, this.rows.map((row) => row.node));
  }

  update(model) {
    classShares(model).forEach((one, at) => {
      const { bar, told } = this.rows[at];
      bar.firstChild.style.width = percentOf(one.got);
      bar.lastChild.style.left = percentOf(one.owed);
      say(told, "share_is", { got: percent(one.got), owed: percent(one.owed), waits: one.waits, runs: one.runs });
    });
  }
}

const percentOf = (share) => `${Math.round(share * 100)}%`;

export class Waiting {
  constructor() {
    this.summary = made("p.note");
    this.list = made("ol.waiting");
    this.node = made("div", {}, this.summary, this.list);
  }

  update(model) {
    const { picture } = model;
    const count = model.load.num_waiting ?? 0;
    say(this.summary, count ? "queue_has" : "queue_empty", { count, runs: model.load.num_running ?? 0 });
    const shown = picture?.waiting.slice(0, 6) ?? [];
    this.list.replaceChildren(...shown.map((row, at) => {
      const [key, values] = reason(model, row, at + 1);
      const name = show(made("b"), row.name ?? row.request_id);
      const age = show(made("span.age"), `${number(picture.at_s - row.arrival_s)} s`);
      return made("li", {}, name, age, made("span.why", { t: key, values }));
    }));
  }
}
