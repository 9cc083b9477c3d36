// The page begins here. Owns: which view is seen, the language, the key that is asked for.
// Read next: chat.js, engine.js; feed.js, what all of them look at.

import { Chat } from "./chat.js";
import { made, retell, say, show } from "./dom.js";
import { engineView, status } from "./engine.js";
import { choose, connect, follow, house, model, reconnect } from "./feed.js";
import { healthView, numWrong } from "./health.js";
import { modelView } from "./model.js";
import { playgroundView } from "./playground.js";
import { requestsView } from "./requests.js";
import { key } from "./store.js";
import { languageNow, setLanguage, text } from "./texts.js";

const place = document.getElementById("view");
const links = [...document.querySelectorAll("#views a")];
const MAKERS = {
  chat: () => {
    const chat = new Chat();
    return { node: chat.node, shown: () => chat.follow() };
  },
  engine: engineView,
  playground: playgroundView,
  requests: requestsView,
  health: healthView,
  models: modelView,
};
const views = new Map();

/** The view that the address names; what is typed in another stays there. */
function go({ focus = true } = {}) {
  if (location.hash === "#view") { // the way past the navigation
    place.focus();
    return;
  }
  const [, name = "chat", rest] = /^#\/([a-z]+)(?:\/(.*))?$/.exec(location.hash) ?? [];
  const known = name in MAKERS ? name : "chat";
  if (!views.has(known)) views.set(known, MAKERS[known]());
  const { node, shown } = views.get(known);
  place.replaceChildren(node);
  if (focus) scrollTo(0, 0);
  retell(node);
  for (const link of links) {
    if (link.hash === `#/${known}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${text(known)} · Firsthand`;
  shown?.(rest);
  if (focus) place.focus({ preventScroll: true });
}

function setTo(language) {
  setLanguage(language);
  document.documentElement.lang = language;
  retell(document);
  for (const one of document.querySelectorAll("#languages button")) {
    one.setAttribute("aria-pressed", String(one.value === language));
  }
  go({ focus: false });
}

function askForKey() {
  const dialog = document.getElementById("key");
  if (!dialog.open) dialog.showModal();
}

function setUp() {
  for (const one of document.querySelectorAll("#languages button")) {
    one.addEventListener("click", () => setTo(one.value));
  }
  const dialog = document.getElementById("key");
  const field = dialog.querySelector("input");
  dialog.querySelector("form").addEventListener("submit", () => {
    key.set(field.value.trim());
    field.value = "";
    reconnect();
  });
  document.addEventListener("key-needed", () => {
    say(document.getElementById("key-why"), key.get() ? "key_wrong" : "key_needed");
    askForKey();
  });
  const choice = document.getElementById("model");
  choice.addEventListener("change", () => choose(choice.value));
  document.getElementById("status").replaceWith(status());
  follow(() => showModels(choice));
  addEventListener("hashchange", () => go());
}

function showModels(choice) {
  const names = [...house.models.keys()];
  if (choice.children.length !== names.length || names.some((name, at) => choice.children[at].value !== name)) {
    const now = model()?.name;
    choice.replaceChildren(...names.map((name) => show(made("option", { value: name }), `${name} ${house.models.get(name).model.sha256?.slice(0, 7) ?? ""}`)));
    if (now) choice.value = now;
  }
  choice.disabled = names.length < 2;
  const count = numWrong();
  const mark = document.getElementById("firing");
  mark.hidden = !count;
  show(mark, count || "");
  document.getElementById("more").hidden = Boolean(key.get()); // a link carries no key
  show(document.getElementById("version"), house.version ? `Firsthand ${house.version}` : "");
}

setUp();
setTo(languageNow());
connect();
