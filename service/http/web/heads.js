// The grid of heads and the larger view of one: rows read, columns are read.

import { decodeWeights } from "./api.js";
import { bar, byId, el, fill } from "./dom.js";
import { paint } from "./heatmap.js";
import { listed, number, percent, t } from "./strings.js";

/** Split the weights of a full explanation into one matrix per head, and add the text of every token. */
export function readFull(explanation, ticket) {
  const weights = decodeWeights(explanation.weights);
  const count = explanation.tokens.length;
  const characters = { subject: Array.from(ticket.subject), text: Array.from(ticket.text) };
  return {
    tokens: explanation.tokens.map((token) => ({ ...token, text: characters[token.field].slice(token.start, token.end).join("") })),
    heads: explanation.heads.map((head, i) => ({ ...head, matrix: weights.subarray(i * count * count, (i + 1) * count * count) })),
  };
}

/** The summary of a head in the page's language (the service sends it in English). */
export function summaryOf(head, tokens) {
  const { kind, share, distance } = head.pattern;
  if (kind === "words" || kind === "broad") {
    const named = head.pattern.tokens.map((token, i) => t("head_word", { word: tokens[token].text, share: percent(head.pattern.shares[i]) }));
    return named.length ? t(`head_${kind}`, { words: listed(named) }) : "";
  }
  return t(`head_${kind}`, { share: percent(share), distance });
}

/** One button per head with picture, name and summary. */
export function drawGrid(container, full, onopen) {
  const blocks = Math.max(...full.heads.map((head) => head.block));
  fill(
    container,
    ...full.heads.map((head, index) => {
      const canvas = el("canvas", { class: "map", "aria-hidden": "true" });
      paint(canvas, head.matrix, full.tokens.length);
      const summary = summaryOf(head, full.tokens);
      const values = { block: head.block, head: head.head, summary };
      return el(
        "button",
        { type: "button", class: "head", "data-head": index, "aria-label": t("open_head", values), onclick: () => onopen(index) },
        canvas,
        el("span", { class: "head-name" }, t("head_name", values)),
        el("span", { class: "head-summary", dir: "auto" }, summary),
      );
    }),
  );
  container.style.setProperty("--heads", String(full.heads.length / blocks));
}

// A cell is between these sizes in CSS pixels: large where there is room, still readable at 120 tokens.
const SMALLEST_CELL = 13;
const LARGEST_CELL = 30;
const LABEL_SPACE = 100; // for the words along both axes, which stay in sight while the cells scroll

