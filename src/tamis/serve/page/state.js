// The state of the page is its address: whatever is shown can be linked to, reloaded and gone back to.

const RESULTS = 10;

/** q: the query. where: the condition that results satisfy. syntax: `simple` where the query may have phrases
 *  and signs. a, b: the pipelines; no `a` is the server's, no `b` is no comparison. k: results shown.
 *  doc: the document that is followed. open: the one that is read whole. */
export function read(search = location.search) {
  const given = new URLSearchParams(search);
  const k = Number(given.get("k"));
  return {
    q: given.get("q") ?? "",
    where: given.get("where") ?? "",
    syntax: given.get("syntax") === "simple" ? "simple" : "",
    a: given.get("a") ?? "",
    b: given.get("b") ?? "",
    k: Number.isInteger(k) && k > 0 ? k : RESULTS,
    doc: given.get("doc") ?? "",
    open: given.get("open") ?? "",
  };
}

export function address(state) {
  const given = new URLSearchParams();
  for (const name of ["q", "where", "syntax", "a", "b", "doc", "open"]) if (state[name]) given.set(name, state[name]);
  if (state.k !== RESULTS) given.set("k", String(state.k));
  const text = given.toString();
  return text ? `?${text}` : location.pathname;
}

/** Whether two states need different answers of the server. */
export const asksOther = (one, other) =>
  ["q", "where", "syntax", "a", "b", "k"].some((name) => one[name] !== other[name]);
