// The chat. Owns: what is sent and when, how an answer grows, what can be done with it.
// Read next: conversation.js (the tree), messages.js (one message), net.js (events).

import { button, made, say, show, sign, tell } from "./dom.js";
import { engineRail } from "./engine.js";
import { follow, model } from "./feed.js";
import { Conversation, History, asMessages } from "./conversation.js";
import { Message } from "./messages.js";
import { Refusal, ask, events } from "./net.js";
import { FieldFault, Sampling } from "./sampling.js";
import { text } from "./texts.js";

const EXAMPLES = ["example_1", "example_2", "example_3"];
const MAX_FILE_BYTES = 256 * 1024;
const SAVE_MS = 1000;
const NEAR_PX = 80;

export class Chat {
  constructor() {
    this.history = new History();
    this.conversation = new Conversation();
    this.sampling = new Sampling();
    this.stopping = null;
    this.thread = made("div.thread", { role: "log", label: "conversation", aria: { live: "polite", relevant: "additions" } });
    this.welcome = this.makeWelcome();
    this.input = made("textarea", { rows: 1, label: "message", placeholder: "message_hint", enterKeyHint: "send", autocomplete: "off" });
    this.send = made("button.primary", { type: "submit", t: "send" });
    this.stop = button("stop", () => this.stopping?.abort(), { className: "primary stop", hidden: true });
    this.gauge = made("meter", { min: 0, max: 1, low: 0.75, high: 0.9, optimum: 0, value: 0, label: "context_used" });
    this.gaugeTold = made("small");
    this.rail = engineRail();
    this.node = made("div.view.chat", {}, made("div.talk", {}, this.makeBar(), this.welcome, this.thread, this.makeForm()), this.rail.node);
    this.listen();
    follow(() => this.tellModel());
    this.render();
  }

  makeBar() {
    this.past = made("details.past", {}, made("summary", { t: "history" }));
    this.list = made("ul");
    this.past.append(this.list);
    this.past.addEventListener("toggle", () => this.listHistory());
    return made("div.bar-row", {}, made("h1", { t: "chat" }), this.past, button("export", () => this.export()), button("new_chat", () => this.open(new Conversation())));
  }

  makeWelcome() {
    this.hello = made("h2");
    const tries = EXAMPLES.map((key) => button(key, () => this.ask(text(key))));
    return made("div.welcome", {}, this.hello, made("p", { t: "welcome" }), made("div.tries", { role: "group", label: "examples" }, tries));
  }

  makeForm() {
    const files = made("input", { type: "file", multiple: true, hidden: true, label: "attach", tabIndex: -1 });
    files.addEventListener("change", () => this.attach(files));
    const attach = sign("＋", "attach", () => files.click());
    const row = made("div.compose", {}, attach, this.input, this.send, this.stop);
    const under = made("div.under", {}, made("small.keys", { t: "keys" }), this.gaugeTold, this.gauge);
    this.form = made("form.composer", {}, files, row, under, this.sampling.node);
    return this.form;
  }

