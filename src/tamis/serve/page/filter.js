// What results must satisfy: a condition on their metadata, and the operators in a query.
import { byId, el } from "./dom.js";

const FEW = 3; // fields that are named as examples

/** `change(changes)` is told of what becomes another state. */
export function start(info, change) {
  const fields = info.fields ?? [];
  const few = fields.slice(0, FEW).join(", ");
  byId("where").placeholder = few
    ? `a condition on ${few}${fields.length > FEW ? " …" : ""}, such as ${fields[0]} = "…"`
    : 'contains "a phrase", or a condition on id or title';
  byId("where").maxLength = info.limits?.where ?? 10_000;
  byId("fields").replaceChildren(...fields.map((value) => el("option", { value })));
  const changed = () =>
    change({ where: byId("where").value.trim(), syntax: byId("syntax").checked ? "simple" : "" });
  byId("filter").addEventListener("submit", (event) => {
    event.preventDefault();
    changed();
  });
  byId("filter").addEventListener("change", changed);
}

export function show({ where, syntax }) {
  if (byId("where").value.trim() !== where) byId("where").value = where;
  byId("syntax").checked = syntax === "simple";
  byId("filtered").replaceChildren(...(where ? ["where ", el("code", {}, where)] : []));
}
