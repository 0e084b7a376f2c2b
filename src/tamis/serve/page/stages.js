// One line that says which stage's ranking is shown: `bm25 → mono …` while it is read, `bm25 → mono` then.
import { el } from "./dom.js";
import { term } from "./terms.js";

/** No answer, or one of one stage, has no line. */
export function render(box, answer) {
  const names = answer?.planned ?? answer?.stages.map((stage) => stage.stage) ?? [];
  box.replaceChildren();
  if (names.length < 2) return;
  const after = answer.after ?? names.length;
  const name = (text, at) => {
    if (at === after - 1) return el("b", {}, term(text));
    if (at < after) return el("span", {}, term(text));
    if (answer.final) return el("span", { class: "missed" }, term(text));
    return el("span", { class: "coming" }, term(text, `${text} …`));
  };
  box.append(
    ...names
      .flatMap((text, at) => [
        at ? el("span", { class: "arrow", "aria-hidden": "true" }, " → ") : null,
        name(text, at),
      ])
      .filter(Boolean),
  );
}
