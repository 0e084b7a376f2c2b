// Two pipelines side by side: two lists, and lines between the places of one document.
import { card, snippetNode } from "./card.js";
import { bend } from "./cascade_shape.js";
import { el, milliseconds, svg } from "./dom.js";
import * as latency from "./latency.js";

const finalRank = (answer, id) => answer.stages.at(-1)?.ranking?.find((each) => each.id === id)?.rank ?? null;

/** How a place compares with the one in the other list: a sign and words. */
function change(rank, there, name) {
  if (there === null) return ["", `not in ${name}`];
  return [there > rank ? "▲" : there < rank ? "▼" : "", `${there} in ${name}`];
}

function row(result, other, otherName, actions) {
  const [sign, words] = change(result.rank, finalRank(other, result.id), otherName);
  const beside = el(
    "span",
    { class: "change" },
    words,
    el("span", { class: "sign", "aria-hidden": "true" }, sign),
  );
  return card(result, actions, { compact: true, beside, lines: snippetNode(result, 110) });
}

function side(name, answer, other, otherName, most, actions) {
  const bars = el("ul", { class: "latency" });
  latency.render(bars, answer, most);
  return el(
    "section",
    { class: "side", "aria-label": `Pipeline ${name}` },
    el(
      "h2",
      {},
      el("span", { class: "letter" }, name),
      el("code", {}, answer.pipeline),
      el("span", { class: "ms" }, milliseconds(answer.ms)),
    ),
    bars,
    answer.complete
      ? null
      : el("p", { class: "notice" }, `The time was up after ${answer.finished}: this is its ranking.`),
    el("ol", { class: "results" }, ...answer.results.map((result) => row(result, other, otherName, actions))),
  );
}

export class Compare {
  constructor(box, actions) {
    this.box = box;
    this.actions = actions;
    new ResizeObserver(() => this.join()).observe(box);
  }

  render(a, b) {
    const most = Math.max(...[...a.stages, ...b.stages].map((stage) => stage.ms));
    this.ids = [...new Set([...a.results, ...b.results].map((result) => result.id))];
    this.joins = svg("svg", { class: "joins", "aria-hidden": "true" });
    this.box.replaceChildren(
      side("A", a, b, "B", most, this.actions),
      this.joins,
      side("B", b, a, "A", most, this.actions),
    );
    this.join();
  }

  clear() {
    this.joins = null;
    this.box.replaceChildren();
  }

  /** Lines between the two places of every document that both lists show. */
  join() {
    if (!this.joins) return;
    const frame = this.joins.getBoundingClientRect();
    const middles = [...this.box.querySelectorAll(".side")].map((each) => {
      const cards = [...each.querySelectorAll(".card")];
      return new Map(
        cards.map((card) => {
          const box = card.getBoundingClientRect();
          return [card.dataset.id, box.top + box.height / 2 - frame.top];
        }),
      );
    });
    const lines = this.ids.map((id) => {
      const [left, right] = middles.map((side) => side.get(id));
      const d =
        left === undefined
          ? stub(frame.width, right, -1)
          : right === undefined
            ? stub(0, left, 1)
            : bend([0, left], [frame.width, right]);
      return svg("path", {
        class: left === undefined || right === undefined ? "line stub" : "line",
        "data-id": id,
        d,
      });
    });
    this.joins.replaceChildren(...lines);
    this.actions.redrawn();
  }
}

/** From a place that the other list does not show: a short way down. */
const stub = (x, y, way) => `M${x} ${y.toFixed(1)}c${14 * way} 0 ${22 * way} 4 ${24 * way} 18`;

/** One sentence on how far two answers agree. */
export function difference(a, b) {
  const places = new Map(b.results.map((result) => [result.id, result.rank]));
  const both = a.results.filter((result) => places.has(result.id));
  const moved = both.filter((result) => places.get(result.id) !== result.rank).length;
  const most = Math.max(a.results.length, b.results.length);
  return `${both.length} of ${most} documents are in both lists, ${moved} of them in another place`;
}
