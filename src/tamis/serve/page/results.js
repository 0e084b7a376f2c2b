// The list of results: one card a document.
import { card, snippetNode, sourceNode, titleOf } from "./card.js";
import { el, score } from "./dom.js";
import { brief } from "./metadata.js";
import { term } from "./terms.js";

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
    el("span", { class: "step" }, term(stage), " ", el("b", {}, rank === null ? "–" : String(rank))),
  ]);
  return el("span", { class: "trail" }, ...steps);
}

/** How much of a text that was cut to fit the last model has read. */
function readNode({ read, characters }) {
  if (!read || read.characters >= characters) return null;
  const part = Math.max(1, Math.floor((100 * read.characters) / characters));
  return term("cut", `first ${part}% read`);
}

function follow(result, actions) {
  return el(
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
}

function row(result, stages, actions) {
  const several = stages.length > 1;
  const facts = el(
    "p",
    { class: "facts" },
    several ? trailNode(stages, result.id) : null,
    el("span", {}, term("score"), ` ${score(result.score)}`),
    readNode(result),
    el("span", { class: "id" }, result.id),
    several ? follow(result, actions) : null,
  );
  const children = [sourceNode(result), brief(result.metadata), facts];
  return card(result, actions, { lines: snippetNode(result), children });
}

export function render(list, answer, actions) {
  list.replaceChildren(...answer.results.map((result) => row(result, answer.stages, actions)));
}
