// The last section of /learn: what the heads of the lesson's network read in T-65052, and those of this router.

import { Refused, route, wellFormed } from "./api.js";
import { byId, el, fill } from "./dom.js";
import { HeadView, drawGrid, readFull } from "./heads.js";
import { predict } from "./learn_parts.js";
import { EXAMPLES, listed, number, quoted, t } from "./strings.js";

const DEBOUNCE_MS = 250;
const READER = "not"; // the token whose row the lesson shows

// T-65052 in block 2 of the lesson's network: [what "not" reads], [what is read most, averaged over 30 readers].
const LESSON = [
  [["twice", 0.5], [["twice", 0.355]]],
  [["charge", 0.55], [["charge", 0.208]]],
  [["remove", 0.5], [["remove", 0.118], ["you", 0.116]]],
  [["remove", 0.48], [["remove", 0.274]]],
];

const view = { full: null, reader: 0, open: null, problem: null };
let headView = null;
let running = null;
let timer = 0;

const pair = ([token, weight], digits) => t("token_weight", { token: quoted(token), weight: number(weight, digits) });

function table(caption, rows) {
  return el(
    "table",
    { class: "values" },
    el("caption", {}, caption.title),
    el("thead", {}, el("tr", {}, ...[t("head"), t("reader_reads", { token: quoted(caption.reader) }), t("read_most")].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows.map(([name, reads, most]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, reads), el("td", {}, most)))),
  );
}

function drawLesson() {
  const rows = LESSON.map(([reads, most], i) => [String(i + 1), pair(reads, 2), listed(most.map((one) => pair(one, 3)))]);
  fill(byId("ticket-lesson"), predict("ask_ticket", "answer_ticket"), table({ title: t("ticket_lesson"), reader: READER }, rows));
}

/** The `most` tokens with the largest weights, as [text, weight]. */
function largest(weights, tokens, most) {
  const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]);
  return order.slice(0, most).map((i) => [tokens[i].text, weights[i]]);
}

function drawLive() {
  const { full, reader } = view;
  const { problem } = view;
  const sentence = problem && (problem.status === 401 ? t("key_missing") : t(problem.status ? "refused" : "offline", { detail: problem.message }));
  fill(byId("ticket-status"), sentence, problem?.status === 401 && el("button", { type: "button", class: "small", onclick: () => send() }, t("key_title")));
  byId("ticket-status").classList.toggle("problem", Boolean(view.problem));
  if (!full?.tokens.length) {
    for (const id of ["ticket-body", "ticket-grid", "ticket-larger"]) fill(byId(id));
    return;
  }
  const { tokens, heads } = full;
  const count = tokens.length;
  const rows = heads.map((head) => {
    const row = head.matrix.subarray(reader * count, (reader + 1) * count);
    const mean = Float32Array.from(tokens, (_, column) => tokens.reduce((sum, _, i) => sum + head.matrix[i * count + column], 0) / count);
    return [
      t("head_name", { block: head.block, head: head.head }),
      listed(largest(row, tokens, 2).map((one) => pair(one, 2))),
      listed(largest(mean, tokens, 1).map((one) => pair(one, 3))),
    ];
  });
  fill(
    byId("ticket-body"),
    el(
      "div",
      { class: "row-choice" },
      el("label", { for: "ticket-reader" }, t("row_pick")),
      el(
        "select",
        { id: "ticket-reader", onchange: (event) => { view.reader = Number(event.target.value); drawLive(); byId("ticket-reader").focus(); } },
        ...tokens.map((token, i) => el("option", { value: i, selected: i === reader }, `${i + 1} · ${token.text}`)),
      ),
    ),
    table({ title: t("ticket_shapes", { count, heads: Math.max(...heads.map((head) => head.head)) }), reader: tokens[reader].text }, rows),
  );
  drawGrid(byId("ticket-grid"), full, (index) => {
    view.open = index;
    headView.open(full, index, { focus: true });
  });
  if (view.open !== null) headView.open(full, view.open, { keepPlace: true });
}

function closeHead() {
  headView.close();
  byId("ticket-grid").querySelector(`[data-head="${view.open}"]`)?.focus();
  view.open = null;
}

/** Ask for the heads; if `quiet`, without a prompt for the API key, which the rest of the page does not need. */
async function send(quiet = false) {
  running?.abort();
  const controller = new AbortController();
  running = controller;
  const ticket = { subject: "", text: wellFormed(byId("ticket-input").value) };
  Object.assign(view, { full: null, problem: null, open: null });
  if (!ticket.text.trim()) {
    drawLive();
    return;
  }
  try {
    const { body } = await route(ticket, "full", controller.signal, quiet);
    if (running !== controller) return;
    view.full = readFull(body.explanation, ticket);
    view.reader = Math.max(0, view.full.tokens.findIndex((token) => token.text.toLowerCase() === READER));
  } catch (error) {
    if (error.name === "AbortError" || running !== controller) return;
    if (!(error instanceof Refused)) throw error;
    view.problem = error;
  }
  drawLive();
}

export function repaintTicket() {
  drawLesson();
  if (headView) drawLive();
}

/** Ask for the heads of the first ticket, and again after each change of it. */
export function startTicket() {
  headView = new HeadView(byId("ticket-larger"), closeHead);
  byId("ticket-input").value = EXAMPLES[0].text;
  byId("ticket-input").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => send(), DEBOUNCE_MS);
  });
  send(true);
}
