// The keyboard: `/` to the search, arrows through the results. Enter and Escape are the browser's own, on the
// buttons and the dialog.
import { byId } from "./dom.js";

const typing = (node) => node.matches("input:not([type=range]), select, textarea, [role=listbox]");

/** The buttons that open a document, list by list from top to bottom. */
const openers = () => [...document.querySelectorAll("main > div:not([hidden]) .card .open")];

function move(step) {
  const all = openers();
  if (!all.length) return false;
  const here = all.findIndex((each) => each.closest(".card").contains(document.activeElement));
  if (here + step < 0) byId("query").focus();
  else all[Math.min(all.length - 1, here + step)].focus();
  return true;
}

/** `actions.point(id)`: the result that has the focus; `actions.unfollow()`: Escape outside the dialog. */
export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("document").open) return;
    const { key, target } = event;
    const inQuery = target === byId("query");
    let done = false;
    if (key === "Escape" && !typing(target)) actions.unfollow();
    if (inQuery ? key === "ArrowDown" : key === "ArrowDown" && free(target)) done = move(1);
    else if (key === "ArrowUp" && free(target)) done = move(-1);
    else if (key === "/" && !typing(target)) {
      byId("query").focus();
      byId("query").select();
      done = true;
    }
    if (done) event.preventDefault();
  });
  document.addEventListener("focusin", (event) => {
    const card = event.target.closest?.(".card");
    if (card) actions.point(card.dataset.id);
  });
}

/** Where arrows have no meaning of their own. */
const free = (node) => !typing(node) && !node.matches("input, summary");
