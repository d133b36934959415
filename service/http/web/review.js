// The review desk: tickets waiting for review, with a button for every team, and undo.

import { Refused, feedback, removeFeedback, reviewTickets, reviewWords } from "./api.js";
import { byId, el, fill } from "./dom.js";
import { start } from "./page.js";
import { currentLanguage, listed, percent, quoted, reasonText, t, teamName } from "./strings.js";

const REASONS = ["low_confidence", "out_of_scope", "mostly_unknown_words", "too_short", "unknown_language", "transferred_language", "automatic_reply"];
const OUTCOMES = { 0: "none_of_these", x: "not_a_ticket" };
const LONG = 1200; // characters of a text that are shown before it is opened

const desk = { teams: [], tickets: [], waiting: 0, storesText: true, decided: [], said: "", failed: null };
const chosen = { team: "", reason: "", order: "newest" };
let asked = 0; // number of the newest question; answers to older ones are dropped

const nameOf = (ticket) => (ticket.ticket_id ? t("ticket_number", { id: `${ticket.source ? `${ticket.source}:` : ""}${ticket.ticket_id}` }) : t("request_number", { id: ticket.request_id }));

async function load() {
  const number = ++asked;
  try {
    const { body } = await reviewTickets(chosen);
    if (number !== asked) return;
    Object.assign(desk, { teams: body.teams, tickets: body.tickets, waiting: body.waiting, storesText: body.stores_text, failed: null });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (number !== asked) return;
    desk.failed = error;
  }
  repaint();
  focusNamed();
}

// A link in a helpdesk's note names a ticket: /review?source=rt&ticket=17. It gets the focus once.
let named = new URLSearchParams(location.search);

function focusNamed() {
  const id = named.get("ticket");
  const index = desk.tickets.findIndex((ticket) => ticket.ticket_id === id && (ticket.source ?? "") === (named.get("source") ?? ""));
  if (id && index >= 0) focusTicket(index);
  named = new URLSearchParams();
}

function problemText(error) {
  if (error.status === 404) return t("review_off");
  if (error.status === 401) return t("key_missing");
  return error.status ? t("page_failed", { detail: error.message }) : t("offline");
}

function drawFilter(id, label, options) {
  const select = el(
    "select",
    { id, onchange: () => { chosen[id] = select.value; load(); } },
    ...options.map(([value, text]) => el("option", { value, selected: chosen[id] === value }, text)),
  );
  return el("div", {}, el("label", { for: id }, label), " ", select);
}

function drawFilters() {
  const focused = document.activeElement?.id;
  fill(
    byId("filters"),
    drawFilter("team", t("filter_team"), [["", t("filter_all")], ...desk.teams.map((team) => [team, teamName(team)])]),
    drawFilter("reason", t("filter_reason"), [["", t("filter_all")], ...REASONS.map((reason) => [reason, reasonText(reason)])]),
    drawFilter("order", t("order"), [["newest", t("order_newest")], ["unsure", t("order_unsure")]]),
  );
  if (focused) byId(focused)?.focus();
}

function drawText(ticket) {
  if (!ticket.text) return el("p", { class: "hint" }, t("no_text"));
  const characters = Array.from(ticket.text);
  if (characters.length <= LONG) return el("p", { class: "ticket-text", dir: "auto" }, ticket.text);
  const rest = characters.slice(LONG).join("");
  const text = el("p", { class: "ticket-text", dir: "auto" }, characters.slice(0, LONG).join(""));
  const count = rest.trim().split(/\s+/).length;
  text.append(" ", el("button", { type: "button", class: "fold", "aria-label": t("fold_label", { count }), onclick: () => { text.textContent = ticket.text; } }, t("fold", { count })));
  return text;
}

