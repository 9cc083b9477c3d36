// What the engines do, as the server tells it. Owns: the state of each model as far as it was
// told, lanes made of steps, and the connection. May not know: how any of it is drawn.
// Read next: lanes.js, blocks.js, steps.js, which draw.

import { ask, events } from "./net.js";

export const KEPT_S = 75; // of lanes that have ended
const MAX_STEPS = 600;
const MAX_LANES = 1500;
const JOINED_S = 0.06; // two pieces of a lane that are nearer are one

export const WAITS = 0, PROMPT = 1, DECODES = 2, EVICTED = 3;

/** One request on one model. Times are seconds of the engines' clock. */
class Lane {
  constructor(id, arrived_s, order) {
    Object.assign(this, { id, arrived_s, order, name: null, pieces: [], ended_s: null, state: WAITS });
    Object.assign(this, { num_tokens: 0, num_cached: 0, num_evicted: 0, waited_s: null, peak: 0, row: null });
  }

  /** What the caller calls it, or our own id. */
  get title() {
    return this.name ?? this.id;
  }

  add(from_s, to_s, kind) {
    const last = this.pieces.at(-1);
    if (last && last.kind === kind && from_s - last.to_s < JOINED_S) last.to_s = Math.max(last.to_s, to_s);
    else this.pieces.push({ from_s, to_s, kind });
  }

  get last_s() {
    return this.pieces.at(-1)?.to_s ?? this.arrived_s;
  }
}

export class Model {
  constructor(name) {
    Object.assign(this, { name, model: {}, state: {}, load: {}, memory: null, pace: {}, picture: null });
    Object.assign(this, { steps: [], lanes: new Map(), num_left_out: 0, served: [] });
    this.order = 0;
  }

  take(news) {
    for (const part of ["model", "state", "load", "memory", "pace"]) {
      if (part in news) this[part] = news[part];
    }
    this.num_left_out += news.num_left_out ?? 0;
    for (const step of news.steps ?? []) this.stepped(step);
    if (news.picture) this.pictured(news.picture, news.names ?? {});
    if (this.steps.length > MAX_STEPS) this.steps.splice(0, this.steps.length - MAX_STEPS);
  }

  lane(id, arrived_s) {
    let found = this.lanes.get(id);
    if (!found) {
      found = new Lane(id, arrived_s, this.order++);
      this.lanes.set(id, found);
    }
    return found;
  }

  stepped(step) {
    step.to_s = step.at_s + step.ms.reduce((sum, one) => sum + one, 0) / 1e3;
    for (const one of step.began) {
      const lane = this.lane(one.id, step.at_s - one.waited_s);
      lane.name = one.name ?? lane.name;
      lane.num_cached = one.num_cached_tokens;
      if (one.resumed) {
        lane.add(lane.last_s, step.at_s, EVICTED);
      } else {
        lane.waited_s ??= one.waited_s;
        if (!lane.pieces.length) lane.add(lane.arrived_s, step.at_s, WAITS);
      }
    }
    for (const id of step.evicted ?? []) this.lane(id, step.at_s).state = EVICTED;
    for (const [id, num_tokens] of step.who) {
      const lane = this.lane(id, step.at_s);
      lane.state = num_tokens > 1 ? PROMPT : DECODES;
      lane.add(step.at_s, step.to_s, lane.state);
      lane.num_tokens += num_tokens > 1 ? 0 : 1;
      lane.peak = Math.max(lane.peak, step.who.length);
    }
    this.steps.push(step);
  }

  pictured(picture, names) {
    for (const row of [...picture.running, ...picture.waiting]) row.name = names[row.request_id];
    this.picture = picture;
    const present = new Set();
    for (const row of picture.waiting) {
      const lane = this.note(row);
      lane.state = row.num_preemptions ? EVICTED : WAITS;
      present.add(lane.id);
    }
    for (const row of picture.running) present.add(this.note(row).id);
    for (const lane of this.lanes.values()) {
      if (!present.has(lane.id) && lane.last_s <= picture.at_s) lane.ended_s ??= lane.last_s;
    }
    this.forget(picture.at_s);
  }

  note(row) {
    const lane = this.lane(row.request_id, row.arrival_s);
    lane.name = row.name ?? lane.name;
    lane.num_evicted = row.num_preemptions;
    lane.row = row;
    return lane;
  }

  forget(now_s) {
    for (const lane of this.lanes.values()) {
      const old = lane.ended_s !== null && now_s - lane.ended_s > KEPT_S;
      if (old || (this.lanes.size > MAX_LANES && lane.ended_s !== null)) this.lanes.delete(lane.id);
    }
  }

  get isBusy() {
    return (this.load.num_open ?? 0) > 0;
  }
}

export const house = { models: new Map(), checks: [], alerts: [], degradation: {}, gpus: [], releases: null, version: "", demo: false };
export const link = { isOpen: false };

const listeners = new Set();
let offset_s = null;
let chosen = null;
let stopping = null;

/** `call` is told at each piece of news, and when the connection comes or goes. */
export function follow(call) {
  listeners.add(call);
}

/** Now, by the engines' clock. */
export const now_s = () => performance.now() / 1e3 + (offset_s ?? 0);

export const model = () => house.models.get(chosen) ?? house.models.values().next().value ?? null;

export function choose(name) {
  chosen = name;
  tellAll();
}

export function take(news) {
  const ahead = news.at_s - performance.now() / 1e3;
  offset_s = offset_s === null || Math.abs(ahead - offset_s) > 1 ? ahead : offset_s * 0.95 + ahead * 0.05;
  for (const one of news.models ?? []) {
    if (!house.models.has(one.name)) house.models.set(one.name, new Model(one.name));
    house.models.get(one.name).take(one);
  }
  for (const part in house) {
    if (part in news && part !== "models") house[part] = news[part];
  }
  tellAll();
}

function tellAll() {
  for (const call of listeners) call();
}

/** Connect, and again whenever it ends; not while nobody looks. */
export function connect() {
  document.addEventListener("visibilitychange", () => (document.hidden ? stopping?.abort() : listen()));
  listen();
}

export function reconnect() {
  stopping?.abort();
  listen();
}

async function listen() {
  const own = new AbortController();
  stopping?.abort();
  stopping = own;
  for (let pause_ms = 500; !own.signal.aborted && !document.hidden; pause_ms = Math.min(pause_ms * 2, 8000)) {
    try {
      const reply = await ask("firsthand/engine/stream", { signal: own.signal });
      link.isOpen = true;
      pause_ms = 250;
      house.models.clear();
      for await (const news of events(reply)) take(news);
    } catch (fault) {
      if (fault.status === 401) return; // asked again when there is a key
    } finally {
      link.isOpen = false;
      tellAll();
    }
    await new Promise((done) => setTimeout(done, pause_ms));
  }
}
