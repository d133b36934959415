// Today: tickets by hour and team, coverage, corrections and new words, compared with last week.

import { Refused, todayNumbers } from "./api.js";
import { bar, byId, el, fill } from "./dom.js";
import { start } from "./page.js";
import { currentLanguage, percent, t, teamName } from "./strings.js";

const state = { numbers: null, failed: null };

const share = (part, whole) => (whole ? percent(part / whole, 1) : "–");

function tile(title, value, before, more = "") {
  return el("div", { class: "card tile" }, el("h2", {}, title), el("p", { class: "big" }, value), more && el("p", { class: "hint" }, more), el("p", { class: "hint" }, t("last_week", { value: before })));
}

function drawTiles({ today, last_week: week }) {
  const number = (value) => value.toLocaleString(currentLanguage());
  fill(
    byId("numbers"),
    tile(t("today_tickets"), number(today.tickets), number(week.tickets)),
    tile(t("today_routed"), share(today.routed, today.tickets), share(week.routed, week.tickets)),
    tile(t("today_corrected"), number(today.corrected), number(week.corrected), t("today_of", { count: today.corrected, all: today.feedback })),
  );
}

function drawHours({ hours }) {
  const teams = [...new Set(hours.flatMap((hour) => Object.keys(hour.teams)))].sort();
  const totals = hours.map((hour) => Object.values(hour.teams).reduce((sum, count) => sum + count, 0));
  const most = Math.max(1, ...totals);
  if (!teams.length) {
    fill(byId("hours-body"), el("p", { class: "hint" }, t("no_tickets")));
    return;
  }
  const time = (at) => new Date(1000 * at).toLocaleTimeString(currentLanguage(), { hour: "2-digit", minute: "2-digit" });
  fill(
    byId("hours-body"),
    el(
      "table",
      { class: "hours" },
      el("thead", {}, el("tr", {}, ...[t("hour"), ...teams.map(teamName), t("all_teams")].map((name) => el("th", { scope: "col" }, name)))),
      el(
        "tbody",
        {},
        ...hours.map((hour, i) =>
          el("tr", {}, el("th", { scope: "row" }, time(hour.at)), ...teams.map((team) => el("td", {}, String(hour.teams[team] ?? ""))), el("td", { class: "with-bar" }, bar(totals[i] / most), String(totals[i]))),
        ),
      ),
    ),
  );
}

function drawWords({ new_words: words, stores_text: stored }) {
  fill(
    byId("words-body"),
    !stored
      ? el("p", { class: "hint" }, t("no_texts"))
      : words.length
        ? el("ul", { class: "new-words" }, ...words.map(({ word, tickets }) => el("li", {}, el("span", { class: "token" }, word), ` ${tickets}`)))
        : el("p", { class: "hint" }, t("no_new_words")),
  );
}

function repaint() {
  const { numbers, failed } = state;
  const detail = failed && (failed.status === 404 ? t("review_off") : failed.status === 401 ? t("key_missing") : failed.status ? t("page_failed", { detail: failed.message }) : t("offline"));
  byId("status").textContent = detail ?? "";
  byId("status").classList.toggle("problem", Boolean(failed));
  byId("hours").hidden = byId("words").hidden = !numbers;
  if (!numbers) return;
  drawTiles(numbers);
  drawHours(numbers);
  drawWords(numbers);
}

start("title_today", repaint);
repaint();
todayNumbers().then(
  ({ body }) => {
    state.numbers = body;
    repaint();
  },
  (error) => {
    if (!(error instanceof Refused)) throw error;
    state.failed = error;
    repaint();
  },
);
