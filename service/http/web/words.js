// The ticket as it was sent, with words coloured by effect, and the attention heads at one word.

import { bar, el, fill, rove } from "./dom.js";
import { listed, number, percent, quoted, t, teamName } from "./strings.js";

// The strongest word gets the full colour, but an effect must have this size for it.
const FULL_EFFECT = 0.5;
// A smaller share of the sum of all effects is shown as none.
const NO_SHARE = 0.005;
// A ticket of more words is folded: only these words are shown, each with the words around it.
const FOLD_ABOVE_WORDS = 150;
const SHOWN_WORDS = 12;
const AROUND = 10;
const UNREAD_CHARACTERS = 400; // of text outside the words, shown at either end of a fold

/** Whether only one passage of a long ticket decided. */
export const isPart = (span) => span.end - span.start < span.tokens;

/** The absolute effect of a word as a share of the sum over the ticket: 0 to 1. */
export function shareOf(word, explanation) {
  const all = explanation.words.reduce((sum, other) => sum + Math.abs(other.effect), 0);
  return all ? Math.abs(word.effect) / all : 0;
}

const kindOf = (word, explanation) =>
  shareOf(word, explanation) < NO_SHARE ? "neither" : word.effect > 0 ? "towards" : "away";

export function describeWord(word, explanation) {
  const values = { word: word.text, share: percent(shareOf(word, explanation)), team: teamName(explanation.team), rival: teamName(explanation.runner_up) };
  return t({ neither: "word_neither", towards: "word_for", away: "word_against" }[kindOf(word, explanation)], values);
}

/**
 * Draw the fields with their words as buttons. `ticket` holds the strings that were sent; offsets count
 * characters (code points), while JavaScript's strings count UTF-16 units, hence Array.from.
 */
export function drawWords(container, ticket, explanation, chosen, onpick, unfold) {
  const shown = unfold ? wordsToShow(explanation) : null;
  const strongest = Math.max(FULL_EFFECT, ...explanation.words.map((word) => Math.abs(word.effect)));
  const parts = [];
  for (const field of ["subject", "text"]) {
    const words = explanation.words.map((word, index) => ({ ...word, index })).filter((word) => word.field === field);
    if (!ticket[field] || (field === "subject" && !words.length)) continue;
    const characters = Array.from(ticket[field]);
    const line = el("p", { class: `field-${field}`, dir: "auto" });
    let at = 0;
    const rest = (end, outside) => {
      const between = characters.slice(at, end).join("");
      const kind = outside && isPart(explanation.window) ? "elsewhere" : "not_read";
      if (!between.trim()) line.append(between);
      else for (const part of foldedText(between, unfold)) line.append(typeof part === "string" ? el("span", { class: kind, title: t(kind) }, part) : part);
    };
    let hidden = 0;
    for (const word of words) {
      if (shown && !shown.has(word.index)) {
        hidden += 1;
        continue;
      }
      if (hidden) {
        line.append(" ", foldButton(hidden, unfold), " ");
        hidden = 0;
        at = word.start;
      }
      rest(word.start, at === 0);
      line.append(wordButton(word, characters.slice(word.start, word.end).join(""), strongest, explanation, onpick));
      at = word.end;
    }
    if (hidden) {
      line.append(" ", foldButton(hidden, unfold));
      at = words.at(-1).end;
    }
    rest(characters.length, true);
    parts.push(line);
  }
  fill(container, ...parts);
  const buttons = [...container.querySelectorAll("button.word")];
  const current = buttons.find((button) => Number(button.dataset.word) === chosen) ?? buttons[0];
  if (current) current.tabIndex = 0;
  markChosen(container, chosen);
}

/** The indexes of the words to show of a long ticket; null for a short one, of which all are shown. */
function wordsToShow(explanation) {
  if (explanation.words.length <= FOLD_ABOVE_WORDS) return null;
  const order = explanation.words.map((word, index) => [Math.abs(word.effect), index]).sort((a, b) => b[0] - a[0]);
  const chosen = [...order.slice(0, SHOWN_WORDS).map(([, index]) => index), ...explanation.smallest_change.words];
  const shown = new Set();
  for (const index of chosen) {
    for (let i = Math.max(0, index - AROUND); i <= index + AROUND && i < explanation.words.length; i++) shown.add(i);
  }
  return shown;
}

function foldButton(count, unfold) {
  return el("button", { type: "button", class: "fold", "aria-label": t("fold_label", { count }), onclick: unfold }, t("fold", { count }));
}

