// The main page: a ticket, its answer, the words that decided, and the attention heads.

import { Refused, feedback, removeFeedback, route, wellFormed } from "./api.js";
import { bar, byId, el, fill } from "./dom.js";
import { HeadView, drawGrid, readFull } from "./heads.js";
import { start } from "./page.js";
import { currentLanguage, EXAMPLES, listed, percent, quoted, reasonText, t, teamName } from "./strings.js";
import { loadTradeoff, repaintTradeoff } from "./tradeoff.js";
import { drawChange, drawLegend, drawWordPanel, drawWords, isPart, markChosen, walkWords, withoutWords } from "./words.js";

const DEBOUNCE_MS = 180;
const TICKET = "larkfield-ticket"; // where the tab keeps the ticket, for a reload

const page = {
  sent: null, // the ticket that the answer is about
  answer: null,
  requestId: null,
  full: null, // the decoded full explanation of the same ticket
  word: undefined, // the word that is pointed at
  open: null, // the head in the larger view
  problem: null,
  thanks: null, // the sentence about the feedback on this answer
  given: false, // whether there is feedback on it to take back
  unfolded: false, // whether all of a long ticket is shown
};
let timer = 0;
let running = null; // AbortController of the requests for the newest text

const headView = new HeadView(byId("larger"), closeHead);

function ticketNow() {
  return { subject: wellFormed(byId("subject").value), text: wellFormed(byId("text").value) };
}

const isEmpty = (ticket) => !ticket.text.trim() && !ticket.subject.trim();

function keepTicket(ticket) {
  try {
    sessionStorage.setItem(TICKET, JSON.stringify(ticket));
  } catch {
    // storage may be forbidden, or full: a reload then starts with the first example
  }
}

function keptTicket() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(TICKET));
    return typeof kept?.text === "string" && typeof kept.subject === "string" && !isEmpty(kept) ? kept : null;
  } catch {
    return null;
  }
}

function onEdit() {
  clearTimeout(timer);
  running?.abort();
  keepTicket(ticketNow());
  if (!isEmpty(ticketNow())) {
    busy(true, true);
    timer = setTimeout(send, DEBOUNCE_MS);
  } else {
    Object.assign(page, { sent: null, answer: null, full: null, word: undefined, open: null, problem: null, thanks: null, given: false, unfolded: false });
    repaint();
    busy(false, false);
  }
}

