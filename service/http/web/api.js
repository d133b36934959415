// The service's endpoints, as the pages use them.

/** An answer that is not a success: `status` (0 = unreachable) and the service's own sentence. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "");
  }
  const body = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return {};
  });
  if (!response.ok) throw new Refused(response.status, typeof body.detail === "string" ? body.detail : response.statusText);
  return { body, requestId: response.headers.get("X-Request-ID") };
}

function post(path, body, signal) {
  return call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
}

/** Half a character (a lone surrogate) is not text that JSON can carry: send the replacement character. */
export const wellFormed = (text) => (text.toWellFormed ? text.toWellFormed() : text.replace(/\p{Surrogate}/gu, "\ufffd"));

export function route({ subject, text }, explain, signal) {
  const ticket = { text, explain };
  if (subject.trim()) ticket.subject = subject;
  return post("/route", ticket, signal);
}

export const feedback = (requestId, team) => post("/feedback", { request_id: requestId, team });

export const learnNumbers = () => call("/learn/numbers", {});

export const learnDraw = (keySize, seed, signal) => call(`/learn/draw?d_k=${keySize}&seed=${seed}`, { signal });

/**
 * Decode `explanation.weights` to one Float32Array (blocks × heads × tokens × tokens).
 * Each weight is stored as a little-endian 16-bit share of its square root: weight = (code / 65535)².
 */
export function decodeWeights({ shape, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const codes = new DataView(bytes.buffer);
  const weights = new Float32Array(shape.reduce((product, size) => product * size, 1));
  for (let i = 0; i < weights.length; i++) weights[i] = (codes.getUint16(2 * i, true) / 65535) ** 2;
  return weights;
}
