// Where the time went: one bar a stage, all on one scale.
import { counted, el, milliseconds, whole } from "./dom.js";
import { term } from "./terms.js";

const WAITED = 10; // milliseconds of waiting for other people's searches that are worth a word

/** `most` is the time that a whole bar stands for. */
export function render(box, answer, most = Math.max(...answer.stages.map((stage) => stage.ms))) {
  const rows = answer.stages.map((stage) => {
    const bar = el("span", { class: "bar" });
    bar.style.setProperty("--part", String(most > 0 ? stage.ms / most : 0));
    const facts = [];
    const fact = (name, words) => facts.push(facts.length ? ", " : "", term(name, words, "button"));
    if (stage.inferences) fact("inference", counted(stage.inferences, "inference"));
    if (stage.waited_ms >= WAITED) fact("waited", `waited ${milliseconds(stage.waited_ms)}`);
    if (stage.truncated) fact("cut", `${whole(stage.truncated)} cut to fit`);
    return el(
      "li",
      {},
      el("span", { class: "name" }, term(stage.stage)),
      el("span", { class: "track", "aria-hidden": "true", title: stage.expression }, bar),
      el("span", { class: "ms" }, milliseconds(stage.ms)),
      facts.length ? el("span", { class: "more" }, ...facts) : null,
    );
  });
  box.replaceChildren(...rows);
}
