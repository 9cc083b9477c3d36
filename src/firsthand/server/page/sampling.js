// How tokens are chosen: the fields beside the chat. Owns: their names, ranges and what is sent.
// Read next: chat.js.

import { field, made } from "./dom.js";
import { keep, keptJson } from "./store.js";

const NUMBERS = [
  ["temperature", 0, 2, 0.1, 0.7], ["top_p", 0.01, 1, 0.01, 1], ["top_k", 0, 1000, 1, 0],
  ["max_tokens", 1, 100000, 1, 512], ["seed", 0, 2 ** 31 - 1, 1, ""],
];

export class Sampling {
  constructor() {
    const before = keptJson("sampling", {});
    this.inputs = new Map();
    const numbers = NUMBERS.map(([name, min, max, step, value]) => {
      const input = made("input", { type: "number", min, max, step, value: before[name] ?? value, inputMode: "decimal" });
      this.inputs.set(name, input);
      return field(name, input, name === "max_tokens" ? null : `${name}_is`);
    });
    const area = (name, rows) => {
      const input = made("textarea", { rows, value: before[name] ?? "", spellcheck: name === "system" });
      this.inputs.set(name, input);
      return field(name, input);
    };
    const priority = made("select", {}, ["normal", "urgent", "background"].map((name) => made("option", { value: name, t: name })));
    priority.value = before.priority ?? "normal";
    this.inputs.set("priority", priority);
    this.fault = made("p.fault", { role: "alert", hidden: true });
    this.node = made("details.sampling", {}, made("summary", { t: "settings" }),
      area("system", 3), made("div.grid", {}, numbers, field("priority", priority, "priority_is")),
      made("details", {}, made("summary", { t: "forms" }), area("schema", 5), area("tools", 5)), this.fault);
    this.node.addEventListener("change", () => keep("sampling", JSON.stringify(this.values())));
  }

  values() {
    return Object.fromEntries([...this.inputs].map(([name, input]) => [name, input.value]));
  }

  get system() {
    return this.inputs.get("system").value.trim();
  }

  /** The fields of a body. Raises an Error with the name of the field that is wrong. */
  body() {
    const found = {};
    for (const [name] of NUMBERS) {
      const input = this.inputs.get(name);
      if (!input.checkValidity()) throw new FieldFault(name, input.validationMessage);
      if (input.value !== "") found[name] = Number(input.value);
    }
    if (!found.top_k) delete found.top_k;
    found.seed ??= Math.floor(Math.random() * 2 ** 31); // known, so that the answer can be had again
    if (this.inputs.get("priority").value !== "normal") found.priority = this.inputs.get("priority").value;
    const schema = this.json("schema");
    if (schema) found.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    const tools = this.json("tools");
    if (tools) found.tools = Array.isArray(tools) ? tools : [tools];
    return found;
  }

  json(name) {
    const source = this.inputs.get(name).value.trim();
    if (!source) return null;
    try {
      return JSON.parse(source);
    } catch (fault) {
      throw new FieldFault(name, fault.message);
    }
  }
}

export class FieldFault extends Error {
  constructor(field, why) {
    super(why);
    this.field = field;
  }
}
