// Calls of the service's endpoints. If the service requires a key, the page asks for it once per tab.

/** An unsuccessful answer: `status` (0 = unreachable) and the message of the service. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

const KEY = "larkfield-key";
let key = null;
let asking = null; // the promise of a key while the page asks for one
let askForKey = async () => null;

try {
  key = sessionStorage.getItem(KEY);
} catch {
  // storage may be forbidden: then the key is kept until the page is closed
}

/** `ask(refused)` is called when the service needs a key; it resolves to the key, or to null. */
export function whenKeyNeeded(ask) {
  askForKey = ask;
}

function newKey(refused) {
  asking ??= askForKey(refused).then((given) => {
    asking = null;
    key = given;
    try {
      if (given) sessionStorage.setItem(KEY, given);
      else sessionStorage.removeItem(KEY);
    } catch {
      // as above
    }
    return given;
  });
  return asking;
}

async function call(path, { quiet = false, ...options }) {
  for (;;) {
    const sent = key;
    try {
      return await once(path, { ...options, headers: { ...options.headers, ...(sent && { "X-API-Key": sent }) } });
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 401) throw error;
      if (quiet) throw error;
      if (key === sent && !(await newKey(Boolean(sent)))) throw error;
      options.signal?.throwIfAborted();
    }
  }
}

async function once(path, options) {
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

function post(path, body, signal, quiet = false) {
  return call(path, { quiet, method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
}

/** Replace lone surrogates, which UTF-8 cannot encode, by the replacement character. */
export const wellFormed = (text) => (text.toWellFormed ? text.toWellFormed() : text.replace(/\p{Surrogate}/gu, "\ufffd"));

/** If `quiet`, a missing key is refused without a prompt for it. */
export function route({ subject, text }, explain, signal, quiet = false) {
  const ticket = { text: text.trim() || !subject.trim() ? text : null, explain };
  if (subject.trim()) ticket.subject = subject;
  return post("/route", ticket, signal, quiet);
}

/** `verdict` is {team} or {outcome}. */
export const feedback = (requestId, verdict) => post("/feedback", { request_id: requestId, ...verdict });

export const removeFeedback = (requestId) => post("/feedback/remove", { request_id: requestId });

export const routeBatch = (tickets, signal) => post("/route/batch", { tickets }, signal);

const get = (path, values) => call(`${path}?${new URLSearchParams(Object.entries(values).filter(([, value]) => value))}`, {});

export const reviewTickets = (values) => get("/review/tickets", values);

export const reviewWords = (row) => get("/review/words", { row: String(row) });

export const todayNumbers = () => get("/today/numbers", {});

export const readFile = (file, values) =>
  call(`/upload/read?${new URLSearchParams(Object.entries({ name: file.name, ...values }).filter(([, value]) => value))}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: file,
  });

export const tradeoff = () => call("/tradeoff", {});

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
