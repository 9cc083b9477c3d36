// What is loaded. Owns: how a model and its hashes are shown, and the map of memory.
// Read next: feed.js.

import { button, copied, made, show, swatch } from "./dom.js";
import { follow, house } from "./feed.js";
import { bytes, number, text } from "./texts.js";

const SHORT_HASH = 12;

export function modelView() {
  const list = made("div");
  const node = made("div.view", {}, made("h1", { t: "models" }), made("p.lead", { t: "models_lead" }), list);
  let told = "";
  const update = () => {
    if (!node.isConnected) return;
    const models = [...house.models.values()];
    const now = JSON.stringify(models.map((one) => [one.name, one.model, one.state, one.memory]));
    if (now === told) return; // a text that somebody has selected stays selected
    told = now;
    list.replaceChildren(...models.map((one) => card(one, models)));
  };
  follow(update);
  return { node, shown: () => { told = ""; update(); } };
}

function card(one, all) {
  const about = one.model;
  const rows = [
    ["status", text(`status_${one.state.status}`)],
    ["file", about.file],
    ["hash", hash(about.sha256)],
    ...(about.release ? [["release", hash(about.release)]] : []),
    ["context", about.context_length < about.own_context_length ? text("context_less", { now: about.context_length, own: about.own_context_length }) : text("tokens_count", { count: about.context_length })],
    ["vocabulary", text("tokens_count", { count: about.vocab_size })],
    ["places", number(about.max_sequences)],
    ["cache", text("cache_is", { blocks: about.num_blocks, size: about.block_size })],
    ["template", text(about.has_chat_template ? "yes" : "no")],
    ["restarts", number(one.state.num_restarts)],
    ...about.adapters.map((adapter) => ["adapter", hash(adapter.sha256, adapter.name)]),
  ];
  const pairs = rows.map(([key, value]) => [made("dt", { t: key }), value instanceof Node ? made("dd", {}, value) : show(made("dd"), value)]);
  const heading = made("h2", {}, alike(one.name, all.map((other) => other.name)));
  return made("section.panel.model", {}, heading, made("dl", {}, pairs), memoryBar(one));
}

/** The name, with what tells it from a name that is nearly the same. */
function alike(name, names) {
  const near = names.find((other) => other !== name && common(name, other) * 2 > Math.max(name.length, other.length));
  if (!near) return name;
  const start = common(name, near);
  let end = 0;
  while (end < Math.min(name.length, near.length) - start && name.at(-1 - end) === near.at(-1 - end)) end += 1;
  return [name.slice(0, start), show(made("mark"), name.slice(start, name.length - end)), name.slice(name.length - end)];
}

function common(one, other) {
  let count = 0;
  while (count < one.length && one[count] === other[count]) count += 1;
  return count;
}

function hash(sha256, name) {
  if (!sha256) return made("span", { t: "hash_unknown" });
  const short = show(made("b"), sha256.slice(0, SHORT_HASH));
  const whole = made("code", {}, short, sha256.slice(SHORT_HASH));
  return made("span", {}, name ? `${name} ` : null, whole, button("copy", () => copied(sha256), { className: "small" }));
}

const COLOURS = ["prompt", "phase-plan", "decodes", "phase-commit", "line"];
const PARTS = ["weights", "scratch", "kv_used", "kv_cached", "kv_free"];

/** What holds the memory, as one bar with its legend. */
export function memoryBar(one) {
  const { memory } = one;
  if (!memory) return made("p.note", { t: "memory_unknown" });
  const kv = memory.kv_reserved_bytes;
  const cached = Math.min(kv - memory.kv_used_bytes, kv * share(one));
  const sizes = [memory.weights_bytes, memory.scratch_bytes, memory.kv_used_bytes, cached, kv - memory.kv_used_bytes - cached];
  const all = sizes.reduce((sum, size) => sum + size, 0);
  const bar = made("div.memory", { aria: { hidden: "true" } }, sizes.map((size, at) => {
    const part = swatch(COLOURS[at], "i");
    part.style.flexGrow = String(Math.max(size / Math.max(1, all), 0.002));
    return part;
  }));
  const items = sizes.map((size, at) => made("li", {}, swatch(COLOURS[at]), made("span", { t: `part_${PARTS[at]}` }), show(made("b"), bytes(size))));
  return made("div", {}, bar, made("ul.legend", {}, items), made("p.note", { t: "memory_peak", values: { peak: bytes(memory.peak_rss_bytes) } }));
}

function share(one) {
  const count = (one.picture?.cached ?? []).reduce((sum, [, number]) => sum + number, 0);
  return count / Math.max(1, one.model.num_blocks);
}
