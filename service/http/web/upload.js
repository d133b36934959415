// Upload: route the tickets of a file in parts, with progress, a table, and the result as CSV.

import { Refused, readFile, routeBatch, wellFormed } from "./api.js";
import { byId, el, fill } from "./dom.js";
import { start } from "./page.js";
import { percent, t, teamName } from "./strings.js";

const PART = 32; // tickets in one request
const SHOWN_ROWS = 200;

const work = { tickets: [], results: [], faults: [], said: () => "", problem: false };
let running = null; // AbortController of the present run

const counts = () => ({
  count: work.results.length,
  routed: work.results.filter((result) => result.decision === "route").length,
  review: work.results.filter((result) => result.decision === "review").length,
  failed: work.results.filter((result) => !result.team).length,
});

function say(said, problem = false) {
  Object.assign(work, { said, problem });
  byId("status").textContent = said();
  byId("status").classList.toggle("problem", problem);
}

const problemText = (error) => (error.status === 401 ? t("key_missing") : error.status ? error.message : t("offline"));

async function run() {
  const file = byId("file").files[0];
  if (!file) {
    say(() => t("upload_choose"), true);
    byId("file").focus();
    return;
  }
  const controller = new AbortController();
  running = controller;
  Object.assign(work, { tickets: [], results: [], faults: [] });
  busy(true);
  say(() => t("upload_reading"));
  drawTable();
  try {
    const columns = { text: byId("column-text").value.trim(), subject: byId("column-subject").value.trim(), id: byId("column-id").value.trim() };
    const { body } = await readFile(file, columns);
    Object.assign(work, { tickets: body.tickets, faults: body.faults });
    drawFaults();
    await routeAll(controller.signal);
    say(() => t("upload_done", counts()));
  } catch (error) {
    if (error.name === "AbortError") say(() => t("upload_done", counts()));
    else if (error instanceof Refused) say(() => problemText(error), true);
    else throw error;
  } finally {
    busy(false);
    drawTable();
  }
}

async function routeAll(signal) {
  for (let at = 0; at < work.tickets.length; at += PART) {
    const part = work.tickets.slice(at, at + PART).map(({ ticket_id, subject, text }) => ({ ticket_id, ...(subject.trim() && { subject: wellFormed(subject) }), text: wellFormed(text) }));
    const { body } = await routeBatch(part, signal);
    work.results.push(...body.results);
    byId("progress").max = work.tickets.length;
    byId("progress").value = work.results.length;
    say(() => t("upload_progress", { done: work.results.length, count: work.tickets.length }));
    drawTable();
  }
}

function busy(is) {
  byId("start").disabled = is;
  byId("stop").hidden = !is;
  byId("progress").hidden = !is;
  byId("progress").value = 0;
  byId("save").hidden = is || !work.results.length;
}

function drawFaults() {
  fill(byId("faults"), ...work.faults.map((fault) => el("li", {}, fault)));
}

function drawTable() {
  const rows = work.results.slice(0, SHOWN_ROWS);
  byId("result").hidden = !rows.length;
  if (!rows.length) return;
  const names = ["column_id", "column_team", "column_confidence", "column_decision", "column_text"];
  fill(
    byId("table"),
    work.results.length > SHOWN_ROWS && el("p", { class: "hint" }, t("upload_first", { shown: SHOWN_ROWS })),
    el(
      "table",
      { class: "hours" },
      el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, t(name))))),
      el(
        "tbody",
        {},
        ...rows.map((result, i) => {
          const ticket = work.tickets[i];
          const decision = result.team ? t(`decision_${result.decision}`) : `${t("decision_failed")} (${result.detail ?? result.title})`;
          const text = Array.from([ticket.subject, ticket.text].filter(Boolean).join(" · ")).slice(0, 120).join("");
          return el("tr", {}, el("th", { scope: "row" }, ticket.ticket_id), el("td", {}, result.team ? teamName(result.team) : "–"), el("td", {}, result.team ? percent(result.confidence, 1) : ""), el("td", {}, decision), el("td", { class: "ticket-text", dir: "auto" }, text));
        }),
      ),
    ),
  );
}

/** A cell of CSV; a spreadsheet would run one that begins with = + - @, so a quote goes before it. */
function cell(value) {
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return `"${text.replaceAll('"', '""')}"`;
}

function save() {
  const header = ["ticket_id", "team", "confidence", "decision", "reasons", "subject", "text"];
  const lines = work.results.map((result, i) => {
    const { ticket_id, subject, text } = work.tickets[i];
    return [ticket_id, result.team ?? "", result.team ? String(result.confidence) : "", result.decision ?? "failed", (result.reasons ?? [result.detail ?? ""]).join(" "), subject, text].map(cell).join(",");
  });
  // The byte order mark makes Excel read UTF-8.
  const url = URL.createObjectURL(new Blob(["\ufeff", [header.join(","), ...lines].join("\r\n"), "\r\n"], { type: "text/csv" }));
  const link = el("a", { href: url, download: "routed.csv" });
  link.click();
  URL.revokeObjectURL(url);
}

function repaint() {
  say(work.said, work.problem);
  drawTable();
}

start("title_upload", repaint);
byId("start").addEventListener("click", run);
byId("stop").addEventListener("click", () => running?.abort());
byId("save").addEventListener("click", save);
