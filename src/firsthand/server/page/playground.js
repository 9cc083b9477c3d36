// The playground: prompts alone, then together, and whether the answers are the same to the bit.
// Owns: what is sent, how it is compared. Read next: engine.js (what is seen meanwhile).

import { button, field, made, panel, say, show, table } from "./dom.js";
import { legend } from "./engine.js";
import { follow, model } from "./feed.js";
import { Timeline } from "./lanes.js";
import { ask, askJson, events } from "./net.js";
import { CLASSES } from "./queue.js";
import { ms, number, text } from "./texts.js";

const MOST = 64;
const SEED = 20260;

/** The ids of a prompt as the chat would have them. */
async function tokenized(prompt, signal) {
  const body = { model: model()?.name, messages: [{ role: "user", content: prompt }] };
  return (await askJson("v1/chat/completions/render", { body, signal })).token_ids;
}

/** The answers to several prompts of one body, with what makes them comparable. A browser has few
 *  connections to a server, so prompts that are to be together go together. */
async function generate(prompts, settings, priority, signal) {
  const body = {
    model: model()?.name, prompt: prompts, max_tokens: settings.max_tokens, temperature: settings.temperature, seed: SEED,
    logprobs: 0, return_token_ids: true, firsthand_timings: true, stream: true, ...(priority ? { priority } : {}),
  };
  const began = performance.now();
  const answers = prompts.map(() => ({ ids: [], logprobs: [], timings: null, took_ms: 0 }));
  for await (const { choices, timings } of events(await ask("v1/completions", { body, signal }))) {
    for (const choice of choices) {
      const answer = answers[choice.index];
      answer.ids.push(...(choice.token_ids ?? []));
      answer.logprobs.push(...(choice.logprobs?.token_logprobs ?? []));
      if (choice.finish_reason) Object.assign(answer, { timings, took_ms: performance.now() - began });
    }
  }
  return answers;
}

/** The first token at which two answers differ, in itself or in any bit of its probability. */
export function firstDifference(one, other) {
  const count = Math.max(one.ids.length, other.ids.length);
  for (let at = 0; at < count; at += 1) {
    if (one.ids[at] !== other.ids[at] || !Object.is(one.logprobs[at], other.logprobs[at])) return at;
  }
  return null;
}

/** Which prompts go together: all, or those of a class; at a rate, each alone. */
function groups(count, settings) {
  const places = Array.from({ length: count }, (_, at) => at);
  if (settings.rate) return places.map((at) => [at]);
  if (!settings.mixed) return [places];
  return CLASSES.map((_, one) => places.filter((at) => at % CLASSES.length === one)).filter((group) => group.length);
}

const pause = (time_ms) => new Promise((done) => setTimeout(done, time_ms));

class Playground {
  constructor() {
    this.stopping = null;
    this.inputs = {
      prompts: made("textarea", { rows: 4, value: [1, 2, 3].map((at) => text(`play_${at}`)).join("\n") }),
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
      const ids = await Promise.all(prompts.map((prompt) => tokenized(prompt, this.stopping.signal)));
      const began = performance.now();
      const alone = [];
      for (const at of ids.keys()) {
        say(this.verdict, "runs_alone", { at: at + 1, count: ids.length });
        await this.send(ids, [at], settings, alone);
      }
      const between = performance.now();
      say(this.verdict, "runs_together", { count: ids.length });
      const together = [];
      await Promise.all(groups(ids.length, settings).map(async (group) => {
        if (settings.rate) await pause((group[0] * 1000) / settings.rate);
        await this.send(ids, group, settings, together);
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

  /** The prompts at these places, as one body; the answers go to the same places of `found`. */
  async send(ids, places, settings, found) {
    const priority = settings.mixed ? CLASSES[places[0] % CLASSES.length] : null;
    const answers = await generate(places.map((at) => ids[at]), settings, priority, this.stopping.signal);
    places.forEach((at, place) => (found[at] = answers[place]));
    this.done += places.length;
    this.progress.value = this.done / this.all;
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
      const batch = together[at].timings?.peak_batch;
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
