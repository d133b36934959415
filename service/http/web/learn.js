// /learn: the formula step by step on three words, the key size, heads and their cost, a real ticket's heads.

import { Refused, learnDraw, learnNumbers } from "./api.js";
import { byId, el, fill } from "./dom.js";
import { predict } from "./learn_parts.js";
import { repaintTicket, startTicket } from "./learn_ticket.js";
import { start } from "./page.js";
import { number, percent, t } from "./strings.js";

const STEPS = 7;
const state = { numbers: null, step: 1, mask: "none", size: 0, seed: 0, drawn: null, failed: false };
let drawing = null;

/** A number as people write it: up to three digits behind the point, no trailing zeros, null = minus infinity. */
function short(value) {
  if (value === null) return "−∞";
  const rounded = Math.round(value * 1000) / 1000;
  return (Object.is(rounded, -0) ? 0 : rounded).toLocaleString(document.documentElement.lang, { maximumFractionDigits: 3 });
}

function drawMatrix(matrix) {
  const { name, rows, columns, values } = matrix;
  const label = t("matrix", { name, rows: values.length, columns: values[0].length });
  const largest = Math.max(...values.flat().map((value) => Math.abs(value ?? 0)), 1e-9);
  return el(
    "figure",
    { class: "matrix" },
    el("figcaption", {}, el("b", {}, name), " ", el("span", { class: "shape" }, t("shape", { rows: values.length, columns: values[0].length }))),
    el(
      "table",
      { "aria-label": label },
      columns && el("thead", {}, el("tr", {}, rows && el("td", {}), ...columns.map((column) => el("th", { scope: "col" }, column)))),
      el(
        "tbody",
        {},
        ...values.map((row, i) =>
          el(
            "tr",
            { class: rows?.[i] === "damaged" ? "traced" : null },
            rows && el("th", { scope: "row" }, rows[i]),
            ...row.map((value) => {
              const cell = el("td", { class: value === null ? "hidden-cell" : null }, short(value));
              if (value !== null) cell.style.setProperty("--strength", (Math.abs(value) / largest).toFixed(3));
              return cell;
            }),
          ),
        ),
      ),
    ),
  );
}

function trace(step, matrices) {
  const last = matrices[matrices.length - 1];
  const traced = step <= 2 ? matrices[0] : last;
  const row = traced.values[0];
  const pairs = traced.columns?.map((column, i) => `${column} ${short(row[i])}`).join(", ");
  const sum = short(row.reduce((total, value) => total + (value ?? 0), 0));
  return t(`trace_${step}`, { row: row.map(short).join(["fr", "de"].includes(document.documentElement.lang) ? "; " : ", "), pairs, sum });
}

function drawWalk() {
  const { step, mask, numbers } = state;
  fill(
    byId("walk-steps"),
    ...Array.from({ length: STEPS }, (_, i) => i + 1).map((n) =>
      el("button", { type: "button", class: "chip", "aria-current": n === step ? "step" : null, onclick: () => go(n) }, `${n} ${t(`step_${n}`)}`),
    ),
  );
  fill(
    byId("walk-mask"),
    el("legend", {}, t("mask")),
    ...["none", "causal", "padding"].map((name) =>
      el(
        "label",
        {},
        el("input", { type: "radio", name: "mask", value: name, checked: mask === name, onchange: () => { state.mask = name; drawWalkBody(); } }),
        t(`mask_${name}`),
      ),
    ),
  );
  if (numbers) drawWalkBody();
}

function go(step) {
  state.step = step;
  const held = document.activeElement?.id;
  drawWalk();
  if (held) byId(held)?.focus();
  else byId("walk-steps").children[step - 1].focus();
}

function drawWalkBody() {
  const { step, mask, numbers } = state;
  const matrices = numbers.walk[mask][step - 1];
  fill(
    byId("walk-body"),
    el("h3", { "aria-live": "polite" }, t("step", { number: step, name: t(`step_${step}`) })),
    el("p", {}, t(step === 5 ? `say_5_${mask}` : `say_${step}`)),
    step >= 3 && predict(`ask_${step}`, `answer_${step}`),
    step === 5 && predict("ask_leak", "answer_leak"),
    el("div", { class: "matrices", tabindex: "0", role: "group", "aria-label": t(`step_${step}`) }, ...matrices.map(drawMatrix)),
    el("p", { class: "trace" }, el("b", {}, `${t("trace")} `), trace(step, matrices)),
    el(
      "div",
      { class: "steps" },
      el("button", { type: "button", class: "small", id: "walk-back", disabled: step === 1, onclick: () => go(step - 1) }, t("previous")),
      el("button", { type: "button", class: "small", id: "walk-next", disabled: step === STEPS, onclick: () => go(step + 1) }, t("next")),
    ),
  );
}

const D = 64; // columns of the router's layers
const megabytes = (count) => t("megabytes", { size: number((4 * count) / 1e6, 2) }); // of float32 numbers