/** Route the text in the fields; drop answers for earlier text. */
async function send() {
  const controller = new AbortController();
  running = controller;
  const ticket = ticketNow();
  try {
    const { body, requestId } = await route(ticket, "tokens", controller.signal);
    if (running !== controller) return;
    Object.assign(page, { sent: ticket, answer: body, requestId, full: null, word: undefined, problem: null, thanks: null, given: false, unfolded: false });
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

/** Show whether answer and heads are being computed. */
function busy(answer, heads) {
  byId("answer").setAttribute("aria-busy", String(answer));
  byId("heads").setAttribute("aria-busy", String(heads));
}

function repaintStatus() {
  const { answer, problem } = page;
  let sentence = "";
  if (problem) sentence = problem.status === 401 ? t("key_missing") : problem.status ? t("refused", { detail: problem.message }) : t("offline");
  else if (answer) sentence = t(answer.decision === "review" ? "suggested_status" : "routed", { team: teamName(answer.team), confidence: percent(answer.confidence, 1) });
  byId("status").textContent = sentence;
  byId("status").classList.toggle("problem", Boolean(problem));
}

function drawVerdict() {
  const { answer } = page;
  byId("answer-title").textContent = t(answer?.decision === "review" ? "suggested" : "goes_to");
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
    ...(answer.urgent ? [el("p", { class: "urgent" }, t("urgent", { words: listed(answer.urgent_words.map(quoted)) }))] : []),
    el("ul", { class: "reasons" }, ...(answer.reasons.length ? answer.reasons : [null]).map((reason) => el("li", {}, reason ? reasonText(reason) : t("route_because")))),
    answer.threshold !== undefined && el("p", { class: "threshold" }, thresholdText(answer)),
    el(
      "ol",
      { class: "shares", tabindex: "0", "aria-label": t("team_shares") },
      ...teams.map(([team, share]) =>
        el("li", { class: team === answer.team ? "chosen" : null }, el("span", { class: "name" }, teamName(team)), bar(share), el("span", { class: "value" }, percent(share, 1))),
      ),
    ),
    el("p", { class: "counts" }, counts.join(" · ")),
    drawCorrection(),
  );
}

function thresholdText({ confidence, threshold }) {
  const values = { confidence: percent(confidence, 1) };
  return threshold === null ? t("confidence_no_threshold", values) : t("confidence_and_threshold", { ...values, threshold: percent(threshold, 1) });
}

/** A failed call as a sentence. */
function feedbackProblem(error) {
  if (!(error instanceof Refused)) throw error;
  return t([404, 405].includes(error.status) ? "feedback_absent" : error.status === 401 ? "key_missing" : "feedback_failed");
}

/** Feedback: "Right", or the right team, with undo. */
function drawCorrection() {
  const { answer } = page;
  const outcomes = ["none_of_these", "not_a_ticket"];
  const send = el("button", { type: "button", class: "small", id: "send-correction", disabled: true }, t("send"));
  const select = el(
    "select",
    { id: "right-team", onchange: () => { send.disabled = !select.value; } },
    el("option", { value: "" }, t("choose_team")),
    ...Object.keys(answer.probabilities).filter((team) => team !== answer.team).map((team) => el("option", { value: `team:${team}` }, teamName(team))),
    ...outcomes.map((outcome) => el("option", { value: `outcome:${outcome}` }, t(`outcome_${outcome}`))),
  );
  const tell = async (verdict, name) => {
    try {
      await feedback(page.requestId, verdict);
      page.thanks = t("thanks", { team: name });
      page.given = true;
    } catch (error) {
      page.thanks = feedbackProblem(error);
    }
    drawVerdict();
    byId(page.given ? "undo-correction" : "thanks").focus();
  };
  send.addEventListener("click", () => {
    const [kind, value] = [select.value.slice(0, select.value.indexOf(":")), select.value.slice(select.value.indexOf(":") + 1)];
    tell({ [kind]: value }, kind === "team" ? teamName(value) : t(`outcome_${value}`));
  });
  const undo = async () => {
    try {
      await removeFeedback(page.requestId);
      page.thanks = t("undone");
      page.given = false;
    } catch (error) {
      page.thanks = feedbackProblem(error);
    }
    drawVerdict();
    byId("thanks").focus();
  };
  return el(
    "section",
    { class: "wrong", "aria-labelledby": "verdict-title" },
    el("h3", { id: "verdict-title" }, t("verdict_title")),
    el("p", { class: "hint" }, t("verdict_hint")),
    !page.given && el("button", { type: "button", class: "small", id: "send-right", onclick: () => tell({ team: answer.team }, teamName(answer.team)) }, t("right")),
    !page.given &&
      el("details", {}, el("summary", {}, t("wrong")), el("div", { class: "wrong-form" }, el("label", { for: "right-team" }, t("right_team")), select, send)),
    el("p", { class: "status", role: "status", id: "thanks", tabindex: "-1" }, page.thanks ?? ""),
    page.given && el("button", { type: "button", class: "small", id: "undo-correction", onclick: undo }, t("undo")),
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
  drawWords(byId("words"), sent, explanation, page.word, pickWord, page.unfolded ? null : unfold);
  drawChange(byId("change"), sent, explanation, () => fillTicket(withoutWords(sent, explanation)));
}

function unfold() {
  page.unfolded = true;
  repaintWhy();
  byId("words").querySelector("button.word")?.focus();
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
  if (answer) loadTradeoff(answer.model.version);
}

function repaint() {
  drawExamples();
  repaintAnswer();
  repaintHeads();
  repaintTradeoff();
}

start("title_route", repaint);
walkWords(byId("words"));
for (const id of ["subject", "text"]) byId(id).addEventListener("input", onEdit);
repaint();
fillTicket(keptTicket() ?? EXAMPLES[0]);
