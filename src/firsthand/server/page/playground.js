// The playground: prompts alone, then together, and whether the answers are the same to the bit.
// Owns: what is sent, how it is compared. Read next: engine.js (what is seen meanwhile).

import { button, field, made, panel, say, show, table } from "./dom.js";
import { legend } from "./engine.js";
import { follow, model } from "./feed.js";
import { Timeline } from "./lanes.js";
import { askJson } from "./net.js";
import { CLASSES } from "./queue.js";
import { ms, number, text } from "./texts.js";

const MOST = 64;
const SEED = 20260;

/** One whole answer with what makes it comparable. */
async function generate(prompt, at, settings, signal) {
  const body = {
    model: model()?.name, messages: [{ role: "user", content: prompt }],
    max_tokens: settings.max_tokens, temperature: settings.temperature, seed: SEED + at,
    logprobs: true, return_token_ids: true, firsthand_timings: true,
    ...(settings.mixed ? { priority: CLASSES[at % CLASSES.length] } : {}),
  };
  const began = performance.now();
  const reply = await askJson("v1/chat/completions", { body, signal });
  const [choice] = reply.choices;
  return {
    took_ms: performance.now() - began, timings: reply.timings, text: choice.message.content,
    ids: choice.token_ids, logprobs: choice.logprobs.content.map((one) => one.logprob),
  };
}

/** The first token at which two answers differ, in itself or in any bit of its probability. */
export function firstDifference(one, other) {
  const count = Math.max(one.ids.length, other.ids.length);
  for (let at = 0; at < count; at += 1) {
    if (one.ids[at] !== other.ids[at] || !Object.is(one.logprobs[at], other.logprobs[at])) return at;
  }
  return null;
}

const pause = (time_ms) => new Promise((done) => setTimeout(done, time_ms));

class Playground {
  constructor() {
    this.stopping = null;
    this.inputs = {
      prompts: made("textarea", { rows: 6, value: Array.from({ length: 6 }, (_, at) => text(`play_${at + 1}`)).join("\n") }),
      count: number_input(8, 2, MOST), max_tokens: number_input(24, 1, 512), rate: number_input(0, 0, 100),
      temperature: number_input(0.8, 0, 2, 0.1), mixed: made("input", { type: "checkbox" }),
    };
    const { prompts, count, max_tokens, rate, temperature, mixed } = this.inputs;
    this.run = made("button.primary", { type: "submit", t: "fire" });
    this.stop = button("stop", () => this.stopping?.abort(), { hidden: true });
    this.verdict = made("p.verdict", { role: "status", hidden: true });
    this.progress = made("progress", { max: 1, value: 0, hidden: true, label: "progress" });
    this.results = table("results", ["prompt_head", "alone", "together", "speed_batch", "tokens", "same"]);
    this.results.node.hidden = true;
    this.timeline = new Timeline({ height: 260, window_s: 12 });
    const form = made("form.play", {}, field("prompts", prompts, "prompts_is"),
      made("div.grid", {}, field("count", count), field("max_tokens", max_tokens), field("rate_per_s", rate, "rate_is"), field("temperature", temperature)),
      made("label.check", {}, mixed, made("span", { t: "mixed" })), made("div.actions", {}, this.run, this.stop));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.fire();
    });
    this.node = made("div.view", {}, made("h1", { t: "playground" }), made("p.lead", { t: "playground_lead" }), form, this.progress, this.verdict,
      panel("timeline_play", legend(), this.timeline.node), this.results.node);
    follow(() => {
      if (this.node.isConnected && model()) this.timeline.update(model());
    });
  }

  settings() {
    const { inputs } = this;
    const value = (name) => Number(inputs[name].value);
    return { count: value("count"), max_tokens: value("max_tokens"), rate: value("rate"), temperature: value("temperature"), mixed: inputs.mixed.checked };
  }

  async fire() {
    if (this.stopping) return;
    const settings = this.settings();
    const lines = this.inputs.prompts.value.split("\n").map((one) => one.trim()).filter(Boolean);
    const prompts = Array.from({ length: settings.count }, (_, at) => lines[at % lines.length] ?? text("play_1"));
    this.stopping = new AbortController();
    this.setBusy(true);
    this.done = 0;
    this.all = 2 * prompts.length;
    try {
      const began = performance.now();
      const alone = [];
      for (const [at, prompt] of prompts.entries()) {
        say(this.verdict, "runs_alone", { at: at + 1, count: prompts.length });
        alone.push(await this.one(prompt, at, settings));
      }
      const between = performance.now();
      say(this.verdict, "runs_together", { count: prompts.length });
      const together = await Promise.all(prompts.map(async (prompt, at) => {
        if (settings.rate) await pause((at * 1000) / settings.rate);
        return this.one(prompt, at, settings);
      }));
      this.judge(prompts, alone, together, between - began, performance.now() - between);
    } catch (fault) {
      this.verdict.dataset.ok = "false";
      this.stopping.abort(); // what else is under way is of no use
      if (fault.name === "AbortError") say(this.verdict, "stopped");
      else say(this.verdict, "failed", { why: fault.message });
    } finally {
      this.stopping = null;
      this.setBusy(false);
    }
  }

  async one(prompt, at, settings) {
    const found = await generate(prompt, at, settings, this.stopping.signal);
    this.done += 1;
    this.progress.value = this.done / this.all;
    return found;
  }

  judge(prompts, alone, together, alone_ms, together_ms) {
    const differences = alone.map((one, at) => firstDifference(one, together[at]));
    const wrong = differences.filter((one) => one !== null).length;
    this.verdict.dataset.ok = String(!wrong);
    const values = { count: prompts.length, wrong, alone: ms(alone_ms), together: ms(together_ms), times: number(alone_ms / together_ms) };
    say(this.verdict, wrong ? "answers_differ" : "answers_equal", values);
    this.results.node.hidden = false;
    this.results.fill(prompts.map((prompt, at) => {
      const mark = made("span.mark", { data: { ok: differences[at] === null } });
      if (differences[at] === null) say(mark, "same_bits");
      else say(mark, "differs_at", { at: differences[at] + 1 });
      const batch = together[at].timings.peak_batch;
      return [prompt, ms(alone[at].took_ms), ms(together[at].took_ms), batch ? number(batch) : "–", number(together[at].ids.length), mark];
    }));
  }

  setBusy(busy) {
    this.run.disabled = busy;
    this.stop.hidden = !busy;
    this.progress.hidden = !busy;
    this.progress.value = 0;
    this.verdict.hidden = false;
    if (busy) delete this.verdict.dataset.ok;
  }
}

function number_input(value, min, max, step = 1) {
  return made("input", { type: "number", value, min, max, step, required: true });
}

export function playgroundView() {
  const one = new Playground();
  return { node: one.node, shown: () => model() && one.timeline.update(model()) };
}