/** The larger view of one head. `view` keeps its place ({reader, read}) while the ticket is edited. */
export class HeadView {
  constructor(container, onclose) {
    this.container = container;
    this.onclose = onclose;
    this.row = 0;
    this.column = 0;
    let timer = 0;
    window.addEventListener("resize", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.full && this.layOut(), 150);
    });
  }

  open(full, index, { keepPlace = false, focus = false } = {}) {
    this.full = full;
    this.head = full.heads[index];
    this.count = full.tokens.length;
    const strongest = this.head.strongest[0] ?? { reader: 0, read: 0 };
    if (!keepPlace || this.row >= this.count || this.column >= this.count) {
      this.row = strongest.reader;
      this.column = strongest.read;
    }
    this.build();
    if (focus) byId("larger-title").focus();
  }

  close() {
    fill(this.container);
    this.full = null;
  }

  weight(row, column) {
    return this.head.matrix[row * this.count + column];
  }

  build() {
    const { head, full, count } = this;
    const summary = summaryOf(head, full.tokens);
    const values = { block: head.block, head: head.head, summary, count };
    this.canvas = el("canvas", {
      class: "large-map map",
      tabindex: "0",
      role: "img",
      id: "large-map",
      "aria-label": t("map_label", values),
      "aria-describedby": "cell-text",
      onkeydown: (event) => this.onkey(event),
      onpointermove: (event) => this.onpoint(event, false),
      onpointerdown: (event) => this.onpoint(event, true),
    });
    this.cellText = el("p", { class: "cell-text", id: "cell-text", role: "status", "aria-live": "polite", dir: "auto" });
    this.bars = el("div", { class: "row-bars" });
    this.rowTitle = el("h4", { dir: "auto", id: "row-title" });
    this.picker = el(
      "select",
      { id: "row-picker", onchange: (event) => this.pick(Number(event.target.value), this.column) },
      ...full.tokens.map((token, i) => el("option", { value: i }, `${i + 1} · ${token.text}`)),
    );
    fill(
      this.container,
      el(
        "div",
        { class: "larger", role: "region", "aria-labelledby": "larger-title" },
        el(
          "div",
          { class: "larger-head" },
          el("h3", { id: "larger-title", tabindex: "-1" }, t("head_name", values)),
          el("button", { type: "button", class: "small", id: "close-head", onclick: () => this.onclose() }, t("close")),
        ),
        el("p", { dir: "auto" }, summary),
        el(
          "div",
          { class: "larger-body" },
          el("div", { class: "map-scroll", tabindex: "-1" }, this.buildMap()),
          el(
            "div",
            { class: "row-panel" },
            this.cellText,
            el(
              "div",
              { class: "row-choice" },
              el("label", { for: "row-picker" }, t("row_pick")),
              this.picker,
              el("button", { type: "button", class: "small", "aria-label": t("previous_row"), onclick: () => this.step(-1) }, "↑"),
              el("button", { type: "button", class: "small", "aria-label": t("next_row"), onclick: () => this.step(1) }, "↓"),
            ),
            this.rowTitle,
            this.bars,
            el("h4", {}, t("strongest")),
            el(
              "ol",
              { class: "pairs", dir: "auto" },
              ...head.strongest.map(({ reader, read, weight }) =>
                el("li", {}, t("pair", { reader: full.tokens[reader].text, read: full.tokens[read].text, weight: number(weight) })),
              ),
            ),
          ),
        ),
      ),
    );
    paint(this.canvas, head.matrix, count);
    this.layOut();
    this.pick(this.row, this.column);
  }

  /** Corner, columns, rows and cells: the first three stick to the edges while the cells scroll. */
  buildMap() {
    const axis = (kind) => el("canvas", { class: `axis ${kind}`, "aria-hidden": "true" });
    this.columns = axis("columns-axis");
    this.rows = axis("rows-axis");
    this.rowMark = el("div", { class: "row-mark" });
    this.cellMark = el("div", { class: "cell-mark" });
    return el(
      "div",
      { class: "map-grid" },
      el("div", { class: "axis corner", "aria-hidden": "true" }, el("span", {}, t("is_read")), el("span", {}, t("reads"))),
      this.columns,
      this.rows,
      el("div", { class: "cells" }, this.canvas, this.rowMark, this.cellMark),
    );
  }

  step(by) {
    this.pick(Math.max(0, Math.min(this.count - 1, this.row + by)), this.column);
  }

  onkey(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Escape") {
      this.onclose();
      return;
    }
    if (!move) return;
    event.preventDefault();
    const within = (value) => Math.max(0, Math.min(this.count - 1, value));
    this.pick(within(this.row + move[0]), within(this.column + move[1]));
    this.cellMark.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  onpoint(event, pressed) {
    if (!pressed && event.pointerType !== "mouse") return;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.cell);
    const row = Math.floor((event.clientY - box.top) / this.cell);
    if (row >= 0 && row < this.count && column >= 0 && column < this.count && (row !== this.row || column !== this.column)) this.pick(row, column);
  }

  /** Select a cell: outline it, describe it in a sentence, show its row as bars. */
  pick(row, column) {
    const otherRow = row !== this.row || !this.bars.firstChild;
    this.row = row;
    this.column = column;
    const { tokens } = this.full;
    const words = { reader: tokens[row].text, read: tokens[column].text, row: row + 1, column: column + 1, weight: number(this.weight(row, column), 3) };
    this.cellText.textContent = t("cell", words);
    this.picker.value = String(row);
    if (otherRow) this.drawRow();
    this.outline();
  }

  drawRow() {
    const { tokens } = this.full;
    const row = Array.from(tokens, (_, column) => this.weight(this.row, column));
    const largest = Math.max(...row, 1e-9);
    this.rowTitle.textContent = t("row_title", { reader: tokens[this.row].text });
    fill(
      this.bars,
      el(
        "ol",
        { tabindex: "0", "aria-labelledby": "row-title" },
        ...row.map((weight, column) =>
          el("li", { class: weight === largest ? "most" : null }, el("span", { class: "token", dir: "auto" }, tokens[column].text), bar(weight / largest, "reading"), el("span", { class: "value" }, number(weight, 3))),
        ),
      ),
    );
  }

  /** Fit the cells to the available space, and write the words along both axes. */
  layOut() {
    const { count, container } = this;
    const room = container.clientWidth * (container.clientWidth > 900 ? 0.58 : 1) - LABEL_SPACE - 24;
    this.cell = Math.max(SMALLEST_CELL, Math.min(LARGEST_CELL, Math.floor(room / Math.max(1, count))));
    const side = `${count * this.cell}px`;
    this.canvas.style.width = side;
    this.canvas.style.height = side;
    this.writeAxis(this.columns, true);
    this.writeAxis(this.rows, false);
    this.outline();
  }

  writeAxis(canvas, across) {
    const { count, cell } = this;
    const [width, height] = across ? [count * cell, LABEL_SPACE] : [LABEL_SPACE, count * cell];
    const scale = Math.min(2, window.devicePixelRatio || 1);
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    context.scale(scale, scale);
    context.font = `${Math.min(13, cell - 2)}px ${style.getPropertyValue("--text-font")}`;
    context.fillStyle = style.getPropertyValue("--ink").trim();
    context.textBaseline = "middle";
    context.textAlign = across ? "left" : "right";
    this.full.tokens.forEach((token, i) => {
      const characters = Array.from(token.text);
      const shown = characters.length > 13 ? `${characters.slice(0, 12).join("")}…` : token.text;
      const middle = (i + 0.5) * cell;
      context.save();
      if (across) {
        context.translate(middle, LABEL_SPACE - 5);
        context.rotate(-Math.PI / 2);
        context.fillText(shown, 0, 0);
      } else {
        context.fillText(shown, LABEL_SPACE - 6, middle);
      }
      context.restore();
    });
  }

  /** Move the two frames: around the row that is read from, and around the cell. */
  outline() {
    const { row, column, cell, count } = this;
    const frame = (mark, x, y, width) => {
      mark.style.transform = `translate(${x}px, ${y}px)`;
      mark.style.width = `${width}px`;
      mark.style.height = `${cell}px`;
    };
    frame(this.rowMark, 0, row * cell, count * cell);
    frame(this.cellMark, column * cell, row * cell, cell);
  }
}
