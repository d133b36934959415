// Parts of /learn that several of its sections use.

import { el } from "./dom.js";
import { t } from "./strings.js";

/** A question whose answer the reader opens after a guess. */
export function predict(ask, answer) {
  return el("details", { class: "predict" }, el("summary", {}, el("b", {}, t("predict")), " ", t(ask)), el("p", {}, t(answer)));
}
