// A document in a list: its place, its title that opens it, a few lines of it.
import { el, score, whole } from "./dom.js";
import { term } from "./terms.js";
import { extract, marked, marks } from "./text.js";

export const titleOf = (document) => document.title || document.id;

/** The title, or else the id, with the words of the query marked. */
export function titleNodes(result) {
  const title = titleOf(result);
  return marked(title, marks(title, result.title ? result.title_highlights : []));
}

/** A few lines, of which `width` characters are shown. */
export function snippetNode({ snippet, characters }, width = Infinity) {
  const { text, highlights, best } = snippet;
  const flags = marks(text, highlights, best ? [{ start: best[0], end: best[1] }] : []);
  const [start, end] = extract(text, flags, width);
  const before = snippet.start + start > 0 ? "…\u00a0" : null;
  const after = snippet.start + [...text.slice(0, end)].length < characters ? "\u00a0…" : null;
  return el("p", { class: "text" }, before, ...marked(text, flags, start, end), after);
}

/** Where these lines are from, where a reader would think otherwise. */
export function sourceNode({ snippet, read, evidence, characters }) {
  if (snippet.source === "passage") {
    const best = Math.max(...evidence.map((each) => each.score));
    return el(
      "p",
      { class: "note" },
      el("span", { class: "evidence best" }, "best passage"),
      ` ${score(best)}`,
    );
  }
  if (snippet.source !== "unread") return null;
  const words = `${read.stage} did not read this: it stopped at character ${whole(read.characters)} of ${whole(characters)}`;
  return el("p", { class: "note unread" }, term("cut", words));
}

/** `beside` follows the title; `children` come below the lines. */
export function card(result, actions, { compact = false, beside = null, lines, children = [] }) {
  const open = el(
    "button",
    { type: "button", class: "open", click: () => actions.open(result.id) },
    ...titleNodes(result),
  );
  return el(
    "li",
    {
      class: compact ? "card compact" : "card",
      "data-id": result.id,
      mouseenter: () => actions.hover(result.id),
      mouseleave: () => actions.hover(""),
    },
    el("span", { class: "rank", "aria-hidden": "true" }, String(result.rank)),
    el("div", { class: "body" }, el("h3", {}, open, beside), lines, ...children),
  );
}
