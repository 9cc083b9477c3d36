// The server, as the page talks to it. Owns: where it is, the key, errors by their own words, and
// events as they come. May not know: what is asked, or shown.

import { key } from "./store.js";

const ROOT = new URL(".", document.baseURI);

export const address = (path) => new URL(path, ROOT).href;

export class Refusal extends Error {
  constructor(status, error, requestId, after) {
    super(error?.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = error?.code ?? null;
    this.requestId = requestId;
    this.after_s = after;
  }
}

/** A reply that is good; raises Refusal. A missing key is asked for, wherever that is noticed. */
export async function ask(path, { body, signal, headers } = {}) {
  const sent = { accept: "application/json, text/event-stream", ...headers };
  if (key.get()) sent.authorization = `Bearer ${key.get()}`;
  if (body) sent["content-type"] = "application/json";
  const reply = await fetch(address(path), {
    method: body ? "POST" : "GET",
    body: body ? JSON.stringify(body) : undefined,
    headers: sent,
    signal,
    cache: "no-store",
    credentials: "omit",
  });
  if (reply.ok) return reply;
  const found = await reply.json().catch(() => null);
  if (reply.status === 401) document.dispatchEvent(new CustomEvent("key-needed"));
  const after = Number(reply.headers.get("retry-after")) || null;
  throw new Refusal(reply.status, found?.error, reply.headers.get("x-request-id"), after);
}

export const askJson = async (path, more) => (await ask(path, more)).json();

/** The data of each event of a stream, as JSON; ends at [DONE], or where the stream ends. An error
 *  event is raised. */
export async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        const data = line.slice(6);
        if (data === "[DONE]") return;
        const found = JSON.parse(data);
        if (found.error && found.error.message) {
          throw new Refusal(200, found.error, reply.headers.get("x-request-id"), null);
        }
        yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
