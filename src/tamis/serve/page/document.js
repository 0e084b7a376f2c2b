// A document, in a dialog: the browser keeps the focus inside it and closes it on Escape. A long one is read in
// parts; it opens at the first word of the query, however deep.
import * as api from "./api.js";
import { titleOf } from "./card.js";
import { byId, el, score, whole } from "./dom.js";
import { factsOf } from "./metadata.js";
import { trailNode } from "./results.js";
import { bestOf, marked, marks, within } from "./text.js";

const PART = 20_000; // characters
const MOST = 10_000; // matches that the server gives

const dialog = byId("document");
const box = byId("document-body");
let shown = "";
let asking = new AbortController();
let reader = null;

export function hide() {
  shown = "";
  reader = null;
  asking.abort();
  if (dialog.open) dialog.close();
}

/** `answer` is the search it was found by, if any. */
export async function show(id, answer, query) {
  if (shown === id && dialog.open) return;
  shown = id;
  reader = null;
  asking.abort();
  asking = new AbortController();
  setTitle(id);
  byId("document-matches").hidden = true;
  box.replaceChildren(el("p", { class: "hint" }, "Fetching the document …"));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  try {
    const found = await api.fetchDocument(id, { start: 0, length: PART, query }, asking.signal);
    if (shown !== id) return;
    const evidence = answer?.results.find((result) => result.id === id)?.evidence ?? [];
    reader = new Reader(found, evidence, asking.signal);
    render(found, evidence, answer);
    await reader.open();
    if (answer) await terms(id, answer);
  } catch (error) {
    if (shown === id && error.name !== "AbortError") fail(error);
  }
}

const notice = (error) => el("p", { class: "notice error", role: "alert" }, error.message);
const fail = (error) => box.replaceChildren(notice(error));

function setTitle(title) {
  byId("document-title").textContent = title;
  byId("document-title").title = title;
}

function render(found, evidence, answer) {
  setTitle(titleOf(found));
  const facts = [el("span", { class: "id" }, found.id), answer ? trailNode(answer.stages, found.id) : null];
  box.replaceChildren(
    el("p", { class: "facts" }, ...facts),
    ...factsOf(found.metadata),
    reader.node,
    evidence.length ? legend(evidence) : "",
    el("div", { id: "document-terms" }),
  );
}

function legend(evidence) {
  const others = evidence.length > 1 ? el("span", { class: "evidence" }, "other passages") : null;
  return el("p", { class: "note" }, el("span", { class: "evidence best" }, "best passage"), " ", others);
}

/** The text between two characters, and the way through its matches. */
class Reader {
  constructor(found, evidence, signal) {
    Object.assign(this, {
      id: found.id,
      characters: found.characters,
      matches: found.matches,
      evidence,
      signal,
    });
    this.text = el("div", { class: "whole" });
    this.earlier = el("button", { type: "button", class: "more-text", click: () => this.grow(-1) });
    this.later = el("button", { type: "button", class: "more-text", click: () => this.grow(1) });
    this.node = el("div", {}, this.earlier, this.text, this.later);
    this.first = this.last = 0; // parts that are shown
    this.current = -1;
    this.text.append(this.part(found));
    this.tell();
  }

  part({ start, text }) {
    const moved = within(this.matches, start, start + PART);
    const evidence = within(
      this.evidence.map((each) => [each.start, each.end, each.score]),
      start,
      start + PART,
    ).map(([from, to, value]) => ({ start: from, end: to, score: value }));
    const best = bestOf(this.evidence);
    const flags = marks(text, moved, evidence, best && bestOf(evidence)?.score === best.score);
    const begun = this.matches.findIndex((match) => match[0] >= start);
    return el("span", { class: "part" }, ...marked(text, flags, 0, text.length, begun));
  }

  async fetch(number) {
    return this.part(await api.fetchDocument(this.id, { start: number * PART, length: PART }, this.signal));
  }

  /** One more part, before (-1) or behind (1) those that are shown. */
  grow(way) {
    return this.alone(async () => {
      if (way < 0) {
        const height = dialog.scrollHeight;
        this.text.prepend(await this.fetch(this.first - 1));
        this.first--;
        this.tell();
        dialog.scrollTop += dialog.scrollHeight - height;
      } else {
        this.text.append(await this.fetch(this.last + 1));
        this.last++;
        this.tell();
      }
    });
  }