function drawTicket(ticket, index) {
  const when = new Date(1000 * ticket.decided_at).toLocaleString(currentLanguage(), { dateStyle: "medium", timeStyle: "short" });
  const words = el("p", { class: "hint words-that-count" });
  const show = () => fill(words, ticket.words?.length ? t("words_that_count", { words: listed(ticket.words.map(quoted)) }) : "");
  show();
  const card = el(
    "article",
    { class: "card ticket", tabindex: index === 0 ? "0" : "-1", "aria-labelledby": `name-${ticket.row}`, "data-row": ticket.row },
    el("h2", { id: `name-${ticket.row}` }, nameOf(ticket)),
    el("p", { class: "counts" }, when),
    drawText(ticket),
    el("p", {}, el("b", {}, t("suggested")), ` ${teamName(ticket.team)}, ${percent(ticket.confidence, 1)}`),
    el("ul", { class: "reasons" }, ...ticket.reasons.map((reason) => el("li", {}, reasonText(reason)))),
    el(
      "div",
      { class: "chips", role: "group", "aria-label": t("teams") },
      ...desk.teams.map((team, i) => el("button", { type: "button", class: `chip${team === ticket.team ? " suggested" : ""}`, "data-team": team, onclick: () => decide(ticket, { team }, teamName(team)) }, i < 9 ? `${i + 1} ` : "", teamName(team))),
      ...Object.entries(OUTCOMES).map(([key, outcome]) => el("button", { type: "button", class: "chip", "data-outcome": outcome, onclick: () => decide(ticket, { outcome }, t(`outcome_${outcome}`)) }, `${key} `, t(`outcome_${outcome}`))),
    ),
    words, // below the buttons: it appears on focus, and a button must not move under a press of the mouse
  );
  card.addEventListener("focusin", async () => {
    if (ticket.words || !ticket.text) return;
    ticket.words = [];
    try {
      ticket.words = (await reviewWords(ticket.row)).body.words;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
    show();
  });
  return card;
}

async function decide(ticket, verdict, name) {
  const at = desk.tickets.indexOf(ticket);
  try {
    await feedback(ticket.request_id, verdict);
    desk.tickets.splice(at, 1);
    desk.waiting -= 1;
    desk.decided.push({ ticket, at });
    desk.said = t("decided", { name: nameOf(ticket), team: name });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    desk.said = t("feedback_failed");
  }
  repaint();
  focusTicket(Math.min(at, desk.tickets.length - 1));
}

async function undo() {
  const last = desk.decided.at(-1);
  if (!last) return;
  try {
    await removeFeedback(last.ticket.request_id);
    desk.decided.pop();
    desk.tickets.splice(last.at, 0, last.ticket);
    desk.waiting += 1;
    desk.said = t("undone");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    desk.said = t("feedback_failed");
  }
  repaint();
  focusTicket(desk.tickets.indexOf(last.ticket));
}

function focusTicket(index) {
  const cards = byId("tickets").querySelectorAll(".ticket");
  (cards[index] ?? byId("tickets")).focus();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "INPUT", "TEXTAREA"].includes(event.target.tagName) || document.querySelector("dialog")) return;
  const cards = [...byId("tickets").querySelectorAll(".ticket")];
  const at = cards.findIndex((card) => card.contains(document.activeElement));
  if (event.key === "z") undo();
  else if (event.key === "j") focusTicket(at + 1 < cards.length ? at + 1 : at);
  else if (event.key === "k") focusTicket(Math.max(0, at - 1));
  else if (at >= 0 && event.key in OUTCOMES) decide(desk.tickets[at], { outcome: OUTCOMES[event.key] }, t(`outcome_${OUTCOMES[event.key]}`));
  else if (at >= 0 && /^[1-9]$/.test(event.key) && desk.teams[event.key - 1]) decide(desk.tickets[at], { team: desk.teams[event.key - 1] }, teamName(desk.teams[event.key - 1]));
  else return;
  event.preventDefault();
}

function repaint() {
  drawFilters();
  const { failed, tickets, waiting, said } = desk;
  const count = waiting ? t("review_count", { count: waiting }) : t("review_none");
  const more = waiting > tickets.length && tickets.length ? t("review_more", { shown: tickets.length }) : "";
  byId("status").textContent = failed ? problemText(failed) : [said, count, more].filter(Boolean).join(" ");
  byId("status").classList.toggle("problem", Boolean(failed));
  fill(byId("undo"), desk.decided.length > 0 && el("button", { type: "button", class: "small", id: "undo-last", onclick: undo }, t("undo")));
  fill(
    byId("tickets"),
    !failed && !desk.storesText && el("p", { class: "card hint", id: "no-texts" }, t("no_texts")),
    ...(failed ? [] : tickets.map(drawTicket)),
  );
}

start("title_review", repaint);
document.addEventListener("keydown", onKey);
repaint();
load();