  listen() {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.input.addEventListener("keydown", (event) => {
      // While a text is composed, Enter belongs to the input method.
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
        event.preventDefault();
        this.submit();
      }
    });
    this.input.addEventListener("input", () => this.grow());
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing) this.stopping?.abort();
    });
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, 240)}px`;
  }

  submit() {
    const content = this.input.value.trim();
    if (!content || this.stopping) return;
    if (this.ask(content)) {
      this.input.value = "";
      this.grow();
    }
  }

  /** A question at the head, and its answer. */
  ask(content, parent = this.conversation.head) {
    if (this.stopping) return false;
    const body = this.body();
    if (!body) return false;
    const question = this.conversation.add(parent, { role: "user", content });
    this.answer(question, body);
    return true;
  }

  /** The fields of a body, or null where one is wrong, which is said. */
  body() {
    const { fault } = this.sampling;
    fault.hidden = true;
    try {
      return { model: model()?.name, ...this.sampling.body() };
    } catch (wrong) {
      if (!(wrong instanceof FieldFault)) throw wrong;
      this.sampling.node.open = true;
      say(fault, "field_wrong", { field: text(wrong.field), why: wrong.message });
      fault.hidden = false;
      return null;
    }
  }

  again(answer) {
    const body = this.stopping ? null : this.body();
    if (body) this.answer(this.conversation.find(answer.parent), body);
  }

  /** What a tool gave; the model goes on when every call has its result. */
  give(answer, results) {
    const body = this.stopping ? null : this.body();
    if (!body) return;
    let parent = answer.id;
    for (const [callId, content] of results) parent = this.conversation.add(parent, { role: "tool", content, callId }).id;
    this.answer(this.conversation.find(parent), body);
  }

  async answer(question, settings) {
    this.conversation.head = question.id;
    const messages = asMessages(this.conversation.path(), this.sampling.system);
    const body = { ...settings, messages, stream: true, stream_options: { include_usage: true }, firsthand_timings: true };
    const answer = this.conversation.add(question.id, { role: "assistant", content: "", reasoning: "", calls: [], body });
    this.stopping = new AbortController();
    this.setBusy(true);
    this.render();
    const shown = this.shown.get(answer.id);
    try {
      await this.read(answer, shown, body);
    } catch (fault) {
      this.fail(answer, fault);
    } finally {
      this.stopping = null;
      this.setBusy(false);
      this.history.save(this.conversation);
      shown.end();
      this.tellModel();
    }
  }

  async read(answer, shown, body) {
    const reply = await ask("v1/chat/completions", { body, signal: this.stopping.signal });
    answer.requestId = reply.headers.get("x-request-id");
    this.rail.timeline.mark(answer.requestId);
    let saved_ms = performance.now();
    for await (const chunk of events(reply)) {
      this.take(answer, chunk);
      shown.changed();
      this.follow();
      if (performance.now() - saved_ms > SAVE_MS) {
        saved_ms = performance.now();
        this.history.save(this.conversation); // a page that is loaded again finds what there was
      }
    }
    if (!answer.finish) throw new Refusal(200, { message: text("cut_off") }, answer.requestId, null);
  }

  take(answer, chunk) {
    if (chunk.usage) answer.usage = chunk.usage;
    if (chunk.timings) answer.timings = chunk.timings;
    const [choice] = chunk.choices;
    if (!choice) return;
    const { delta } = choice;
    answer.content += delta.content ?? "";
    answer.reasoning += delta.reasoning ?? delta.reasoning_content ?? "";
    for (const part of delta.tool_calls ?? []) {
      const call = (answer.calls[part.index] ??= { id: part.id, type: "function", function: { name: "", arguments: "" } });
      call.function.name += part.function?.name ?? "";
      call.function.arguments += part.function?.arguments ?? "";
    }
    if (choice.finish_reason) Object.assign(answer, { finish: choice.finish_reason, stop: choice.stop_reason });
  }

  fail(answer, fault) {
    if (fault.name === "AbortError") {
      answer.finish = "stopped";
      tell("stopped");
      return;
    }
    answer.finish = "failed";
    answer.fault = fault.message;
    if (fault.requestId) answer.requestId = fault.requestId;
    if (fault.after_s) answer.after_s = fault.after_s;
  }

  setBusy(busy) {
    this.send.hidden = busy;
    this.stop.hidden = !busy;
    this.thread.setAttribute("aria-busy", String(busy));
  }

  /** The end of the thread stays in sight, unless somebody has scrolled away. */
  follow(always = false) {
    const { scrollHeight } = document.documentElement;
    if (always || scrollHeight - innerHeight - scrollY < NEAR_PX + 160) scrollTo(0, scrollHeight);
  }

  render() {
    const path = this.conversation.path();
    this.welcome.hidden = path.length > 0;
    this.thread.hidden = !path.length;
    this.shown = new Map();
    const actions = {
      again: (one) => this.again(one),
      edit: (one, content) => this.ask(content, one.parent),
      branch: (one) => {
        this.conversation.select(one);
        this.render();
      },
      give: (one, results) => this.give(one, results),
    };
    const nodes = path.map((one) => {
      const shown = new Message(one, this.conversation.siblings(one), actions);
      this.shown.set(one.id, shown);
      return shown.node;
    });
    this.thread.replaceChildren(...nodes);
    this.follow(true);
  }

  open(conversation) {
    this.stopping?.abort();
    this.conversation = conversation;
    this.past.open = false;
    this.render();
    this.input.focus();
  }

  listHistory() {
    const rows = this.history.all.map((one) => made("li", {}, show(made("button", { type: "button", on: { click: () => this.open(one) } }), one.title), sign("×", "delete", () => {
      this.history.remove(one);
      this.listHistory();
    })));
    this.list.replaceChildren(...(rows.length ? rows : [made("li.note", { t: "history_empty" })]));
  }

  export() {
    const content = JSON.stringify(this.conversation, null, 2);
    const link = made("a", { href: URL.createObjectURL(new Blob([content], { type: "application/json" })), download: `firsthand-${new Date(this.conversation.created).toISOString().slice(0, 10)}.json` });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  async attach(files) {
    for (const file of files.files) {
      if (file.size > MAX_FILE_BYTES) tell("file_large", { name: file.name });
      else this.input.value += `${this.input.value ? "\n" : ""}${file.name}:\n\`\`\`\n${await file.text()}\n\`\`\`\n`;
    }
    files.value = "";
    this.grow();
    this.input.focus();
  }

  tellModel() {
    const now = model();
    if (!now) return;
    say(this.hello, "hello", { model: now.name });
    const all = now.model.context_length;
    const last = this.conversation.path().findLast((one) => one.usage)?.usage.total_tokens ?? 0;
    this.gauge.value = all ? last / all : 0;
    say(this.gaugeTold, "context_left", { left: Math.max(0, (all ?? 0) - last), all: all ?? 0 });
  }
}

