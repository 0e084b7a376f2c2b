// A line of explanation for the words of the field, on hover, focus and touch.
import { byId, el } from "./dom.js";

const LINES = {
  bm25: "Finds candidates by their words: rare words count more, long documents less.",
  ql: "Query likelihood. Finds candidates by how likely the query is, given the words of each document.",
  tfidf: "Finds candidates by how often they have the query's words, rare words first.",
  sdm: "Sequential dependence. Finds candidates with the query's words, better if these stand together.",
  rm3: "Searches again, with words from the best documents of the search before added to the query.",
  mono: "A model that reads the query with one candidate at a time, and says how relevant this is.",
  duo: "A model that reads the query with two candidates at a time, and says which is more relevant.",
  listwise: "A model that reads several candidates together, and scores each beside the others.",
  cascade: "A model that drops the weakest candidates after a few of its layers, and reads on with the rest.",
  firstp: "Scores a document by its first passage.",
  maxp: "Reads a document passage by passage: the best passage counts.",
  sump: "Reads a document passage by passage, and adds up the scores.",
  avgp: "Reads a document passage by passage, and takes the mean of the scores.",
  kmaxp: "Reads a document passage by passage, and takes the mean of the best few.",
  birch: "Scores a document by its best passages together with the score of the search.",
  cedr: "Reads a document chunk by chunk, and scores how its words match those of the query.",
  parade: "Reads a document passage by passage, and makes one representation of them, which it scores.",
  ltr: "A learned sum of features, such as the scores of other stages.",
  groupwise: "Scores candidates by their features, several together.",
  if_unsure: "Goes on to the next model only where the one before is not sure.",
  interpolate: "Adds up the scores of two rankings.",
  normalise: "Puts scores on one scale.",
  fuse: "Merges rankings into one by the ranks or scores of each document.",
  k: "How many candidates this stage keeps. The next stage reads only these: with fewer it is faster, with more it misses less.",
  cut: "A model reads a few hundred words at most. Of a longer text it reads the beginning; maxp reads all.",
  inference: "One reading of a text by the model: most of the time goes into these.",
  waited: "The model was busy with the searches of others.",
  score: "The score of the last stage. Scores of different stages, or of different queries, do not compare.",
  aggregation: "How the answers for pairs become one score for each candidate.",
  model: "The weights that this stage reads with. Smaller models are faster, and rank less well.",
};

const described = (name) => LINES[name] ?? LINES[/^k\d+$/.test(name) ? "k" : ""];

/** A word with its line, if there is one. A `button` can be reached by Tab. */
export function term(name, words = name, tag = "span") {
  if (!described(name)) return el("span", {}, words);
  const attributes = { class: "term", "data-term": name };
  return el(tag, tag === "button" ? { ...attributes, type: "button" } : attributes, words);
}

const tip = () => byId("tip");
let owner = null;

function hide() {
  owner?.removeAttribute("aria-describedby");
  owner = null;
  if (tip().matches(":popover-open")) tip().hidePopover();
}

/** Below the word, or above it where there is no room, and never beyond the screen. */
function place(node) {
  const [word, box] = [node.getBoundingClientRect(), tip().getBoundingClientRect()];
  const below = word.bottom + 6;
  const top = below + box.height > innerHeight ? word.top - box.height - 6 : below;
  const left = Math.min(word.left, document.documentElement.clientWidth - box.width - 8);
  tip().style.top = `${Math.max(4, top)}px`;
  tip().style.left = `${Math.max(8, left)}px`;
}

function show(node) {
  if (owner === node) return;
  hide();
  owner = node;
  tip().textContent = described(node.dataset.term);
  // a dialog hides all that is outside it
  (node.closest("dialog") ?? document.body).append(tip());
  tip().showPopover();
  place(node);
  node.setAttribute("aria-describedby", "tip");
}

const termAt = (event) => event.target.closest?.("[data-term]");

/** Of all words, whenever they are drawn. */
export function listen() {
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "mouse") return;
    const node = termAt(event);
    if (node) show(node);
    else if (owner && owner !== document.activeElement && !tip().contains(event.target)) hide();
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches("[data-term]:focus-visible")) show(event.target);
    else hide();
  });
  document.addEventListener("click", (event) => {
    const node = termAt(event);
    if (node) show(node);
    else hide();
  });
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Escape" || !owner) return;
      hide();
      event.preventDefault(); // what lies below stays open
      event.stopPropagation();
    },
    true,
  );
  addEventListener("scroll", () => owner && place(owner), { passive: true, capture: true });
}

/** Once the page is drawn anew: the word may be gone. */
export const tidy = () => owner && !owner.isConnected && hide();
