// The list of results: one card a document.
import { el, score } from "./dom.js";
import { bestOf, extract, marked, marks } from "./text.js";

const WIDTH = 320; // characters of a document on its card

export const titleOf = (document) => document.title || document.id;

/** Where a document stood: [{stage, rank}], with a rank of null from where it was no longer kept. */
export const trail = (stages, id) =>
  stages.map(({ stage, ranking }) => ({
    stage,
    rank: ranking?.find((each) => each.id === id)?.rank ?? null,
  }));

/** `bm25 12 → mono 1`. */
export function trailNode(stages, id) {
  const steps = trail(stages, id).flatMap(({ stage, rank }, at) => [
    at ? el("span", { class: "arrow", "aria-hidden": "true" }, "→") : null,
    el("span", { class: "step" }, `${stage} `, el("b", {}, rank === null ? "–" : String(rank))),
  ]);
  return el("span", { class: "trail" }, ...steps);
}

/** The title, or else the id, with the words of the query marked. */
export function titleNodes(result) {
  const title = titleOf(result);
  return marked(title, marks(title, result.title ? result.title_highlights : []));
}

export function extractNode(result, width = WIDTH) {
  const best = bestOf(result.evidence);
  const flags = marks(result.text, result.highlights, best ? [best] : []);
  const [start, end] = extract(result.text, flags, width);
  const before = start > 0 ? "… " : null;
  const after = end < result.text.length || result.cut ? " …" : null;
  return el("p", { class: "text" }, before, ...marked(result.text, flags, start, end), after);
}

function card(result, stages, actions) {
  const best = bestOf(result.evidence);
  const open = el(
    "button",
    { type: "button", class: "open", click: () => actions.open(result.id) },
    ...titleNodes(result),
  );
  const follow = el(
    "button",
    {
      type: "button",
      class: "follow",
      "aria-pressed": "false",
      "aria-label": `Follow ${titleOf(result)} through the stages`,
      click: () => actions.follow(result.id),
    },
    "Follow",
  );
  return el(
    "li",
    {
      class: "card",
      "data-id": result.id,
      mouseenter: () => actions.hover(result.id),
      mouseleave: () => actions.hover(""),
    },
    el("span", { class: "rank", "aria-hidden": "true" }, String(result.rank)),
    el(
      "div",
      { class: "body" },
      el("h3", {}, open),
      extractNode(result),
      best
        ? el(
            "p",
            { class: "note" },
            el("span", { class: "evidence best" }, "best passage"),
            ` ${score(best.score)}`,
          )
        : null,
      el(
        "p",
        { class: "facts" },
        stages.length > 1 ? trailNode(stages, result.id) : null,
        el("span", {}, `score ${score(result.score)}`),
        el("span", { class: "id" }, result.id),
        stages.length > 1 ? follow : null,
      ),
    ),
  );
}

export function render(list, answer, actions) {
  list.replaceChildren(...answer.results.map((result) => card(result, answer.stages, actions)));
}
