// The whole document, in a dialog: the browser keeps the focus inside it and closes it on Escape.
import * as api from "./api.js";
import { byId, el, score, whole } from "./dom.js";
import { titleOf, trailNode } from "./results.js";
import { marked, marks } from "./text.js";

const dialog = byId("document");
const box = byId("document-body");
let shown = "";
let asking = new AbortController();

export function hide() {
  shown = "";
  asking.abort();
  if (dialog.open) dialog.close();
}

/** `answer` is the search it was found by, if any. */
export async function show(id, answer) {
  if (shown === id && dialog.open) return;
  shown = id;
  asking.abort();
  asking = new AbortController();
  byId("document-title").textContent = id;
  box.replaceChildren(el("p", { class: "hint" }, "Fetching the document …"));
  if (!dialog.open) dialog.showModal();
  try {
    const found = answer?.results.find((result) => result.id === id);
    const whole = found && !found.cut ? found : { ...(await api.fetchDocument(id)), ...pick(found) };
    if (shown !== id) return;
    render(whole, answer);
    if (answer) await terms(id, answer);
  } catch (error) {
    if (shown === id && error.name !== "AbortError")
      box.replaceChildren(el("p", { class: "notice error" }, error.message));
  }
}

/** What a result knows of a document beside its text, which was cut. */
const pick = (found) => (found ? { highlights: found.highlights, evidence: found.evidence } : {});

function render(found, answer) {
  byId("document-title").textContent = titleOf(found);
  const flags = marks(found.text, found.highlights, found.evidence);
  const facts = [el("span", { class: "id" }, found.id), answer ? trailNode(answer.stages, found.id) : null];
  const parts = [
    el("p", { class: "facts" }, ...facts),
    el("div", { class: "whole" }, ...marked(found.text, flags)),
  ];
  if (found.evidence?.length) parts.push(legend(found.evidence));
  box.replaceChildren(...parts, el("div", { id: "document-terms" }));
  dialog.scrollTop = 0;
}

function legend(evidence) {
  const others = evidence.length > 1 ? el("span", { class: "evidence" }, "other passages") : null;
  return el("p", { class: "note" }, el("span", { class: "evidence best" }, "best passage"), " ", others);
}

/** What each term of the query adds, where the server can say. */
async function terms(id, answer) {
  const explained = await api.explain(answer.query, id, answer.pipeline, asking.signal).catch((error) => {
    if (error.name === "AbortError") throw error;
    return { terms: [] }; // the document is there: what it is worth is extra
  });
  const rows = (explained.terms ?? []).map((term) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, term.term),
      el("td", {}, whole(term.tf)),
      el("td", {}, whole(term.df)),
      el("td", {}, score(term.contribution ?? term.weight)),
    ),
  );
  if (!rows.length || shown !== id) return;
  byId("document-terms")?.replaceChildren(
    el(
      "table",
      {},
      el("caption", {}, "What each term adds to the score of the search"),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ...["term", "times here", "documents with it", "adds"].map((name) =>
            el("th", { scope: "col" }, name),
          ),
        ),
      ),
      el("tbody", {}, ...rows),
    ),
  );
}
