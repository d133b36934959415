// The trade-off between precision and coverage: what each precision routes, and the threshold of each team.

import { Refused, tradeoff } from "./api.js";
import { byId, el, fill } from "./dom.js";
import { percent, t, teamName } from "./strings.js";

const SHOWN = [0.99, 0.98, 0.95, 0.9, 0.8];

let held = null; // the newest answer of GET /tradeoff
let version = null; // of the bundle that it is about

/** Ask for the trade-off of a bundle's version, once; without a key the tables stay hidden. */
export async function loadTradeoff(newVersion) {
  if (newVersion === version) return;
  version = newVersion;
  try {
    held = (await tradeoff()).body;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    held = null;
    version = null;
  }
  repaintTradeoff();
}

export function repaintTradeoff() {
  byId("tradeoff").hidden = !held;
  if (!held) return;
  const values = { precision: percent(held.precision, 1), tickets: held.tickets, count: held.reviewed_per_hour };
  fill(
    byId("tradeoff-tables"),
    el("p", {}, t(held.tickets ? "tradeoff_asked" : "tradeoff_one", values)),
    held.caution && el("p", { class: "hint" }, t("tradeoff_caution")),
    held.choices.length > 0 && precisions(),
    held.choices.length > 0 && el("p", { class: "hint" }, t("tradeoff_hours", values)),
    teams(),
  );
}

function precisions() {
  const isAsked = (choice) => Math.abs(choice.precision - held.precision) < 1e-9;
  const shown = held.choices.filter((choice) => isAsked(choice) || SHOWN.some((one) => Math.abs(one - choice.precision) < 1e-9)).reverse();
  const rows = shown.map((choice) => ({
    cells: [percent(choice.precision, 1), percent(choice.coverage, 1), percent(choice.at_least, 1), choice.wrong_per_hour.toFixed(1)],
    chosen: isAsked(choice),
  }));
  return table(["tradeoff_precision", "tradeoff_routed", "tradeoff_at_least", "tradeoff_wrong"], rows);
}

function teams() {
  const rows = [...held.teams]
    .sort((a, b) => (b.tickets ?? 0) - (a.tickets ?? 0))
    .map((one) => ({
      cells: [
        teamName(one.team),
        one.threshold === null ? t("tradeoff_none") : percent(one.threshold, 1),
        one.tickets ? percent((one.routed ?? 0) / one.tickets, 0) : "",
        one.routed ? percent(one.at_least, 0) : "",
      ],
    }));
  return table(["tradeoff_team", "tradeoff_threshold", "tradeoff_routed", "tradeoff_at_least"], rows);
}

function table(heads, rows) {
  return el(
    "table",
    { class: "figures" },
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, t(head))))),
    el("tbody", {}, ...rows.map(({ cells, chosen }) => el("tr", { class: chosen ? "chosen" : null }, ...cells.map((cell, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, cell))))),
  );
}
