// One request, followed from its arrival to its last byte, as the recorder has it. Owns: the search
// by id, the waterfall. Read next: net.js; the server's docs/observe.md says what is recorded.

import { field, made, panel, show, swatch, table } from "./dom.js";
import { link } from "./feed.js";
import { ask, askJson } from "./net.js";
import { ms, number, text } from "./texts.js";

const COLOURS = { receive: "line", tokenize: "phase-sample", attempt: "phase-prepare", queue: "waits", prefill: "prompt", decode: "decodes", send: "phase-commit" };
const AGAIN_MS = 2000;
const SHOWN = 30;

export function requestsView() {
  const input = made("input", { type: "search", autocomplete: "off", spellcheck: false });
  const form = made("form.search", { role: "search" }, field("request_id", input), made("button", { type: "submit", t: "show" }));
  const found = made("div", { aria: { live: "polite" } });
  const recent = table("recent_requests", ["request", "state", "class", "waited", "cached", "tokens", "evictions", "all_of_it"]);
  const node = made("div.view", {}, made("h1", { t: "requests" }), made("p.lead", { t: "requests_lead" }), form, found, panel("recent_requests", recent.node));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/requests/${encodeURIComponent(input.value.trim())}`;
  });
  const list = async () => {
    if (!node.isConnected || document.hidden) return;
    if (link.isOpen) {
      const { requests } = await askJson(`firsthand/requests?limit=${SHOWN}`).catch(() => ({ requests: [] }));
      recent.fill(requests.map(row));
    }
    clearTimeout(list.timer);
    list.timer = setTimeout(list, AGAIN_MS);
  };
  const shown = (id) => {
    input.value = id ? decodeURIComponent(id) : "";
    found.replaceChildren();
    if (id) follow(input.value, found);
    list();
  };
  return { node, shown };
}

// Of what is in progress, the words of its lane.
const STATES = { queued: "waits", prefill: "prompt", decode: "decodes", preempted: "evicted" };
const stateOf = (one) => text(STATES[one.state] ?? `state_${one.state}`);
const stageOf = (one, name) => one.stages.find((stage) => stage.name === name)?.ms;

function row(one) {
  const id = show(made("a", { href: `#/requests/${encodeURIComponent(one.id)}` }), one.id);
  return [id, stateOf(one), text(one.priority ?? "none"), ms(stageOf(one, "queue")), number(one.cached_tokens), number(one.output_tokens), number(one.preemptions), ms(one.total_ms)];
}

async function follow(id, place) {
  try {
    const reply = await ask(`firsthand/requests/${encodeURIComponent(id)}`);
    place.replaceChildren(whole(await reply.json()));
  } catch (fault) {
    const key = fault.status === 404 ? "request_unknown" : "failed";
    place.replaceChildren(made("p.verdict", { t: key, values: { id, why: fault.message }, data: { ok: false } }));
  }
}

function whole(one) {
  const values = {
    id: one.id, model: one.model, all: ms(one.total_ms), cached: one.cached_tokens, tokens: one.output_tokens, prompt: one.prompt_tokens,
    steps: one.num_steps, batch: one.batch_max, evictions: one.preemptions, state: stateOf(one), why: one.finish_reasons?.length ? ` (${one.finish_reasons.join(", ")})` : "",
  };
  const parts = [made("p", { t: "request_is", values })];
  const queue = one.parts?.[0]?.queue;
  if (queue) parts.push(made("p", { t: "request_waited", values: { ahead: queue.ahead, class: text(queue.class), age: ms(queue.age_ms) } }));
  parts.push(bars(one.stages.map((stage) => [text(`stage_${stage.name}`), stage.start_ms, stage.ms, COLOURS[stage.name]]), one.total_ms));
  if (one.step_ms) {
    const spent = Object.entries(one.step_ms);
    const all = spent.reduce((sum, [, spent_ms]) => sum + Math.max(0, spent_ms), 0);
    let from_ms = 0;
    const rows = spent.map(([name, spent_ms]) => {
      const start_ms = from_ms;
      from_ms += Math.max(0, spent_ms);
      return [text(name === "other" ? "phase_prepare" : `phase_${name}`), start_ms, spent_ms, `phase-${name === "other" ? "prepare" : name}`];
    });
    parts.push(made("h3", { t: "in_steps" }), bars(rows, all));
  }
  if (one.trace_id) parts.push(made("p.note", { t: "trace_is", values: { id: one.trace_id } }));
  return panel("waterfall", ...parts);
}

/** One bar below the other, each where its time was. */
function bars(rows, all_ms) {
  const items = rows.map(([name, start_ms, spent_ms, colour]) => {
    const bar = swatch(colour, "i");
    bar.style.left = `${(start_ms / all_ms) * 100}%`;
    bar.style.width = `${Math.max(0.3, (spent_ms / all_ms) * 100)}%`;
    return made("li", {}, show(made("span"), name), made("div.track", { aria: { hidden: "true" } }, bar), show(made("b"), ms(spent_ms)));
  });
  return made("ol.waterfall", {}, items);
}