  /** One thing at a time: a second click while a part is on its way does nothing. */
  async alone(action) {
    if (this.busy) return;
    this.busy = true;
    try {
      await action();
    } catch (error) {
      if (error.name !== "AbortError") this.node.append(notice(error));
    } finally {
      this.busy = false;
    }
  }

  /** The character's part, alone unless it is shown already. */
  async reach(character) {
    const number = Math.floor(character / PART);
    if (number >= this.first && number <= this.last) return;
    const part = await this.fetch(number);
    this.text.replaceChildren(part);
    this.first = this.last = number;
    this.tell();
  }

  open() {
    byId("document-matches").hidden = !this.matches.length;
    byId("document-best").hidden = !this.evidence.length;
    return this.matches.length ? this.go(0) : undefined;
  }

  step(way) {
    const count = this.matches.length;
    return this.go((this.current + way + count) % count);
  }

  /** To a match, by its number. */
  go(number) {
    return this.alone(async () => {
      await this.reach(this.matches[number][0]);
      this.current = number;
      const of = this.matches.length < MOST ? whole(this.matches.length) : `${whole(MOST)}+`;
      byId("document-match").textContent = `${whole(number + 1)} of ${of}`;
      for (const each of this.text.querySelectorAll("mark.current")) each.classList.remove("current");
      const mark = this.text.querySelector(`mark[data-match="${number}"]`);
      mark?.classList.add("current");
      look(mark);
    });
  }

  toBest() {
    return this.alone(async () => {
      await this.reach(bestOf(this.evidence).start);
      look(this.text.querySelector(".best"));
    });
  }

  /** What there is beyond the parts that are shown. */
  tell() {
    const [start, end] = [this.first * PART, Math.min((this.last + 1) * PART, this.characters)];
    const say = (button, words, from, to) => {
      button.hidden = from >= to;
      const range = `characters ${whole(from + 1)} to ${whole(to)} of ${whole(this.characters)}`;
      button.textContent = from < to ? `${words}: ${range}` : "";
    };
    this.text.classList.toggle("begins-later", start > 0);
    this.text.classList.toggle("ends-earlier", end < this.characters);
    say(this.earlier, "Earlier text", Math.max(0, start - PART), start);
    say(this.later, "More text", end, Math.min(end + PART, this.characters));
  }
}

/** Bring into view what is not there already, away from the bar that covers the top. */
function look(node) {
  if (!node) return;
  const [place, frame] = [node.getBoundingClientRect(), dialog.getBoundingClientRect()];
  const top = frame.top + dialog.querySelector(".bar").offsetHeight;
  if (place.top < top || place.bottom > frame.bottom - 8) node.scrollIntoView({ block: "center" });
}

/** What each term of the query adds, where the server can say. */
async function terms(id, answer) {
  const explained = await api.explain(answer, id, asking.signal).catch((error) => {
    if (error.name === "AbortError") throw error;
    return { terms: [] }; // the document is there: what it is worth is extra
  });
  const row = (each) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, each.term),
      el("td", {}, whole(each.tf)),
      el("td", {}, whole(each.df)),
      el("td", {}, score(each.contribution ?? each.weight)),
    );
  const rows = (explained.terms ?? []).map(row);
  if (!rows.length || shown !== id) return;
  const heads = ["term", "times here", "documents with it", "adds"];
  byId("document-terms")?.replaceChildren(
    el(
      "table",
      {},
      el("caption", {}, "What each term adds to the score of the search"),
      el("thead", {}, el("tr", {}, ...heads.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...rows),
    ),
  );
}

byId("document-next").addEventListener("click", () => reader?.step(1));
byId("document-previous").addEventListener("click", () => reader?.step(-1));
byId("document-best").addEventListener("click", () => reader?.toBest());
dialog.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !reader?.matches.length) return;
  if (event.key === "n") reader.step(1);
  else if (event.key === "p" || event.key === "N") reader.step(-1);
});
