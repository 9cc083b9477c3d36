// Words in two languages. Owns: which language it is, and how a key becomes a text.
// Read next: words.js, all of them.

import { kept, keep } from "./store.js";
import words from "./words.js";

const LANGUAGES = ["en", "zh"];
let language = first();

function first() {
  const asked = [kept("language"), ...navigator.languages].filter(Boolean);
  const known = asked.map((one) => one.toLowerCase().split("-")[0]).find((one) => LANGUAGES.includes(one));
  return known ?? "en";
}

export const languageNow = () => language;

export function setLanguage(name) {
  language = name;
  keep("language", name);
}

/** The text of a key, with `{name}` replaced by its value, numbers in the language's own form;
 *  before a `|` stands what is said of one. */
export function text(key, values = {}) {
  const forms = (words[key]?.[LANGUAGES.indexOf(language)] ?? key).split("|");
  const found = values.count === 1 ? forms[0] : forms.at(-1);
  return found.replace(/\{(\w+)\}/g, (whole, name) => {
    const value = values[name];
    return value === undefined ? whole : typeof value === "number" ? number(value) : String(value);
  });
}

export function number(value, digits) {
  const most = digits ?? (Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0);
  return new Intl.NumberFormat(language, { maximumFractionDigits: most }).format(value);
}

export function percent(share) {
  return new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 0 }).format(share);
}

export function ms(value) {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? `${number(value)} ms` : `${number(value / 1000)} s`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) {
    if (count >= size) return `${number(count / size)} ${unit}`;
  }
  return `${number(count, 0)} B`;
}

export function clock(unix_s) {
  return new Intl.DateTimeFormat(language, { dateStyle: "short", timeStyle: "medium" }).format(unix_s * 1000);
}
