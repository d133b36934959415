// The router's page: a ticket on one side, its answer on the other, below it why, and where the heads looked.

import { Refused, decodeWeights, feedback, route, wellFormed } from "./api.js";
import { bar, byId, el, fill } from "./dom.js";
import { HeadView, drawGrid } from "./heads.js";
import { start } from "./page.js";
import { EXAMPLES, currentLanguage, percent, t, teamName } from "./strings.js";
import { drawChange, drawLegend, drawWordPanel, drawWords, isPart, markChosen, walkWords, withoutWords } from "./words.js";

const DEBOUNCE_MS = 180;

const page = {
  sent: null, // the ticket that the answer is about
  answer: null,
  requestId: null,
  full: null, // the decoded full explanation of the same ticket
  word: undefined, // the word that is pointed at
  open: null, // the head in the larger view
  problem: null,
  thanks: null,
};
let timer = 0;
let running = null; // AbortController of the requests for the newest text

const headView = new HeadView(byId("larger"), closeHead);

function ticketNow() {
  return { subject: wellFormed(byId("subject").value), text: wellFormed(byId("text").value) };
}

function onEdit() {
  clearTimeout(timer);
  running?.abort();
  if (ticketNow().text.trim()) {
    busy(true, true);
    timer = setTimeout(send, DEBOUNCE_MS);
  } else {
    Object.assign(page, { sent: null, answer: null, full: null, word: undefined, open: null, problem: null, thanks: null });
    repaint();
    busy(false, false);
  }
}

/** Route what stands in the fields now; an answer for older text is dropped. */
async function send() {
  const controller = new AbortController();
  running = controller;
  const ticket = ticketNow();
  try {
    const { body, requestId } = await route(ticket, "tokens", controller.signal);
    if (running !== controller) return;
    Object.assign(page, { sent: ticket, answer: body, requestId, full: null, word: undefined, problem: null, thanks: null });
    repaintAnswer();
    busy(false, true);
    const whole = await route(ticket, "full", controller.signal);
    if (running !== controller) return;
    page.full = readFull(whole.body.explanation, ticket);
    repaintHeads();
    repaintWord();
    busy(false, false);
  } catch (error) {
    if (error.name === "AbortError" || running !== controller) return;
    if (!(error instanceof Refused)) throw error;
    page.problem = error;
    repaintStatus();
    busy(false, false);
  }
}

/** Cut the weights into one matrix per head, and give every token its text. */
function readFull(explanation, ticket) {
  const weights = decodeWeights(explanation.weights);
  const count = explanation.tokens.length;
  const characters = { subject: Array.from(ticket.subject), text: Array.from(ticket.text) };
  return {
    tokens: explanation.tokens.map((token) => ({ ...token, text: characters[token.field].slice(token.start, token.end).join("") })),
    heads: explanation.heads.map((head, i) => ({ ...head, matrix: weights.subarray(i * count * count, (i + 1) * count * count) })),
  };
}

function fillTicket(ticket) {
  byId("subject").value = ticket.subject ?? "";
  byId("text").value = ticket.text;
  onEdit();
}

function drawExamples() {
  fill(
    byId("examples"),
    ...EXAMPLES.map((example) => el("button", { type: "button", class: "chip", onclick: () => fillTicket(example) }, example[currentLanguage()])),
  );
}

/** Say that answer and heads are being made, or are here. */
function busy(answer, heads) {
  byId("answer").setAttribute("aria-busy", String(answer));
  byId("heads").setAttribute("aria-busy", String(heads));
}

function repaintStatus() {
  const { answer, problem } = page;
  let sentence = "";
  if (problem) sentence = problem.status ? t("refused", { detail: problem.message }) : t("offline");
  else if (answer) sentence = t("routed", { team: teamName(answer.team), confidence: percent(answer.confidence, 1) });
  byId("status").textContent = sentence;
  byId("status").classList.toggle("problem", Boolean(problem));
}