function drawMultihead() {
  const [heads, tokens] = [2 ** Number(byId("heads-count").value), Number(byId("tokens-count").value)];
  byId("heads-count").setAttribute("aria-valuetext", `h = ${heads}`);
  byId("heads-count-now").textContent = String(heads);
  byId("tokens-count-now").textContent = String(tokens);
  const weights = heads * tokens ** 2;
  const kilobytes = number((4 * weights) / 1000, 1);
  fill(
    byId("multihead-body"),
    predict("ask_cost", "answer_cost"),
    el("p", { id: "cost", "aria-live": "polite" }, t("cost_sentence", { heads, size: D / heads, parameters: 4 * D ** 2 + 4 * D, weights, kilobytes })),
    el(
      "table",
      { class: "values", id: "cost-table" },
      el("caption", {}, t("cost_caption")),
      el("thead", {}, el("tr", {}, ...["tokens_count", "cost_scores", "cost_memory", "cost_inputs"].map((name) => el("th", { scope: "col" }, t(name))))),
      el(
        "tbody",
        {},
        ...[128, 1024, 8192].map((n) =>
          el("tr", {}, el("th", { scope: "row" }, number(n, 0)), ...[number(n ** 2, 0), megabytes(n ** 2), megabytes(3 * D * n)].map((value) => el("td", {}, value))),
        ),
      ),
    ),
  );
}

function drawBars(weights, title) {
  const bars = weights.map((weight) => {
    const one = el("span", { class: "column" });
    one.style.height = `${(100 * weight).toFixed(2)}%`;
    return one;
  });
  return el(
    "figure",
    { class: "bars" },
    el("figcaption", {}, title, el("span", { class: "value" }, short(weights[0]))),
    el("div", { class: "columns-chart", "data-top": "1", role: "img", "aria-label": t("bars_label", { largest: short(weights[0]) }) }, ...bars),
  );
}

function drawSize() {
  const { numbers, size, drawn, seed } = state;
  if (!numbers) return;
  const row = numbers.key_sizes[size];
  byId("key-size").setAttribute("aria-valuetext", `d_k = ${row.d_k}`);
  byId("key-size-now").textContent = String(row.d_k);
  const values = {
    size: String(row.d_k),
    spread: number(Math.sqrt(row.variance)),
    largest: number(row.largest, 3),
    gradient: number(row.gradient, 3),
    scaled: number(row.largest_scaled, 3),
    scaled_gradient: number(row.gradient_scaled, 3),
  };
  const figures = [
    ["figure_variance", number(row.variance), number(row.variance_scaled, 3)],
    ["figure_largest", number(row.largest, 3), number(row.largest_scaled, 3)],
    ["figure_certain", percent(row.certain, 1), percent(row.certain_scaled, 1)],
    ["figure_gradient", number(row.gradient, 4), number(row.gradient_scaled, 4)],
  ];
  fill(
    byId("size-body"),
    el("p", { "aria-live": "polite", id: "size-says" }, t(row.d_k < 64 ? "say_size_low" : "say_size_high", values)),
    predict("ask_size", "answer_size"),
    drawn && drawn.d_k === row.d_k && el("div", { class: "pair" }, drawBars(drawn.unscaled, t("unscaled")), drawBars(drawn.scaled, t("scaled"))),
    el(
      "p",
      { class: "hint" },
      t("one_query", { seed: String(seed) }),
      " ",
      el("button", { type: "button", class: "small", id: "draw-again", onclick: () => { state.seed += 1; draw(true); } }, t("draw_again")),
    ),
    el(
      "table",
      { class: "figures" },
      el("caption", {}, t("measured", Object.fromEntries(Object.entries(numbers.measured_on).map(([name, count]) => [name, number(count, 0)])))),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, t("figure")), el("th", { scope: "col" }, t("unscaled")), el("th", { scope: "col" }, t("scaled")))),
      el("tbody", {}, ...figures.map(([name, raw, tamed]) => el("tr", {}, el("th", { scope: "row" }, t(name)), el("td", {}, raw), el("td", {}, tamed)))),
    ),
  );
}

async function draw(focus = false) {
  drawing?.abort();
  const controller = new AbortController();
  drawing = controller;
  try {
    const { body } = await learnDraw(state.numbers.key_sizes[state.size].d_k, state.seed, controller.signal);
    if (drawing !== controller) return;
    state.drawn = body;
    drawSize();
    if (focus) byId("draw-again").focus();
  } catch (error) {
    if (error.name === "AbortError") return;
    failed(error);
  }
}

function failed(error) {
  if (!(error instanceof Refused)) throw error;
  state.failed = true;
  byId("status").textContent = t("learn_failed");
}

function repaint() {
  byId("status").textContent = state.failed ? t("learn_failed") : "";
  drawWalk();
  drawSize();
  drawMultihead();
  repaintTicket();
}

start("title_learn", repaint);
repaint();
startTicket();
for (const id of ["heads-count", "tokens-count"]) byId(id).addEventListener("input", drawMultihead);
byId("key-size").addEventListener("input", (event) => {
  state.size = Number(event.target.value);
  state.seed = state.numbers.key_sizes[state.size].seed;
  drawSize();
  draw();
});
learnNumbers().then(({ body }) => {
  state.numbers = body;
  fill(byId("key-sizes"), ...body.key_sizes.map((row, i) => el("option", { value: i, label: String(row.d_k) })));
  state.size = Number(byId("key-size").value);
  state.seed = body.key_sizes[state.size].seed;
  repaint();
  return draw();
}, failed);
