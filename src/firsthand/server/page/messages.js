// One message of the thread. Owns: how it looks, while it grows and after; its buttons; how a
// request looks for other programs. Read next: markdown.js, figures.js.

import { button, copied, made, say, show, sign } from "./dom.js";
import { answerFigures } from "./figures.js";
import { markdown } from "./markdown.js";
import { address } from "./net.js";
import { key } from "./store.js";

export class Message {
  constructor(message, siblings, actions) {
    Object.assign(this, { message, siblings, actions, isDue: false });
    this.body = made("div.body");
    this.foot = made("div.foot");
    const who = made("span.who", { t: message.role });
    this.node = made("article.message", { data: { role: message.role } }, who, this.body, this.foot);
    this.draw();
    this.end();
  }

  /** It has grown; drawn at the next frame, however much came until then. */
  changed() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.draw();
    });
  }

  draw() {
    const { message } = this;
    if (message.role === "user") {
      show(this.body, message.content);
      return;
    }
    if (message.role === "tool") {
      this.body.replaceChildren(show(made("pre"), message.content));
      return;
    }
    const wasOpen = this.body.querySelector("details.reasoning")?.open;
    const parts = [];
    if (message.reasoning) {
      const fold = made("details.reasoning", { open: wasOpen ?? false }, made("summary", { t: "reasoning" }), show(made("div"), message.reasoning));
      parts.push(fold);
    }
    parts.push(...markdown(message.content));
    if (message.calls?.length) parts.push(this.calls());
    if (message.fault) parts.push(made("p.fault", { role: "alert", t: message.after_s ? "answer_refused" : "answer_failed", values: { why: message.fault, after: message.after_s ?? 0 } }));
    if (!parts.length && !message.finish) parts.push(made("span.thinking", { label: "waiting_first" }, made("i"), made("i"), made("i")));
    this.body.replaceChildren(...parts);
  }

  calls() {
    const inputs = [];
    const cards = this.message.calls.map((call) => {
      const input = made("textarea", { rows: 2, label: "tool_result", placeholder: "tool_result" });
      inputs.push([call.id, input]);
      return made("div.call", {}, show(made("code"), `${call.function.name}(${call.function.arguments})`), input);
    });
    const give = button("give_results", () => this.actions.give(this.message, inputs.map(([id, input]) => [id, input.value])));
    return made("div.calls", {}, made("p", { t: "calls_tools" }), cards, give);
  }

  /** It grows no more. */
  end() {
    this.draw();
    const { message } = this;
    const isOpen = message.role === "assistant" && !message.finish;
    if (isOpen || message.role === "tool") return;
    const parts = message.role === "assistant" ? [answerFigures(message)] : [];
    this.foot.replaceChildren(...parts, this.buttons());
  }

  buttons() {
    const { message, actions, siblings } = this;
    const row = made("div.actions", { role: "group", label: "actions" });
    if (siblings.length > 1) row.append(this.branches());
    row.append(button("copy", () => copied(message.content)));
    if (message.role === "user") {
      row.append(button("edit", () => this.edit()));
    } else {
      row.append(button("again", () => actions.again(message)));
      if (message.body) {
        row.append(button("as_curl", () => copied(asCurl(message.body))), button("as_python", () => copied(asPython(message.body))));
      }
    }
    return row;
  }

  branches() {
    const { siblings, message, actions } = this;
    const at = siblings.findIndex((one) => one.id === message.id);
    const go = (to) => actions.branch(siblings[to]);
    const told = made("span", { t: "branch", values: { at: at + 1, count: siblings.length } });
    return made("span.branches", {}, sign("‹", "branch_before", () => go(at - 1), { disabled: at === 0 }), told, sign("›", "branch_after", () => go(at + 1), { disabled: at === siblings.length - 1 }));
  }

  edit() {
    const input = made("textarea", { rows: 3, value: this.message.content, label: "edit" });
    const done = () => {
      this.draw();
      this.end();
    };
    const form = made("form.edit", {}, input, made("div.actions", {}, made("button.primary", { type: "submit", t: "send" }), button("cancel", done)));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (input.value.trim()) this.actions.edit(this.message, input.value.trim());
    });
    this.body.replaceChildren(form);
    this.foot.replaceChildren();
    input.focus();
  }
}

/** The request for a shell. */
export function asCurl(body) {
  const quoted = JSON.stringify({ ...body, stream: true }).replaceAll("'", "'\\''");
  const secret = key.get() ? ' \\\n  -H "Authorization: Bearer $FIRSTHAND_API_KEY"' : "";
  return `curl -N ${address("v1/chat/completions")} \\\n  -H 'Content-Type: application/json'${secret} \\\n  -d '${quoted}'`;
}

function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one)}`).join(", ")}}`;
}

/** The same for the official client. */
export function asPython(body) {
  const { messages, model, stream, stream_options, firsthand_timings, top_k, priority, ...rest } = body;
  const extra = Object.fromEntries(Object.entries({ top_k, priority }).filter(([, value]) => value !== undefined));
  const given = { model, messages, ...rest, ...(Object.keys(extra).length ? { extra_body: extra } : {}) };
  const lines = Object.entries(given).map(([name, value]) => `    ${name}=${python(value)},`);
  return `from openai import OpenAI\n\nclient = OpenAI(base_url="${address("v1")}", api_key="none")\nanswer = client.chat.completions.create(\n${lines.join("\n")}\n)\nprint(answer.choices[0].message.content)\n`;
}