function drawVerdict() {
  const { answer } = page;
  if (!answer) {
    fill(byId("verdict"), el("p", { class: "empty" }, t("nothing_yet")));
    return;
  }
  const review = answer.decision === "review";
  const teams = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
  const counts = [t("token_count", { count: answer.tokens.count })];
  if (answer.tokens.unknown) counts.push(t("token_unknown", { count: answer.tokens.unknown }));
  if (answer.tokens.truncated) counts.push(t("token_truncated"));
  fill(
    byId("verdict"),
    el("p", { class: "team" }, teamName(answer.team)),
    el("p", { class: `badge ${review ? "review" : "route"}` }, t(review ? "decision_review" : "decision_route")),
    el("ul", { class: "reasons" }, ...(answer.reasons.length ? answer.reasons : [null]).map((reason) => el("li", {}, t(reason ? `reason_${reason}` : "route_because")))),
    el(
      "ol",
      { class: "shares", "aria-label": t("team_shares") },
      ...teams.map(([team, share]) =>
        el("li", { class: team === answer.team ? "chosen" : null }, el("span", { class: "name" }, teamName(team)), bar(share), el("span", { class: "value" }, percent(share, 1))),
      ),
    ),
    el("p", { class: "counts" }, counts.join(" · ")),
    drawCorrection(),
  );
}

function drawCorrection() {
  const { answer } = page;
  const answerText = el("p", { class: "status", role: "status", id: "thanks" }, page.thanks ?? "");
  const select = el(
    "select",
    { id: "right-team" },
    ...Object.keys(answer.probabilities)
      .filter((team) => team !== answer.team)
      .map((team) => el("option", { value: team }, teamName(team))),
  );
  const sendIt = async () => {
    try {
      await feedback(page.requestId, select.value);
      page.thanks = t("wrong_thanks", { team: teamName(select.value) });
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      page.thanks = t([404, 405].includes(error.status) ? "wrong_absent" : error.status === 401 ? "wrong_key" : "wrong_failed");
    }
    answerText.textContent = page.thanks;
  };
  return el(
    "details",
    { class: "wrong", open: Boolean(page.thanks) },
    el("summary", {}, t("wrong")),
    el("div", { class: "wrong-form" }, el("label", { for: "right-team" }, t("wrong_team")), select, el("button", { type: "button", class: "small", id: "send-correction", onclick: sendIt }, t("wrong_send"))),
    answerText,
  );
}

function repaintWhy() {
  const { answer, sent } = page;
  const explanation = answer?.explanation;
  byId("why").hidden = !explanation?.words.length;
  if (byId("why").hidden) return;
  const hint = t("why_hint", { team: teamName(explanation.team), rival: teamName(explanation.runner_up) });
  byId("why-hint").textContent = isPart(explanation.window) ? `${t("why_part")} ${hint}` : hint;
  drawLegend(byId("legend"), explanation);
  drawWords(byId("words"), sent, explanation, page.word, pickWord);
  drawChange(byId("change"), sent, explanation, () => fillTicket(withoutWords(sent, explanation)));
}

function pickWord(word) {
  if (word === page.word) return;
  page.word = word;
  markChosen(byId("words"), word);
  repaintWord();
}

function repaintWord() {
  const { answer, sent, word, full } = page;
  if (!answer?.explanation) return;
  const place = word === undefined ? null : answer.explanation.words[word];
  const shown = place ? Array.from(sent[place.field]).slice(place.start, place.end).join("") : "";
  drawWordPanel(byId("word-panel"), place ? word : undefined, shown, answer.explanation, full);
}

function openHead(index) {
  page.open = index;
  headView.open(page.full, index, { focus: true });
}

function closeHead() {
  const index = page.open;
  page.open = null;
  headView.close();
  byId("grid").querySelector(`[data-head="${index}"]`)?.focus();
}

function repaintHeads() {
  const { full } = page;
  byId("heads").hidden = !full?.tokens.length;
  if (byId("heads").hidden) {
    page.open = null;
    headView.close();
    return;
  }
  drawGrid(byId("grid"), full, openHead);
  if (page.open === null) headView.close();
  else headView.open(full, page.open, { keepPlace: true });
}

function repaintAnswer() {
  repaintStatus();
  drawVerdict();
  repaintWhy();
  repaintWord();
  const { answer } = page;
  byId("model").textContent = answer ? t("model", answer.model) : "";
}

function repaint() {
  drawExamples();
  repaintAnswer();
  repaintHeads();
}

start("title_route", repaint);
walkWords(byId("words"));
for (const id of ["subject", "text"]) byId(id).addEventListener("input", onEdit);
repaint();
if (ticketNow().text.trim()) onEdit(); // what the browser kept over a reload
else fillTicket(EXAMPLES[0]);
