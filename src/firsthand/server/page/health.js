// Health and alerts. Owns: how checks and alerts are shown. Read next: feed.js.

import { made, panel, say, show } from "./dom.js";
import { follow, house } from "./feed.js";
import { bytes, clock, languageNow, number, percent, text } from "./texts.js";

const HANDBOOK = "docs/handbook";

export function healthView() {
  const [sum, checks, alerts, levels] = [made("p.verdict", { role: "status" }), made("ul.checks"), made("ul.alerts"), made("ul.levels")];
  const releases = made("ul.levels");
  const panels = [panel("checks", checks), panel("alerts", alerts), panel("releases", releases), panel("degradation", levels)];
  const gpus = made("ul.levels");
  const cards = panel("gpus", gpus);
  const node = made("div.view", {}, made("h1", { t: "health" }), sum, panels, cards);
  const update = () => {
    if (!node.isConnected) return;
    const { failed, firing } = wrong();
    sum.dataset.ok = String(!failed && !firing);
    say(sum, failed || firing ? "not_well" : "all_well", { failed, firing, checks: house.checks.length });
    checks.replaceChildren(...house.checks.map(check));
    alerts.replaceChildren(...(house.alerts.length ? house.alerts.map(alert) : [made("li.note", { t: "no_alerts" })]));
    releases.replaceChildren(...(house.releases ? told(house.releases) : []));
    cards.hidden = !house.gpus.length;
    gpus.replaceChildren(...house.gpus.map(gpu));
    const queues = Object.entries(house.degradation);
    levels.replaceChildren(...queues.map(([name, level]) => made("li", {}, show(made("b"), name), made("span", { t: `level_${level}` }))));
  };
  follow(update);
  return { node, shown: update };
}

function check(one) {
  const mark = made("span.mark", { t: one.ok ? "ok" : "failed_check", data: { ok: one.ok } });
  return made("li", {}, mark, show(made("b"), one.name), show(made("span"), one.detail));
}

/** How busy a card is, what is taken of its memory, what it draws. */
function gpu(one) {
  const values = { busy: percent(one.busy), used: bytes(one.used_bytes), whole: bytes(one.num_bytes), watts: one.watts === null ? "–" : number(one.watts) };
  return made("li", {}, show(made("b"), `GPU ${one.gpu}`), made("span", { t: "gpu_is", values }));
}

/** The age of the last drill, and how each canary does beside what is served. */
function told({ drill_age_s, canaries }) {
  const age = drill_age_s === null ? made("span", { t: "no_drill" }) : made("span", { t: "drill_age", values: { hours: number(drill_age_s / 3600, 1) } });
  const lines = canaries.map((one) => {
    const values = { release: one.release, share: percent(one.share), model: one.model, answers: number(one.new_answers), errors: number(one.new_errors) };
    return made("li", {}, show(made("b"), one.name), made("span", { t: "canary_is", values }));
  });
  return [made("li", {}, made("b", { t: "drill" }), age), ...lines];
}

function alert(one) {
  const summary = languageNow() === "zh" ? one.summary_zh ?? one.summary : one.summary;
  const when = one.ended_s === null ? text("fires_since", { since: clock(one.began_s) }) : text("fired", { from: clock(one.began_s), to: clock(one.ended_s) });
  const handbook = one.entry ? made("small", { t: "handbook", values: { file: `${HANDBOOK}/${one.entry}.md` } }) : null;
  const tier = show(made("span.tier", { data: { tier: one.severity, over: one.ended_s !== null } }), one.severity);
  return made("li", {}, tier, made("div", {}, show(made("b"), one.alert), show(made("p"), summary), show(made("small"), when), handbook));
}

const wrong = () => ({
  failed: house.checks.filter((one) => !one.ok).length,
  firing: house.alerts.filter((one) => one.ended_s === null).length,
});

/** For the mark beside the view's name. */
export const numWrong = () => wrong().failed + wrong().firing;
