// Cards that move from their old places to their new ones (FLIP: first, last, invert, play).

const CALM = matchMedia("(prefers-reduced-motion: reduce)");
const HOW = { duration: 360, easing: "cubic-bezier(0.2, 0, 0, 1)" };

const tops = (list) =>
  new Map([...list.children].map((card) => [card.dataset.id, card.getBoundingClientRect().top]));

/** Where the focus is within a card, by the card's document and the class of the control. */
function focused(list) {
  const card = list.contains(document.activeElement) && document.activeElement.closest(".card");
  return card ? [card.dataset.id, document.activeElement.classList[0]] : null;
}

function focus(list, [id, control]) {
  const card = [...list.children].find((each) => each.dataset.id === id);
  card?.querySelector(`.${control}`)?.focus({ preventScroll: true });
}

/** Draw a list anew: what stays in it moves to its new place and keeps the focus, what is new appears. */
export function redraw(list, draw) {
  const before = tops(list);
  const held = focused(list);
  draw();
  if (held) focus(list, held);
  if (CALM.matches || !before.size) return;
  for (const [id, top] of tops(list)) {
    const card = [...list.children].find((each) => each.dataset.id === id);
    const from = before.get(id);
    if (from === undefined) card.animate([{ opacity: 0 }, { opacity: 1 }], HOW);
    else if (from !== top)
      card.animate([{ transform: `translateY(${from - top}px)` }, { transform: "none" }], HOW);
  }
}
