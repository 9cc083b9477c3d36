// Conversations as trees: an answer that is made again, or a question that was changed, is a branch.
// Owns: their form, and that they stay in this browser. Read next: chat.js.

import { keep, keptJson } from "./store.js";

const MAX_KEPT = 40;
const TITLE_CHARS = 60;

/** `head` is the message at which the conversation stands; what is seen is the way to it. */
export class Conversation {
  constructor(given = {}) {
    this.id = given.id ?? crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
    this.created = given.created ?? Date.now();
    this.messages = given.messages ?? [];
    this.head = given.head ?? null;
  }

  get title() {
    return this.messages.find((one) => one.role === "user")?.content.slice(0, TITLE_CHARS) ?? "";
  }

  find(id) {
    return this.messages.find((one) => one.id === id) ?? null;
  }

  /** A message below another (null: at the start); it becomes the head. */
  add(parent, message) {
    const made = { id: String(this.messages.length), parent, ...message };
    this.messages.push(made);
    this.head = made.id;
    return made;
  }

  path() {
    const found = [];
    for (let at = this.find(this.head); at; at = this.find(at.parent)) found.unshift(at);
    return found;
  }

  siblings(message) {
    return this.messages.filter((one) => one.parent === message.parent && one.role === message.role);
  }

  /** Stand at a message, and below it where the conversation went on last. */
  select(message) {
    let at = message;
    for (;;) {
      const below = this.messages.findLast((one) => one.parent === at.id);
      if (!below) break;
      at = below;
    }
    this.head = at.id;
  }
}

export class History {
  constructor() {
    this.all = keptJson("conversations", []).map((one) => new Conversation(one));
  }

  save(conversation) {
    if (!conversation.messages.length) return;
    const others = this.all.filter((one) => one.id !== conversation.id);
    this.all = [conversation, ...others].slice(0, MAX_KEPT);
    keep("conversations", JSON.stringify(this.all));
  }

  remove(conversation) {
    this.all = this.all.filter((one) => one.id !== conversation.id);
    keep("conversations", JSON.stringify(this.all));
  }
}

/** The messages of a path as the protocol has them. */
export function asMessages(path, system) {
  const found = system ? [{ role: "system", content: system }] : [];
  for (const one of path) {
    if (one.role === "tool") found.push({ role: "tool", content: one.content, tool_call_id: one.callId });
    else if (one.calls?.length) found.push({ role: "assistant", content: one.content || null, tool_calls: one.calls });
    else if (one.content) found.push({ role: one.role, content: one.content });
  }
  return found;
}
