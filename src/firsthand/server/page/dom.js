// Elements, made by name. Owns: how one is made, and that whatever is shown is text, never HTML.
// Read next: texts.js, whose words stand in them.

import { text } from "./texts.js";

/** `made("p.note", {t: "key"}, child, …)`: a tag with classes, its properties, its children.
 *  `t` and `values` are a text by its key, `label`, `hint` and `placeholder` too, for attributes;
 *  `on` are listeners; `data` and `aria` are attributes; anything else is set as it is. */
export function made(what, given = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  const { t, values, label, hint, placeholder, on, data, aria, ...rest } = given;
  for (const [name, value] of Object.entries(rest)) {
    if (value === undefined || value === null) continue;
    if (name in node && name !== "list" && name !== "role") node[name] = value;
    else node.setAttribute(name, value);
  }
  for (const [name, value] of Object.entries(aria ?? {})) node.setAttribute(`aria-${name}`, value);
  for (const [name, value] of Object.entries(data ?? {})) node.dataset[name] = value;
  for (const [name, call] of Object.entries(on ?? {})) node.addEventListener(name, call);
  if (t) say(node, t, values);
  if (label) attribute(node, "aria-label", label, values);
  if (hint) attribute(node, "title", hint, values);
  if (placeholder) attribute(node, "placeholder", placeholder, values);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** The text of a key, now and after the language has changed. */
export function say(node, key, values) {
  const given = values ? JSON.stringify(values) : "";
  if (node.dataset.t === key && (node.dataset.v ?? "") === given) return node;
  node.dataset.t = key;
  if (given) node.dataset.v = given;
  else delete node.dataset.v;
  node.textContent = text(key, values);
  return node;
}

/** A text that is nobody's key: a number, what a model said. */
export function show(node, content) {
  delete node.dataset.t;
  const shown = String(content);
  if (node.textContent !== shown) node.textContent = shown;
  return node;
}

function attribute(node, name, key, values) {
  node.dataset[`t${name.replace("aria-", "")}`] = key;
  if (values) node.dataset.v = JSON.stringify(values);
  node.setAttribute(name, text(key, values));
}

/** All texts under a node again, in the language of now. */
export function retell(root) {
  const worded = "[data-t],[data-tlabel],[data-ttitle],[data-tplaceholder]";
  for (const node of root.querySelectorAll(worded)) {
    const { t, tlabel, ttitle, tplaceholder, v } = node.dataset;
    const values = v ? JSON.parse(v) : undefined;
    if (t) node.textContent = text(t, values);
    if (tlabel) node.setAttribute("aria-label", text(tlabel, values));
    if (ttitle) node.setAttribute("title", text(ttitle, values));
    if (tplaceholder) node.setAttribute("placeholder", text(tplaceholder, values));
  }
}

/** A patch of colour: one of the style sheet's by its name, or any other. */
export function swatch(colour, what = "i.swatch") {
  const node = made(what, { aria: { hidden: "true" } });
  node.style.backgroundColor = colour.includes("(") ? colour : `var(--${colour})`;
  return node;
}

export function button(key, call, more = {}) {
  return made("button", { type: "button", t: key, on: { click: call }, ...more });
}

/** A button with a sign and no words; its name is for those who do not see it, and a hint. */
export function sign(mark, key, call, more = {}) {
  return made("button.sign", { type: "button", label: key, hint: key, on: { click: call }, ...more }, mark);
}

/** A field with its name above it. */
export function field(key, control, hintKey) {
  const hint = hintKey ? made("small", { t: hintKey }) : null;
  return made("label.field", {}, made("span", { t: key }), control, hint);
}

/** A table whose rows are replaced as a whole; `heads` are keys. */
export function table(captionKey, heads) {
  const body = made("tbody");
  const cells = heads.map((key) => made("th", { scope: "col", t: key }));
  const whole = made("table", {}, made("caption", { t: captionKey }), made("thead", {}, made("tr", {}, cells)), body);
  const fill = (rows) => {
    body.replaceChildren(...rows.map((row) => made("tr", {}, row.map((cell, at) => one(cell, at)))));
  };
  const one = (cell, at) => {
    const node = made(at ? "td" : "th", at ? {} : { scope: "row" });
    if (cell instanceof Node) node.append(cell);
    else show(node, cell ?? "–");
    return node;
  };
  return { node: made("div.scroll", { tabIndex: 0, role: "group", label: captionKey }, whole), fill };
}

/** A part of a view: a heading, a sentence that says what is seen, the content. */
export function panel(key, ...content) {
  const id = `panel-${key}`;
  const head = made("h2", { t: key, id });
  return made("section.panel", { aria: { labelledby: id } }, head, made("p.about", { t: `${key}_about` }), content);
}

/** Copy, and say that it was done. */
export async function copied(content) {
  try {
    await navigator.clipboard.writeText(content);
    tell("copied");
  } catch {
    tell("not_copied"); // a browser gives it to safe addresses only
  }
}

/** Spoken to those who listen, and shown for a moment. */
export function tell(key, values) {
  const place = document.getElementById("told");
  say(place, key, values);
  place.classList.add("shown");
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => {
    place.classList.remove("shown");
    show(place, "");
  }, 3500);
}
