// The figures under an answer, and the tiles of the engine. Owns: which they are, in which order.
// Read next: chat.js, engine.js.

import { made, say, show } from "./dom.js";
import { bytes, ms, number, percent } from "./texts.js";

/** One figure: its name is a hint and is read aloud, its value is what is seen. */
function figure(key, value) {
  return made("span.figure", { hint: `${key}_is` }, made("span.name", { t: key }), show(made("b"), value));
}

/** Under an answer that has ended. `answer` is what chat.js keeps of it. */
export function answerFigures(answer) {
  const { timings, usage } = answer;
  const found = [];
  if (timings) {
    found.push(figure("ttft", ms(timings.ttft_ms)));
    if (timings.predicted_per_second) found.push(figure("rate", `${number(timings.predicted_per_second)} tok/s`));
    found.push(figure("queued", ms(timings.queue_ms)));
    found.push(figure("cached", `${timings.cache_n}/${timings.cache_n + timings.prompt_n}`));
    if (timings.peak_batch) found.push(figure("batch", number(timings.peak_batch)));
  }
  if (answer.body?.seed !== undefined) found.push(figure("seeded", String(answer.body.seed)));
  if (usage) found.push(figure("tokens", number(usage.completion_tokens)));
  if (answer.finish) found.push(figure("ended_by", answer.stop && answer.stop !== answer.finish ? `${answer.finish} (${answer.stop})` : answer.finish));
  if (answer.requestId) {
    const link = show(made("a", { href: `#/requests/${encodeURIComponent(answer.requestId)}`, hint: "open_request" }), answer.requestId);
    found.push(made("span.figure", {}, made("span.name", { t: "request" }), link));
  }
  return made("div.figures", { role: "group", label: "figures" }, found);
}

export class Tiles {
  constructor(names) {
    this.values = new Map();
    const tiles = names.map((name) => {
      const value = made("b");
      const note = made("small");
      this.values.set(name, [value, note]);
      return made("div.tile", {}, made("span", { t: `tile_${name}` }), value, note);
    });
    this.node = made("div.tiles", { role: "group", label: "engine_now" }, tiles);
  }

  update(model) {
    const { load, model: about, memory } = model;
    if (load.num_open === undefined) return;
    const all = {
      running: [number(load.num_running), "of_places", { count: about.max_sequences }],
      waiting: [number(load.num_waiting), "in_queue", {}],
      rate: [load.drawn_tokens_per_s ? number(load.drawn_tokens_per_s) : "–", "tokens_per_s", {}],
      blocks: [percent(load.num_used_blocks / Math.max(1, load.num_blocks)), "of_blocks", { used: load.num_used_blocks, all: load.num_blocks }],
      memory: [bytes(memory?.peak_rss_bytes), "peak_memory", {}],
    };
    for (const [name, [value, note]] of this.values) {
      const [shown, key, values] = all[name];
      show(value, shown);
      say(note, key, values);
    }
  }
}
