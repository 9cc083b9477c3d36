// A small Markdown, as nodes. Owns: what of it is known. What a model says is text: no HTML in it
// means anything, and a link is one only to http and https.

import { button, copied, made, show } from "./dom.js";

const MAX_DEPTH = 6;
const MAX_INLINE = 5000; // of characters in which marks are looked for
const INLINE = /(`+)([\s\S]+?)\1|\*\*([\s\S]+?)\*\*|(?<![\w*])\*(?!\s)([^*\n]+?)\*(?!\w)|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/;

/** The nodes of a text. Unfinished marks, as a stream has them, stay what they are. */
export function markdown(source, depth = 0) {
  const lines = source.replaceAll("\r\n", "\n").split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const block = code(lines, at) ?? heading(lines, at) ?? list(lines, at) ?? grid(lines, at) ?? quote(lines, at, depth);
    if (block) {
      found.push(block.node);
      at = block.next;
    } else if (!lines[at].trim()) {
      at += 1;
    } else {
      const start = at;
      at += 1;
      while (at < lines.length && lines[at].trim() && !begins(lines[at])) at += 1;
      found.push(made("p", {}, inline(lines.slice(start, at).join("\n"))));
    }
  }
  return found;
}

const begins = (line) => /^(```|~~~|#{1,6} |\s*([-*+]|\d{1,9}[.)]) |> )/.test(line);

function code(lines, at) {
  const open = /^(```+|~~~+)\s*([\w+-]*)/.exec(lines[at]);
  if (!open) return null;
  let end = at + 1;
  while (end < lines.length && !lines[end].startsWith(open[1])) end += 1;
  const content = lines.slice(at + 1, end).join("\n");
  const inner = show(made("code"), content);
  const copy = button("copy", () => copied(content), { className: "small" });
  const node = made("div.code", {}, show(made("span.kind"), open[2]), copy, made("pre", { tabIndex: 0 }, inner));
  return { node, next: end + 1 };
}

function heading(lines, at) {
  const found = /^(#{1,6}) (.*)$/.exec(lines[at]);
  if (!found) return null;
  const level = Math.min(6, found[1].length + 2); // below the page's own
  return { node: made(`h${level}`, {}, inline(found[2].replace(/\s#+\s*$/, ""))), next: at + 1 };
}

function list(lines, at) {
  const first = /^(\s*)([-*+]|(\d{1,9})[.)]) (.*)$/.exec(lines[at]);
  if (!first) return null;
  const node = made(first[3] ? "ol" : "ul");
  if (first[3]) node.start = Number(first[3]);
  const depth = first[1].length;
  let next = at;
  let item = null;
  while (next < lines.length) {
    const found = /^(\s*)([-*+]|\d{1,9}[.)]) (.*)$/.exec(lines[next]);
    if (found && found[1].length > depth + 1 && item) {
      const inner = list(lines, next);
      item.append(inner.node);
      next = inner.next;
    } else if (found && found[1].length >= depth && /^\d/.test(found[2]) === Boolean(first[3])) {
      item = made("li", {}, inline(found[3]));
      node.append(item);
      next += 1;
    } else if (item && lines[next].trim() && /^\s{2,}/.test(lines[next])) {
      item.append("\n", ...inline(lines[next].trim()));
      next += 1;
    } else if (!lines[next].trim() && /^\s*([-*+]|\d{1,9}[.)]) /.test(lines[next + 1] ?? "")) {
      next += 1;
    } else {
      break;
    }
  }
  return next === at ? null : { node, next };
}

function grid(lines, at) {
  if (!lines[at].includes("|") || !/^\s*\|?\s*:?-{2,}[-|:\s]*$/.test(lines[at + 1] ?? "")) return null;
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((one) => inline(one.trim()));
  const head = made("tr", {}, cells(lines[at]).map((one) => made("th", { scope: "col" }, one)));
  const body = made("tbody");
  let next = at + 2;
  while (next < lines.length && lines[next].includes("|")) {
    body.append(made("tr", {}, cells(lines[next]).map((one) => made("td", {}, one))));
    next += 1;
  }
  return { node: made("div.scroll", { tabIndex: 0 }, made("table", {}, made("thead", {}, head), body)), next };
}

function quote(lines, at, depth) {
  if (!lines[at].startsWith("> ") || depth >= MAX_DEPTH) return null;
  let next = at;
  while (next < lines.length && lines[next].startsWith(">")) next += 1;
  const inner = lines.slice(at, next).map((line) => line.replace(/^> ?/, "")).join("\n");
  return { node: made("blockquote", {}, markdown(inner, depth + 1)), next };
}

function inline(source) {
  if (source.length > MAX_INLINE) return [source];
  const found = [];
  let rest = source;
  for (;;) {
    const match = INLINE.exec(rest);
    if (!match) break;
    if (match.index) found.push(rest.slice(0, match.index));
    if (match[1]) found.push(show(made("code"), match[2]));
    else if (match[3]) found.push(made("strong", {}, inline(match[3])));
    else if (match[4]) found.push(made("em", {}, inline(match[4])));
    else found.push(show(made("a", { href: match[6], target: "_blank", rel: "noopener noreferrer" }), match[5]));
    rest = rest.slice(match.index + match[0].length);
  }
  if (rest) found.push(rest);
  return found;
}
