// Talking to the server. Addresses are relative, so that the page also works below a path of a proxy.

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

async function ask(path, options = {}) {
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
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  const wait = Number(response.headers.get("Retry-After")) || 0;
  throw new ServerError(answer.error ?? `The server answered ${response.status}.`, response.status, wait);
}

const post = (path, body, signal) =>
  ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });

export const info = () => ask("info");

const LONGEST_WAIT = 5; // seconds

const asleep = (seconds, signal) =>
  new Promise((resolve, reject) => {
    setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => reject(signal.reason));
  });

/** A server that is busy, or has only just started, is asked a second time when it says. */
export async function search(query, pipeline, k, signal) {
  const body = { query, pipeline: pipeline || null, k, trace: true };
  try {
    return await post("search", body, signal);
  } catch (error) {
    if (error.status !== 503 || !error.wait) throw error;
    await asleep(Math.min(error.wait, LONGEST_WAIT), signal);
    return post("search", body, signal);
  }
}

export const explain = (query, id, pipeline, signal) => post("explain", { query, id, pipeline }, signal);

const documents = new Map();

/** A document, asked for once. */
export function fetchDocument(id) {
  if (!documents.has(id)) {
    // a slash belongs to the id and to the path alike
    const path = id.split("/").map(encodeURIComponent).join("/");
    const asked = ask(`documents/${path}`);
    documents.set(id, asked);
    asked.catch(() => documents.delete(id));
  }
  return documents.get(id);
}
