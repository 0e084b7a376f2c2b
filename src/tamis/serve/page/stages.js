// One line that says which stage's ranking is shown: `bm25 → mono …` while it is read, `bm25 → mono` then.
import { el } from "./dom.js";

/** No answer, or one of one stage, has no line. */
export function render(box, answer) {
  const names = answer?.planned ?? answer?.stages.map((stage) => stage.stage) ?? [];
  box.replaceChildren();
  if (names.length < 2) return;
  const after = answer.after ?? names.length;
  const name = (text, at) => {
    if (at === after - 1) return el("b", {}, text);
    if (at < after) return el("span", {}, text);
    return answer.final ? el("span", { class: "missed" }, text) : el("span", { class: "coming" }, `${text} …`);
  };
  box.append(
    ...names.flatMap((text, at) => [
      at ? el("span", { class: "arrow", "aria-hidden": "true" }, " → ") : null,
      name(text, at),
    ]).filter(Boolean),
  );
}
