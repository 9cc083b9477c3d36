// The block map: every block of the KV cache a cell. Owns: whose a cell is, and the tree of shared
// prefixes. Read next: feed.js (the picture), engine.js (where it stands).

import { made, show, swatch } from "./dom.js";
import { colours, fitted, themed } from "./lanes.js";
import { number, text } from "./texts.js";

const CELL = 13;
const LEAST_CELLS = 256;
const MOST_CELLS = 6000;
const HUES = 24;
const LIGHT = [38, 52, 64];

/** A colour for each request: neighbours differ in lightness too, for those who see fewer colours. */
export function hue(id) {
  let sum = 7;
  for (const one of id) sum = (sum * 31 + one.charCodeAt(0)) % 9973;
  const at = sum % HUES;
  return `hsl(${(at * 137) % 360} 48% ${LIGHT[at % LIGHT.length]}%)`;
}

function* ids(runs) {
  for (const [first, count] of runs) for (let at = 0; at < count; at += 1) yield first + at;
}

/** Who has each block: block → requests. */
export function ownersOf(picture) {
  const owners = new Map();
  for (const row of picture.running) {
    for (const block of ids(row.blocks)) {
      const found = owners.get(block);
      if (found) found.push(row);
      else owners.set(block, [row]);
    }
  }
  return owners;
}

export class BlockMap {
  constructor(pick = () => {}) {
    this.canvas = made("canvas", { role: "img", label: "blocks" });
    this.tip = made("div.tip", { hidden: true });
    this.note = made("p.note");
    this.node = made("div.blockmap", {}, this.canvas, this.tip, this.note);
    this.pick = pick;
    this.marked = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
      this.pick(null);
    });
    themed(() => (this.look = null));
  }

  update(model) {
    if (!model?.picture || !this.node.clientWidth) return;
    const { picture } = model;
    this.owners = ownersOf(picture);
    this.cached = new Set(ids(picture.cached));
    const touched = Math.max(-1, ...[...this.owners.keys()], ...[...picture.cached].map(([first, count]) => first + count - 1)) + 1;
    const columns = Math.max(8, Math.floor(this.node.clientWidth / CELL));
    const wanted = Math.min(model.model.num_blocks, MOST_CELLS, Math.max(LEAST_CELLS, touched));
    this.columns = columns;
    this.count = Math.min(model.model.num_blocks, Math.ceil(wanted / columns) * columns);
    this.draw();
    this.describe(model);
  }

  draw() {
    this.look ??= colours(this.node);
    const rows = Math.ceil(this.count / this.columns);
    const [width, height] = [this.columns * CELL, rows * CELL];
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const context = fitted(this.canvas, width, height);
    for (let block = 0; block < this.count; block += 1) {
      const x = (block % this.columns) * CELL;
      const y = Math.floor(block / this.columns) * CELL;
      this.cell(context, x + 1, y + 1, CELL - 2, block);
    }
  }

  cell(context, x, y, size, block) {
    const owners = this.owners.get(block);
    if (!owners) {
      context.fillStyle = this.cached.has(block) ? this.look.faint : this.look.line;
      context.globalAlpha = this.cached.has(block) ? 0.45 : 0.8;
      context.fillRect(x, y, size, size);
      context.globalAlpha = 1;
      return;
    }
    const marked = owners.find((row) => row.request_id === this.marked);
    context.fillStyle = hue((marked ?? owners[0]).request_id);
    context.globalAlpha = this.marked && !marked ? 0.3 : 1;
    context.fillRect(x, y, size, size);
    context.globalAlpha = 1;
    if (owners.length > 1) {
      context.strokeStyle = this.look.paper;
      context.lineWidth = 1.6;
      context.beginPath();
      for (const shift of [0, 5, 10]) {
        context.moveTo(x + Math.max(0, shift - size), y + Math.min(shift, size));
        context.lineTo(x + Math.min(shift, size), y + Math.max(0, shift - size));
      }
      context.moveTo(x, y + size);
      context.lineTo(x + size, y);
      context.stroke();
    }
  }

  mark(id) {
    if (this.marked === id) return;
    this.marked = id;
    if (this.owners && this.node.clientWidth) this.draw();
  }

  point(event) {
    if (!this.owners) return;
    const [x, y] = [event.offsetX, event.offsetY];
    const block = Math.floor(y / CELL) * this.columns + Math.floor(x / CELL);
    if (block >= this.count) return;
    const owners = this.owners.get(block) ?? [];
    const state = owners.length ? "block_used" : this.cached.has(block) ? "block_cached" : "block_free";
    const names = owners.slice(0, 6).map((row) => row.name ?? row.request_id);
    show(this.tip, [text(state, { block, owners: owners.length }), ...names].join("\n"));
    this.tip.hidden = false;
    this.tip.style.left = `${Math.min(x + 14, this.node.clientWidth - 210)}px`;
    this.tip.style.top = `${y + 16}px`;
    this.pick(owners[0]?.request_id ?? null);
  }

  describe(model) {
    const shared = [...this.owners.values()].filter((rows) => rows.length > 1).length;
    const values = {
      used: this.owners.size, shared, cached: this.cached.size, all: model.model.num_blocks,
      free: model.model.num_blocks - this.owners.size - this.cached.size, size: model.model.block_size,
    };
    const told = text("blocks_all", values);
    this.canvas.setAttribute("aria-label", told);
    const hidden = model.model.num_blocks - this.count;
    show(this.note, [told, hidden > 0 ? text("blocks_more", { hidden }) : ""].join(" "));
  }
}

/** The tree of what is shared: each node a run of blocks that the same requests have. */
export function prefixTree(picture) {
  const grow = (members, at) => {
    const groups = new Map();
    for (const one of members) {
      const block = one.blocks[at];
      if (block !== undefined) groups.set(block, [...(groups.get(block) ?? []), one]);
    }
    return [...groups.values()].map((group) => {
      let end = at + 1;
      while (group.every((one) => one.blocks[end] !== undefined && one.blocks[end] === group[0].blocks[end])) end += 1;
      return { count: end - at, rows: group.map((one) => one.row), below: group.length > 1 ? grow(group, end) : [] };
    });
  };
  return grow(picture.running.map((row) => ({ row, blocks: [...ids(row.blocks)] })), 0);
}

export function prefixList(picture) {
  const item = (node) => {
    const names = node.rows.map((row) => row.name ?? row.request_id);
    const line = made("span", { t: node.rows.length > 1 ? "shared_by" : "own_blocks", values: { count: node.count, owners: node.rows.length, name: names[0] } });
    const cells = swatch(hue(node.rows[0].request_id), node.rows.length > 1 ? "span.cells.hatched" : "span.cells");
    cells.style.width = `${Math.min(160, node.count * 6)}px`;
    return made("li", {}, cells, line, node.below.length ? made("ul", {}, node.below.map(item)) : null);
  };
  return made("ul.tree", {}, prefixTree(picture).slice(0, 40).map(item));
}

export function blockRows(picture) {
  const owners = ownersOf(picture);
  return picture.running.map((row) => {
    const own = [...ids(row.blocks)];
    const shared = own.filter((block) => owners.get(block).length > 1).length;
    return [row.name ?? row.request_id, number(row.num_known), number(row.num_computed), number(own.length), number(shared)];
  });
}
