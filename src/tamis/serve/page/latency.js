// Where the time went: one bar a stage, all on one scale.
import { counted, el, milliseconds } from "./dom.js";

const WAITED = 10; // milliseconds of waiting for other people's searches that are worth a word

/** `most` is the time that a whole bar stands for. */
export function render(box, answer, most = Math.max(...answer.stages.map((stage) => stage.ms))) {
  const rows = answer.stages.map((stage) => {
    const bar = el("span", { class: "bar" });
    bar.style.setProperty("--part", String(most > 0 ? stage.ms / most : 0));
    const facts = [];
    if (stage.inferences) facts.push(counted(stage.inferences, "inference"));
    if (stage.waited_ms >= WAITED) facts.push(`waited ${milliseconds(stage.waited_ms)}`);
    if (stage.truncated) facts.push(`${stage.truncated} cut to fit`);
    return el(
      "li",
      { title: stage.expression },
      el("span", { class: "name" }, stage.stage),
      el("span", { class: "track", "aria-hidden": "true" }, bar),
      el("span", { class: "ms" }, milliseconds(stage.ms)),
      facts.length ? el("span", { class: "more" }, facts.join(", ")) : null,
    );
  });
  box.replaceChildren(...rows);
}