/** Text outside the words; of a long one only the ends, with a button between them. */
function foldedText(text, unfold) {
  const characters = Array.from(text);
  if (!unfold || characters.length <= 3 * UNREAD_CHARACTERS) return [text];
  const [start, middle, end] = [
    characters.slice(0, UNREAD_CHARACTERS),
    characters.slice(UNREAD_CHARACTERS, -UNREAD_CHARACTERS),
    characters.slice(-UNREAD_CHARACTERS),
  ].map((part) => part.join(""));
  return [start, foldButton(middle.trim().split(/\s+/).length, unfold), end];
}

function wordButton(word, shown, strongest, explanation, onpick) {
  const share = Math.sqrt(Math.min(1, Math.abs(word.effect) / strongest));
  const kind = kindOf(word, explanation);
  const button = el(
    "button",
    {
      type: "button",
      class: `word ${kind}`,
      tabindex: "-1",
      "data-word": word.index,
      "aria-label": describeWord({ ...word, text: shown }, explanation),
      ...(word.read_as ? { title: word.read_as } : {}), // a word of another language, as it was read in English
      onfocus: () => onpick(word.index),
      onclick: () => onpick(word.index),
      onmouseenter: () => onpick(word.index),
    },
    shown,
  );
  button.style.setProperty("--strength", kind === "neither" ? "0" : (0.12 + 0.88 * share).toFixed(3));
  return button;
}

export function markChosen(container, chosen) {
  for (const button of container.querySelectorAll("button.word")) {
    button.classList.toggle("chosen", Number(button.dataset.word) === chosen);
  }
}

export const walkWords = (container) => rove(container, "button.word");

export function drawLegend(container, explanation) {
  fill(
    container,
    el("span", { class: "key towards" }, t("for_team", { team: teamName(explanation.team) })),
    el("span", { class: "key away" }, t("against_team", { rival: teamName(explanation.runner_up) })),
  );
}

/** The smallest change as a sentence, with a button that applies it. */
export function drawChange(container, ticket, explanation, ontry) {
  const change = explanation.smallest_change;
  if (!change.words.length) {
    const key = change.exhaustive ? "change_none" : "change_none_found";
    fill(container, t(key, { limit: change.limit, team: teamName(explanation.team) }));
    return;
  }
  const shown = change.words.map((index) => {
    const word = explanation.words[index];
    return quoted(Array.from(ticket[word.field]).slice(word.start, word.end).join(""));
  });
  fill(
    container,
    t("change_words", { words: listed(shown), team: teamName(change.team) }),
    " ",
    el("button", { type: "button", class: "small", id: "try-change", onclick: ontry }, t("change_try")),
  );
}

/** The ticket without the words of the smallest change. */
export function withoutWords(ticket, explanation) {
  const left = {};
  for (const field of ["subject", "text"]) {
    const characters = Array.from(ticket[field] ?? "");
    for (const index of explanation.smallest_change.words) {
      const word = explanation.words[index];
      if (word.field === field) characters.fill("", word.start, word.end);
    }
    left[field] = characters.join("").replace(/ {2,}/g, " ");
  }
  return left;
}

/** What each head reads from and at one word; `full` is the decoded full explanation or null. */
export function drawWordPanel(container, word, shown, explanation, full) {
  if (word === undefined) {
    fill(container, el("p", { class: "hint" }, t("panel_hint")));
    return;
  }
  const rows = [];
  if (full) {
    const tokens = full.tokens.flatMap((token, index) => (token.word === word ? [index] : []));
    for (const head of full.heads) {
      const { matrix } = head;
      const count = full.tokens.length;
      const reads = new Float32Array(count); // the mean row of the word's tokens
      for (const i of tokens) for (let j = 0; j < count; j++) reads[j] += matrix[i * count + j] / tokens.length;
      let readBy = 0;
      for (let i = 0; i < count; i++) for (const j of tokens) readBy += matrix[i * count + j] / count;
      const best = [...reads.keys()].sort((a, b) => reads[b] - reads[a]).slice(0, 2);
      rows.push(
        el(
          "tr",
          {},
          el("th", { scope: "row" }, `${head.block}·${head.head}`),
          el("td", {}, ...best.flatMap((j) => [el("span", { class: "token", dir: "auto" }, full.tokens[j].text), ` ${number(reads[j])} `])),
          el("td", { class: "with-bar" }, bar(readBy), percent(readBy, 1)),
        ),
      );
    }
  }
  fill(
    container,
    el("h3", { dir: "auto" }, t("word_panel", { word: shown })),
    el("p", {}, describeWord({ ...explanation.words[word], text: shown }, explanation)),
    rows.length > 0 &&
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, t("panel_head")), el("th", { scope: "col" }, t("panel_reads")), el("th", { scope: "col" }, t("panel_read_by")))),
        el("tbody", {}, ...rows),
      ),
  );
}
