// Talking to the server. Addresses are relative, so that the page also works below a path of a proxy.
import { canStream, events } from "./events.js";

const KEY = "tamis-key";

/** What the server said was wrong, in its one line. */
export class ServerError extends Error {
  constructor(message, status, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait; // seconds after which the server wants to be asked again
  }
}

/** Kept for this tab only: a key is a secret. */
export function rememberKey(key) {
  sessionStorage.setItem(KEY, key);
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

/** The answer as it begins to arrive, if it is no error. */
async function respond(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer: see whether it is still running, then try again.", 0);
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  const wait = Number(response.headers.get("Retry-After")) || 0;
  throw new ServerError(answer.error ?? `The server answered ${response.status}.`, response.status, wait);
}

const ask = async (path, options) => (await respond(path, options)).json().catch(() => ({}));

const posted = (body, signal, accept) => ({
  method: "POST",
  headers: { "Content-Type": "application/json", Accept: accept ?? "application/json" },
  body: JSON.stringify(body),
  signal,
});

const post = (path, body, signal) => ask(path, posted(body, signal));

const EVENTS = "text/event-stream";

/** The same with `arrived` told of the ranking after each stage; the last is returned. A server or a proxy that
 *  does not stream gives its one answer. */
async function postStages(path, body, signal, arrived) {
  const response = await respond(path, posted(body, signal, `${EVENTS}, application/json;q=0.9`));
  if (!response.headers.get("Content-Type")?.startsWith(EVENTS)) return response.json();
  let last = null;
  try {
    for await (const { name, data } of events(response.body)) {
      if (name === "error") throw new ServerError(data.error, response.status);
      if (name !== "ranking") continue;
      last = data;
      if (!data.final) arrived(data);
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
  }
  if (last?.final) return last;
  const after = last ? ` after ${last.finished}` : "";
  throw new ServerError(`The answer broke off${after}: search again.`, 0);
}

export const info = () => ask("info");

const LONGEST_WAIT = 5; // seconds

const asleep = (seconds, signal) =>
  new Promise((resolve, reject) => {
    setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => reject(signal.reason));
  });

/** The results of a state by one of its pipelines. A server that is busy, or has only just started, is asked a
 *  second time when it says. `arrived`, if any, is told of each ranking before the last. */
export async function search({ q, where, syntax, k }, pipeline, signal, arrived = null) {
  const body = { query: q, pipeline: pipeline || null, k, trace: true };
  if (where) body.where = where;
  if (syntax) body.syntax = syntax;
  const once = () =>
    arrived && canStream() ? postStages("search", body, signal, arrived) : post("search", body, signal);
  try {
    return await once();
  } catch (error) {
    if (![429, 503].includes(error.status) || !error.wait) throw error;
    await asleep(Math.min(error.wait, LONGEST_WAIT), signal);
    return once();
  }
}

/** Why a document stands where it does in an answer. */
export const explain = ({ query, where, pipeline }, id, signal) =>
  post("explain", { query, id, pipeline, ...(where ? { where } : {}) }, signal);

/** A part of a document: {start, length}, and the places of the words of `query` in all of it. */
export function fetchDocument(id, { start, length, query }, signal) {
  // not as a path: a browser would take the `..` of an id for the folder above, however it is written
  const given = new URLSearchParams({ id, start, length });
  if (query) given.set("query", query);
  return ask(`documents?${given}`, { signal });
}

const titles = new Map();

/** The title of a document, asked for once. */
export function fetchTitle(id) {
  if (!titles.has(id)) {
    const asked = fetchDocument(id, { start: 0, length: 1 }).then((found) => found.title || id);
    titles.set(id, asked);
    asked.catch(() => titles.delete(id));
  }
  return titles.get(id);
}
